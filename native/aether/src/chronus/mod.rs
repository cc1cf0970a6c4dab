//! chronus: a lasting shell session. One shell stays; what is run in it shares its working directory, environment, functions and
//! background jobs, and has output, exit code and timeout of its own.
//!
//! The shell runs [`shell_loop`]: it reads the number of a run from a pipe, sources the run's script with the run's own outputs, and
//! writes the exit code to another pipe. Scripts and outputs (FIFOs) are in a [`room`]: a filesystem that is mounted nowhere. Nothing of
//! this waits for an end of file, so a process that holds descriptors cannot hang the session.

pub mod abort;
pub mod methods;
pub mod room;
pub mod run;
pub mod session;
pub mod shell_loop;
