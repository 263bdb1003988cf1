//! `vtax exporter`: charges on one thread, answers scrapes on another with the text that is ready.
//!
//! Deliberately little HTTP: `GET /metrics` and a page that points there, one request a
//! connection, short deadlines, a bounded number of connections at a time.

use crate::metrics::{Format, Own, render};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use vtax_observe::ObserveError;
use vtax_observe::charge::Charger;
use vtax_observe::clock::{Clock, SystemClock};

/// Slower scrapers are cut off.
const DEADLINE: Duration = Duration::from_secs(5);

/// More connections at a time are closed at once.
const MOST_CONNECTIONS: usize = 32;

/// A request's head is no longer.
const LONGEST_HEAD: usize = 16 << 10;

/// Why the exporter ended.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}; choose another with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The host cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// How to export.
#[derive(Debug, Clone, Copy)]
pub struct ExporterOptions {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The time from one interval's end to the next one's.
    pub interval: Duration,
    /// Series are made for so many guests at most.
    pub most_guests: usize,
}

/// The text of now, in both formats.
#[derive(Debug, Default)]
struct Ready {
    prometheus: String,
    open_metrics: String,
}

type Shared = Arc<RwLock<Ready>>;

/// Charges and answers scrapes until the host cannot be read any more. `listening` is told the
/// address (its port may have been 0), `log` each problem that is new.
///
/// # Errors
/// When the address cannot be listened on, or the host cannot be read.
pub fn run(
    mut charger: Charger,
    options: ExporterOptions,
    listening: &mut dyn FnMut(SocketAddr),
    log: &mut dyn FnMut(&str),
) -> Result<(), ExporterError> {
    let listen = |cause| ExporterError::Listen {
        address: options.listen,
        cause,
    };
    let listener = TcpListener::bind(options.listen).map_err(listen)?;
    let ready = Shared::default();
    let mut own = Own {
        most_guests: options.most_guests,
        ..Own::default()
    };
    let mut problems = Vec::new();
    let mut pass = |charger: &mut Charger, ready: &Shared| -> Result<(), ExporterError> {
        let pass = charger.pass(SystemClock.now())?;
        own.passes += 1;
        own.problems += pass.problems.len() as u64;
        for problem in &pass.problems {
            if !problems.contains(problem) {
                log(problem);
                // A host that fails in ever new words is not logged without end.
                if problems.len() < 100 {
                    problems.push(problem.clone());
                }
            }
        }
        own.cpu = charger.cost();
        let text = Ready {
            prometheus: render(charger, own, Format::Prometheus),
            open_metrics: render(charger, own, Format::OpenMetrics),
        };
        *ready.write().unwrap_or_else(PoisonError::into_inner) = text;
        Ok(())
    };
    // The first scrape finds series already.
    pass(&mut charger, &ready)?;
    listening(listener.local_addr().map_err(listen)?);
    let answers = Arc::clone(&ready);
    std::thread::Builder::new()
        .name("vtax-scrapes".to_owned())
        .spawn(move || accept(&listener, &answers))
        .map_err(ExporterError::Thread)?;
    let mut due = Instant::now();
    loop {
        due += options.interval;
        match due.checked_duration_since(Instant::now()) {
            Some(wait) => std::thread::sleep(wait),
            // After a suspend or a stall, from now on.
            None => due = Instant::now(),
        }
        pass(&mut charger, &ready)?;
    }
}

fn accept(listener: &TcpListener, ready: &Shared) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: not in a busy loop.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (ready, counter) = (Arc::clone(ready), Arc::clone(&open));
        let started = std::thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(move || {
                // A scraper that went away is its own business.
                let _ = answer(stream, &ready);
                counter.fetch_sub(1, Ordering::Relaxed);
            });
        if started.is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer(mut stream: TcpStream, ready: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let Some(head) = read_head(&mut stream)? else {
        return respond(
            &mut stream,
            "400 Bad Request",
            "text/plain",
            "no HTTP request\n",
        );
    };
    let mut words = head.split_ascii_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let accept = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("accept"))
        .map_or("", |(_, value)| value);
    match (method, path.split('?').next()) {
        ("GET", Some("/metrics")) => {
            let format = Format::accepted(accept);
            let text = {
                let ready = ready.read().unwrap_or_else(PoisonError::into_inner);
                match format {
                    Format::Prometheus => ready.prometheus.clone(),
                    Format::OpenMetrics => ready.open_metrics.clone(),
                }
            };
            respond(&mut stream, "200 OK", format.content_type(), &text)
        }
        ("GET", Some("/")) => respond(
            &mut stream,
            "200 OK",
            "text/html; charset=utf-8",
            "<!doctype html><title>vtax exporter</title><a href=\"/metrics\">metrics</a>\n",
        ),
        ("GET", _) => respond(&mut stream, "404 Not Found", "text/plain", "see /metrics\n"),
        _ => respond(
            &mut stream,
            "405 Method Not Allowed",
            "text/plain",
            "only GET\n",
        ),
    }
}

/// The request's head; `None` when it is none.
fn read_head(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let started = Instant::now();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut piece)?;
        if read == 0 || head.len() > LONGEST_HEAD || started.elapsed() > DEADLINE {
            return Ok(None);
        }
        head.extend_from_slice(piece.get(..read).unwrap_or_default());
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

fn respond(stream: &mut TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use vtax_observe::charge::{ChargerOptions, MethodChoice};

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_scrape_of_this_host_closes_and_nonsense_gets_a_short_answer() {
        let options = ChargerOptions {
            method: MethodChoice::Counted,
            ..ChargerOptions::default()
        };
        let charger = Charger::open(options).unwrap();
        let options = ExporterOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            interval: Duration::from_millis(200),
            most_guests: 100,
        };
        let (sender, receiver) = channel();
        // Ends with the test's process.
        std::thread::spawn(move || {
            run(
                charger,
                options,
                &mut |address| sender.send(address).unwrap(),
                &mut |_| {},
            )
        });
        let address = receiver.recv().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let text = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"));
        let sum = |names: &[&str]| -> f64 {
            text.lines()
                .filter(|line| names.iter().any(|name| line.starts_with(name)))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum()
        };
        let parts = sum(&[
            "vtax_guest_cpu_seconds_total{",
            "vtax_host_cpu_seconds_total{",
            "vtax_unattributed_cpu_seconds_total ",
            "vtax_gone_cpu_seconds_total ",
        ]);
        let total = sum(&["vtax_cpu_seconds_total "]);
        assert!(
            (parts - total).abs() <= 0.05 + total * 0.05,
            "{parts} {total}"
        );

        let open = ask(
            address,
            b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text\r\n\r\n",
        );
        assert!(open.ends_with("# EOF\n"));
        assert!(ask(address, b"GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        let mut long = vec![b'x'; LONGEST_HEAD + 2048];
        long.extend_from_slice(b"\r\n");
        let mut stream = TcpStream::connect(address).unwrap();
        // The exporter may hang up while this is still sending.
        let _ = stream.write_all(&long);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"));
    }
}
