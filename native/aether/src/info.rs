//! The method `info`.

use serde::Deserialize;
use serde_json::json;

use crate::dispatch::Reply;
use crate::errors::Outcome;
use crate::event_loop::Aether;
use crate::params;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

pub fn info(aether: &Aether, text: &str) -> Outcome<Reply> {
    let NoParams {} = params::parse(text)?;
    let rss = aether.proc.stat(std::process::id() as i32).map_or(0, |stat| stat.rss_pages * page_size());
    Ok(Reply::Value(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid1Rss": rss,
        "processes": aether.proc.pids().len(),
        "execs": aether.execs.len(),
    })))
}

pub fn page_size() -> u64 {
    // SAFETY: plain call.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64
}
