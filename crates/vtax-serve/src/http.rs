//! As much of an HTTP/1.1 server as a scrape needs: one request a connection, on TCP and UNIX
//! sockets, within bounds that no client can push.
//!
//! A scrape is one small request every few seconds from one or two clients. A thread for each
//! does, and there is no runtime to build, to tune or to wait in.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A request line and its headers; scrapers send a tenth of it.
const LONGEST_REQUEST: usize = 8 << 10;

/// Requests answered at once; another one is told to come back.
const MOST_AT_ONCE: usize = 16;

/// From the first byte to the last, for a request and for its answer each.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A path in the file system.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    /// `unix:PATH`, `ADDRESS:PORT` (`127.0.0.1:19190`, `[::1]:19190`), or a port of the loopback
    /// address.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("`unix:` needs a path, such as unix:/run/vtax.sock".to_owned())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(Self::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            format!("`{text}` is no place to listen: give ADDRESS:PORT, PORT or unix:PATH")
        })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The kernel refused.
    #[error("cannot listen on {address}: {cause}{}", remedy(.cause))]
    Bind {
        /// Where.
        address: Address,
        /// Why.
        cause: io::Error,
    },
    /// The path exists and is something else.
    #[error(
        "cannot listen on {0}: there is a file that is not a socket; remove it or give another path"
    )]
    NoSocket(Address),
    /// The pipe or thread of the server.
    #[error("cannot start the server: {0}")]
    Start(#[source] io::Error),
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        ErrorKind::AddrInUse => {
            "; another program (another exporter?) has it: stop that one or give another with --listen"
        }
        ErrorKind::PermissionDenied => {
            "; ports below 1024 and most directories need root: give another with --listen"
        }
        ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        ErrorKind::NotFound => "; make the directory first",
        _ => "",
    }
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Without the query.
    pub path: String,
    /// The `Accept` header; empty where there is none.
    pub accept: String,
}

/// What it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Such as 200.
    pub status: u16,
    /// The `Content-Type` header.
    pub content_type: &'static str,
    /// The content.
    pub body: Vec<u8>,
}

impl Response {
    /// One line of plain text.
    pub fn text(status: u16, line: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{line}\n").into_bytes(),
        }
    }
}

/// Answers requests, on many threads at once.
pub type Handler = Arc<dyn Fn(&Request) -> Response + Send + Sync>;

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    bound: Vec<Address>,
    sockets: Vec<PathBuf>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on every one of `addresses` and answers from now on.
    ///
    /// # Errors
    /// When any of them cannot be listened on.
    pub fn start(addresses: &[Address], handler: Handler) -> Result<Self, ListenError> {
        let mut listeners = Vec::with_capacity(addresses.len());
        let (told, stop) = io::pipe().map_err(ListenError::Start)?;
        let mut server = Self {
            bound: Vec::new(),
            sockets: Vec::new(),
            stop: Some(stop),
            thread: None,
        };
        for address in addresses {
            let listener = Listener::bind(address)?;
            if let Address::Unix(path) = address {
                server.sockets.push(path.clone());
            }
            server.bound.push(listener.address(address));
            listeners.push(listener);
        }
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || accept_all(&listeners, &told, &handler))
            .map_err(ListenError::Start)?;
        server.thread = Some(thread);
        Ok(server)
    }

    /// Where it really listens: with the port that the kernel chose, where port 0 was asked for.
    pub fn addresses(&self) -> &[Address] {
        &self.bound
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The pipe's end is what the thread waits for.
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
        for path in &self.sockets {
            let _ = fs::remove_file(path);
        }
    }
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn bind(address: &Address) -> Result<Self, ListenError> {
        let failed = |cause| ListenError::Bind {
            address: address.clone(),
            cause,
        };
        let listener = match address {
            Address::Tcp(socket) => Self::Tcp(TcpListener::bind(socket).map_err(failed)?),
            Address::Unix(path) => {
                remove_stale(path).map_err(|cause| match cause {
                    Some(cause) => failed(cause),
                    None => ListenError::NoSocket(address.clone()),
                })?;
                Self::Unix(UnixListener::bind(path).map_err(failed)?)
            }
        };
        listener.set_nonblocking().map_err(failed)?;
        Ok(listener)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener) => listener.set_nonblocking(true),
        }
    }

    fn address(&self, asked: &Address) -> Address {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| asked.clone(), Address::Tcp),
            Self::Unix(_) => asked.clone(),
        }
    }

    fn poll_fd(&self) -> PollFd<'_> {
        match self {
            Self::Tcp(listener) => PollFd::new(listener, PollFlags::IN),
            Self::Unix(listener) => PollFd::new(listener, PollFlags::IN),
        }
    }

    fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Self::Unix(listener) => Stream::Unix(listener.accept()?.0),
        })
    }
}

/// Removes what a server that was killed left. `Err(None)`: it is no socket.
fn remove_stale(path: &Path) -> Result<(), Option<io::Error>> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(None);
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Some(ErrorKind::AddrInUse.into())),
        Err(cause) if cause.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(Some)
        }
        Err(cause) => Err(Some(cause)),
    }
}

fn accept_all(listeners: &[Listener], told: &PipeReader, handler: &Handler) {
    let active = Arc::new(AtomicUsize::new(0));
    loop {
        let mut waiting: Vec<PollFd<'_>> = listeners.iter().map(Listener::poll_fd).collect();
        waiting.push(PollFd::new(told, PollFlags::empty()));
        match poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
        if waiting
            .last()
            .is_some_and(|told| !told.revents().is_empty())
        {
            return;
        }
        let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (listener, _) in listeners.iter().zip(ready).filter(|(_, ready)| *ready) {
            match listener.accept() {
                Ok(stream) => serve_on_a_thread(stream, &active, handler),
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => {}
                // No file descriptors left, or a client that hung up: neither is for ever.
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// One of the requests that are answered at once.
struct Turn(Arc<AtomicUsize>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve_on_a_thread(mut stream: Stream, active: &Arc<AtomicUsize>, handler: &Handler) {
    let before = active.fetch_add(1, Ordering::SeqCst);
    let turn = Turn(Arc::clone(active));
    if before >= MOST_AT_ONCE {
        // Without waiting: it fits into an empty send buffer.
        let _ = stream.set_write_timeout(Duration::from_millis(100));
        let busy = Response::text(503, "too many requests at once");
        let _ = stream.write_all(&head(&busy));
        return;
    }
    let handler = Arc::clone(handler);
    // Where no thread can be had, the connection closes unanswered, which scrapers report.
    let _ = std::thread::Builder::new()
        .name("http".to_owned())
        .stack_size(256 << 10)
        .spawn(move || {
            let _turn = turn;
            // A client that went away needs no answer.
            let _ = serve(stream, &handler);
        });
}

fn serve(mut stream: Stream, handler: &Handler) -> io::Result<()> {
    stream.set_blocking()?;
    let (response, with_body) = match read_request(&mut stream)? {
        Asked::Request { request, with_body } => (handler(&request), with_body),
        Asked::Refused(status, why) => (Response::text(status, why), true),
        Asked::Nothing => return Ok(()),
    };
    let mut answer = head(&response);
    if with_body {
        answer.extend_from_slice(&response.body);
    }
    let until = Instant::now() + PATIENCE;
    let mut rest = answer.as_slice();
    while !rest.is_empty() {
        stream.set_write_timeout(left(until)?)?;
        match stream.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    stream.finish()
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

enum Asked {
    Request {
        request: Request,
        with_body: bool,
    },
    Refused(u16, &'static str),
    /// It connected and said nothing, like a port scanner.
    Nothing,
}

fn read_request(stream: &mut Stream) -> io::Result<Asked> {
    let until = Instant::now() + PATIENCE;
    let mut received = Vec::new();
    let mut piece = [0u8; 1024];
    loop {
        let left = match left(until) {
            Ok(left) => left,
            Err(_) if received.is_empty() => return Ok(Asked::Nothing),
            Err(_) => return Ok(Asked::Refused(408, "the request took too long")),
        };
        stream.set_read_timeout(left)?;
        match stream.read(&mut piece) {
            Ok(0) if received.is_empty() => return Ok(Asked::Nothing),
            Ok(0) => return Ok(Asked::Refused(400, "the request has no end")),
            Ok(read) => received.extend_from_slice(piece.get(..read).unwrap_or_default()),
            Err(cause)
                if matches!(
                    cause.kind(),
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
                ) => {}
            Err(cause) => return Err(cause),
        }
        if let Some(asked) = parse(&received) {
            return Ok(asked);
        }
        if received.len() > LONGEST_REQUEST {
            return Ok(Asked::Refused(431, "the request is too long"));
        }
    }
}

/// `None` while more is to come.
fn parse(received: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(received) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => {
            return Some(Asked::Refused(431, "the request has too many headers"));
        }
        Err(_) => return Some(Asked::Refused(400, "this is not HTTP")),
    }
    let with_body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return Some(Asked::Refused(405, "there is only GET and HEAD")),
    };
    let path = request.path.unwrap_or("/");
    let path = path.split(['?', '#']).next().unwrap_or("/");
    let accept = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("accept"))
        .map(|header| String::from_utf8_lossy(header.value).into_owned());
    Some(Asked::Request {
        request: Request {
            path: path.to_owned(),
            accept: accept.unwrap_or_default(),
        },
        with_body,
    })
}

fn head(response: &Response) -> Vec<u8> {
    let reason = match response.status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let allow = if response.status == 405 {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        response.status,
        response.content_type,
        response.body.len()
    )
    .into_bytes()
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_blocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(false),
            Self::Unix(stream) => stream.set_nonblocking(false),
        }
    }

    fn set_read_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(time)),
            Self::Unix(stream) => stream.set_read_timeout(Some(time)),
        }
    }

    fn set_write_timeout(&self, time: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(Some(time)),
            Self::Unix(stream) => stream.set_write_timeout(Some(time)),
        }
    }

    /// Ends the answer, and takes what the client may still send: closing with unread bytes would
    /// reset the connection and could cost it the answer's end.
    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write)?,
            Self::Unix(stream) => stream.shutdown(Shutdown::Write)?,
        }
        self.set_read_timeout(Duration::from_millis(500))?;
        let mut piece = [0u8; 1024];
        for _ in 0..64 {
            if self.read(&mut piece)? == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn echo() -> Handler {
        Arc::new(|request: &Request| {
            Response::text(200, &format!("{} {}", request.path, request.accept))
        })
    }

    fn tcp(server: &Server) -> TcpStream {
        let Some(Address::Tcp(address)) = server.addresses().first() else {
            panic!("no TCP address");
        };
        TcpStream::connect(address).unwrap()
    }

    fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn start() -> Server {
        Server::start(&["0".parse().unwrap()], echo()).unwrap()
    }

    #[test]
    fn a_request_is_answered_also_in_pieces_and_over_a_unix_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let addresses = ["127.0.0.1:0".parse().unwrap(), Address::Unix(path.clone())];
        let server = Server::start(&addresses, echo()).unwrap();
        let request = b"GET /metrics?x=1 HTTP/1.1\r\nhost: a\r\nACCEPT: text/plain\r\n\r\n";
        let answer = ask(tcp(&server), request);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.ends_with("\r\n\r\n/metrics text/plain\n"),
            "{answer}"
        );
        let answer = ask(UnixStream::connect(&path).unwrap(), request);
        assert!(answer.ends_with("/metrics text/plain\n"), "{answer}");
        let mut slow = tcp(&server);
        slow.set_nodelay(true).unwrap();
        for byte in request.iter().take(request.len() - 1) {
            slow.write_all(&[*byte]).unwrap();
        }
        assert!(ask(slow, b"\n").ends_with("/metrics text/plain\n"));
        drop(server);
        assert!(!path.exists(), "its socket goes with it");
    }

    #[test]
    fn head_has_no_content_and_other_methods_are_refused() {
        let server = start();
        let answer = ask(tcp(&server), b"HEAD / HTTP/1.1\r\n\r\n");
        assert!(
            answer.contains("Content-Length: 3\r\n") && answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
        let answer = ask(
            tcp(&server),
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        );
        assert!(
            answer.starts_with("HTTP/1.1 405 ") && answer.contains("Allow: GET"),
            "{answer}"
        );
    }

    #[test]
    fn garbage_and_endless_requests_are_refused() {
        let server = start();
        assert!(ask(tcp(&server), b"\x16\x03\x01\x02\x00\x01\x00").starts_with("HTTP/1.1 400 "));
        let mut endless = tcp(&server);
        endless.write_all(b"GET / HTTP/1.1\r\nx: ").unwrap();
        // The server may close before it has taken all.
        let _ = endless.write_all(&vec![b'a'; LONGEST_REQUEST + 2048]);
        let mut answer = [0; 12];
        endless.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 431");
        let mut half = tcp(&server);
        half.write_all(b"GET / HT").unwrap();
        half.shutdown(Shutdown::Write).unwrap();
        assert!(ask(half, b"").starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn clients_that_say_nothing_take_no_place_for_ever_and_more_than_enough_are_sent_away() {
        let server = start();
        let silent: Vec<TcpStream> = (0..MOST_AT_ONCE).map(|_| tcp(&server)).collect();
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let mut answer = String::new();
            let mut client = tcp(&server);
            let _ = client.write_all(b"GET / HTTP/1.1\r\n\r\n");
            let _ = client.read_to_string(&mut answer);
            if answer.starts_with("HTTP/1.1 503 ") {
                break;
            }
            assert!(Instant::now() < deadline, "never refused: {answer}");
        }
        drop(silent);
        loop {
            let mut answer = String::new();
            let mut client = tcp(&server);
            let _ = client.write_all(b"GET / HTTP/1.1\r\n\r\n");
            let _ = client.read_to_string(&mut answer);
            if answer.starts_with("HTTP/1.1 200 ") {
                break;
            }
            assert!(Instant::now() < deadline, "never answered again: {answer}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_anything_else_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let address = [Address::Unix(path.clone())];
        let server = Server::start(&address, echo()).unwrap();
        let refused = Server::start(&address, echo()).unwrap_err().to_string();
        assert!(refused.contains("another program"), "{refused}");
        assert!(path.exists(), "the running server keeps its socket");
        drop(server);
        fs::write(&path, "precious").unwrap();
        let refused = Server::start(&address, echo()).unwrap_err().to_string();
        assert!(refused.contains("not a socket"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(read("19190").unwrap(), "http://127.0.0.1:19190");
        assert_eq!(read("[::1]:80").unwrap(), "http://[::1]:80");
        assert_eq!(read("unix:/run/vtax.sock").unwrap(), "unix:/run/vtax.sock");
        for wrong in ["", "unix:", "localhost:x", "99999", "/run/vtax.sock"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_parser(received in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&received);
        }
    }
}
