//! The processes that belong to a command: its descendants, and who shares a session or process group with one of them. (What was
//! orphaned and also left all of these is nobody's: a daemon.)

use std::collections::{BTreeSet, HashMap};

use crate::clock::{self, NANOS_PER_MS};
use crate::proc::{Proc, Stat};

/// Rounds of stopping before whoever was found is killed anyway.
const STOP_ROUNDS: usize = 64;
/// Time that stopping may take: a fork bomb of all the pids that a sandbox may have is scanned several times in it.
const STOP_NANOS: u64 = 2_000 * NANOS_PER_MS;

/// Who is looked for.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// Members whatever they look like: pids that cannot have been reused (not reaped yet).
    pub roots: Vec<i32>,
    /// Processes that are no members, and through which nobody becomes one.
    pub excluded: Vec<i32>,
    /// The root itself is left alone; only who descends from it counts.
    pub spare_roots: bool,
}

/// Living members, in the order in which the closure finds them: parents before their children.
pub fn members(stats: &[Stat], family: &Family) -> Vec<Stat> {
    let mut related: HashMap<i32, Vec<usize>> = HashMap::new();
    for (index, stat) in stats.iter().enumerate() {
        for id in [stat.ppid, stat.session, stat.pgrp] {
            related.entry(id).or_default().push(index);
        }
    }
    let own = std::process::id() as i32;
    let mut seen: BTreeSet<i32> = family.excluded.iter().copied().chain([own, 0]).collect();
    seen.extend(&family.roots);
    let mut queue: Vec<i32> = family.roots.clone();
    let mut found = Vec::new();
    if !family.spare_roots {
        found.extend(stats.iter().filter(|stat| family.roots.contains(&stat.pid)));
    }
    while let Some(id) = queue.pop() {
        for &index in related.get(&id).into_iter().flatten() {
            let stat = &stats[index];
            if seen.insert(stat.pid) {
                found.push(stat);
                queue.push(stat.pid);
            }
        }
    }
    found.into_iter().filter(|stat| !matches!(stat.state, b'Z' | b'X')).copied().collect()
}

fn send(pid: i32, signal: i32) -> bool {
    // SAFETY: plain call.
    pid > 1 && unsafe { libc::kill(pid, signal) } == 0
}

/// Sends a signal to every member; true when one got it.
pub fn signal(proc: &Proc, family: &Family, number: i32) -> bool {
    members(&proc.scan(), family).iter().filter(|stat| send(stat.pid, number)).count() > 0
}

/// Ends every member. They are first stopped, until no new one appears: what is stopped forks no more, so that killing cannot be
/// outrun. Returns their pids.
pub fn kill(proc: &Proc, family: &Family) -> Vec<i32> {
    let give_up = clock::now() + STOP_NANOS;
    let mut stopped: BTreeSet<(i32, u64)> = BTreeSet::new();
    for _ in 0..STOP_ROUNDS {
        let fresh: Vec<Stat> = members(&proc.scan(), family)
            .into_iter()
            .filter(|stat| !stopped.contains(&(stat.pid, stat.start)))
            .collect();
        if fresh.is_empty() {
            break;
        }
        for stat in fresh {
            send(stat.pid, libc::SIGSTOP);
            stopped.insert((stat.pid, stat.start));
        }
        if clock::now() > give_up {
            break;
        }
    }
    for &(pid, _) in &stopped {
        send(pid, libc::SIGKILL);
    }
    stopped.into_iter().map(|(pid, _)| pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: i32, ppid: i32, session: i32, pgrp: i32) -> Stat {
        Stat { pid, ppid, pgrp, session, state: b'S', start: 1, rss_pages: 1 }
    }

    fn pids(found: &[Stat]) -> Vec<i32> {
        let mut pids: Vec<i32> = found.iter().map(|stat| stat.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn x04_children_session_mates_and_what_descends_from_both_belong_and_others_do_not() {
        let stats = [
            stat(10, 1, 10, 10),
            stat(11, 10, 10, 10),
            stat(12, 11, 12, 12), // setsid, parent lives
            stat(13, 1, 12, 12),  // its orphan
            stat(14, 1, 10, 14),  // orphan that stayed in the session
            stat(20, 1, 20, 20),  // another command
            stat(21, 20, 20, 20),
        ];
        let family = Family { roots: vec![10], ..Family::default() };
        assert_eq!(pids(&members(&stats, &family)), [10, 11, 12, 13, 14]);
        let run = Family { roots: vec![10], excluded: vec![11], spare_roots: true };
        assert_eq!(pids(&members(&stats, &run)), [14]);
    }

    #[test]
    fn the_dead_are_passed_over_but_lead_to_the_living() {
        let mut stats = [stat(10, 1, 10, 10), stat(11, 10, 10, 10)];
        stats[0].state = b'Z';
        assert_eq!(pids(&members(&stats, &Family { roots: vec![10], ..Family::default() })), [11]);
    }
}
