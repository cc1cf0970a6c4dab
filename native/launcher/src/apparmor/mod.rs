//! AppArmor, where the kernel has it: a second provider beside Landlock, filters and ids. Where it has none nothing of this is done.
//!
//! Profiles belong to the host, and are told apart by the version of their text: what several servers of one version share is loaded once. Launchers load, the
//! teardown of the last server of the host unloads.

mod policy;

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::profile::Profile;
use crate::sys::{Errno, Result};
use policy::Policy;

/// Who this process is to AppArmor. There is such a file without AppArmor, too; then it cannot be read.
const OWN_LABEL: &str = "/proc/self/attr/apparmor/current";
/// What it will be when it next executes something.
const AT_EXECUTION: &str = "/proc/self/attr/apparmor/exec";
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";
const REMOVE: &str = "/sys/kernel/security/apparmor/.remove";
const UNCONFINED: &str = "unconfined";
/// Where Debian and others have it. It is not looked for elsewhere: what it says is the kernel's law.
const PARSERS: [&str; 2] = ["/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"];

/// The profiles of this launcher, loaded.
pub struct AppArmor {
    /// What a process writes to be in one at its next execution.
    words: [String; Profile::ALL.len()],
}

impl AppArmor {
    /// Loads what is not loaded yet. `None`: the kernel has no AppArmor.
    pub fn load() -> std::result::Result<Option<Self>, String> {
        let Some(own) = own_label() else { return Ok(None) };
        let policies = Profile::ALL.map(Policy::of);
        let loaded = loaded()?;
        let is_loaded = |name: &String| loaded.iter().any(|loaded| loaded == name);
        for policy in &policies {
            if !is_loaded(&policy.aether) || !is_loaded(&policy.programs) {
                parse(&["--replace", "--skip-cache"], &policy.text)?;
            }
        }
        // A launcher that is confined itself hands that on: nothing it starts may be freer.
        let verb = if own == UNCONFINED { "exec" } else { "stack" };
        Ok(Some(Self { words: policies.map(|policy| format!("{verb} {}", policy.aether)) }))
    }

    /// What [`enter_at_execution`] takes for a profile.
    pub fn word(&self, profile: Profile) -> &str {
        let at = Profile::ALL.iter().position(|other| *other == profile).unwrap_or_default();
        &self.words[at]
    }
}

/// Has this process be in aether's profile as soon as it executes something. After the last change of its ids: the kernel wants the very process that has
/// opened the file.
pub fn enter_at_execution(word: &str) -> Result<()> {
    let file = openat(CWD, AT_EXECUTION, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::write(&file, word.as_bytes())? {
        written if written == word.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Takes away the profiles that no process is in. For the last server of the host, while no other can begin.
pub fn unload_unused() -> std::result::Result<(), String> {
    // Where the list cannot be read, none was ever loaded from here.
    let Some(loaded) = own_label().and_then(|_| loaded().ok()) else { return Ok(()) };
    let labels = labels_in_use().map_err(|error| format!("/proc: {error}"))?;
    for name in loaded.iter().filter(|name| policy::is_ours(name)) {
        // A label may be several profiles at once.
        if labels.iter().any(|label| label.contains(name.as_str())) {
            continue;
        }
        match std::fs::write(REMOVE, name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(format!("{REMOVE}: {name}: {error}")),
            _ => {}
        }
    }
    Ok(())
}

/// Whether profiles can be had here, with nothing loaded.
pub fn examine() -> std::result::Result<String, String> {
    let Some(own) = own_label() else { return Err("not in this kernel, or switched off".to_owned()) };
    loaded()?;
    for profile in Profile::ALL {
        parse(&["--skip-kernel-load", "--skip-cache"], &Policy::of(profile).text)?;
    }
    Ok(if own == UNCONFINED { "profiles compile".into() } else { format!("profiles compile; this process is {own}") })
}

/// Without its mode. `None`: no AppArmor is at work.
fn own_label() -> Option<String> {
    let text = std::fs::read_to_string(OWN_LABEL).ok()?;
    Some(without_mode(text.trim_end_matches(['\n', '\0'])).to_owned())
}

/// `NAME (enforce)`.
fn without_mode(label: &str) -> &str {
    label.rsplit_once(" (").map_or(label, |(name, _)| name)
}

fn loaded() -> std::result::Result<Vec<String>, String> {
    let text = std::fs::read_to_string(LOADED)
        .map_err(|error| format!("{LOADED}: {error} (is securityfs mounted at /sys/kernel/security?)"))?;
    Ok(text.lines().map(|line| without_mode(line).to_owned()).collect())
}

fn labels_in_use() -> io::Result<Vec<String>> {
    let mut labels = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        // A process that ends meanwhile needs none any more.
        if let Ok(label) = std::fs::read_to_string(entry?.path().join("attr/apparmor/current")) {
            labels.push(label);
        }
    }
    labels.sort();
    labels.dedup();
    Ok(labels)
}

/// Has a text compiled, and loaded where the options say so.
fn parse(options: &[&str], text: &str) -> std::result::Result<(), String> {
    let parser = PARSERS.into_iter().find(|path| Path::new(path).exists());
    let parser = parser.ok_or("apparmor_parser is not installed (Debian: apparmor)")?;
    let explain = |error: io::Error| format!("{parser}: {error}");
    let mut child = Command::new(parser)
        .args(options)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(explain)?;
    // It reads all of it before it says anything: neither waits for the other. One that does not read says why by its end.
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(explain)?;
    if output.status.success() {
        written.map_err(explain)
    } else {
        Err(format!("{parser}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_known_without_its_mode() {
        for (shown, label) in [
            ("unconfined", "unconfined"),
            ("dsec-a (enforce)", "dsec-a"),
            ("a//&dsec-b (complain)", "a//&dsec-b"),
            ("odd (name) (enforce)", "odd (name)"),
        ] {
            assert_eq!(without_mode(shown), label);
        }
    }
}
