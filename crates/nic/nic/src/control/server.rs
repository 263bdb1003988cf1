// SPDX-License-Identifier: Apache-2.0
//! The servers of the operator's JSON API and of Prometheus' metrics.
//!
//! One thread serves the JSON API. It polls all its clients, so no client waits for another. A
//! client that sends too much without a line's end, or that does not read its answers, is
//! disconnected. The metrics have an HTTP server of their own.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use vtax_http::metrics::Format;
use vtax_http::unix::Users;
use vtax_http::{self as http, Address, Limits, ListenError, Listeners, Token};

use super::api::{self, LONGEST_LINE, MailboxSender, Request, Response};
use crate::telemetry::prometheus;

/// Clients served at once. One more disconnects the client that has sent nothing for the longest time.
const MOST_CLIENTS: usize = 64;

/// Bytes of unread answers at which a client's further lines wait.
const PAUSE_BACKLOG: usize = 256 << 10;

/// Bytes of unread answers at which a client is disconnected. The answers of a subscription are not paused and can
/// reach it.
const DISCONNECT_BACKLOG: usize = 4 << 20;

/// The shortest interval of a subscription.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The limits of scrapes, which are small requests of one or two clients every few seconds.
const SCRAPES: Limits = Limits {
    connections: 16,
    patience: Duration::from_secs(10),
    idle: None,
};

/// The listening sockets for operators and Prometheus, which are opened before the sandbox is entered.
#[derive(Debug, Default)]
pub struct OperatorListeners {
    /// For the JSON API.
    pub api: Option<UnixListener>,
    /// For Prometheus.
    pub metrics: Option<Listeners>,
}

/// Listens for Prometheus on `unix:PATH` or on `ADDRESS:PORT`. Clients must send the token in the file `token`, which
/// is required where other hosts reach the address.
///
/// # Errors
/// When the address or the token cannot be read, or it cannot listen there.
pub fn listen_metrics(address: &str, token: Option<&Path>) -> Result<Listeners, ListenError> {
    let address: Address = address.parse()?;
    Listeners::bind_for(
        &[address],
        Users::Owner,
        token.map(Token::read).transpose()?,
    )
}

/// Starts both servers. The metrics are served until the returned server is dropped, the API until the process
/// ends. Each has its own limit of clients, so that scrapes keep no operator out.
///
/// # Errors
/// The API's listener cannot be made non-blocking, or there are no more threads.
pub fn spawn(
    listeners: OperatorListeners,
    workers: &[MailboxSender],
) -> Result<Option<http::Server>, ListenError> {
    if let Some(api) = listeners.api {
        api.set_nonblocking(true).map_err(ListenError::Start)?;
        let mut server = Server {
            listener: api,
            workers: workers.to_vec(),
            clients: Vec::new(),
        };
        std::thread::Builder::new()
            .name("operator".into())
            .spawn(move || {
                loop {
                    server.turn();
                }
            })
            .map_err(ListenError::Start)?;
    }
    let workers = Mutex::new(workers.to_vec());
    let serve = |listeners: Listeners| {
        listeners.serve(SCRAPES, Arc::new(move |request| metrics(request, &workers)))
    };
    listeners.metrics.map(serve).transpose()
}

fn metrics(request: &http::Request<'_>, workers: &Mutex<Vec<MailboxSender>>) -> http::Response {
    if request.path() != "/metrics" {
        return http::Response::text(404, "the metrics are at /metrics");
    }
    // One scrape at a time, because it takes workers' time.
    let workers = workers.lock().unwrap_or_else(PoisonError::into_inner);
    match api::ask(&workers, &Request::Stats { port: None }) {
        Ok(reports) => http::Response {
            status: 200,
            content_type: Format::Text.content_type(),
            body: prometheus::text(&Response::from_reports(reports).stats).into_bytes(),
        },
        Err(error) => http::Response::text(503, &error.to_string()),
    }
}

/// The accepted connection, if there is one. Without free descriptors the connection stays in the queue and the
/// listener stays readable, so that this function sleeps before the next attempt.
fn accepted<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(connection) => Some(connection),
        Err(error) => {
            if error.kind() != ErrorKind::WouldBlock {
                std::thread::sleep(Duration::from_millis(10));
            }
            None
        }
    }
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    subscription: Option<Subscription>,
    /// Whether to disconnect once the output is written.
    closing: bool,
    closed: bool,
    /// The time of the client's last input.
    last_input: Instant,
}

struct Subscription {
    request: Request,
    interval: Duration,
    next: Instant,
}

struct Server {
    listener: UnixListener,
    workers: Vec<MailboxSender>,
    clients: Vec<Client>,
}

impl Server {
    /// Waits for events and handles them.
    fn turn(&mut self) {
        let readable = self.wait();
        let now = Instant::now();
        for (client, readable) in self.clients.iter_mut().zip(readable) {
            if readable && client.wants_input() {
                client.read();
            }
            // One line a turn, so that no client waits for more than one answer to each other client.
            if client.may_be_answered() {
                client.serve(&self.workers);
            }
        }
        self.accept();
        for client in &mut self.clients {
            client.publish(now, &self.workers);
            client.write();
        }
        self.clients.retain(|client| !client.closed);
    }

    /// Waits for clients, connections and subscriptions. Returns which clients are readable.
    fn wait(&self) -> Vec<bool> {
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        for client in &self.clients {
            let mut events = PollFlags::empty();
            if client.wants_input() {
                events |= PollFlags::IN;
            }
            if !client.output.is_empty() {
                events |= PollFlags::OUT;
            }
            fds.push(PollFd::new(&client.stream, events));
        }
        fds.push(PollFd::new(&self.listener, PollFlags::IN));
        let next = self
            .clients
            .iter()
            .filter_map(|c| c.subscription.as_ref())
            .map(|s| s.next)
            .min();
        let now = self.clients.iter().any(Client::may_be_answered);
        let next = now.then(Instant::now).or(next);
        let timeout = next
            .map(|next| next.saturating_duration_since(Instant::now()))
            .and_then(|left| Timespec::try_from(left).ok());
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            // The call was interrupted, or memory is short: try again without spinning.
            std::thread::sleep(Duration::from_millis(10));
        }
        fds.iter()
            .take(self.clients.len())
            .map(|fd| {
                fd.revents()
                    .intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
            })
            .collect()
    }

    /// Accepts new clients. At the limit it disconnects the client that has sent nothing for the longest time;
    /// clients without a subscription go first.
    fn accept(&mut self) {
        for _ in 0..MOST_CLIENTS {
            let Some((stream, _)) = accepted(self.listener.accept()) else {
                return;
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() >= MOST_CLIENTS {
                let by_silence =
                    |client: &Client| (client.subscription.is_some(), client.last_input);
                let silent = self.clients.iter().map(by_silence).zip(0..).min();
                silent.map(|(_, index)| self.clients.swap_remove(index));
            }
            self.clients.push(Client::new(stream));
        }
    }
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            subscription: None,
            closing: false,
            closed: false,
            last_input: Instant::now(),
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        // One buffer a turn: a client that sends without pause takes no other client's turn.
        match self.stream.read(&mut buffer) {
            Ok(0) => self.closed = true,
            Ok(count) => {
                self.last_input = Instant::now();
                let bytes = buffer.get(..count).unwrap_or_default();
                self.input.extend_from_slice(bytes);
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.closed = true,
        }
    }

    fn has_line(&self) -> bool {
        self.input.contains(&b'\n')
    }

    /// Whether to read more from it, which waits until its last line is answered.
    fn wants_input(&self) -> bool {
        !self.has_line() && !self.closing && self.input.len() <= LONGEST_LINE
    }

    /// Whether a request waits and the client reads its answers.
    fn may_be_answered(&self) -> bool {
        let has_request = self.has_line() || self.input.len() > LONGEST_LINE;
        has_request && !self.closing && self.output.len() < PAUSE_BACKLOG
    }

    /// Answers one line.
    fn serve(&mut self, workers: &[MailboxSender]) {
        if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line = line.trim_ascii();
            if !line.is_empty() {
                let response = self.answer(line, workers);
                self.output.extend(response.to_line());
            }
        } else if self.input.len() > LONGEST_LINE {
            let error = format!("a request line has at most {LONGEST_LINE} bytes");
            self.output.extend(Response::failed(error).to_line());
            self.closing = true;
        }
    }

    fn answer(&mut self, line: &[u8], workers: &[MailboxSender]) -> Response {
        let request = match api::parse(line) {
            Ok(request) => request,
            Err(error) => return Response::failed(error),
        };
        if let Request::Subscribe { interval_ms, .. } = request {
            let interval = Duration::from_millis(interval_ms.into()).max(SHORTEST_INTERVAL);
            self.subscription = Some(Subscription {
                request: request.clone(),
                interval,
                next: Instant::now() + interval,
            });
        }
        match api::ask(workers, &request) {
            Ok(reports) => Response::from_reports(reports),
            Err(error) => {
                self.subscription = None;
                Response::failed(error)
            }
        }
    }

    fn publish(&mut self, now: Instant, workers: &[MailboxSender]) {
        let Some(subscription) = &mut self.subscription else {
            return;
        };
        if subscription.next > now {
            return;
        }
        subscription.next = now + subscription.interval;
        let response = api::ask(workers, &subscription.request)
            .map_or_else(Response::failed, Response::from_reports);
        self.output.extend(response.to_line());
    }

    fn write(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) if count > 0 => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                _ => {
                    self.closed = true;
                    return;
                }
            }
        }
        let done = self.closing && self.output.is_empty();
        self.closed |= done || self.output.len() > DISCONNECT_BACKLOG;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::control::LeaseManager;
    use crate::control::api::{Mailbox, PortInfo, Report};
    use crate::control::policy::Policy;
    use crate::hold::{HoldSettings, Nanos};
    use crate::telemetry::PortCounters;

    /// A worker with the given ports that only does jobs.
    fn worker(mailbox: Mailbox, names: &'static [&'static str]) {
        std::thread::spawn(move || {
            let mut ports: Vec<_> = names
                .iter()
                .map(|name| {
                    (
                        *name,
                        LeaseManager::new(Policy::default()),
                        HoldSettings::default(),
                    )
                })
                .collect();
            loop {
                let mut fds = [PollFd::new(&mailbox, PollFlags::IN)];
                rustix::event::poll(&mut fds, None).unwrap();
                for job in mailbox.take() {
                    let mut reports = Vec::new();
                    for (name, leases, settings) in &mut ports {
                        if !job.concerns(name) {
                            continue;
                        }
                        let mut policy = leases.policy();
                        match &job.request {
                            Request::Set { change, .. } => change.apply(&mut policy, settings),
                            Request::ClearOverride { .. } => policy.override_us = None,
                            _ => {}
                        }
                        leases.set_policy(policy);
                        let budget = leases.budget(Nanos::ZERO);
                        reports.push(if job.request.is_for_telemetry() {
                            let counters = PortCounters::default();
                            Report::Stats(Box::new(counters.snapshot(name, settings.mode, budget)))
                        } else {
                            Report::Info(PortInfo {
                                port: (*name).to_owned(),
                                connected: false,
                                link: api::Link::Up,
                                settings: *settings,
                                policy,
                                in_force_us: policy.in_force(None, crate::vhost_net::Half::Rx),
                                datapath: "kernel".into(),
                                lease_left_s: None,
                                queues: Vec::new(),
                            })
                        });
                    }
                    job.answer(reports);
                }
            }
        });
    }

    struct RunningServer {
        directory: tempfile::TempDir,
        _metrics: Option<http::Server>,
    }

    impl RunningServer {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let listeners = OperatorListeners {
                api: Some(UnixListener::bind(directory.path().join("api")).unwrap()),
                metrics: Some(
                    listen_metrics(
                        &format!("unix:{}/metrics", directory.path().display()),
                        None,
                    )
                    .unwrap(),
                ),
            };
            let mut senders = Vec::new();
            for names in [&["a", "b"][..], &["c\"\n"][..]] {
                let (sender, mailbox) = api::mailbox().unwrap();
                worker(mailbox, names);
                senders.push(sender);
            }
            Self {
                directory,
                _metrics: spawn(listeners, &senders).unwrap(),
            }
        }

        fn connect(&self, name: &str) -> BufReader<UnixStream> {
            let stream = UnixStream::connect(self.directory.path().join(name)).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(8)))
                .unwrap();
            BufReader::new(stream)
        }
    }

    fn line(client: &mut BufReader<UnixStream>) -> Response {
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(client: &mut BufReader<UnixStream>, request: &str) -> Response {
        client
            .get_mut()
            .write_all(format!("{request}\n").as_bytes())
            .unwrap();
        line(client)
    }

    #[test]
    fn an_operator_lists_changes_and_clears() {
        let served = RunningServer::new();
        let mut client = served.connect("api");
        let all = ask(&mut client, r#"{"op":"list"}"#);
        assert!(all.ok);
        assert_eq!(all.ports.len(), 3);
        let set = ask(
            &mut client,
            r#"{"op":"set","port":"b","cap_us":50,"mode":"fixed"}"#,
        );
        assert_eq!((set.ports.len(), set.ports[0].in_force_us), (1, 50));
        let fixed = ask(&mut client, r#"{"op":"set","port":"b","override_us":900}"#);
        assert_eq!(fixed.ports[0].in_force_us, 900);
        let cleared = ask(&mut client, r#"{"op":"clear_override","port":"b"}"#);
        assert_eq!(cleared.ports[0].in_force_us, 50);
        let other = ask(&mut client, r#"{"op":"list","port":"a"}"#);
        assert_eq!(other.ports[0].in_force_us, 200);
    }

    #[test]
    fn a_bad_line_is_answered_and_the_next_one_served() {
        let served = RunningServer::new();
        let mut client = served.connect("api");
        let bad = ask(&mut client, "list please");
        assert!(!bad.ok && bad.error.is_some());
        let unknown = ask(&mut client, r#"{"op":"stats","port":"nowhere"}"#);
        assert!(unknown.error.unwrap().contains("nowhere"));
        assert_eq!(ask(&mut client, r#"{"op":"stats"}"#).stats.len(), 3);
    }

    #[test]
    fn a_client_that_asks_much_at_once_keeps_nobody_waiting_and_takes_little_memory() {
        const LINES: usize = 300;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (sender, mailbox) = api::mailbox().unwrap();
        worker(mailbox, &["a", "b", "c", "d", "e", "f"]);
        let mut server = Server {
            listener,
            workers: vec![sender],
            clients: Vec::new(),
        };
        let mut greedy = UnixStream::connect(&path).unwrap();
        greedy
            .write_all(&b"{\"op\":\"stats\"}\n".repeat(LINES))
            .unwrap();
        let mut other = BufReader::new(UnixStream::connect(&path).unwrap());
        other.get_mut().write_all(b"{\"op\":\"list\"}\n").unwrap();
        server.turn();
        server.turn();
        other.get_ref().set_nonblocking(true).unwrap();
        assert!(line(&mut other).ok, "it is answered in its first turn");
        other.get_ref().set_nonblocking(false).unwrap();
        let unread = |server: &Server| server.clients[0].output.len();
        let mut most = 0;
        for _ in 0..2 * LINES {
            other.get_mut().write_all(b"{\"op\":\"list\"}\n").unwrap();
            server.turn();
            assert!(line(&mut other).ok);
            most = most.max(unread(&server));
        }
        assert!((1..2 * PAUSE_BACKLOG).contains(&most), "{most} bytes");
        // A client that reads gets all its answers.
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(greedy).lines().take(LINES);
            lines.map(|line| line.unwrap().len()).min()
        });
        while !reader.is_finished() {
            other.get_mut().write_all(b"{\"op\":\"list\"}\n").unwrap();
            server.turn();
            assert!(line(&mut other).ok);
        }
        assert!(reader.join().unwrap().unwrap() > 1_000);
    }

    #[test]
    fn a_line_without_end_disconnects_only_its_client() {
        let served = RunningServer::new();
        let mut polite = served.connect("api");
        let mut rude = served.connect("api");
        let _ = rude.get_mut().write_all(&vec![b'x'; 4 * LONGEST_LINE]);
        let refused = line(&mut rude);
        assert!(refused.error.unwrap().contains("at most"));
        assert!(ask(&mut polite, r#"{"op":"list"}"#).ok);
    }

    #[test]
    fn a_subscriber_gets_line_after_line() {
        let served = RunningServer::new();
        let mut client = served.connect("api");
        let first = ask(
            &mut client,
            r#"{"op":"subscribe","port":"a","interval_ms":100}"#,
        );
        let (second, third) = (line(&mut client), line(&mut client));
        assert!(first.at_ns < second.at_ns && second.at_ns < third.at_ns);
        assert_eq!(third.stats.len(), 1);
    }

    fn scrape(served: &RunningServer) -> String {
        let mut client = served.connect("metrics");
        client
            .get_mut()
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn prometheus_is_answered_over_http() {
        let answer = scrape(&RunningServer::new());
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains(r#"vtax_nic_packets_total{port="c\"\n",direction="rx"} 0"#),
            "{answer}"
        );
    }

    #[test]
    fn silent_clients_of_the_metrics_keep_neither_operators_nor_scrapes_out() {
        let served = RunningServer::new();
        let silent: Vec<_> = (0..80).map(|_| served.connect("metrics")).collect();
        // Time to accept all of the clients.
        std::thread::sleep(Duration::from_millis(300));
        let mut client = served.connect("api");
        assert!(ask(&mut client, r#"{"op":"list"}"#).ok);
        assert!(scrape(&served).starts_with("HTTP/1.1 200 OK\r\n"));
        drop(silent);
    }

    #[test]
    fn silent_clients_of_the_api_keep_no_operator_out() {
        let served = RunningServer::new();
        let mut watching = served.connect("api");
        let subscribe = r#"{"op":"subscribe","port":"a","interval_ms":100}"#;
        assert!(ask(&mut watching, subscribe).ok);
        let silent: Vec<_> = (0..80).map(|_| served.connect("api")).collect();
        let mut client = served.connect("api");
        assert!(ask(&mut client, r#"{"op":"list"}"#).ok);
        assert!(line(&mut watching).ok, "who listens stays");
        drop(silent);
    }

    #[test]
    fn metrics_are_open_to_no_other_host_without_a_token() {
        let refused =
            |address: &str, token| listen_metrics(address, token).unwrap_err().to_string();
        assert!(refused("0.0.0.0:0", None).contains("give a token"));
        assert!(refused("nonsense", None).contains("unix:PATH"));
        let missing = Some(Path::new("/nowhere/token"));
        assert!(refused("127.0.0.1:0", missing).contains("/nowhere/token"));
        assert!(listen_metrics("127.0.0.1:0", None).is_ok());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(listen_metrics("0.0.0.0:0", Some(&file)).is_ok());
    }
}
