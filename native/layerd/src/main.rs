//! Fills the data of layers when they are read.

use std::process::ExitCode;

use daemon::log::{Level, Log};
use layerd::data_dir::DataDir;
use layerd::family::roles::Roles;
use layerd::family::{self, handover, holder};
use layerd::loader::worker;
use layerd::options::{self, Command};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = match options::parse(&arguments) {
        Ok(command) => command,
        Err(message) => {
            eprintln!("layerd: {message}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            Log::new("layerd", Some("start")).write(
                Level::Error,
                "not-started",
                &serde_json::json!({ "message": message }),
            );
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<(), String> {
    match command {
        Command::Serve(options) => handover::serve(options),
        Command::Hold(_) | Command::Work(_) if !family::is_placed() => {
            Err("this command is for layerd itself".to_owned())
        }
        Command::Hold(options) => {
            let data = DataDir::open(&options.data)?;
            let roles = Roles::open(&data.run).map_err(|error| format!("layerd.lock: {error}"))?;
            holder::stand_by(options, roles)
        }
        Command::Work(options) => worker::work(options),
    }
}
