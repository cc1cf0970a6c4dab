//! The loop: mutate, run, keep what did something new.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::memory;
use crate::mutate::mutate;
use crate::random::{Random, hash};
use crate::targets::Target;

/// Inputs that are kept besides the corpus, at most.
const MAX_KEPT: usize = 4_096;
/// Inputs between two looks at the clock.
const CLOCK_EVERY: u64 = 64;

#[derive(Clone, Copy)]
pub enum Budget {
    Time(Duration),
    #[cfg_attr(not(test), allow(dead_code))] // Tests run by count, so that they do not depend on speed.
    Inputs(u64),
}

pub struct Report {
    pub inputs: u64,
    /// Inputs that did something that none before them did.
    pub kept: usize,
    /// Of all inputs, in order.
    #[cfg_attr(not(test), allow(dead_code))]
    pub hash: u64,
}

thread_local! {
    static CURRENT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static TARGET: Cell<&'static str> = const { Cell::new("") };
}

pub fn fuzz(target: &'static Target, budget: Budget, seed: u64) -> Report {
    tell_of_panics();
    let mut random = Random::new(seed);
    let mut corpus = (target.corpus)();
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    let mut seen = HashSet::new();
    for input in &corpus {
        seen.insert(once(target, input));
    }
    let originals = corpus.len();
    let begun = Instant::now();
    let mut inputs = 0;
    let mut all = 0;
    loop {
        let is_over = match budget {
            Budget::Inputs(most) => inputs >= most,
            Budget::Time(most) => inputs % CLOCK_EVERY == 0 && begun.elapsed() >= most,
        };
        if is_over {
            return Report { inputs, kept: corpus.len() - originals, hash: all };
        }
        let input = mutate(&corpus, &mut random);
        inputs += 1;
        all = hash(&[all.to_le_bytes(), hash(&input).to_le_bytes()].concat());
        if seen.insert(once(target, &input)) && corpus.len() < originals + MAX_KEPT {
            corpus.push(input);
        }
    }
}

/// Runs one input; what it returns tells apart what it did.
pub fn once(target: &'static Target, input: &[u8]) -> u64 {
    TARGET.set(target.name);
    CURRENT.with_borrow_mut(|current| {
        current.clear();
        current.extend_from_slice(input);
    });
    let (outcome, peak) = memory::peak_of(|| (target.run)(input));
    let most = (target.max_memory)(input.len());
    assert!(peak <= most, "an input of {} bytes cost {peak} bytes of memory, more than {most}", input.len());
    outcome
}

/// The release profile aborts on a panic, so the input is printed by the hook.
fn tell_of_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            usual(info);
            let input = CURRENT.with_borrow(|current| hex(current));
            eprintln!("again: cargo run --release -p fuzz -- {} hex:{input}", TARGET.get());
        }));
    });
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}
