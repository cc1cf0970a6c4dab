//! egressd gives sandboxes a network and enforces what their policies allow. It applies what it is told and decides nothing. `docs/wire.md` has its methods, decision 0008 the design.
//!
//! Reading order: [`serve`] (the loop) - [`node`] (state and requests) - [`uplinks`] (devices), [`policies`] (rules), [`pins`] (addresses by name) -
//! [`feeder`], [`gate`] (names) - [`origins`], [`processes`] (who has caused what) - [`kernel`] (maps and programs of `bpf/`), [`netlink`], [`host`], [`firewall`], [`block`] (what is the node's).

pub mod arguments;
pub mod block;
pub mod cidr;
pub mod coming;
pub mod connection;
pub mod denials;
pub mod feeder;
pub mod firewall;
pub mod forwarding;
pub mod gate;
pub mod host;
pub mod kernel;
pub mod layout;
pub mod lock;
pub mod namespace;
pub mod netlink;
pub mod node;
pub mod options;
pub mod origins;
pub mod pins;
pub mod place;
pub mod policies;
pub mod privileges;
pub mod processes;
pub mod remover;
pub mod request;
pub mod rules;
pub mod serve;
pub mod sys;
pub mod uplinks;
pub mod wiring;
