//! The gate: see `docs/wire.md` for what it does for whom.

use std::process::ExitCode;

use daemon::failure::errno_name;
use daemon::log::{Level, Log};
use gate::{confine, options, serve, sys};

fn main() -> ExitCode {
    let given = sys::take_given();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match options::parse(&arguments) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("gate: {message}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let outcome = given.and_then(|given| {
        let files = sys::raise_file_limit();
        confine::confine(options)?;
        serve::serve(given, files).map_err(|errno| format!("the loop: {}", errno_name(errno)))
    });
    if let Err(message) = outcome {
        Log::new("gate", None).write(Level::Error, "stopped", &serde_json::json!({ "message": message }));
    }
    ExitCode::FAILURE
}
