//! Programs that judge system calls: what they are put together from (seccomp(2), linux/filter.h).

use crate::sys::Errno;

/// One instruction of classic BPF (`struct sock_filter`).
pub type Instruction = libc::sock_filter;

#[cfg(target_arch = "x86_64")]
pub const NATIVE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
pub const NATIVE: u32 = 0xC000_00B7;

// Offsets in `struct seccomp_data`; of an argument, its low word.
pub const NUMBER: u32 = 0;
pub const ARCHITECTURE: u32 = 4;
pub const FIRST_ARGUMENT: u32 = 16;
pub const SECOND_ARGUMENT: u32 = 24;
pub const THIRD_ARGUMENT: u32 = 32;

const LOAD: u16 = 0x20;
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;
pub const JUMP_IF_EQUAL: u16 = 0x15;
pub const JUMP_IF_AT_LEAST: u16 = 0x35;
pub const JUMP_IF_ANY_BIT: u16 = 0x45;

pub const ALLOW: u32 = 0x7FFF_0000;
/// With an errno in its low bits.
pub const REFUSE: u32 = 0x0005_0000;
pub const KILL: u32 = 0x8000_0000;
/// Whoever holds the filter's listener answers.
pub const ASK: u32 = 0x7FC0_0000;

/// Compares what is loaded with `k`, and passes over so many instructions.
pub fn jump(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, jt: if_true, jf: if_false, k }
}

pub fn load(offset: u32) -> Instruction {
    jump(LOAD, offset, 0, 0)
}

pub fn give(verdict: u32) -> Instruction {
    jump(RETURN, verdict, 0, 0)
}

/// `if value == k { verdict }`
pub fn verdict_if(k: u32, verdict: Instruction) -> [Instruction; 2] {
    [jump(JUMP_IF_EQUAL, k, 0, 1), verdict]
}

/// Refuses with an error number.
pub fn refuse(errno: Errno) -> Instruction {
    give(REFUSE | (errno.raw_os_error() as u32 & 0xFFFF))
}

/// What becomes of the values of one range: instructions that end in a verdict on every way.
pub struct Range {
    pub first: u32,
    pub last: u32,
    pub then: Vec<Instruction>,
}

/// Values that one leaf of the tree tells apart, one after another: a tree down to the last would have twice as many instructions, and the kernel
/// translates them all for each sandbox.
const EXCEPTIONS: usize = 8;

/// A part of the values, up to where the next one begins.
type Segment = (u32, Vec<Instruction>);

/// Decides on the value that is loaded, as a binary tree over the ranges, which are sorted and do not overlap. What is in none is `otherwise`.
pub fn decide(ranges: Vec<Range>, otherwise: Instruction) -> Vec<Instruction> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut push = |first: u32, then: Vec<Instruction>| match segments.last() {
        Some((_, before)) if is_same(before, &then) => {}
        _ => segments.push((first, then)),
    };
    let mut next = Some(0);
    for range in ranges {
        if next.is_some_and(|next| next < range.first) {
            push(next.unwrap_or(0), vec![otherwise]);
        }
        push(range.first, range.then);
        next = range.last.checked_add(1);
    }
    if let Some(next) = next {
        push(next, vec![otherwise]);
    }
    tree(&segments, None)
}

/// `segments` is not empty; they go up to where `end` begins.
fn tree(segments: &[Segment], end: Option<u32>) -> Vec<Instruction> {
    if let Some(leaf) = leaf(segments, end) {
        return leaf;
    }
    let (below, from) = segments.split_at(segments.len() / 2);
    let middle = from[0].0;
    let (left, right) = (tree(below, Some(middle)), tree(from, end));
    let mut program = match u8::try_from(left.len()) {
        Ok(length) => vec![jump(JUMP_IF_AT_LEAST, middle, length, 0)],
        Err(_) => vec![jump(JUMP_IF_AT_LEAST, middle, 0, 1), jump(JUMP, left.len() as u32, 0, 0)],
    };
    program.extend(left);
    program.extend(right);
    program
}

/// Few enough segments: tests for each that is not the usual one, then what each leads to.
fn leaf(segments: &[Segment], end: Option<u32>) -> Option<Vec<Instruction>> {
    // Two neighbours are never the same, so every other one may be.
    let usual = &segments.get(1).or(segments.first())?.1;
    let usual =
        if segments.iter().step_by(2).all(|(_, then)| is_same(then, &segments[0].1)) { &segments[0].1 } else { usual };
    let mut tests: Vec<(u32, Option<u32>, usize)> = Vec::new();
    let mut blocks: Vec<&Vec<Instruction>> = Vec::new();
    for (at, (first, then)) in segments.iter().enumerate().filter(|(_, (_, then))| !is_same(then, usual)) {
        let block = blocks.iter().position(|block| is_same(block, then)).unwrap_or_else(|| {
            blocks.push(then);
            blocks.len() - 1
        });
        let after = segments.get(at + 1).map(|(first, _)| *first).or(end);
        tests.push((*first, after, block));
    }
    if tests.len() > EXCEPTIONS {
        return None;
    }
    let is_one = |(first, after, _): &(u32, Option<u32>, usize)| first.checked_add(1) == *after;
    let length: usize = tests.iter().map(|test| if is_one(test) || test.1.is_none() { 1 } else { 2 }).sum();
    let mut starts = Vec::new();
    let mut next = length + usual.len();
    for block in &blocks {
        starts.push(next);
        next += block.len();
    }
    let mut program = Vec::with_capacity(next);
    for test in &tests {
        let (first, after, block) = *test;
        if let Some(after) = after.filter(|_| !is_one(test)) {
            program.push(jump(JUMP_IF_AT_LEAST, after, 1, 0));
        }
        let code = if is_one(test) { JUMP_IF_EQUAL } else { JUMP_IF_AT_LEAST };
        program.push(jump(code, first, u8::try_from(starts[block] - program.len() - 1).ok()?, 0));
    }
    program.extend(usual);
    blocks.into_iter().for_each(|block| program.extend(block));
    Some(program)
}

fn is_same(one: &[Instruction], other: &[Instruction]) -> bool {
    let parts = |it: &Instruction| (it.code, it.jt, it.jf, it.k);
    one.iter().map(parts).eq(other.iter().map(parts))
}

pub fn number(call: libc::c_long) -> u32 {
    call as u32
}

/// Loads the number of a call, where it is one of this machine's own interface: numbers mean other calls elsewhere.
pub fn begin(otherwise: Instruction) -> Vec<Instruction> {
    vec![load(ARCHITECTURE), jump(JUMP_IF_EQUAL, NATIVE, 1, 0), otherwise, load(NUMBER)]
}

/// Runs a program as the kernel would.
#[cfg(test)]
pub fn judge(program: &[Instruction], architecture: u32, call: u32, arguments: [u32; 3]) -> u32 {
    let (mut at, mut value) = (0, 0);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let is_met = match code {
            LOAD => {
                value = match k {
                    NUMBER => call,
                    ARCHITECTURE => architecture,
                    FIRST_ARGUMENT => arguments[0],
                    SECOND_ARGUMENT => arguments[1],
                    THIRD_ARGUMENT => arguments[2],
                    other => panic!("no such offset: {other}"),
                };
                continue;
            }
            JUMP_IF_EQUAL => value == k,
            JUMP_IF_AT_LEAST => value >= k,
            JUMP_IF_ANY_BIT => value & k != 0,
            RETURN => return k,
            JUMP => {
                at += k as usize;
                continue;
            }
            other => panic!("no such instruction: {other}"),
        };
        at += usize::from(if is_met { jt } else { jf });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32, last: u32, verdict: u32) -> Range {
        Range { first, last, then: vec![give(verdict)] }
    }

    #[test]
    fn values_are_decided_by_the_range_that_they_are_in() {
        let far = (0..600).map(|i| range(1_000 + 2 * i, 1_000 + 2 * i, 100 + i));
        let mut ranges = vec![range(0, 0, 1), range(5, 9, 2), range(10, 12, 2)];
        ranges.extend(far);
        ranges.push(range(u32::MAX, u32::MAX, 3));
        let mut program = begin(give(9));
        program.extend(decide(ranges, give(7)));
        let judge = |value| judge(&program, NATIVE, value, [0; 3]);
        for (value, verdict) in [(0, 1), (1, 7), (4, 7), (5, 2), (9, 2), (12, 2), (13, 7), (1_000, 100), (1_001, 7)] {
            assert_eq!(judge(value), verdict, "{value}");
        }
        for i in 0..600 {
            assert_eq!((judge(1_000 + 2 * i), judge(1_001 + 2 * i)), (100 + i, 7));
        }
        assert_eq!((judge(u32::MAX - 1), judge(u32::MAX)), (7, 3));
    }

    #[test]
    fn any_ranges_are_decided_as_they_say() {
        let mut seed = 7u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % below
        };
        for _ in 0..300 {
            let (mut ranges, mut next) = (Vec::new(), random(3));
            for _ in 0..random(60) {
                let last = next + random(4) / 2 * random(9);
                // Some of several instructions, and some as long as no jump reaches.
                let verdict = random(4);
                let mut then = vec![load(NUMBER); [0, 0, 0, 0, 1, 150][random(6) as usize]];
                then.push(give(verdict));
                ranges.push(Range { first: next, last, then });
                next = last + 1 + random(3);
            }
            let said: Vec<(u32, u32, u32)> =
                ranges.iter().map(|range| (range.first, range.last, range.then.last().expect("some").k)).collect();
            let mut program = begin(give(9));
            program.extend(decide(ranges, give(2)));
            for value in (0..next + 3).chain([u32::MAX]) {
                let expected = said.iter().find(|(first, last, _)| (*first..=*last).contains(&value));
                let expected = expected.map_or(2, |(_, _, verdict)| *verdict);
                assert_eq!(judge(&program, NATIVE, value, [0; 3]), expected, "{value} in {said:?}");
            }
        }
    }
}
