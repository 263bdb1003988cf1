// SPDX-License-Identifier: Apache-2.0
//! One HTTP address for the guests of other processes: shards, or QEMUs.

use super::http::{PLAIN, Target};
use crate::error::Result;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use vtax_http::unix::Users;
use vtax_http::{Address, Limits, Listeners, Request, Response, Server};

/// Time limit of an answer from another process. It is longer than a guest's limit, so that the process's own error
/// arrives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(7);

/// Finds the process of a guest.
pub trait Route: Send + Sync + 'static {
    /// The UNIX socket of the guest's process, if there is such a guest.
    fn socket(&self, guest: u32) -> Option<PathBuf>;

    /// The request in the protocol of the socket.
    fn request(&self, guest: u32, line: &[u8]) -> Vec<u8>;

    /// The status and body of the answer, once `received` has all of it.
    fn answer(&self, received: &[u8]) -> Option<(u16, Vec<u8>)>;

    /// Counts of guests, as JSON.
    fn status(&self) -> String;
}

/// Shards that speak HTTP.
#[derive(Debug)]
pub struct ShardRoute {
    /// First guest, count and socket of each, in order.
    pub shards: Vec<(u32, u32, PathBuf)>,
}

impl Route for ShardRoute {
    fn socket(&self, guest: u32) -> Option<PathBuf> {
        let behind = self.shards.partition_point(|(first, ..)| *first <= guest);
        let (first, count, socket) = self.shards.get(behind.checked_sub(1)?)?;
        (guest - first < *count).then(|| socket.clone())
    }

    fn request(&self, guest: u32, line: &[u8]) -> Vec<u8> {
        let path = String::from_utf8_lossy(line);
        format!("GET /vm/{guest}{} HTTP/1.1\r\n\r\n", path.trim_end()).into_bytes()
    }

    fn answer(&self, received: &[u8]) -> Option<(u16, Vec<u8>)> {
        http_answer(received)
    }

    fn status(&self) -> String {
        let guests: u32 = self.shards.iter().map(|(_, count, _)| count).sum();
        format!("{{\"guests\":{guests},\"shards\":{}}}\n", self.shards.len())
    }
}

/// The status and body of an HTTP answer, once `received` has all of it.
#[must_use]
pub fn http_answer(received: &[u8]) -> Option<(u16, Vec<u8>)> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(received) {
        Ok(httparse::Status::Complete(head)) => head,
        _ => return None,
    };
    let length = response
        .headers
        .iter()
        .find(|h| h.name.eq_ignore_ascii_case("content-length"))?
        .value;
    let length: usize = std::str::from_utf8(length).ok()?.trim().parse().ok()?;
    let body = received.get(head..head.checked_add(length)?)?;
    Some((response.code?, body.to_vec()))
}

/// The limits of clients, which have a thread each and keep an idle connection for a minute.
const LIMITS: Limits = Limits {
    connections: 256,
    patience: Duration::from_secs(10),
    idle: Some(Duration::from_secs(60)),
};

/// Serves a route. Stops when dropped.
#[derive(Debug)]
pub struct Router {
    _server: Server,
    address: SocketAddr,
}

impl Router {
    /// Listens on `address`.
    ///
    /// # Errors
    /// [`Error::Listen`](crate::error::Error::Listen) when it cannot.
    pub fn start(address: SocketAddr, route: Arc<dyn Route>) -> Result<Self> {
        let listeners = Listeners::bind(&[Address::Tcp(address)], Users::ByUmask)?;
        let upstreams = Upstreams::default();
        let server = listeners.serve(
            LIMITS,
            Arc::new(move |request| respond(&*route, &upstreams, request)),
        )?;
        let address = match server.addresses() {
            [Address::Tcp(chosen), ..] => *chosen,
            _ => address,
        };
        Ok(Self {
            _server: server,
            address,
        })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn respond(route: &dyn Route, upstreams: &Upstreams, request: &Request<'_>) -> Response {
    let (status, body) = match Target::from_request(request) {
        Target::Refused(status, why) => return Response::text(status, why),
        Target::Status => (200, route.status().into_bytes()),
        Target::Guest(guest, line) => match route.socket(guest) {
            Some(socket) => forward(route, upstreams, &socket, guest, &line),
            None => return Response::text(404, "there is no guest of this number"),
        },
    };
    Response {
        status,
        content_type: PLAIN,
        body,
    }
}

/// The most idle connections to a process, because there may be hundreds of processes and few descriptors.
const MOST_IDLE: usize = 4;

/// Connections to other processes that no request uses.
type Upstreams = Mutex<HashMap<PathBuf, Vec<UnixStream>>>;

fn forward(
    route: &dyn Route,
    upstreams: &Upstreams,
    socket: &Path,
    guest: u32,
    line: &[u8],
) -> (u16, Vec<u8>) {
    let lock = || upstreams.lock().unwrap_or_else(PoisonError::into_inner);
    let idle = lock().get_mut(socket).and_then(Vec::pop);
    let asked = idle
        .map_or_else(|| connect(socket), Ok)
        .and_then(|mut stream| {
            let answer = exchange(route, &mut stream, guest, line)?;
            Ok((answer, stream))
        });
    match asked {
        Ok((answer, stream)) => {
            let mut upstreams = lock();
            let idle = upstreams.entry(socket.to_owned()).or_default();
            if idle.len() < MOST_IDLE {
                idle.push(stream);
            }
            answer
        }
        Err(cause) => {
            // The process may have ended, and its other connections with it.
            lock().remove(socket);
            match cause.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    (504, b"the guest did not answer\n".to_vec())
                }
                _ => (502, format!("the guest's process: {cause}\n").into_bytes()),
            }
        }
    }
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(stream)
}

fn exchange(
    route: &dyn Route,
    stream: &mut UnixStream,
    guest: u32,
    line: &[u8],
) -> io::Result<(u16, Vec<u8>)> {
    stream.write_all(&route.request(guest, line))?;
    let mut received = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        if let Some(answer) = route.answer(&received) {
            return Ok(answer);
        }
        if received.len() > 64 << 10 {
            return Err(io::Error::other("its answer is too long"));
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => received.extend(buffer.iter().take(count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::net::TcpStream;
    use std::os::unix::net::UnixListener;

    /// A route to one guest that answers with its line.
    struct Echo(PathBuf);

    impl Route for Echo {
        fn socket(&self, guest: u32) -> Option<PathBuf> {
            (guest == 0).then(|| self.0.clone())
        }

        fn request(&self, _guest: u32, line: &[u8]) -> Vec<u8> {
            line.to_vec()
        }

        fn answer(&self, received: &[u8]) -> Option<(u16, Vec<u8>)> {
            received.ends_with(b"\n").then(|| (200, received.to_vec()))
        }

        fn status(&self) -> String {
            "{}\n".to_owned()
        }
    }

    fn router(path: &Path) -> Router {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        Router::start(anywhere, Arc::new(Echo(path.to_owned()))).unwrap()
    }

    fn get(client: &mut TcpStream, path: &str) -> (u16, Vec<u8>) {
        write!(client, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let (mut received, mut buffer) = (Vec::new(), [0; 1024]);
        loop {
            let count = client.read(&mut buffer).unwrap();
            assert!(count > 0, "closed after {received:?}");
            received.extend_from_slice(&buffer[..count]);
            if let Some(answer) = http_answer(&received) {
                return answer;
            }
        }
    }

    fn connect(router: &Router) -> TcpStream {
        let client = TcpStream::connect(router.address()).unwrap();
        let patience = Some(Duration::from_secs(8));
        client.set_read_timeout(patience).unwrap();
        client
    }

    #[test]
    fn clients_share_connections_to_processes_and_see_when_one_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest");
        let listener = UnixListener::bind(&path).unwrap();
        // The guest accepts one connection and closes it after two lines.
        let guest = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = io::BufReader::new(stream.try_clone().unwrap()).lines();
            for _ in 0..2 {
                let line = lines.next().unwrap().unwrap();
                writeln!(&stream, "{line}").unwrap();
            }
        });
        let router = router(&path);
        let (mut one, mut two) = (connect(&router), connect(&router));
        assert_eq!(get(&mut one, "/vm/0/a"), (200, b"/a\n".to_vec()));
        assert_eq!(get(&mut two, "/vm/0/b"), (200, b"/b\n".to_vec()));
        guest.join().unwrap();
        assert_eq!(get(&mut one, "/vm/0/a").0, 502);
        assert_eq!(get(&mut two, "/vm/1/a").0, 404);
        assert_eq!(get(&mut two, "/status"), (200, b"{}\n".to_vec()));
    }

    #[test]
    fn silent_clients_that_stay_keep_nobody_out() {
        let router = router(Path::new("/nowhere"));
        let silent: Vec<_> = (0..2 * LIMITS.connections + 10)
            .map(|_| connect(&router))
            .collect();
        assert_eq!(get(&mut connect(&router), "/status").0, 200);
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert!(threads < 2 * LIMITS.connections, "{threads} threads");
        drop(silent);
    }
}
