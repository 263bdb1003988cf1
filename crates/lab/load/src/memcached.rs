// SPDX-License-Identifier: Apache-2.0
//! The memcached load generator: `vtax load memcached`.
//!
//! An open loop ([`crate::generator`]) of GETs and SETs in memcached's ASCII protocol, on keys that `--fill` has set
//! before. A miss is an error, since the server has lost a value.

use crate::generator::pool::Pool;
use crate::generator::{self, Head, Protocol, Report, open, wake_exactly, wrong};
use serde::Serialize;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use vtax_host::HostError;

/// What to ask of which server.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Arguments {
    /// Which server, and how much load.
    #[command(flatten)]
    pub common: generator::Arguments,
    /// Share of the requests that set a value, in percent; the others get one
    #[arg(long, default_value_t = 10.0)]
    pub set_percent: f64,
    /// Number of keys, all equally likely
    #[arg(long, default_value_t = 10_000)]
    pub keys: u64,
    /// Length of each key in bytes
    #[arg(long, default_value_t = 30)]
    pub key_bytes: u16,
    /// Length of each value in bytes
    #[arg(long, default_value_t = 200)]
    pub value_bytes: u32,
    /// Set every key once and end, without load
    #[arg(long)]
    pub fill: bool,
}

impl Arguments {
    fn check(&self) -> Result<(), HostError> {
        self.common.check()?;
        if !self.fill {
            self.common.check_duration()?;
        }
        if !(0.0..=100.0).contains(&self.set_percent) {
            return wrong(format!(
                "--set-percent {} is not between 0 and 100",
                self.set_percent
            ));
        }
        // memcached takes keys of up to 250 bytes and, by default, values of up to 1 MiB.
        let digits = self.keys.saturating_sub(1).to_string().len();
        if self.keys == 0 || !(digits..=250).contains(&usize::from(self.key_bytes)) {
            return wrong(format!(
                "--key-bytes {} does not fit {} different keys; give {digits} to 250, and 1 key or more",
                self.key_bytes, self.keys
            ));
        }
        if !(1..=1_000_000).contains(&self.value_bytes) {
            return wrong(format!(
                "--value-bytes {} is not between 1 and 1000000",
                self.value_bytes
            ));
        }
        Ok(())
    }

    fn items(&self) -> Items {
        Items {
            // Arrivals draw from the seed itself. Requests draw from a fork, independent of the arrivals.
            random: fastrand::Rng::with_seed(self.common.seed).fork(),
            set_share: self.set_percent / 100.0,
            keys: self.keys.max(1),
            key_bytes: usize::from(self.key_bytes),
            value: vec![b'v'; usize::try_from(self.value_bytes).unwrap_or(0)],
        }
    }
}

/// The output of `--fill`.
#[derive(Debug, Serialize)]
struct Filled {
    keys: u64,
}

/// Runs the load, or fills the server, and prints the result; one report for each rate.
///
/// # Errors
/// When the arguments are invalid, no socket can be opened, or the server cannot be filled.
pub fn main(arguments: &Arguments) -> Result<(), HostError> {
    if arguments.fill {
        return generator::print(fill(arguments).map(|keys| Filled { keys }));
    }
    arguments.common.each_rate(|common| {
        run(&Arguments {
            common,
            ..arguments.clone()
        })
    })
}

/// Runs the load at one rate.
///
/// # Errors
/// As [`main`].
pub fn run(arguments: &Arguments) -> Result<Report, HostError> {
    arguments.check()?;
    wake_exactly();
    let common = &arguments.common;
    let items = Box::new(arguments.items());
    open::run(
        common,
        Pool::new(common.address, items, common.connections)?,
    )
}

/// Limit on the length of a one-line answer, in bytes.
const LONGEST_ANSWER: u64 = 1024;

/// Sets every key once, and returns the number of keys.
///
/// # Errors
/// As [`main`].
pub fn fill(arguments: &Arguments) -> Result<u64, HostError> {
    arguments.check()?;
    let address = arguments.common.address;
    let timeout = Duration::try_from_secs_f64(arguments.common.timeout).ok();
    let filled = || -> io::Result<()> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)?;
        let items = arguments.items();
        let mut commands = Vec::new();
        for key in 0..items.keys {
            items.set(key, " noreply", &mut commands);
            if commands.len() > 64 * 1024 || key + 1 == items.keys {
                (&socket).write_all(&commands)?;
                commands.clear();
            }
        }
        // The answer to this command comes when all earlier commands are done. Only errors come earlier.
        (&socket).write_all(b"version\r\n")?;
        let mut answer = String::new();
        BufReader::new((&socket).take(LONGEST_ANSWER)).read_line(&mut answer)?;
        if answer.starts_with("VERSION ") {
            Ok(())
        } else {
            Err(invalid(&format!("it answered {:?}", answer.trim_end())))
        }
    };
    filled().map_err(HostError::process(
        "fill",
        format!("the memcached at {address} with {} keys", arguments.keys),
    ))?;
    Ok(arguments.keys)
}

/// The keys and values, and the next request for one of them.
struct Items {
    random: fastrand::Rng,
    set_share: f64,
    keys: u64,
    key_bytes: usize,
    value: Vec<u8>,
}

impl Items {
    fn set(&self, key: u64, option: &str, out: &mut Vec<u8>) {
        let (width, length) = (self.key_bytes, self.value.len());
        // Writing to memory does not fail.
        let _ = write!(out, "set {key:0width$} 0 0 {length}{option}\r\n");
        out.extend_from_slice(&self.value);
        out.extend_from_slice(b"\r\n");
    }
}

impl Protocol for Items {
    fn request(&mut self, out: &mut Vec<u8>) {
        let (key, width) = (self.random.u64(0..self.keys), self.key_bytes);
        if self.random.f64() < self.set_share {
            self.set(key, "", out);
        } else {
            let _ = write!(out, "get {key:0width$}\r\n");
        }
    }

    fn head(&self, bytes: &[u8]) -> io::Result<Option<Head>> {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        let line = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
        let mut words = line.split(' ');
        let mut head = Head {
            length: end + 2,
            body: 0,
            refused: None,
            closes: false,
        };
        match words.next() {
            Some("STORED") => {}
            Some("END") => head.refused = Some("a miss".to_owned()),
            Some("VALUE") => {
                // Key, flags, length of the value; then the value, a line's end, and `END`.
                let length: Option<u64> = words.nth(2).and_then(|word| word.parse().ok());
                let body = length.and_then(|length| length.checked_add(7));
                head.body = body.ok_or_else(|| unknown(&line))?;
            }
            Some("ERROR" | "CLIENT_ERROR" | "SERVER_ERROR") => {
                head.refused = Some(line.into_owned());
                // The server would read the value of a refused command as commands.
                head.closes = true;
            }
            _ => return Err(unknown(&line)),
        }
        Ok(Some(head))
    }
}

fn unknown(line: &str) -> io::Error {
    invalid(&format!("the answer is not memcached's: {line:?}"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use proptest::prelude::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn example() -> Arguments {
        let line = "memcached --address 10.0.0.2:11211 --set-percent 25 --keys 1000 --key-bytes 20 --value-bytes 3";
        Cli::parse_from(line.split(' ')).arguments
    }

    #[test]
    fn senseless_arguments_are_refused_by_name() {
        type Change = fn(&mut Arguments);
        let cases: [(Change, &str); 5] = [
            (|it| it.set_percent = 101.0, "--set-percent"),
            (|it| it.keys = 0, "--key-bytes"),
            (|it| it.key_bytes = 2, "--key-bytes"),
            (|it| it.value_bytes = 0, "--value-bytes"),
            (|it| it.common.rate = -1.0, "--rate"),
        ];
        for (change, name) in cases {
            let mut arguments = example();
            change(&mut arguments);
            let message = run(&arguments).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn the_mix_of_requests_is_as_asked_and_repeats_with_its_seed() {
        let requests = |seed| {
            let mut arguments = example();
            arguments.common.seed = seed;
            let mut items = arguments.items();
            let next = |_| {
                let mut request = Vec::new();
                items.request(&mut request);
                request
            };
            (0..10_000).map(next).collect::<Vec<_>>()
        };
        let first = requests(1);
        let sets = first.iter().filter(|it| it.starts_with(b"set ")).count();
        // 2 500 expected; five standard deviations are 217.
        assert!((2283..=2717).contains(&sets), "{sets}");
        assert!(first.iter().all(|it| it.ends_with(b"\r\n")));
        let get = first.iter().find(|it| it.starts_with(b"get ")).unwrap();
        assert_eq!(get.len(), "get \r\n".len() + 20);
        assert_eq!(first, requests(1));
        assert_ne!(first, requests(2));
    }

    #[test]
    fn answers_say_what_follows_and_whether_they_are_what_was_asked_for() {
        let items = example().items();
        let head = |bytes: &[u8]| items.head(bytes).unwrap().unwrap();
        assert_eq!(head(b"STORED\r\n").refused, None);
        let hit = b"VALUE 00001 0 3\r\nvvv\r\nEND\r\n";
        assert_eq!((head(hit).length, head(hit).body), (17, 10));
        assert_eq!(hit.len(), 17 + 10);
        assert_eq!(head(b"END\r\n").refused.as_deref(), Some("a miss"));
        let full = head(b"SERVER_ERROR out of memory storing object\r\n");
        assert!(full.closes && full.refused.unwrap().contains("out of memory"));
        assert_eq!(items.head(b"VALUE 0000").unwrap(), None);
        assert!(items.head(b"HTTP/1.1 400 Bad Request\r\n").is_err());
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = example().items().head(&bytes);
            let line = [b"VALUE k 0 ".as_slice(), &bytes, b"\r\n"].concat();
            let _ = example().items().head(&line);
        }
    }
}
