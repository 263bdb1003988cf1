// SPDX-License-Identifier: Apache-2.0
//! The report of a service to systemd that it serves (sd_notify(3), `Type=notify`). `systemctl start` and units that are
//! ordered after this one wait for it.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::warn;

/// The connection to systemd. A program that systemd did not start has none.
#[derive(Debug)]
pub struct Startup(Option<UnixDatagram>);

impl Startup {
    /// Connects to the socket that `NOTIFY_SOCKET` names. To be called before the program enters a sandbox: a report
    /// needs no system call but `sendto`. Without the connection systemd ends the service after its time limit, so a
    /// failure is logged.
    pub fn connect() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else {
            return Self(None);
        };
        Self::connect_to(&name).unwrap_or_else(|cause| {
            warn!("cannot connect to systemd at NOTIFY_SOCKET={name:?}: {cause}");
            Self(None)
        })
    }

    /// `name` is a path, or an abstract name after `@`.
    fn connect_to(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(Self(Some(socket)))
    }

    /// Reports that the program serves. Only the first call has an effect.
    pub fn report_ready(&mut self) {
        if let Some(socket) = self.0.take()
            && let Err(cause) = socket.send(b"READY=1")
        {
            warn!("cannot report to systemd: {cause}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_gets_one_report_at_a_path_and_at_an_abstract_name() {
        let directory = std::env::temp_dir().join(format!("vtax-startup-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("notify");
        let name = format!("vtax-startup-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (manager, variable) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into()),
            (
                UnixDatagram::bind_addr(&abstract_name).unwrap(),
                std::ffi::OsString::from(format!("@{name}")),
            ),
        ] {
            manager.set_nonblocking(true).unwrap();
            let mut startup = Startup::connect_to(&variable).unwrap();
            startup.report_ready();
            startup.report_ready();
            let mut text = [0; 64];
            let length = manager.recv(&mut text).unwrap();
            assert_eq!(&text[..length], b"READY=1");
            assert!(manager.recv(&mut text).is_err(), "there are two reports");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_missing_socket_is_an_error_that_does_not_end_the_program() {
        assert!(Startup::connect_to("/nonexistent/notify".as_ref()).is_err());
        Startup(None).report_ready();
    }
}
