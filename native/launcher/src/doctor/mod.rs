//! `launcher doctor`: what the launcher needs of its host, each thing tried and thrown away again.

mod kernel;
mod storage;

use serde_json::{Value, json};

/// The outcome of one try: what was found, or why it does not work.
type Outcome = Result<String, String>;

struct Check {
    name: &'static str,
    /// Without it nothing works; otherwise less does.
    is_required: bool,
    attempt: fn() -> Outcome,
}

const CHECKS: &[Check] = &[
    Check { name: "root", is_required: true, attempt: kernel::root },
    Check { name: "kernel", is_required: true, attempt: kernel::version },
    Check { name: "clone3", is_required: true, attempt: kernel::clone3 },
    Check { name: "pidfd", is_required: true, attempt: kernel::pidfd },
    Check { name: "user-namespaces", is_required: true, attempt: kernel::user_namespaces },
    Check { name: "network-namespaces", is_required: true, attempt: kernel::network_namespaces },
    Check { name: "cgroups", is_required: true, attempt: kernel::cgroups },
    Check { name: "erofs-file", is_required: true, attempt: storage::erofs_file },
    Check { name: "idmapped-mounts", is_required: true, attempt: storage::idmapped_mounts },
    Check { name: "overlay-lowerdir-fd", is_required: true, attempt: storage::overlay_lowerdir_fd },
    Check { name: "btrfs-simple-quota", is_required: false, attempt: storage::btrfs_simple_quota },
    Check { name: "seccomp", is_required: true, attempt: kernel::seccomp },
    Check { name: "landlock", is_required: true, attempt: kernel::landlock },
    Check { name: "apparmor", is_required: false, attempt: kernel::apparmor },
    Check { name: "io-weight", is_required: false, attempt: storage::io_weight },
    Check { name: "host-limits", is_required: false, attempt: kernel::host_limits },
    Check { name: "fanotify-pre-content", is_required: false, attempt: storage::fanotify_pre_content },
    Check { name: "kvm", is_required: false, attempt: kernel::kvm },
];

/// All checks as JSON, and whether everything that is required works.
pub fn examine() -> (Value, bool) {
    let mut is_fit = true;
    let mut found = Vec::new();
    for check in CHECKS {
        let outcome = (check.attempt)();
        let is_ok = outcome.is_ok();
        is_fit &= is_ok || !check.is_required;
        let detail = outcome.unwrap_or_else(|why| why);
        found.push(json!({ "name": check.name, "ok": is_ok, "required": check.is_required, "detail": detail }));
    }
    (json!({ "checks": found }), is_fit)
}
