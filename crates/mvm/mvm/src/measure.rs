// SPDX-License-Identifier: Apache-2.0
//! Measures a population's costs and response times by the host's counters.

use crate::error::{Error, Result};
use crate::front::router::http_answer;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use vtax_core::{Bytes, SplitMix64};
use vtax_kernel::{MemInfo, Process};

/// The host's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// All memory.
    pub total: u64,
    /// Memory that can be allocated.
    pub available: u64,
    /// Kernel objects.
    pub slab: u64,
    /// Page tables, of processes and of guests.
    pub page_tables: u64,
    /// Pages of processes.
    pub anonymous: u64,
}

impl HostMemory {
    /// Reads /proc/meminfo.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read.
    pub fn read() -> Result<Self> {
        MemoryFile::open()?.read()
    }
}

/// The open file /proc/meminfo, which the sandbox does not affect.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    const PATH: &str = "/proc/meminfo";

    /// Opens /proc/meminfo.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn open() -> Result<Self> {
        File::open(Self::PATH)
            .map(Self)
            .map_err(Error::file("open", Path::new(Self::PATH)))
    }

    /// Reads the host's memory.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be read.
    pub fn read(&self) -> Result<HostMemory> {
        // The kernel writes the whole text, less than 2 KiB, in one read from the start.
        let mut text = [0; 8192];
        let length = self
            .0
            .read_at(&mut text, 0)
            .map_err(Error::file("read", Path::new(Self::PATH)))?;
        let info = MemInfo::parse(text.get(..length).unwrap_or_default());
        let bytes = |value: Option<Bytes>| value.unwrap_or_default().0;
        Ok(HostMemory {
            total: bytes(info.total),
            available: bytes(info.available),
            slab: bytes(info.slab),
            page_tables: bytes(info.page_tables),
            anonymous: bytes(info.anonymous),
        })
    }
}

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

    #[test]
    fn processor_time_includes_children_that_were_waited_for() {
        let before = processor_time(&[]);
        let burn = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
        let status = std::process::Command::new("sh").args(["-c", burn]).status();
        assert!(status.unwrap().success());
        let spent = processor_time(&[]).saturating_sub(before);
        assert!(spent >= Duration::from_millis(50), "{spent:?}");
    }
}
