// SPDX-License-Identifier: Apache-2.0
//! The machine of the target's client: one actor for all trials.

use crate::place::actor::RemoteActor;
use crate::plan::RemoteClient;
use std::ffi::OsStr;
use std::path::Path;
use tracing::warn;
use vtax_host::HostError;

/// The client's machine.
pub(in super::super) struct ClientHost {
    pub client: RemoteClient,
    actor: Option<RemoteActor>,
}

impl ClientHost {
    pub fn new(client: RemoteClient) -> Self {
        Self {
            client,
            actor: None,
        }
    }

    /// Returns the name of the client's place in records.
    pub fn place(&self) -> String {
        format!("ssh:{}", self.client.host)
    }

    /// Returns the actor on the client's machine. Starts one when there is none or its connection is lost.
    pub fn actor(&mut self) -> Result<RemoteActor, HostError> {
        if let Some(actor) = self.actor.as_ref().filter(|actor| !actor.is_lost()) {
            return Ok(actor.clone());
        }
        if self.actor.is_some() {
            warn!(
                "the client's machine {} was lost: it is logged into again",
                self.client.host
            );
        }
        let this = Path::new("/proc/self/exe");
        let actor = RemoteActor::start(OsStr::new("ssh"), &self.client.host, this)?;
        Ok(self.actor.insert(actor).clone())
    }
}
