// SPDX-License-Identifier: Apache-2.0
//! Listening on the path of a UNIX socket where a socket without a listener, another program's socket or a file may
//! exist.

use crate::address::{Address, ListenError};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with,
};
use std::fs::{self, FileType};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The most clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// The users who may connect to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Users that the umask admits.
    ByUmask,
    /// Only its owner.
    Owner,
}

/// Listens on `path`. A socket there without a listener is replaced; any other file stays.
///
/// # Errors
/// When another program listens there, the path is no socket, or the kernel refuses.
pub fn listen(path: &Path, users: Users) -> Result<UnixListener, ListenError> {
    let failed = |cause: Errno| refused(path)(cause.into());
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = stream_socket().map_err(failed)?;
    if users == Users::Owner {
        // The socket's own mode, reduced by the umask, becomes the mode of the path.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    }
    let mut bound = bind(&socket, &address);
    if bound == Err(Errno::ADDRINUSE) {
        remove_dead(path, &address)?;
        bound = bind(&socket, &address);
    }
    bound.map_err(failed)?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
    rustix::io::ioctl_fionbio(&socket, false).map_err(failed)?;
    Ok(socket.into())
}

/// Removes the socket at `path`, if one is there.
pub fn remove(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        // A socket that stays is replaced by the next listener.
        let _ = fs::remove_file(path);
    }
}

/// A non-blocking socket: connecting does not wait for a place in a listener's full queue either.
///
/// # Errors
/// When no descriptor is left.
pub fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn refused(path: &Path) -> impl Fn(io::Error) -> ListenError + Copy {
    move |cause| ListenError::Bind {
        address: Address::Unix(path.to_owned()),
        cause,
    }
}

fn remove_dead(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let failed = refused(path);
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(failed(cause)),
    };
    if !found.is_socket() {
        return Err(ListenError::NotASocket {
            path: path.to_owned(),
            found: name(found),
        });
    }
    match stream_socket().and_then(|probe| connect(&probe, address)) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        // A full queue shows that a listener exists.
        Ok(()) | Err(Errno::AGAIN) => Err(failed(ErrorKind::AddrInUse.into())),
        Err(cause) => Err(failed(cause.into())),
    }
}

fn name(found: FileType) -> &'static str {
    if found.is_dir() {
        "a directory"
    } else if found.is_symlink() {
        "a symbolic link"
    } else if found.is_file() {
        "a file"
    } else {
        "a device or a pipe"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixDatagram;

    fn refused(path: &Path) -> String {
        let refused = listen(path, Users::ByUmask).unwrap_err().to_string();
        assert!(refused.contains(path.to_str().unwrap()), "{refused}");
        refused
    }

    #[test]
    fn files_directories_and_links_survive() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "precious").unwrap();
        assert!(refused(&file).contains("a file, not a socket"));
        let link = directory.path().join("link");
        symlink(&file, &link).unwrap();
        assert!(refused(&link).contains("a symbolic link, not a socket"));
        let folder = directory.path().join("folder");
        fs::create_dir(&folder).unwrap();
        assert!(refused(&folder).contains("a directory, not a socket"));
        remove(&file);
        remove(&link);
        assert_eq!(fs::read(&link).unwrap(), b"precious");
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        drop(listen(&path, Users::ByUmask).unwrap());
        assert!(path.exists(), "a killed program leaves its socket");
        let live = listen(&path, Users::Owner).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(refused(&path).contains("another program"));
        drop(live);
        remove(&path);
        assert!(!path.exists());
        let _datagrams = UnixDatagram::bind(&path).unwrap();
        refused(&path);
        assert!(path.exists());
    }

    #[test]
    fn a_listener_with_a_full_queue_survives() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = SocketAddrUnix::new(&path).unwrap();
        let busy = stream_socket().unwrap();
        bind(&busy, &address).unwrap();
        rustix::net::listen(&busy, 0).unwrap();
        let waiting: Vec<OwnedFd> = std::iter::from_fn(|| {
            let client = stream_socket().unwrap();
            match connect(&client, &address) {
                Ok(()) => Some(client),
                Err(Errno::AGAIN) => None,
                Err(cause) => panic!("{cause}"),
            }
        })
        .collect();
        assert!(!waiting.is_empty());
        assert!(refused(&path).contains("another program"));
        assert!(path.exists());
    }
}
