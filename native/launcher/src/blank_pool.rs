//! Which blanks there are and which there should be. Bare ones lack a root filesystem; furnished ones have that of a set of layers that was asked for
//! lately, so that its next create finds nearly everything done.

use std::collections::VecDeque;

use crate::request::Lower;

/// Sets of layers that are remembered.
const MAX_SETS: usize = 8;
/// What one create adds to the score of its set; before, every score loses one part in `DECAY`.
const WEIGHT: u64 = 1 << 16;
const DECAY: u64 = 32;
/// The part of the pool that stays bare, for layers that nobody has foreseen.
const BARE_PART: usize = 4;
/// A set gives up blanks only when it has so many more than it should: the rest is worth less than the work.
const SURPLUS: usize = 4;

struct Set {
    lower: Lower,
    score: u64,
    slots: VecDeque<u32>,
}

pub struct BlankPool {
    wanted: usize,
    bare: VecDeque<u32>,
    sets: Vec<Set>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    Bare(u32),
    Furnished(u32),
}

/// What to do next to come nearer to what there should be.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Make,
    /// Give this bare one the root filesystem of these layers.
    Furnish(u32, Lower),
    /// Remove this one: nobody asks for its layers any more.
    Retire(u32),
}

impl BlankPool {
    pub fn new(wanted: usize) -> Self {
        Self { wanted, bare: VecDeque::new(), sets: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.bare.len() + self.sets.iter().map(|set| set.slots.len()).sum::<usize>()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How full the pool is, in parts of `of`.
    pub fn level(&self, of: usize) -> usize {
        (self.len() * of).checked_div(self.wanted).unwrap_or(of)
    }

    /// Takes the best one for these layers, and remembers that they were asked for.
    pub fn take(&mut self, lower: &Lower) -> Option<Taken> {
        if self.wanted == 0 {
            return None;
        }
        self.remember(lower);
        let furnished = self.sets.iter_mut().find(|set| set.lower == *lower).and_then(|set| set.slots.pop_front());
        furnished.map(Taken::Furnished).or_else(|| self.bare.pop_front().map(Taken::Bare))
    }

    pub fn add_bare(&mut self, slot: u32) {
        self.bare.push_back(slot);
    }

    pub fn add_furnished(&mut self, slot: u32, lower: &Lower) {
        match self.sets.iter_mut().find(|set| set.lower == *lower) {
            Some(set) => set.slots.push_back(slot),
            None => self.sets.push(Set { lower: lower.clone(), score: 0, slots: VecDeque::from([slot]) }),
        }
    }

    /// A blank is gone.
    pub fn remove(&mut self, slot: u32) {
        self.bare.retain(|own| *own != slot);
        for set in &mut self.sets {
            set.slots.retain(|own| *own != slot);
        }
    }

    /// Foresees no more creates with what is meant, and gives up the blanks that stand on it.
    pub fn forget(&mut self, is_meant: impl Fn(&Lower) -> bool) -> Vec<u32> {
        let (gone, kept) = std::mem::take(&mut self.sets).into_iter().partition(|set: &Set| is_meant(&set.lower));
        self.sets = kept;
        gone.into_iter().flat_map(|set| set.slots).collect()
    }

    /// Whether there is one for these layers.
    pub fn serves(&self, lower: &Lower) -> bool {
        !self.bare.is_empty() || self.sets.iter().any(|set| set.lower == *lower && !set.slots.is_empty())
    }

    /// `starting` blanks are being made.
    pub fn next_step(&self, starting: usize) -> Option<Step> {
        if self.len() + starting < self.wanted {
            return Some(Step::Make);
        }
        let excess = self.len().saturating_sub(self.wanted);
        let surplus =
            |set: &&Set| set.slots.len() >= self.target(set) + SURPLUS || (set.score == 0 && !set.slots.is_empty());
        let short = self.sets.iter().find(|set| set.slots.len() < self.target(set));
        if let (Some(set), Some(slot)) = (short, self.bare.front())
            && self.bare.len() > self.bare_target()
        {
            return Some(Step::Furnish(*slot, set.lower.clone()));
        }
        if short.is_some() || excess > 0 {
            return self.sets.iter().find(surplus).and_then(|set| set.slots.front()).map(|slot| Step::Retire(*slot));
        }
        None
    }

    fn remember(&mut self, lower: &Lower) {
        for set in &mut self.sets {
            set.score -= set.score / DECAY;
        }
        match self.sets.iter_mut().find(|set| set.lower == *lower) {
            Some(set) => set.score += WEIGHT,
            None => self.sets.push(Set { lower: lower.clone(), score: WEIGHT, slots: VecDeque::new() }),
        }
        while self.sets.iter().filter(|set| set.score > 0).count() > MAX_SETS {
            if let Some(least) = self.sets.iter_mut().filter(|set| set.score > 0).min_by_key(|set| set.score) {
                least.score = 0;
            }
        }
        self.sets.retain(|set| set.score > 0 || !set.slots.is_empty());
    }

    /// How many blanks of a set there should be.
    fn target(&self, set: &Set) -> usize {
        let total: u64 = self.sets.iter().map(|set| set.score).sum();
        let furnished = (self.wanted - self.wanted.div_ceil(BARE_PART)) as u64;
        usize::try_from((furnished * set.score).checked_div(total).unwrap_or(0)).unwrap_or(0)
    }

    fn bare_target(&self) -> usize {
        self.wanted.saturating_sub(self.sets.iter().map(|set| self.target(set)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Digest;

    fn layers(number: u8) -> Lower {
        Lower { layers: vec![Digest::parse(&format!("sha256:{:064x}", number)).expect("a digest")], set: None }
    }

    /// Does what the pool wants until it wants nothing more; returns the number of steps of each kind.
    fn fill(pool: &mut BlankPool, next_slot: &mut u32) -> (usize, usize, usize) {
        let mut steps = (0, 0, 0);
        while let Some(step) = pool.next_step(0) {
            match step {
                Step::Make => {
                    steps.0 += 1;
                    pool.add_bare(*next_slot);
                    *next_slot += 1;
                }
                Step::Furnish(slot, layers) => {
                    steps.1 += 1;
                    pool.remove(slot);
                    pool.add_furnished(slot, &layers);
                }
                Step::Retire(slot) => {
                    steps.2 += 1;
                    pool.remove(slot);
                }
            }
            assert!(steps.0 + steps.1 + steps.2 < 10_000, "it never rests");
        }
        steps
    }

    #[test]
    fn a_pool_of_nothing_wants_and_gives_nothing() {
        let mut pool = BlankPool::new(0);
        assert_eq!(pool.next_step(0), None);
        assert_eq!(pool.take(&layers(1)), None);
    }

    #[test]
    fn bare_ones_come_first_and_most_are_furnished_for_what_is_asked_for() {
        let (mut pool, mut slot) = (BlankPool::new(16), 0);
        assert_eq!(fill(&mut pool, &mut slot), (16, 0, 0));
        assert!(matches!(pool.take(&layers(1)), Some(Taken::Bare(_))));
        assert_eq!(fill(&mut pool, &mut slot), (1, 12, 0));
        assert!(matches!(pool.take(&layers(1)), Some(Taken::Furnished(_))));
        for _ in 0..4 {
            assert!(pool.serves(&layers(2)));
            assert!(matches!(pool.take(&layers(2)), Some(Taken::Bare(_))), "others find bare ones");
        }
        assert!(!pool.serves(&layers(2)) && pool.serves(&layers(1)));
        assert_eq!(pool.take(&layers(2)), None);
    }

    #[test]
    fn what_is_asked_for_no_more_gives_way() {
        let (mut pool, mut slot) = (BlankPool::new(16), 0);
        fill(&mut pool, &mut slot);
        pool.take(&layers(1));
        fill(&mut pool, &mut slot);
        for _ in 0..200 {
            pool.take(&layers(2));
            fill(&mut pool, &mut slot);
        }
        assert!(pool.sets.iter().find(|set| set.lower == layers(2)).is_some_and(|set| set.slots.len() >= 8));
        assert_eq!(pool.len(), 16);
    }

    #[test]
    fn sets_share_the_pool_and_their_number_is_bounded() {
        let (mut pool, mut slot) = (BlankPool::new(32), 0);
        for round in 0..400 {
            pool.take(&layers(round as u8 % 20));
            fill(&mut pool, &mut slot);
            assert_eq!(pool.len(), 32);
        }
        assert!(pool.sets.iter().filter(|set| set.score > 0).count() <= MAX_SETS);
    }

    #[test]
    fn forgetting_a_layer_gives_its_blanks_up() {
        let (mut pool, mut slot) = (BlankPool::new(16), 0);
        fill(&mut pool, &mut slot);
        pool.take(&layers(1));
        fill(&mut pool, &mut slot);
        assert_eq!(pool.forget(|lower| *lower == layers(1)).len(), 12);
        assert_eq!(fill(&mut pool, &mut slot), (12, 0, 0), "and none are furnished for it again");
    }

    #[test]
    fn one_that_died_is_replaced() {
        let (mut pool, mut slot) = (BlankPool::new(4), 0);
        fill(&mut pool, &mut slot);
        pool.remove(2);
        assert_eq!(pool.next_step(1), None);
        assert_eq!(pool.next_step(0), Some(Step::Make));
    }
}
