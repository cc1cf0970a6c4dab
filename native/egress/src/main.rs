//! Gives sandboxes a network and enforces what their policies allow.

use std::process::ExitCode;

use daemon::log::{Level, Log};
use egress::options::{self, Command};
use egress::{host, serve};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = match options::parse(&arguments) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("egressd: {message}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let outcome = match &command {
        Command::Serve(options) => serve::serve(options),
        Command::Clear(data) => host::clear(data),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            Log::new("egressd", None).write(Level::Error, "not-started", &serde_json::json!({ "message": message }));
            ExitCode::FAILURE
        }
    }
}
