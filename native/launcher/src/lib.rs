//! The launcher makes, keeps and removes sandboxes: the only code of dsec with privileged system calls. `docs/wire.md` has its methods.
//!
//! Reading order: [`serve`] (the loop) - [`launcher`] (state and requests) - [`create`], [`blank`], [`ending`], [`adopt`], [`changes`] (what happens to a sandbox) -
//! [`init`] (what a new process does until it is aether) - [`rootfs`], [`namespaces`], [`cgroup`], [`volume`], [`lowers`] (what it is made of).

pub mod adopt;
pub mod apparmor;
pub mod behaviour;
pub mod blank;
pub mod blank_pool;
pub mod cgroup;
pub mod changes;
pub mod connection;
pub mod covers;
pub mod create;
pub mod data_dir;
pub mod doctor;
pub mod ending;
pub mod failure;
pub mod host_limits;
pub mod init;
pub mod launcher;
pub mod layer_guard;
pub mod lowers;
pub mod namespace_pool;
pub mod namespaces;
pub mod node;
pub mod options;
pub mod poller;
pub mod prepare;
pub mod profile;
pub mod record;
pub mod refusals;
pub mod remove_tree;
pub mod request;
pub mod request_filter;
pub mod rootfs;
pub mod sandbox;
pub mod sandbox_filter;
pub mod seccomp_program;
pub mod serve;
pub mod sys;
pub mod syscall_filter;
pub mod syscalls;
pub mod teardown;
pub mod templates;
pub mod uid_range;
pub mod usage;
pub mod volume;
