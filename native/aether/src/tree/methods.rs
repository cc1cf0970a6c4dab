//! `tree.read` and `tree.write`.

use serde::Deserialize;
use serde_json::json;

use super::pack;
use super::unpack::{self, Rules};
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::Outcome;
use crate::event_loop::Aether;
use crate::files::open::absolute;
use crate::params;
use crate::streams::Stream;
use crate::worker::{self, Direction, Pull, Push};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadParams {
    path: String,
    user: Option<String>,
}

pub fn read(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: ReadParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    let identity = aether.file_user(params.user.as_deref())?;
    let worker = worker::start(aether, at, Direction::FromWorker, &[], |pipe| {
        worker::become_user(&identity)?;
        Ok(json!({ "entries": pack::pack(&path, pipe)? }))
    })?;
    Ok(Reply::Stream(Stream::Pull(Box::new(Pull::new(worker, None)))))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WriteParams {
    path: String,
    user: Option<String>,
    #[serde(default)]
    any_symlinks: bool,
}

pub fn write(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: WriteParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    let identity = aether.file_user(params.user.as_deref())?;
    // Set-user-id is for root to give.
    let mode_mask = if identity.uid == 0 { 0o7777 } else { 0o1777 };
    let rules = Rules { any_symlinks: params.any_symlinks, mode_mask };
    let worker = worker::start(aether, at, Direction::ToWorker, &[], |pipe| {
        worker::become_user(&identity)?;
        let entries = unpack::unpack(&path, pipe, rules)?;
        Ok(json!({ "entries": entries }))
    })?;
    Ok(Reply::Stream(Stream::TreeWrite(Box::new(Push::new(worker)))))
}
