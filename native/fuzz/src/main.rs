//! Fuzzes every decoder: `cargo run --release -p fuzz -- TARGET SECONDS [SEED]`, with `all` for each target in turn and `list` for
//! their names. The same seed makes the same inputs. A panic prints the input in hex and how to run it again
//! (`cargo run --release -p fuzz -- TARGET HEX`).
//!
//! A new target is a file in `targets/` and a line in `targets/mod.rs`.

mod fuzzer;
mod memory;
mod mutate;
mod random;
mod targets;

use std::process::ExitCode;
use std::time::Duration;

use fuzzer::Budget;
use targets::TARGETS;

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

const DEFAULT_SEED: u64 = 1;
const USAGE: &str = "usage: fuzz TARGET|all SECONDS [SEED] | fuzz TARGET hex:INPUT | fuzz list";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["list"] => {
            for target in TARGETS {
                println!("{}", target.name);
            }
            ExitCode::SUCCESS
        }
        [name, what, rest @ ..] => run(name, what, rest.first().copied()).map_or_else(
            || {
                eprintln!("{USAGE}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        ),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str, what: &str, seed: Option<&str>) -> Option<()> {
    let chosen: Vec<_> = TARGETS.iter().filter(|target| name == "all" || target.name == name).collect();
    if chosen.is_empty() {
        return None;
    }
    let seed = seed.map_or(Some(DEFAULT_SEED), |text| text.parse().ok())?;
    for target in chosen {
        if let Some(hex) = what.strip_prefix("hex:") {
            fuzzer::once(target, &fuzzer::unhex(hex)?);
            continue;
        }
        let report = fuzzer::fuzz(target, Budget::Time(Duration::from_secs(what.parse().ok()?)), seed);
        println!("{}: {} inputs, {} kept, seed {seed}", target.name, report.inputs, report.kept);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough to notice a broken target; the long run is the program's.
    const INPUTS: u64 = 3_000;

    #[test]
    fn every_target_holds_for_a_while() {
        for target in TARGETS {
            let report = fuzzer::fuzz(target, Budget::Inputs(INPUTS), DEFAULT_SEED);
            assert_eq!(report.inputs, INPUTS, "{}", target.name);
            assert!(report.kept > 0, "{} tells no input from another", target.name);
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        for target in TARGETS {
            let run = |seed| fuzzer::fuzz(target, Budget::Inputs(300), seed).hash;
            assert_eq!(run(7), run(7), "{}", target.name);
            assert_ne!(run(7), run(8), "{}", target.name);
        }
    }
}
