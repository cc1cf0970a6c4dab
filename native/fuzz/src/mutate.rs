//! Makes inputs out of inputs.

use crate::random::Random;

/// An input does not grow beyond this.
const MAX_INPUT: usize = 256 << 10;
/// Changes of one input, at most.
const MAX_CHANGES: usize = 8;
/// Bytes that one change inserts, removes or copies, at most, unless it splices.
const MAX_RUN: usize = 64;

const NUMBERS: [u32; 14] = [0, 1, 7, 8, 11, 12, 63, 64, 255, 256, 65_536, 65_537, 0x7fff_ffff, u32::MAX];
const BYTES: &[u8] = b"\0\x01\x7f\x80\xff\n \"\\/.{}[]:,0";

/// A changed copy of one of the corpus, which must not be empty.
pub fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(MAX_CHANGES) {
        change(&mut input, corpus, random);
    }
    input.truncate(MAX_INPUT);
    input
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let run = 1 + random.below(MAX_RUN);
    let end = (at + run).min(input.len());
    match random.below(10) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.next() as u8,
        2 if at < input.len() => input[at] = BYTES[random.below(BYTES.len())],
        3 => {
            let bytes = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            for (target, byte) in input.iter_mut().skip(at).zip(bytes) {
                *target = byte;
            }
        }
        4 => drop(input.drain(at..end)),
        5 => {
            let copy = input[at..end].to_vec();
            let to = random.below(input.len() + 1);
            input.splice(to..to, copy);
        }
        6 => {
            let byte = BYTES[random.below(BYTES.len())];
            input.splice(at..at, std::iter::repeat_n(byte, run));
        }
        7 => input.truncate(at),
        8 => {
            // The beginning of one and the end of another.
            let other = &corpus[random.below(corpus.len())];
            input.truncate(at);
            input.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        _ => {
            // One behind the other: what a long conversation is made of.
            let other = &corpus[random.below(corpus.len())];
            input.extend_from_slice(other);
        }
    }
}
