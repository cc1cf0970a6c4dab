//! A number of things at once, and a number a second.

use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
pub struct Rate {
    pub burst: u32,
    pub per_second: u32,
}

/// What is left of a rate.
pub struct Allowance {
    rate: Rate,
    /// In millionths.
    left: u64,
    at: Instant,
}

const ONE: u64 = 1_000_000;

impl Allowance {
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, left: u64::from(rate.burst) * ONE, at: now }
    }

    fn fill(&mut self, now: Instant) {
        let micros = u64::try_from(now.saturating_duration_since(self.at).as_micros()).unwrap_or(u64::MAX);
        let come = micros.saturating_mul(u64::from(self.rate.per_second));
        self.left = self.left.saturating_add(come).min(u64::from(self.rate.burst) * ONE);
        self.at = self.at.max(now);
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let is_there = self.left >= ONE;
        if is_there {
            self.left -= ONE;
        }
        is_there
    }

    /// How long until there are so many; nothing when there are.
    pub fn time_until(&mut self, count: u32, now: Instant) -> Duration {
        self.fill(now);
        let missing = (u64::from(count) * ONE).saturating_sub(self.left);
        Duration::from_micros(missing.div_ceil(u64::from(self.rate.per_second)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let start = Instant::now();
        let mut allowance = Allowance::new(Rate { burst: 4, per_second: 100 }, start);
        let taken = |allowance: &mut Allowance, at| (0..100).filter(|_| allowance.take(at)).count();
        assert_eq!(taken(&mut allowance, start), 4);
        assert_eq!(allowance.time_until(2, start), Duration::from_millis(20));
        assert_eq!(taken(&mut allowance, start + Duration::from_millis(20)), 2);
        assert_eq!(taken(&mut allowance, start), 0, "time does not go back");
        assert_eq!(taken(&mut allowance, start + Duration::from_secs(3_600)), 4);
    }
}
