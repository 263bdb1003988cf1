//! One HTTP address for guests that live in other processes: shards, or QEMUs.

use super::http::{self, Parsed, Target};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long another process may take for an answer. Longer than a guest may, so that its own
/// error arrives.
const PATIENCE: Duration = Duration::from_secs(7);

/// Finds the process of a guest.
pub trait Route: Send + Sync + 'static {
    /// The UNIX socket behind which the guest is, if there is such a guest.
    fn socket(&self, guest: u32) -> Option<PathBuf>;

    /// The request as the socket wants it.
    fn request(&self, guest: u32, line: &[u8]) -> Vec<u8>;

    /// The whole answer as status and body, once `received` holds it.
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

/// Status and body of a whole HTTP answer.
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

/// Serves a route, with a thread for each client. Stops when dropped.
pub struct Router {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Router {
    /// Listens on `address`.
    ///
    /// # Errors
    /// [`Error::System`] when it cannot.
    pub fn start(address: SocketAddr, route: Arc<dyn Route>) -> Result<Self> {
        let failed = |cause| Error::System {
            tried: format!("listen on {address}"),
            cause,
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = std::thread::Builder::new()
            .name("router".into())
            .spawn(move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    let route = Arc::clone(&route);
                    // A client that gets no thread is closed, which it sees.
                    let _ = std::thread::Builder::new()
                        .name("client".into())
                        .spawn(move || serve(stream, &*route));
                }
            });
        Ok(Self {
            address,
            stopping,
            thread: Some(thread.map_err(|e| Error::of_limit("start the router", e))?),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Its own connection gets the listener out of its wait.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut client: TcpStream, route: &dyn Route) {
    let _ = client.set_nodelay(true);
    let mut upstreams: HashMap<PathBuf, UnixStream> = HashMap::new();
    let mut input = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        match http::parse(&input) {
            Parsed::Incomplete => match client.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(count) => input.extend(buffer.iter().take(count)),
            },
            Parsed::Bad(status, why) => {
                let _ = client.write_all(&http::response(
                    status,
                    format!("{why}\n").as_bytes(),
                    false,
                ));
                return;
            }
            Parsed::Request(request) => {
                input.drain(..request.length);
                let (status, body) = match request.target {
                    Target::Unknown => (404, b"try /vm/N/path or /status\n".to_vec()),
                    Target::Status => (200, route.status().into_bytes()),
                    Target::Guest(guest, line) => forward(route, &mut upstreams, guest, &line),
                };
                if client
                    .write_all(&http::response(status, &body, request.keep_alive))
                    .is_err()
                    || !request.keep_alive
                {
                    return;
                }
            }
        }
    }
}

fn forward(
    route: &dyn Route,
    upstreams: &mut HashMap<PathBuf, UnixStream>,
    guest: u32,
    line: &[u8],
) -> (u16, Vec<u8>) {
    let Some(socket) = route.socket(guest) else {
        return (404, b"there is no guest of this number\n".to_vec());
    };
    let outcome = exchange(route, upstreams, &socket, guest, line);
    if outcome.is_err() {
        upstreams.remove(&socket);
    }
    outcome.unwrap_or_else(|cause| match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            (504, b"the guest did not answer\n".to_vec())
        }
        _ => (502, format!("the guest's process: {cause}\n").into_bytes()),
    })
}

fn exchange(
    route: &dyn Route,
    upstreams: &mut HashMap<PathBuf, UnixStream>,
    socket: &PathBuf,
    guest: u32,
    line: &[u8],
) -> io::Result<(u16, Vec<u8>)> {
    if !upstreams.contains_key(socket) {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        upstreams.insert(socket.clone(), stream);
    }
    let Some(stream) = upstreams.get_mut(socket) else {
        return Err(io::ErrorKind::NotConnected.into());
    };
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
