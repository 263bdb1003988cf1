// SPDX-License-Identifier: Apache-2.0
//! Listening sockets of servers.

use crate::address::{Address, ListenError};
use crate::token::Token;
use crate::unix::{self, Users};
use std::io::{self, PipeReader, PipeWriter};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Listening sockets of a server that does not run yet. Starting the server opens no file and no socket, so that a
/// program may enter a sandbox before.
#[derive(Debug)]
pub struct Listeners {
    pub(crate) listeners: Vec<Listener>,
    /// The token that clients send. UNIX sockets need none: their modes determine who may connect.
    pub(crate) token: Option<Token>,
    pub(crate) stopped: PipeReader,
    pub(crate) stop: PipeWriter,
}

impl Listeners {
    /// Listens on all of `addresses`. To UNIX sockets `users` may connect.
    ///
    /// # Errors
    /// When it cannot listen on one of them.
    pub fn bind(addresses: &[Address], users: Users) -> Result<Self, ListenError> {
        let (stopped, stop) = io::pipe().map_err(ListenError::Start)?;
        let listen = |address| Listener::bind(address, users);
        Ok(Self {
            listeners: addresses.iter().map(listen).collect::<Result<_, _>>()?,
            token: None,
            stopped,
            stop,
        })
    }

    /// As [`Listeners::bind`], for clients that send `token`. Without a token, no address may be reachable from other
    /// hosts.
    ///
    /// # Errors
    /// When an address is reachable from other hosts and there is no token, or it cannot listen on one of the
    /// addresses.
    pub fn bind_for(
        addresses: &[Address],
        users: Users,
        token: Option<Token>,
    ) -> Result<Self, ListenError> {
        let open = addresses.iter().find(|address| address.leaves_the_host());
        if let (Some(address), None) = (open, &token) {
            return Err(ListenError::Open {
                address: address.clone(),
            });
        }
        Ok(Self {
            token,
            ..Self::bind(addresses, users)?
        })
    }
}

/// A listening socket. Dropping it removes its path.
#[derive(Debug)]
pub(crate) struct Listener {
    pub address: Address,
    socket: OwnedFd,
}

impl Listener {
    fn bind(address: &Address, users: Users) -> Result<Self, ListenError> {
        let failed = |cause| ListenError::Bind {
            address: address.clone(),
            cause,
        };
        let (address, socket) = match address {
            Address::Tcp(asked) => {
                let listener = TcpListener::bind(asked).map_err(failed)?;
                let chosen = listener.local_addr().map_err(failed)?;
                (Address::Tcp(chosen), OwnedFd::from(listener))
            }
            Address::Unix(path) => (address.clone(), unix::listen(path, users)?.into()),
        };
        let listener = Self { address, socket };
        // A client may close its connection before it is accepted: then accept must not block.
        rustix::io::ioctl_fionbio(&listener.socket, true).map_err(|cause| failed(cause.into()))?;
        Ok(listener)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            unix::remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(read("19190").unwrap(), "http://127.0.0.1:19190");
        assert_eq!(read("[::1]:80").unwrap(), "http://[::1]:80");
        assert_eq!(read("unix:/run/vtax.sock").unwrap(), "unix:/run/vtax.sock");
        for wrong in ["", "unix:", "localhost:x", "99999", "/run/vtax.sock"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let leaves = |text: &str| text.parse::<Address>().unwrap().leaves_the_host();
        assert!(leaves("0.0.0.0:1") && !leaves("1") && !leaves("[::1]:1") && !leaves("unix:a"));
    }

    #[test]
    fn nothing_is_open_to_other_hosts_without_a_token() {
        for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let addresses = ["0".parse().unwrap(), open.parse().unwrap()];
            let refused = Listeners::bind_for(&addresses, Users::ByUmask, None).unwrap_err();
            assert!(refused.to_string().contains("give a token"), "{refused}");
        }
        let loopback = ["0".parse().unwrap(), "127.9.9.9:0".parse().unwrap()];
        Listeners::bind_for(&loopback, Users::ByUmask, None).unwrap();
    }

    #[test]
    fn what_was_bound_is_given_back_when_another_cannot_be() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [
            Address::Unix(path.clone()),
            Address::Tcp(taken.local_addr().unwrap()),
        ];
        let refused = Listeners::bind(&addresses, Users::ByUmask).unwrap_err();
        assert!(refused.to_string().contains("another program"), "{refused}");
        assert!(!path.exists());
    }
}
