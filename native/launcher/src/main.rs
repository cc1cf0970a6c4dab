//! The launcher: see `docs/wire.md` for what it does for whom.

use std::process::ExitCode;

use daemon::log::{Level, Log};
use launcher::options::{self, Command};
use launcher::{doctor, prepare, serve, teardown};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = match options::parse(&arguments, memory_mib()) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("launcher: {message}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match command {
        Command::Serve(serve) => match serve::serve(&serve) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                Log::new("launcher", None).write(
                    Level::Error,
                    "not-started",
                    &serde_json::json!({ "message": message }),
                );
                ExitCode::FAILURE
            }
        },
        Command::Doctor => {
            let (found, is_fit) = doctor::examine();
            println!("{found}");
            if is_fit { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Command::Prepare { data, size } => finish(prepare::prepare(&data, size)),
        Command::Teardown { data } => finish(teardown::teardown(&data)),
    }
}

fn memory_mib() -> u64 {
    let found = rustix::system::sysinfo();
    (found.totalram * u64::from(found.mem_unit)) >> 20
}

/// Prints what was done, or why not.
fn finish(outcome: Result<serde_json::Value, String>) -> ExitCode {
    match outcome {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("launcher: {message}");
            ExitCode::FAILURE
        }
    }
}
