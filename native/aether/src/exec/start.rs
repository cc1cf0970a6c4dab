//! `exec.start`.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde::Deserialize;

use super::attach::{ANNOUNCE_NANOS, Reader};
use super::environment::{self, Variables};
use super::program;
use super::record::{Exec, Output};
use super::ring::{DEFAULT_LIMIT, MAX_LIMIT};
use super::spawn::{self, Launch, Stage, Stdio};
use super::stdin::Stdin;
use super::table::MAX_RUNNING;
use super::{methods, oom};
use crate::chronus::methods::not_found as session_not_found;
use crate::chronus::session::Waiting;
use crate::clock::{self, NANOS_PER_MS};
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::{Failure, Outcome};
use crate::event_loop::{Aether, Deadline};
use crate::identity::{self, Identity};
use crate::params;
use crate::pty;
use crate::reaper::Child;
use crate::slab::Key;
use crate::streams::{After, Stream};
use crate::sys::fd;

/// A script beyond this is not an argument (the kernel takes 128 KiB in one) but a file in memory.
const MAX_SCRIPT_ARGUMENT: usize = 100 << 10;
/// Where a program finds that file.
const SCRIPT_FD: RawFd = 3;
/// Longest timeout: a year.
const MAX_TIMEOUT_MS: u64 = 366 * 24 * 3_600 * 1_000;
const MAX_TAG: usize = 256;

const BASH: &std::ffi::CStr = c"/bin/bash";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StartParams {
    pub exec_id: String,
    pub fingerprint: Option<String>,
    argv: Option<Vec<String>>,
    shell: Option<Shell>,
    pub session_id: Option<String>,
    #[serde(default)]
    env: Variables,
    cwd: Option<String>,
    user: Option<String>,
    #[serde(default)]
    stdin: StdinMode,
    pty: Option<Size>,
    pub timeout_ms: Option<u64>,
    output_limit_bytes: Option<u64>,
    pub tag: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shell {
    script: String,
    #[serde(default)]
    login: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum StdinMode {
    #[default]
    None,
    Open,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    rows: u16,
    cols: u16,
}

impl StartParams {
    fn check(&self) -> Outcome<()> {
        params::check_id("execId", &self.exec_id)?;
        if self.timeout_ms.is_some_and(|ms| ms == 0 || ms > MAX_TIMEOUT_MS) {
            return Err(Failure::invalid("timeoutMs", "timeoutMs must be 1 or more, and at most a year"));
        }
        if self.output_limit_bytes.is_some_and(|bytes| bytes > MAX_LIMIT as u64) {
            return Err(Failure::invalid("outputLimitBytes", format!("outputLimitBytes must be at most {MAX_LIMIT}")));
        }
        if self.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
            return Err(Failure::invalid("tag", format!("tag must have at most {MAX_TAG} bytes")));
        }
        if self.pty.is_some_and(|size| size.rows == 0 || size.cols == 0) {
            return Err(Failure::invalid("pty", "rows and cols must be 1 or more"));
        }
        environment::check(&self.env)
    }
}

pub fn start(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: StartParams = params::parse(text)?;
    params.check()?;
    if let Some(key) = aether.execs.find(&params.exec_id) {
        if aether.execs.get(key).is_some_and(|exec| exec.fingerprint == params.fingerprint) {
            return Ok(attach_new(aether, key, at, params.pty.map(|size| (size.rows, size.cols))));
        }
        let message = format!("The exec id {} was used before with another request.", params.exec_id);
        return Err(Failure::new("idempotency_conflict", message).with("execId", params.exec_id));
    }
    if aether.execs.running() >= MAX_RUNNING {
        return Err(
            Failure::new("too_many_requests", "The sandbox runs as many execs as it may.").with("limit", MAX_RUNNING)
        );
    }
    let size = params.pty.map(|size| (size.rows, size.cols));
    if let Some(id) = &params.session_id {
        let session = aether.sessions.find(id).ok_or_else(|| session_not_found(id))?;
        let key = enqueue(aether, session, params)?;
        let reply = attach_new(aether, key, at, None);
        aether.advance_session(session);
        return Ok(reply);
    }
    let key = launch(aether, params)?;
    Ok(attach_new(aether, key, at, size))
}

/// The program as it goes to the kernel.
struct Program {
    candidates: Vec<CString>,
    argv: Vec<CString>,
    /// What errors call it.
    name: String,
    script: Option<OwnedFd>,
    is_shell: bool,
}

fn c_string(field: &str, text: impl Into<Vec<u8>>) -> Outcome<CString> {
    CString::new(text).map_err(|_| Failure::invalid(field, format!("{field} contains a NUL byte")))
}

fn from_argv(argv: &[String], path: &str) -> Outcome<Program> {
    let Some(name) = argv.first() else { return Err(Failure::invalid("argv", "argv is empty")) };
    let arguments = argv.iter().map(|argument| c_string("argv", argument.as_str())).collect::<Outcome<Vec<_>>>()?;
    Ok(Program {
        candidates: program::candidates(name, path),
        argv: arguments,
        name: name.clone(),
        script: None,
        is_shell: false,
    })
}

/// The shell that scripts get: bash where there is one.
pub fn shell_path() -> (&'static str, &'static str) {
    // SAFETY: the path ends with NUL.
    if unsafe { libc::access(BASH.as_ptr(), libc::X_OK) } == 0 { ("/bin/bash", "bash") } else { ("/bin/sh", "sh") }
}

fn from_shell(shell: &Shell) -> Outcome<Program> {
    let (path, name) = shell_path();
    let mut argv = vec![c_string("shell", name)?];
    if shell.login {
        argv.push(c_string("shell", "-l")?);
    }
    let mut script = None;
    if shell.script.len() > MAX_SCRIPT_ARGUMENT {
        // The shell has opened the file for itself when it reads the first line, so its children need not inherit it.
        let text = c_string("script", format!("exec {SCRIPT_FD}<&-; {}", shell.script))?;
        script = Some(memory_file(text.as_bytes())?);
        argv.push(c_string("shell", format!("/proc/self/fd/{SCRIPT_FD}"))?);
    } else {
        argv.push(c_string("shell", "-c")?);
        argv.push(c_string("script", shell.script.as_str())?);
    }
    let candidates = vec![c_string("shell", path)?];
    Ok(Program { candidates, argv, name: path.into(), script, is_shell: true })
}

fn memory_file(bytes: &[u8]) -> Outcome<OwnedFd> {
    let internal = |errno| Failure::internal(errno, "The script could not be stored");
    let make = |flags| {
        // SAFETY: the name ends with NUL.
        crate::sys::check(unsafe { libc::memfd_create(c"script".as_ptr(), libc::MFD_CLOEXEC | flags) })
    };
    // Some hosts demand the flag, and old kernels do not know it.
    let made = make(libc::MFD_NOEXEC_SEAL).or_else(|_| make(0));
    let file = fd::owned(made.map_err(internal)?);
    fd::write_all(&file, bytes).map_err(internal)?;
    Ok(file)
}

/// The ends that aether keeps and those that the program gets.
struct Wiring {
    sink: Option<OwnedFd>,
    sources: [Option<OwnedFd>; 2],
    stdio: Stdio,
    /// Closed here once the program has them.
    _theirs: Vec<OwnedFd>,
}

impl Wiring {
    /// The outputs come later.
    fn none() -> Self {
        let stdio = Stdio { stdin: -1, stdout: -1, stderr: -1, terminal: false };
        Self { sink: None, sources: [None, None], stdio, _theirs: Vec::new() }
    }
}

fn wire_pipes(aether: &Aether, mode: StdinMode, identity: &Identity) -> Result<Wiring, crate::sys::Errno> {
    let mut theirs = Vec::with_capacity(3);
    let (stdout, stdout_theirs) = fd::pipe()?;
    let (stderr, stderr_theirs) = fd::pipe()?;
    fd::make_pipe_end_nonblocking(&stdout)?;
    fd::make_pipe_end_nonblocking(&stderr)?;
    let mut stdio = Stdio {
        stdin: aether.null.as_raw_fd(),
        stdout: stdout_theirs.as_raw_fd(),
        stderr: stderr_theirs.as_raw_fd(),
        terminal: false,
    };
    theirs.extend([stdout_theirs, stderr_theirs]);
    let mut sink = None;
    if mode == StdinMode::Open {
        let (stdin_theirs, stdin) = fd::pipe()?;
        fd::make_pipe_end_nonblocking(&stdin)?;
        stdio.stdin = stdin_theirs.as_raw_fd();
        theirs.push(stdin_theirs);
        sink = Some(stdin);
    }
    if identity.uid != 0 {
        // So that the user can open /dev/stdout and the like, which is opening the pipe anew.
        for end in &theirs {
            // SAFETY: plain descriptor call.
            unsafe { libc::fchown(end.as_raw_fd(), identity.uid, identity.gid) };
        }
    }
    Ok(Wiring { sink, sources: [Some(stdout), Some(stderr)], stdio, _theirs: theirs })
}

fn wire_terminal(size: Size, identity: &Identity) -> Result<Wiring, crate::sys::Errno> {
    let (master, slave) = pty::open((size.rows, size.cols), identity)?;
    let number = slave.as_raw_fd();
    let stdio = Stdio { stdin: number, stdout: number, stderr: number, terminal: true };
    let sink = pty::duplicate(&master)?;
    Ok(Wiring { sink: Some(sink), sources: [Some(master), None], stdio, _theirs: vec![slave] })
}

fn launch(aether: &mut Aether, params: StartParams) -> Outcome<Key> {
    let user = params.user.as_deref().unwrap_or("root");
    let identity = identity::resolve(&mut aether.accounts, user)?;
    let path = params.env.get("PATH").map_or(environment::DEFAULT_PATH, String::as_str);
    let program = match (&params.argv, &params.shell) {
        (Some(argv), None) => from_argv(argv, path)?,
        (None, Some(shell)) => from_shell(shell)?,
        _ => return Err(Failure::invalid("argv", "exactly one of argv and shell must be given")),
    };
    let env = environment::build(&params.env, &identity, params.pty.is_some());
    let cwd = params.cwd.as_deref().unwrap_or(&identity.home);
    let wiring = match params.pty {
        Some(size) => wire_terminal(size, &identity),
        None => wire_pipes(aether, params.stdin, &identity),
    };
    let wiring = wiring.map_err(|errno| Failure::internal(errno, "The pipes of the command could not be made"))?;
    let pass: Vec<(RawFd, RawFd)> = program.script.iter().map(|script| (script.as_raw_fd(), SCRIPT_FD)).collect();
    let started = clock::now();
    let pid = spawn::spawn(&Launch {
        candidates: &program.candidates,
        argv: &program.argv,
        env: &env,
        cwd: &c_string("cwd", cwd)?,
        cwd_or_root: params.cwd.is_none(),
        uid: identity.uid,
        gid: identity.gid,
        groups: &identity.groups,
        stdio: wiring.stdio,
        pass: &pass,
        open_files: aether.open_files,
    })
    .map_err(|error| match (error.stage, error.errno) {
        (Stage::Exec, libc::ENOENT) if program.is_shell => {
            Failure::new("shell_not_found", "The sandbox has neither /bin/bash nor /bin/sh.")
        }
        _ => program::start_failure(error, &program.name, cwd, user),
    })?;
    let mut exec = record(&params, pid, wiring, None);
    exec.started = started;
    // Read while the program is already on its way.
    exec.oom_base = oom::kills();
    exec.deadline = params.timeout_ms.map(|ms| started + ms * NANOS_PER_MS);
    let deadline = exec.deadline;
    let key = aether.execs.insert(exec);
    aether.children.insert(pid, Child::Exec(key));
    if let Some(when) = deadline {
        aether.deadlines.insert((when, Deadline::ExecTimeout(key)));
    }
    Ok(key)
}

/// A run of a session: recorded at once, begun when its turn comes.
fn enqueue(aether: &mut Aether, session: Key, params: StartParams) -> Outcome<Key> {
    let own = [
        ("user", params.user.is_some()),
        ("cwd", params.cwd.is_some()),
        ("env", !params.env.is_empty()),
        ("pty", params.pty.is_some()),
        ("stdin", params.stdin == StdinMode::Open),
        ("shell", params.shell.as_ref().is_some_and(|shell| shell.login)),
    ];
    if let Some((field, _)) = own.iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::invalid(
            field,
            format!("{field} is that of the session and cannot be given for one command"),
        ));
    }
    let script = match (&params.argv, &params.shell) {
        (None, Some(shell)) => shell.script.clone(),
        (Some(argv), None) if !argv.is_empty() => quote(argv),
        _ => return Err(Failure::invalid("argv", "exactly one of argv and shell must be given")),
    };
    params::check_no_nul("script", &script)?;
    let pid = aether.sessions.get(session).map_or(0, |session| session.pid);
    let exec = record(&params, pid, Wiring::none(), Some(session));
    let key = aether.execs.insert(exec);
    let waiting = Waiting { exec: key, script, timeout_ms: params.timeout_ms };
    if let Err(failure) = aether.enqueue_run(session, waiting) {
        aether.execs.remove(key);
        return Err(failure);
    }
    Ok(key)
}

/// An argv as a line of shell.
fn quote(argv: &[String]) -> String {
    let quoted: Vec<String> = argv.iter().map(|argument| format!("'{}'", argument.replace('\'', "'\\''"))).collect();
    quoted.join(" ")
}

fn record(params: &StartParams, pid: i32, wiring: Wiring, session: Option<Key>) -> Exec {
    let limit = params.output_limit_bytes.map_or(DEFAULT_LIMIT, |bytes| bytes as usize);
    let [stdout, stderr] = wiring.sources;
    Exec {
        id: params.exec_id.clone(),
        tag: params.tag.clone(),
        fingerprint: params.fingerprint.clone(),
        pid,
        pty: params.pty.is_some(),
        started_at_ms: clock::wall_ms(),
        started: clock::now(),
        ending: None,
        timed_out: false,
        oom_killed: false,
        oom_base: None,
        deadline: None,
        outputs: [Output::new(stdout, limit), Output::new(stderr, limit)],
        stdin: Stdin::new(wiring.sink),
        readers: Vec::new(),
        base_size: params.pty.map_or((0, 0), |size| (size.rows, size.cols)),
        session,
        is_queued: session.is_some(),
        abort_signal: None,
        is_doomed: false,
        held_ending: None,
        is_forgotten: false,
    }
}

/// Attaches the stream that started it, from the beginning.
pub fn attach_new(aether: &mut Aether, key: Key, at: StreamKey, size: Option<(u16, u16)>) -> Reply {
    let mut reader = Reader::new(at, [0, 0], None);
    reader.client_id = Some(methods::client_id(at));
    reader.size = size;
    if let Some(exec) = aether.execs.get_mut(key) {
        if exec.ending.is_some() {
            reader.stop_at_present(exec);
        } else if !exec.pty && !exec.stdin.is_open() {
            let when = exec.started + ANNOUNCE_NANOS;
            reader.announce_by(when);
            aether.deadlines.insert((when, Deadline::Announce(key)));
        }
        exec.readers.push(reader);
    }
    aether.keep_stream(at, Stream::Starter(key));
    aether.resume_outputs(key);
    aether.apply_size(key);
    if aether.pump_reader(key, at) == After::Done {
        aether.drop_stream(at);
    }
    Reply::Taken
}
