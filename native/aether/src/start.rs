//! From the first instruction to the loop. Nothing is ever printed: there is nobody to read it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::event_loop::{Aether, Source};
use crate::exec::oom;
use crate::outside;
use crate::passwd::Accounts;
use crate::proc::Proc;
use crate::slab::Slab;
use crate::sys::fd::{self, owned};
use crate::sys::poll::{self, Poll};
use crate::sys::scratch::Scratch;
use crate::sys::{Errno, check, signals};

/// The contract with the launcher: a listening unix stream socket.
const LISTENER_FD: RawFd = 3;
/// The listener of the filter that this sandbox is under: it is the launcher's, which finds it here again when it was restarted. aether could not use it,
/// and keeps it open for as long as it lives.
const REFUSALS_FD: RawFd = 6;
/// Highest descriptor of the contract; everything above is not ours.
const LAST_PASSED_FD: RawFd = REFUSALS_FD;
/// Those that may be absent.
const OPTIONAL_FDS: [RawFd; 3] = [oom::COUNTER_FD, oom::SCORE_FD, REFUSALS_FD];
/// Descriptors that aether may have, where the hard limit allows.
const OPEN_FILES: libc::rlim_t = 65_536;
/// Allocations from here on are mappings of their own, given back when freed. Above the size of the buffers of a connection, which
/// grow and shrink with every piece of output: as mappings each of these would be a system call.
const MAPPED_FROM: i32 = 512 << 10;
/// Free memory at the end of the heap that is kept while things go on; a quiet moment gives it back.
const KEEP_FREE: i32 = 2 << 20;

pub fn run() -> i32 {
    match prepare() {
        Ok(mut aether) => aether.run(),
        Err(errno) => errno,
    }
}

fn prepare() -> Result<Aether, Errno> {
    // SAFETY: plain calls before anything else runs; the name ends with NUL.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"aether".as_ptr());
        // Orphans come here, as they do to PID 1, also where aether is not that.
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEEP_FREE);
        libc::chdir(c"/".as_ptr());
        // Modes are given explicitly wherever something is made.
        libc::umask(0);
    }
    // SAFETY: plain call; what lies above the contract's descriptors is not ours, and nothing was opened yet.
    unsafe { libc::syscall(libc::SYS_close_range, LAST_PASSED_FD + 1, u32::MAX, 0) };
    let null = occupy_fds()?;
    let signals = signals::take_over()?;
    // SAFETY: plain descriptor calls.
    unsafe {
        for passed in LISTENER_FD..=LAST_PASSED_FD {
            libc::fcntl(passed, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
    outside::start()?;
    let listener = owned(LISTENER_FD);
    fd::set_nonblocking(&listener)?;
    let poll = Poll::new()?;
    poll.add(&listener, poll::READ, Source::Listener.token())?;
    poll.add(&signals, poll::READ, Source::Signals.token())?;
    Ok(Aether {
        poll,
        listener,
        is_full: false,
        signals,
        proc: Proc::open()?,
        null,
        open_files: raise_open_files(),
        accounts: Accounts::default(),
        connections: Slab::default(),
        execs: Default::default(),
        sessions: Default::default(),
        dooms: Default::default(),
        children: BTreeMap::new(),
        deadlines: BTreeSet::new(),
        turns: VecDeque::new(),
        routes: Slab::default(),
        watches: 0,
        scratch: Scratch::new(wire::server::READ_SIZE)?,
        tidy_at: None,
    })
}

/// Puts /dev/null where 0, 1, 2 or the optional passed one are closed, so that nothing of aether's ever has these numbers, and
/// returns another descriptor of it. Without a /dev/null an empty file in memory takes its place.
fn occupy_fds() -> Result<OwnedFd, Errno> {
    let null = fd::open_at(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR, 0).or_else(|_| {
        // SAFETY: the name ends with NUL.
        check(unsafe { libc::memfd_create(c"null".as_ptr(), libc::MFD_CLOEXEC) }).map(owned)
    })?;
    let number = null.as_raw_fd();
    // SAFETY: plain descriptor calls.
    unsafe {
        let above = owned(check(libc::fcntl(number, libc::F_DUPFD_CLOEXEC, LAST_PASSED_FD + 1))?);
        for fixed in [0, 1, 2].into_iter().chain(OPTIONAL_FDS) {
            if fixed != number && libc::fcntl(fixed, libc::F_GETFD) < 0 {
                check(libc::dup2(number, fixed))?;
            }
        }
        if number <= LAST_PASSED_FD {
            // It stays as the fixed descriptor that it happened to become.
            std::mem::forget(null);
        }
        Ok(above)
    }
}

/// Raises the soft limit to the hard one and returns what it was, for the programs.
fn raise_open_files() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid to read and write.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit)).ok()?;
        let raised = libc::rlimit { rlim_cur: limit.rlim_max.min(OPEN_FILES), ..limit };
        if raised.rlim_cur <= limit.rlim_cur {
            return None;
        }
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raised)).ok()?;
    }
    Some(limit)
}
