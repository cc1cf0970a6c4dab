//! Programs that judge system calls: what they are put together from (seccomp(2), linux/filter.h).

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
pub const JUMP_IF_EQUAL: u16 = 0x15;
pub const JUMP_IF_AT_LEAST: u16 = 0x35;
pub const JUMP_IF_ANY_BIT: u16 = 0x45;

pub const ALLOW: u32 = 0x7FFF_0000;
/// With an errno in its low bits.
pub const REFUSE: u32 = 0x0005_0000;
pub const KILL: u32 = 0x8000_0000;

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
            other => panic!("no such instruction: {other}"),
        };
        at += usize::from(if is_met { jt } else { jf });
    }
}
