//! How often a sandbox may do something: so that one that knocks at every door, again and again, cannot drown the others.

use std::time::Instant;

/// So many at once, and then so many in a second.
#[derive(Debug)]
pub struct Budget {
    left: u32,
    most: u32,
    a_second: u32,
    filled: Instant,
    missed: u64,
}

impl Budget {
    pub fn new(most: u32, a_second: u32, now: Instant) -> Self {
        Self { left: most, most, a_second, filled: now, missed: 0 }
    }

    /// Takes one, and says how many were missed since the one before; `None` counts this one as missed.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let seconds = now.saturating_duration_since(self.filled).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(self.a_second);
            self.left = self.left.saturating_add(more).min(self.most);
            self.filled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.missed))
            }
            None => {
                self.missed += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_goes_beyond_the_budget_is_counted() {
        let now = Instant::now();
        let mut budget = Budget::new(5, 2, now);
        for _ in 0..5 {
            assert_eq!(budget.take(now), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(budget.take(now), None);
        }
        let later = now + Duration::from_secs(1);
        assert_eq!((budget.take(later), budget.take(later), budget.take(later)), (Some(3), Some(0), None));
        let much_later = later + Duration::from_secs(1_000);
        assert_eq!((0..9).filter(|_| budget.take(much_later).is_some()).count(), 5);
    }
}
