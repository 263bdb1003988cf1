//! What a population costs and how fast it answers, by the host's own accounts.

use crate::error::{Error, Result};
use crate::front::router::http_answer;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use vtax_core::SplitMix64;

/// The host's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// All of it.
    pub total: u64,
    /// What could still be allocated.
    pub available: u64,
    /// Kernel objects.
    pub slab: u64,
    /// Page tables, of processes and of guests.
    pub page_tables: u64,
    /// Pages of processes.
    pub anonymous: u64,
}

impl HostMemory {
    /// Reads it from /proc/meminfo.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read.
    pub fn read() -> Result<Self> {
        MemoryFile::open()?.read()
    }
}

/// /proc/meminfo, open: it can be read also where no file can be opened any more.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    const PATH: &str = "/proc/meminfo";

    /// Opens it.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn open() -> Result<Self> {
        File::open(Self::PATH)
            .map(Self)
            .map_err(|cause| Self::failed("open", cause))
    }

    /// What it says now.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read.
    pub fn read(&self) -> Result<HostMemory> {
        // The kernel writes all of it, less than 2 KiB, at one read from the start.
        let mut text = [0; 8192];
        let length = self
            .0
            .read_at(&mut text, 0)
            .map_err(|cause| Self::failed("read", cause))?;
        let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default());
        let field = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
                * 1024
        };
        Ok(HostMemory {
            total: field("MemTotal"),
            available: field("MemAvailable"),
            slab: field("Slab"),
            page_tables: field("PageTables") + field("SecPageTables"),
            anonymous: field("AnonPages"),
        })
    }

    fn failed(action: &'static str, cause: io::Error) -> Error {
        Error::File {
            action,
            path: Self::PATH.into(),
            cause,
        }
    }
}

/// Processor time of this process and the children that it has waited for, plus `children`, which
/// still run.
#[must_use]
pub fn processor_time(children: &[u32]) -> Duration {
    let of = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name may contain anything but ends with the last bracket.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|f| f.parse::<u64>().ok())
            .sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    };
    children
        .iter()
        .map(|pid| of(&pid.to_string()))
        .sum::<Duration>()
        + of("self")
}

/// Response times under an open load, in order.
#[derive(Clone, Debug)]
pub struct Latencies {
    sorted: Vec<Duration>,
    /// Requests that got no 200.
    pub failed: usize,
}

impl Latencies {
    /// The time that share `q` of the responses were within; zero when there were none.
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

/// Sends `rate` requests a second for `duration` to guests chosen at random among `guests`, over
/// `connections` connections. Times count from when a request was due, not from when it was sent,
/// so that a slow answer does not hide those that waited behind it (coordinated omission).
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

/// What chooses the guests that a client asks: each client has its own sequence, so that no guest is asked by
/// several clients in turn.
fn guest_choices(client: u32) -> SplitMix64 {
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
    // Linux lets a thread sleep 50 µs longer than asked, to save timers; that is not the guest's.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_ask_guests_in_unrelated_orders() {
        let asked = |client| {
            let mut random = guest_choices(client);
            (0..64).map(move |_| random.below(1_000_000))
        };
        let first: Vec<usize> = asked(0).collect();
        let both = asked(1).filter(|guest| first.contains(guest)).count();
        assert!(both < 3, "{both} of 64 guests are asked by both clients");
    }
}
