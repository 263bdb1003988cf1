// SPDX-License-Identifier: Apache-2.0
//! An open load on a population's HTTP address, and the processor time of its processes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use vtax_core::SplitMix64;
use vtax_kernel::Process;
use vtax_mvm::front::router::http_answer;
use vtax_mvm::{Error, Result};

/// Processor time of this process, of its ended children that it has waited for, and of the running `children`.
#[must_use]
pub fn processor_time(children: &[u32]) -> Duration {
    let own = Process::of_host(std::process::id());
    let own = own.stat(|stat| Some([stat.cpu_time()?, stat.cpu_time_of_children()?]));
    let running = children
        .iter()
        .filter_map(|pid| Process::of_host(*pid).cpu_time());
    let all = own.into_iter().flatten().chain(running);
    Duration::from_nanos(all.map(|time| time.0).sum())
}

/// Response times under an open load, sorted.
#[derive(Clone, Debug)]
pub struct Latencies {
    sorted: Vec<Duration>,
    /// Requests whose status is not 200, or without a response.
    pub failed: usize,
}

impl Latencies {
    /// The quantile `q` of the response times; zero without responses.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Duration {
        let last = self.sorted.len().saturating_sub(1);
        let index = (q * last as f64).ceil() as usize;
        self.sorted
            .get(index.min(last))
            .copied()
            .unwrap_or_default()
    }

    /// Responses.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sorted.len()
    }
}

/// Sends `rate` requests a second for `duration` to guests chosen at random among `guests`, over `connections`
/// connections. Times count from the due time of a request, not from its sending, so that a slow answer does not hide
/// the requests that waited behind it (coordinated omission).
///
/// # Errors
/// [`Error::System`] when a connection fails.
pub fn load(
    address: SocketAddr,
    guests: u32,
    path: &str,
    rate: u32,
    connections: u32,
    duration: Duration,
) -> Result<Latencies> {
    let failed = |cause: io::Error| Error::System {
        tried: format!("request guests at {address}"),
        cause,
    };
    let connections = connections.max(1);
    let start = Instant::now() + Duration::from_millis(20);
    let each = Duration::from_secs_f64(f64::from(connections) / f64::from(rate.max(1)));
    let clients: Vec<_> = (0..connections)
        .map(|client| {
            let path = path.to_owned();
            let offset = each * client / connections;
            std::thread::spawn(move || {
                one_client(
                    address,
                    guests,
                    &path,
                    start + offset,
                    each,
                    duration,
                    guest_choices(client),
                )
            })
        })
        .collect();
    let mut all = Latencies {
        sorted: Vec::new(),
        failed: 0,
    };
    for client in clients {
        let part = client
            .join()
            .map_err(|_| failed(io::Error::other("a client panicked")))?
            .map_err(failed)?;
        all.sorted.extend(part.sorted);
        all.failed += part.failed;
    }
    all.sorted.sort_unstable();
    Ok(all)
}

/// The random sequence of guests for a client. Sequences of clients are unrelated.
pub fn guest_choices(client: u32) -> SplitMix64 {
    SplitMix64::new(SplitMix64::new(client.into()).bits())
}

fn one_client(
    address: SocketAddr,
    guests: u32,
    path: &str,
    start: Instant,
    each: Duration,
    duration: Duration,
    mut random: SplitMix64,
) -> io::Result<Latencies> {
    // Linux extends a thread's sleep by up to 50 µs by default, which is not part of the guest's time.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut out = Latencies {
        sorted: Vec::new(),
        failed: 0,
    };
    let mut due = start;
    let mut received = Vec::new();
    let mut buffer = [0u8; 4096];
    while due < start + duration {
        if let Some(wait) = due.checked_duration_since(Instant::now()) {
            std::thread::sleep(wait);
        }
        let guest = random.below(guests as usize);
        stream.write_all(format!("GET /vm/{guest}{path} HTTP/1.1\r\n\r\n").as_bytes())?;
        received.clear();
        let status = loop {
            if let Some((status, _)) = http_answer(&received) {
                break status;
            }
            match stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => received.extend(buffer.iter().take(count)),
            }
        };
        out.failed += usize::from(status != 200);
        out.sorted.push(due.elapsed());
        due += each;
    }
    Ok(out)
}
