//! Time: one monotonic clock for deadlines, one wall clock for what is shown.

pub const NANOS_PER_MS: u64 = 1_000_000;

fn read(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to; these clocks always exist.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Milliseconds since 1970.
pub fn wall_ms() -> u64 {
    read(libc::CLOCK_REALTIME) / NANOS_PER_MS
}

/// The wall clock at which the machine booted, in milliseconds: process start times count from there.
pub fn boot_ms() -> u64 {
    wall_ms().saturating_sub(read(libc::CLOCK_BOOTTIME) / NANOS_PER_MS)
}

/// Clock ticks since boot, in the unit of the start times in /proc/PID/stat (100 a second for user space on every Linux).
pub fn ticks() -> u64 {
    read(libc::CLOCK_BOOTTIME) / 10_000_000
}
