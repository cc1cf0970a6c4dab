//! What is fuzzed. A target panics when the decoder does something that it must not.

mod aether;
mod gate;
mod launcher;
mod layerd;
mod publisher;
mod wire;

pub struct Target {
    pub name: &'static str,
    /// Inputs to begin with, some of them well-formed.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Runs one input and returns a number that differs when something else happened (say an error code and a count of events).
    pub run: fn(&[u8]) -> u64,
    /// The most memory that an input of this length may cost.
    pub max_memory: fn(usize) -> usize,
}

pub const TARGETS: &[Target] = &[
    aether::ACCOUNTS,
    aether::PROCESSES,
    aether::TAR,
    aether::PARAMS,
    gate::FIRST_BYTES,
    gate::REQUEST,
    launcher::REQUEST,
    launcher::RECORD,
    launcher::PROCESS,
    layerd::CHUNK_MAP,
    layerd::QUESTION,
    layerd::TRACE,
    publisher::REQUEST,
    publisher::RECORD,
    wire::FRAMES,
    wire::SERVER,
    wire::CLIENT,
];
