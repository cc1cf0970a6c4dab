//! The publisher: see `docs/wire.md` for what it does for whom.

use std::process::ExitCode;

use daemon::log::{Level, Log};
use publisher::{options, serve};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match options::parse(&arguments) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("publisher: {message}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match serve::serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            Log::new("publisher", None).write(Level::Error, "not-started", &serde_json::json!({ "message": message }));
            ExitCode::FAILURE
        }
    }
}
