// SPDX-License-Identifier: Apache-2.0
//! The server: a thread for each connection, within limits of number and time.

use crate::address::{Address, ListenError};
use crate::listen::{Listener, Listeners};
use crate::message::{self, Method, Parsed, Request, Response};
use crate::token::Token;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{
    RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, acceptfrom_with, recv, send,
    shutdown,
};
use std::collections::HashMap;
use std::fmt;
use std::io::{PipeReader, PipeWriter};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::warn;
use vtax_log::Spaced;

/// Time limit of the end of a connection that was shut down, and of the answers in progress when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Answers requests, on many threads at once.
pub type Handler = Arc<dyn Fn(&Request<'_>) -> Response + Send + Sync>;

/// The limits of clients. A request's head has at most [`crate::LONGEST_HEAD`] bytes and no
/// body.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most connections at once. One more disconnects the client that has kept the server waiting for the longest
    /// time.
    pub connections: usize,
    /// Time limit from a request's first byte to its last, and of its answer.
    pub patience: Duration,
    /// Time limit of the wait for the next request on a connection. `None`: a connection has one request.
    pub idle: Option<Duration>,
}

/// The state that all connections share.
struct Service {
    limits: Limits,
    handler: Handler,
    token: Option<Token>,
    /// The refusals in the log: a client decides how often it is refused.
    refusals: Mutex<Spaced>,
}

impl Service {
    /// Answers a request. A client of a UNIX socket needs no token: the socket's mode admitted it.
    fn answer(&self, request: &Request<'_>, client: &Client) -> Response {
        match &self.token {
            Some(token) if !client.is_local() && !token.is_in(request.authorization) => {
                self.refuse(client, 401, "send the token: Authorization: Bearer TOKEN")
            }
            _ => (self.handler)(request),
        }
    }

    /// Returns the bytes of the last answer to a client that is refused, and logs it.
    fn refusal(&self, client: &Client, status: u16, why: &str) -> Vec<u8> {
        encode(&self.refuse(client, status, why), true, false)
    }

    /// Returns the answer to a client that is refused, and logs it.
    fn refuse(&self, client: &Client, status: u16, why: &str) -> Response {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(more) = refusals.admit() {
            warn!("{client} is refused with {status}: {why}{more}");
        }
        Response::text(status, why)
    }
}

/// A client, by the address of its connection.
#[derive(Debug)]
enum Client {
    /// Of a UNIX socket.
    Local(Address),
    /// `None`: the kernel did not name it.
    Remote(Option<SocketAddr>),
}

impl Client {
    fn new(listener: &Address, peer: Option<SocketAddrAny>) -> Self {
        match listener {
            Address::Unix(_) => Self::Local(listener.clone()),
            Address::Tcp(_) => Self::Remote(peer.and_then(|peer| peer.try_into().ok())),
        }
    }

    fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(socket) => write!(f, "a client of {socket}"),
            Self::Remote(Some(address)) => write!(f, "the client {address}"),
            Self::Remote(None) => f.write_str("a client"),
        }
    }
}

/// A running server. Dropping it stops it, and waits for answers that are being written.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Address>,
    connections: Arc<Connections>,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Listeners {
    /// Starts a server that answers with `handler`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn serve(self, limits: Limits, handler: Handler) -> Result<Server, ListenError> {
        let connections = Arc::new(Connections::default());
        let service = Arc::new(Service {
            limits,
            handler,
            token: self.token,
            refusals: Mutex::default(),
        });
        let mut server = Server {
            addresses: self.listeners.iter().map(|l| l.address.clone()).collect(),
            connections: Arc::clone(&connections),
            stop: Some(self.stop),
            thread: None,
        };
        let (listeners, stopped) = (self.listeners, self.stopped);
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || accept_all(&listeners, &stopped, &connections, &service));
        server.thread = Some(thread.map_err(ListenError::Start)?);
        Ok(server)
    }
}

impl Server {
    /// The addresses that it listens on, with the port that the kernel chose for port 0.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread ends when the pipe is closed.
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // The panic of the thread is printed already.
            let _ = thread.join();
        }
        self.connections.close();
    }
}

fn accept_all(
    listeners: &[Listener],
    stopped: &PipeReader,
    connections: &Arc<Connections>,
    service: &Arc<Service>,
) {
    loop {
        let mut waiting: Vec<PollFd<'_>> = Vec::with_capacity(listeners.len() + 1);
        waiting.push(PollFd::new(stopped, PollFlags::empty()));
        waiting.extend(listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)));
        match poll(&mut waiting, None) {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
        let mut ready = waiting.iter().map(|fd| !fd.revents().is_empty());
        if ready.next() == Some(true) {
            return;
        }
        for (listener, _) in listeners.iter().zip(ready).filter(|(_, ready)| *ready) {
            match acceptfrom_with(listener, SocketFlags::CLOEXEC) {
                Ok((socket, peer)) => {
                    let client = Client::new(&listener.address, peer);
                    serve_on_a_thread(socket, connections, service, client);
                }
                Err(Errno::AGAIN) => {}
                // No file descriptor is left, or the client has closed the connection. Both are temporary.
                Err(cause) => {
                    if matches!(cause, Errno::MFILE | Errno::NFILE) {
                        connections.lock().disconnect_slowest();
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

fn serve_on_a_thread(
    socket: OwnedFd,
    connections: &Arc<Connections>,
    service: &Arc<Service>,
    client: Client,
) {
    // Answers are written as a whole, so delaying small segments only adds latency. A UNIX socket refuses the option.
    let _ = set_tcp_nodelay(&socket, true);
    let socket = Arc::new(socket);
    let Some(connection) = Connections::add(connections, &socket, service.limits.connections)
    else {
        let busy = service.refusal(&client, 503, "too many requests at once");
        // The answer fits into an empty send buffer.
        let _ = send(&socket, &busy, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        return;
    };
    let service = Arc::clone(service);
    // If no thread can be started, the connection closes without an answer, which clients report.
    let _ = std::thread::Builder::new()
        .name("client".to_owned())
        .stack_size(256 << 10)
        .spawn(move || {
            // The client has closed the connection and needs no answer.
            let _ = serve(&connection, &service, &client);
        });
}

fn serve(connection: &Connection, service: &Service, client: &Client) -> Result<(), Errno> {
    let limits = service.limits;
    let socket = &*connection.socket;
    let mut received = Vec::new();
    let mut until = Instant::now() + limits.patience;
    loop {
        let (answer, length) = match message::parse(&received) {
            Parsed::Incomplete => match receive(socket, &mut received, &mut until, limits)? {
                None => continue,
                Some((status, why)) => (service.refusal(client, status, why), None),
            },
            Parsed::Refused(status, why) => (service.refusal(client, status, why), None),
            Parsed::Request(request) => {
                connection.set_activity(Activity::Answering)?;
                let response = service.answer(&request, client);
                let keep = request.keep_alive && limits.idle.is_some();
                let whole = request.method == Method::Get;
                let answer = encode(&response, whole, keep);
                (answer, keep.then_some(request.length))
            }
        };
        connection.set_activity(Activity::Writing(Instant::now()))?;
        write(socket, &answer, Instant::now() + limits.patience)?;
        connection.set_activity(Activity::Reading(Instant::now()))?;
        let Some(length) = length else {
            return finish(socket);
        };
        received.drain(..length);
        until = Instant::now() + limits.idle.unwrap_or_default();
    }
}

/// Reads once. `Some`: the status and the reason for a client that will send no complete request.
fn receive(
    socket: &OwnedFd,
    received: &mut Vec<u8>,
    until: &mut Instant,
    limits: Limits,
) -> Result<Option<(u16, &'static str)>, Errno> {
    let nothing = received.is_empty();
    let mut piece = [0u8; 4096];
    match before(*until, socket, Timeout::Recv)
        .and_then(|()| recv(socket, &mut piece, RecvFlags::empty()))
    {
        // The client has sent nothing, as a port scanner does, or has sent all its requests.
        Ok((0, _)) | Err(Errno::TIMEDOUT) if nothing => Err(Errno::TIMEDOUT),
        Ok((0, _)) => Ok(Some((400, "the request has no end"))),
        Ok((read, _)) => {
            if nothing {
                *until = Instant::now() + limits.patience;
            }
            received.extend_from_slice(piece.get(..read).unwrap_or_default());
            Ok(None)
        }
        Err(Errno::TIMEDOUT) => Ok(Some((408, "the request took too long"))),
        Err(Errno::INTR | Errno::AGAIN) => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn write(socket: &OwnedFd, mut rest: &[u8], until: Instant) -> Result<(), Errno> {
    while !rest.is_empty() {
        before(until, socket, Timeout::Send)?;
        match send(socket, rest, SendFlags::NOSIGNAL) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

/// Ends the answer and reads the rest of the client's input: closing a connection with unread bytes resets it, and the
/// client could lose the end of the answer.
fn finish(socket: &OwnedFd) -> Result<(), Errno> {
    shutdown(socket, Shutdown::Write)?;
    let until = Instant::now() + CLOSE_TIMEOUT;
    let mut piece = [0u8; 4096];
    loop {
        before(until, socket, Timeout::Recv)?;
        match recv(socket, &mut piece, RecvFlags::empty()) {
            Ok((0, _)) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(cause) => return Err(cause),
        }
    }
}

/// Sets the timeout of the next call on `socket` to a deadline.
fn before(until: Instant, socket: &OwnedFd, direction: Timeout) -> Result<(), Errno> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Errno::TIMEDOUT);
    }
    set_socket_timeout(socket, direction, Some(left))
}

fn encode(response: &Response, whole: bool, keep_alive: bool) -> Vec<u8> {
    let (status, kind, body) = (response.status, response.content_type, &response.body);
    let mut out = Vec::with_capacity(256 + body.len());
    message::write_head(&mut out, status, kind, body.len(), keep_alive);
    if whole {
        out.extend_from_slice(body);
    }
    out
}

/// The activity of a connection's thread.
#[derive(Debug, Clone, Copy)]
enum Activity {
    Reading(Instant),
    Answering,
    Writing(Instant),
    /// The connection was shut down, and the thread ends.
    Ending,
}

#[derive(Debug, Default)]
struct Connections {
    table: Mutex<Table>,
    removed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    entries: HashMap<u64, Entry>,
    /// Whether the server stops. A server that stops reads no more requests.
    closed: bool,
}

impl Table {
    /// Disconnects the client that has kept its thread waiting for the longest time. Returns false if all clients are
    /// being answered.
    fn disconnect_slowest(&mut self) -> bool {
        let waiting = self
            .entries
            .values_mut()
            .filter_map(|entry| match entry.activity {
                Activity::Reading(since) | Activity::Writing(since) => Some((since, entry)),
                Activity::Answering | Activity::Ending => None,
            });
        let oldest = waiting.min_by_key(|(since, _)| *since);
        oldest.map(|(_, entry)| entry.shut_down()).is_some()
    }
}

#[derive(Debug)]
struct Entry {
    socket: Arc<OwnedFd>,
    activity: Activity,
}

impl Entry {
    fn shut_down(&mut self) {
        self.activity = Activity::Ending;
        // The thread's read or write fails, which ends the thread.
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection; at the limit it replaces the connection that has kept its thread waiting for the longest
    /// time. `None`: all clients are being answered.
    fn add(connections: &Arc<Self>, socket: &Arc<OwnedFd>, most: usize) -> Option<Connection> {
        let mut table = connections.lock();
        if table.entries.len() >= most {
            if !table.disconnect_slowest() {
                return None;
            }
            table = connections.wait(table, |table| table.entries.len() >= most);
            if table.entries.len() >= most {
                return None;
            }
        }
        let number = table.next;
        table.next += 1;
        let entry = Entry {
            socket: Arc::clone(socket),
            activity: Activity::Reading(Instant::now()),
        };
        table.entries.insert(number, entry);
        Some(Connection {
            connections: Arc::clone(connections),
            number,
            socket: Arc::clone(socket),
        })
    }

    fn wait<'a>(
        &self,
        table: MutexGuard<'a, Table>,
        full: impl FnMut(&mut Table) -> bool,
    ) -> MutexGuard<'a, Table> {
        let waited = self.removed.wait_timeout_while(table, CLOSE_TIMEOUT, full);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Disconnects the clients that are not being answered, and waits for the others.
    fn close(&self) {
        let mut table = self.lock();
        table.closed = true;
        for entry in table.entries.values_mut() {
            if matches!(entry.activity, Activity::Reading(_)) {
                entry.shut_down();
            }
        }
        drop(self.wait(table, |table| !table.entries.is_empty()));
    }
}

/// A connection, which is in the table until its thread ends.
#[derive(Debug)]
struct Connection {
    connections: Arc<Connections>,
    number: u64,
    socket: Arc<OwnedFd>,
}

impl Connection {
    /// Records the next activity of the thread. Fails where the thread has to end.
    fn set_activity(&self, activity: Activity) -> Result<(), Errno> {
        let mut table = self.connections.lock();
        let closed = table.closed && matches!(activity, Activity::Reading(_));
        match table.entries.get_mut(&self.number) {
            Some(entry) if !closed && !matches!(entry.activity, Activity::Ending) => {
                entry.activity = activity;
                Ok(())
            }
            _ => Err(Errno::CANCELED),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.lock().entries.remove(&self.number);
        self.connections.removed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix::Users;
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    const REQUEST: &[u8] = b"GET /metrics?x=1 HTTP/1.1\r\nhost: a\r\nACCEPT: text/plain\r\n\r\n";

    const LIMITS: Limits = Limits {
        connections: 4,
        patience: Duration::from_secs(10),
        idle: None,
    };

    fn echo() -> Handler {
        Arc::new(|request: &Request<'_>| {
            Response::text(200, &format!("{} {}", request.path(), request.accept))
        })
    }

    fn start(limits: Limits, handler: Handler) -> Server {
        let anywhere = ["0".parse().unwrap()];
        let listeners = Listeners::bind(&anywhere, Users::ByUmask).unwrap();
        listeners.serve(limits, handler).unwrap()
    }

    fn tcp(server: &Server) -> TcpStream {
        let Some(Address::Tcp(address)) = server.addresses().first() else {
            panic!("no TCP address");
        };
        let stream = TcpStream::connect(address).unwrap();
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).unwrap();
        stream
    }

    fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Whether the server has closed the connection, after any answer.
    fn is_closed(stream: &mut TcpStream) -> bool {
        match stream.read(&mut [0; 512]) {
            Ok(0) => true,
            Ok(_) => is_closed(stream),
            Err(cause) => cause.kind() == ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn a_request_is_answered_also_in_pieces_and_over_a_unix_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let addresses = ["127.0.0.1:0".parse().unwrap(), Address::Unix(path.clone())];
        let listeners = Listeners::bind(&addresses, Users::ByUmask).unwrap();
        let server = listeners.serve(LIMITS, echo()).unwrap();
        let answer = ask(tcp(&server), REQUEST);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.ends_with("\r\n\r\n/metrics text/plain\n"),
            "{answer}"
        );
        let answer = ask(UnixStream::connect(&path).unwrap(), REQUEST);
        assert!(answer.ends_with("/metrics text/plain\n"), "{answer}");
        let mut slow = tcp(&server);
        slow.set_nodelay(true).unwrap();
        for byte in REQUEST.iter().take(REQUEST.len() - 1) {
            slow.write_all(&[*byte]).unwrap();
        }
        assert!(ask(slow, b"\n").ends_with("/metrics text/plain\n"));
        drop(server);
        assert!(!path.exists(), "its socket goes with it");
    }

    #[test]
    fn nobody_without_the_token_is_answered_but_by_a_path_whose_mode_lets_them_in() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = (
            directory.path().join("socket"),
            directory.path().join("token"),
        );
        std::fs::write(&file, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let token = Some(Token::read(&file).unwrap());
        let addresses = ["0.0.0.0:0".parse().unwrap(), Address::Unix(path.clone())];
        let listeners = Listeners::bind_for(&addresses, Users::Owner, token).unwrap();
        let server = listeners.serve(LIMITS, echo()).unwrap();
        let asked = |header: &str| {
            let request = format!("GET /metrics HTTP/1.1\r\n{header}\r\n");
            ask(tcp(&server), request.as_bytes())
        };
        for header in ["", "Authorization: Bearer 0123456789abcdee\r\n"] {
            let refused = asked(header);
            assert!(
                refused.starts_with("HTTP/1.1 401 Unauthorized\r\n")
                    && refused.contains("WWW-Authenticate: Bearer\r\n")
                    && !refused.contains("/metrics"),
                "{refused}"
            );
        }
        let answer = asked("Authorization: Bearer 0123456789abcdef\r\n");
        assert!(answer.ends_with("/metrics \n"), "{answer}");
        let answer = ask(UnixStream::connect(&path).unwrap(), REQUEST);
        assert!(answer.ends_with("/metrics text/plain\n"), "{answer}");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn ten_thousand_connections_that_come_and_stay_keep_nobody_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        // A UNIX socket, because TCP delays a client by a second when the queue of the listener is full.
        let listeners = Listeners::bind(&[Address::Unix(path.clone())], Users::Owner).unwrap();
        let _server = listeners.serve(LIMITS, echo()).unwrap();
        let at = path.clone();
        let flood = std::thread::spawn(move || {
            // The largest number that fits beside the other open files of this process.
            let mut silent = std::collections::VecDeque::new();
            for number in 0..10_000 {
                let mut client = UnixStream::connect(&at).unwrap();
                // No input, a head without an end, a head that is too long, and a request whose answer is not read.
                let endless = vec![b'a'; message::LONGEST_HEAD];
                let shown = [&b""[..], b"GET / HTTP/1.1\r\nx: ", &endless, REQUEST];
                let _ = client.write_all(shown[number % shown.len()]);
                silent.push_back(client);
                if silent.len() > 400 {
                    silent.pop_front();
                }
            }
        });
        let (mut asked, mut answered) = (0, 0);
        while !flood.is_finished() || asked < 200 {
            let mut client = UnixStream::connect(&path).unwrap();
            let mut answer = String::new();
            // The connection of a client that is turned away may be reset.
            let _ = client.write_all(REQUEST);
            let _ = client.read_to_string(&mut answer);
            answered += u32::from(answer.starts_with("HTTP/1.1 200 "));
            asked += 1;
        }
        flood.join().unwrap();
        // On a busy machine, a client whose request is not read yet is sometimes the longest silent.
        assert!(answered * 10 >= asked * 9, "{answered} of {asked}");
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        assert!(threads.count() < 64, "no thread stays for each of them");
    }

    #[test]
    fn head_has_no_content_and_what_is_no_request_is_refused() {
        let server = start(LIMITS, echo());
        let answer = ask(tcp(&server), b"HEAD / HTTP/1.1\r\n\r\n");
        assert!(
            answer.contains("Content-Length: 3\r\n") && answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
        let post = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        let answer = ask(tcp(&server), post);
        assert!(
            answer.starts_with("HTTP/1.1 405 ") && answer.contains("Allow: GET"),
            "{answer}"
        );
        assert!(ask(tcp(&server), b"\x16\x03\x01\x02\x00").starts_with("HTTP/1.1 400 "));
        let mut endless = tcp(&server);
        endless.write_all(b"GET / HTTP/1.1\r\nx: ").unwrap();
        // The server may close the connection before it has received everything.
        let _ = endless.write_all(&[b'a'; message::LONGEST_HEAD + 2048]);
        let mut answer = [0; 12];
        endless.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 431");
        let mut half = tcp(&server);
        half.write_all(b"GET / HT").unwrap();
        half.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(ask(half, b"").starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn silent_clients_that_stay_make_room_the_oldest_first() {
        let server = start(LIMITS, echo());
        let mut silent: Vec<TcpStream> = Vec::new();
        for _ in 0..LIMITS.connections {
            silent.push(tcp(&server));
            std::thread::sleep(Duration::from_millis(20));
        }
        // A slow client, which is not the one that has been silent for the longest time.
        silent[1].write_all(b"GET / HTTP").unwrap();
        let began = Instant::now();
        assert!(ask(tcp(&server), REQUEST).starts_with("HTTP/1.1 200 "));
        assert!(
            began.elapsed() < LIMITS.patience / 2,
            "nobody waits for the silent"
        );
        assert!(is_closed(&mut silent[0]));
        let answer = ask(silent.remove(LIMITS.connections - 1), REQUEST);
        assert!(answer.starts_with("HTTP/1.1 200 "), "the youngest stays");
        // Many more clients than the limit of connections, all of which stay.
        silent.extend((0..10 * LIMITS.connections).map(|_| tcp(&server)));
        for _ in 0..3 {
            assert!(ask(tcp(&server), REQUEST).starts_with("HTTP/1.1 200 "));
        }
        drop(silent);
    }

    #[test]
    fn clients_that_do_not_read_their_answers_make_room_too() {
        let huge: Handler = Arc::new(|_: &Request<'_>| Response::text(200, &"a".repeat(8 << 20)));
        let server = start(LIMITS, huge);
        let silent: Vec<TcpStream> = (0..LIMITS.connections)
            .map(|_| {
                let mut client = tcp(&server);
                client.write_all(REQUEST).unwrap();
                // The answer has begun, and the client reads no further.
                client.read_exact(&mut [0]).unwrap();
                client
            })
            .collect();
        assert!(ask(tcp(&server), REQUEST).len() > 8 << 20);
        drop(silent);
    }

    #[test]
    fn a_request_and_a_silence_have_an_end() {
        let limits = Limits {
            patience: Duration::from_millis(200),
            ..LIMITS
        };
        let server = start(limits, echo());
        let mut silent = tcp(&server);
        let mut slow = tcp(&server);
        slow.write_all(b"GET / HT").unwrap();
        assert!(is_closed(&mut silent));
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }

    #[test]
    fn a_connection_is_kept_for_as_long_as_it_is_to_be() {
        let limits = Limits {
            idle: Some(Duration::from_millis(300)),
            ..LIMITS
        };
        let server = start(limits, echo());
        let mut client = tcp(&server);
        let expected = "Connection: keep-alive\r\n\r\n/metrics text/plain\n";
        // Two requests at once, and one after them.
        for requests in [2, 1] {
            client.write_all(&REQUEST.repeat(requests)).unwrap();
            let mut answers = String::new();
            while answers.matches(expected).count() < requests {
                let mut piece = [0; 512];
                let count = client.read(&mut piece).unwrap();
                assert!(count > 0, "{answers}");
                answers += std::str::from_utf8(&piece[..count]).unwrap();
            }
        }
        assert!(is_closed(&mut client), "after a silence");
        let last = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
        assert!(ask(tcp(&server), last).contains("Connection: close\r\n"));
    }

    #[test]
    fn refused_clients_are_in_the_log_and_at_most_one_a_second() {
        let service = Service {
            limits: LIMITS,
            handler: echo(),
            token: Some(Token::from_text("the right token")),
            refusals: Mutex::default(),
        };
        let Parsed::Request(request) = message::parse(REQUEST) else {
            panic!("no request");
        };
        let local = Client::Local("unix:/run/x".parse().unwrap());
        let remote = Client::Remote(Some("192.0.2.7:4711".parse().unwrap()));
        let logged = vtax_log::testing::logged(|| {
            assert_eq!(service.answer(&request, &local).status, 200);
            for _ in 0..3 {
                assert_eq!(service.answer(&request, &remote).status, 401);
            }
        });
        assert_eq!(
            logged,
            "<4>vtax_http::server: the client 192.0.2.7:4711 is refused with 401: \
             send the token: Authorization: Bearer TOKEN\n"
        );
    }

    /// A handler that reports its start through one channel and waits for permission to answer on another.
    fn held() -> (Handler, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let may_go = Mutex::new(may_go);
        let handler: Handler = Arc::new(move |_: &Request<'_>| {
            begun.send(()).unwrap();
            may_go.lock().unwrap().recv().unwrap();
            Response::text(200, "done")
        });
        (handler, has_begun, go)
    }

    #[test]
    fn clients_that_are_being_answered_keep_their_places() {
        let (handler, has_begun, go) = held();
        let server = start(LIMITS, handler);
        let mut clients: Vec<TcpStream> = (0..LIMITS.connections).map(|_| tcp(&server)).collect();
        for client in &mut clients {
            client.write_all(REQUEST).unwrap();
            has_begun.recv().unwrap();
        }
        assert!(ask(tcp(&server), b"").starts_with("HTTP/1.1 503 "));
        // Any of the handlers takes the next permission.
        for _ in &clients {
            go.send(()).unwrap();
        }
        for client in clients {
            assert!(ask(client, b"").ends_with("done\n"));
        }
    }

    #[test]
    fn a_server_that_stops_finishes_its_answers_and_leaves_the_silent() {
        let (handler, has_begun, go) = held();
        let server = start(LIMITS, handler);
        let (mut silent, mut client) = (tcp(&server), tcp(&server));
        client.write_all(REQUEST).unwrap();
        has_begun.recv().unwrap();
        let answer = std::thread::spawn(move || ask(client, b""));
        let stopping = std::thread::spawn(move || drop(server));
        assert!(is_closed(&mut silent));
        assert!(!stopping.is_finished(), "an answer is on its way");
        go.send(()).unwrap();
        assert!(answer.join().unwrap().ends_with("done\n"));
        stopping.join().unwrap();
    }
}
