//! The gate: takes the TCP connections of sandboxes to addresses that are allowed by name, reads what name they ask for, and connects them or not. It has no
//! privileges; `docs/wire.md` has its methods.
//!
//! Reading order: [`serve`] (the loop) - [`gate`] (connections) - [`flow`] (one connection) - [`inspector`] (what its bytes may do: [`hello`], [`http`]) -
//! [`table`], [`policy`], [`pins`] (what sandboxes may) - [`control`], [`request`], [`events`] (who says so, and hears of refusals).

pub mod admission;
pub mod bounds;
pub mod budget;
pub mod confine;
pub mod control;
pub mod deadlines;
pub mod destination;
pub mod events;
pub mod flow;
pub mod gate;
pub mod hello;
pub mod http;
pub mod inspector;
pub mod lane;
pub mod name;
pub mod options;
pub mod pins;
pub mod policy;
pub mod poller;
pub mod refusal;
pub mod rehearsal;
pub mod request;
pub mod serve;
pub mod splice;
pub mod sys;
pub mod table;

pub use rustix::io::{Errno, Result};
