//! Commands: started, recorded, attached to, signalled, ended.

pub mod attach;
pub mod environment;
pub mod methods;
pub mod oom;
pub mod output;
pub mod program;
pub mod record;
pub mod ring;
pub mod spawn;
pub mod start;
pub mod stdin;
pub mod table;
pub mod tree;
