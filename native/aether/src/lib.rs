//! aether: the channel between the edge and one sandbox. PID 1 of a container, around one epoll; a second thread forks workers and nothing else.
//!
//! [`start`] prepares the process, [`event_loop`] waits and hands out, [`connection`] speaks the wire protocol, [`dispatch`]
//! knows the methods; each method has its module.

pub mod base64;
pub mod chronus;
pub mod clock;
pub mod confine;
pub mod connection;
pub mod dispatch;
pub mod doom;
pub mod errors;
pub mod event_loop;
pub mod exec;
pub mod files;
pub mod identity;
pub mod info;
pub mod outside;
pub mod params;
pub mod passwd;
pub mod port;
pub mod proc;
pub mod processes;
pub mod pty;
pub mod reaper;
pub mod slab;
pub mod start;
pub mod streams;
pub mod sys;
pub mod tree;
pub mod watch;
pub mod worker;
