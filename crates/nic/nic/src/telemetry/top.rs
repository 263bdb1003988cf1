// SPDX-License-Identifier: Apache-2.0
//! `vtax-nic top`: the ports, live.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use vtax_args::time::whole_milliseconds;
use vtax_core::terminal;

use super::PortSnapshot;
use crate::control::api::{Request, Response};
use crate::control::client::{Client, ClientError, printable};

/// Arguments of `vtax-nic top`.
#[derive(Clone, Debug, Args)]
pub struct Top {
    /// The API socket of the running vtax-nic
    #[arg(long = "api", value_name = "PATH")]
    pub socket: PathBuf,
    /// The time between two readings
    #[arg(long = "interval", value_name = "TIME", default_value = "1s", value_parser = whole_milliseconds)]
    pub interval_ms: u32,
    /// The number of intervals, whose tables are printed below each other [default: until stopped, one live table]
    #[arg(long, value_name = "N")]
    pub count: Option<u32>,
}

impl Top {
    /// Shows until vtax-nic ends, or the number of intervals is reached.
    ///
    /// # Errors
    /// When the connection breaks or the picture cannot be printed.
    pub fn run(&self) -> Result<(), ClientError> {
        let mut client = Client::connect(&self.socket)?;
        let request = Request::Subscribe {
            port: None,
            interval_ms: self.interval_ms,
        };
        let mut before = client.ask(&request)?;
        let mut shown = 0;
        while self.count.is_none_or(|count| shown < count) {
            let now = client.next_answer()?;
            let picture = picture(&before, &now);
            let mut out = terminal::stdout();
            match self.count {
                None => out.over_screen(&picture),
                Some(_) => out.write_all(picture.as_bytes()),
            }
            .and_then(|()| out.flush())
            .map_err(ClientError::Print)?;
            before = now;
            shown += 1;
        }
        Ok(())
    }
}

/// The header of the table, whose columns are as wide as those of a row.
const HEADER: &str = "\
port             mode      budget    rx p/s    tx p/s   calls/s   kicks/s  rx/call hold p50 hold p99  drops/s  cpu %
";

/// A table of rates between two answers.
fn picture(before: &Response, now: &Response) -> String {
    let seconds = now.at_ns.saturating_sub(before.at_ns).max(1) as f64 / 1e9;
    let mut text = HEADER.to_owned();
    for port in &now.stats {
        let old = before.stats.iter().find(|old| old.port == port.port);
        let rate = |of: fn(&PortSnapshot) -> u64| {
            of(port).saturating_sub(old.map_or(0, of)) as f64 / seconds
        };
        let rx = rate(|port| port.totals.rx_packets);
        let rx_calls = rate(|port| port.totals.rx_calls);
        let micros = |nanos: u64| format!("{:.0} µs", nanos as f64 / 1e3);
        text.push_str(&format!(
            "{:16} {:8} {:>7} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>8.1} {:>8} {:>8} {:>8.0} {:>6.1}\n",
            printable(&port.port),
            port.mode.name(),
            format!("{:.0} µs", port.budget_us),
            rx,
            rate(|port| port.totals.tx_packets),
            rate(|port| port.totals.rx_calls + port.totals.tx_calls),
            rate(|port| port.totals.kicks),
            if rx_calls > 0.0 { rx / rx_calls } else { 0.0 },
            micros(port.hold_ns.quantiles.p50),
            micros(port.hold_ns.quantiles.p99),
            rate(|port| port.totals.drops.named().iter().map(|(_, packets)| packets).sum()),
            rate(|port| port.totals.cpu_ns) / 1e7,
        ));
    }
    text.push_str("hold: since the port's start; everything else: since the last picture\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::Report;
    use crate::hold::{Mode, Nanos};
    use crate::telemetry::PortCounters;

    fn response(at_ns: u64, packets: u64, calls: u32) -> Response {
        let mut counters = PortCounters::default();
        counters.totals.rx_packets = packets;
        for _ in 0..calls {
            counters.rx_call(Nanos::from_micros(500), 10);
        }
        let stats = counters.snapshot("\x1bp", Mode::Adaptive, Nanos::from_micros(1_000));
        Response {
            at_ns,
            ..Response::from_reports(vec![Report::Stats(Box::new(stats))])
        }
    }

    #[test]
    fn a_picture_shows_rates_between_two_answers() {
        let text = picture(
            &response(0, 1_000, 100),
            &response(2_000_000_000, 21_000, 1_100),
        );
        let words: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            words[..8],
            ["?p", "adaptive", "1000", "µs", "10000", "0", "500", "0"]
        );
        assert_eq!(words[8], "20.0");
    }
}
