// SPDX-License-Identifier: Apache-2.0
//! iperf3 for the TCP and UDP workloads: the server, the client's command line and the JSON output.
//!
//! The target always runs the server, so that one address and port suffice on every platform;
//! `--reverse` makes it send.

use super::driver::{command, whole_seconds};
use super::output::{garbage, json};
use super::*;
use serde::Deserialize;

/// The port that iperf3 listens on by default.
pub const PORT: u16 = 5201;

/// The program of both sides.
pub const PROGRAMS: &[Program] = &[Program::of("iperf3", "iperf3")];

/// Starts the server, for as many tests as a trial has, one after the other.
pub fn serve(context: &mut ServeContext) -> Outcome<Service> {
    let port = PORT.to_string();
    let line = command(["iperf3", "--server", "--json", "--port", &port]);
    context.start_for_one("iperf3", &line, PORT, PROGRAMS)
}

/// The client's command line up to the options of the protocol.
///
/// `--omit` leaves the warm-up out of every total. iperf3 counts in whole seconds: both times
/// are rounded up, so that the load covers the measured window.
pub fn client(address: IpAddr, timing: Timing, streams: i64) -> CommandLine {
    let address = address.to_string();
    let port = PORT.to_string();
    let warmup = whole_seconds(timing.warmup).to_string();
    let duration = whole_seconds(timing.duration).max(1).to_string();
    let streams = streams.to_string();
    let mut line = command([
        "iperf3", "--client", &address, "--port", &port, "--json", "--time", &duration,
    ]);
    line.extend(["--parallel", &streams, "--connect-timeout", "5000"].map(str::to_owned));
    if timing.warmup > Duration::ZERO {
        line.extend(["--omit".to_owned(), warmup]);
    }
    line
}

/// Adds an option to a command line.
pub fn option(line: &mut CommandLine, name: &str, value: impl ToString) {
    line.extend([name.to_owned(), value.to_string()]);
}

/// Returns the value of `--bitrate`, which applies to each stream; plans give the total of all streams.
pub fn bitrate_per_stream(rate_mbit: f64, streams: i64) -> String {
    let each = rate_mbit * 1e6 / streams.max(1) as f64;
    format!("{each:.0}")
}

/// The used part of iperf3's JSON.
#[derive(Debug, Deserialize)]
pub struct Output {
    error: Option<String>,
    /// The requested parameters.
    #[serde(default)]
    pub start: Start,
    /// Totals of the measured part.
    pub end: Option<End>,
    /// The server's own document, where it was asked for.
    pub server_output_json: Option<ServerOutput>,
}

/// The requested parameters.
#[derive(Debug, Default, Deserialize)]
pub struct Start {
    /// The test.
    #[serde(default)]
    pub test_start: Test,
}

/// The parameters of a test.
#[derive(Debug, Default, Deserialize)]
pub struct Test {
    /// Bytes of each write, and of each datagram.
    pub blksize: Option<f64>,
}

/// Totals of the measured part.
#[derive(Debug, Default, Deserialize)]
pub struct End {
    /// The sender's totals, and before 3.11 the only ones of a client that sends datagrams.
    pub sum: Option<Sum>,
    /// As the sender counts.
    pub sum_sent: Option<Sum>,
    /// As the receiver counts.
    pub sum_received: Option<Sum>,
    /// Each stream.
    #[serde(default)]
    pub streams: Vec<Stream>,
}

/// The server's totals.
#[derive(Debug, Deserialize)]
pub struct ServerOutput {
    /// Totals of the measured part.
    pub end: Option<End>,
}

/// One stream's totals.
#[derive(Debug, Deserialize)]
pub struct Stream {
    /// Totals of a UDP stream.
    pub udp: Option<Sum>,
    /// The sender's view of a TCP stream; all zeros in the receiver's document.
    pub sender: Option<Sum>,
}

impl End {
    /// The totals of the sender of datagrams, by whichever name.
    pub fn sent_datagrams(&self) -> Option<&Sum> {
        let older = self.sum.as_ref().filter(|sum| sum.sender == Some(true));
        self.sum_sent.as_ref().or(older)
    }

    /// Returns the mean over the streams of the round trips that their senders' TCP measured, in seconds.
    pub fn round_trip(&self) -> Option<f64> {
        let sender = |stream: &Stream| stream.sender.as_ref()?.mean_rtt;
        let times: Vec<f64> = self.streams.iter().filter_map(sender).collect();
        let mean = times.iter().sum::<f64>() / 1e6 / times.len().max(1) as f64;
        (mean > 0.0 && mean.is_finite()).then_some(mean)
    }
}

/// Totals of one direction.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Sum {
    /// Length of the measured part.
    pub seconds: Option<f64>,
    /// Payload.
    pub bytes: Option<f64>,
    /// Segments that TCP sent again.
    pub retransmits: Option<f64>,
    /// Mean round trip of a TCP stream, in µs.
    pub mean_rtt: Option<f64>,
    /// Jitter of RFC 3550, in ms.
    pub jitter_ms: Option<f64>,
    /// Datagrams that did not arrive.
    pub lost_packets: Option<f64>,
    /// Datagrams sent.
    pub packets: Option<f64>,
    /// Datagrams that arrived after a later one.
    pub out_of_order: Option<f64>,
    /// Whether this is the sender's count.
    pub sender: Option<bool>,
}

/// Reads the client's output.
pub fn read(raw: &[u8]) -> Outcome<(Output, End)> {
    let mut output: Output = json("iperf3", raw)?;
    // iperf3 reports its errors in the JSON and still exits with 0.
    if let Some(error) = &output.error {
        return Err(garbage(
            "iperf3",
            &format!("\"{}\"; {}", error.trim(), remedy(error)),
        ));
    }
    let end = output
        .end
        .take()
        .ok_or_else(|| garbage("iperf3", "`end` is missing"))?;
    Ok((output, end))
}

/// A reason for suspicion where the measured part was not as long as was asked for.
pub fn duration(seconds: f64, timing: Timing) -> Option<String> {
    let asked = whole_seconds(timing.duration).max(1);
    check::duration("iperf3", seconds, Duration::from_secs(asked))
}

/// The remedy for an error of iperf3.
fn remedy(error: &str) -> &'static str {
    let has = |word: &str| error.contains(word);
    if has("busy") {
        "another client uses the server in the target; only one may run at a time"
    } else if has("refused") || has("timed out") || has("unreachable") || has("No route") {
        "the server in the target does not answer; check the link's settings and the target's console"
    } else if has("closed") || has("reset") || has("terminated") || has("Broken pipe") {
        "the server in the target ended in mid-test; check the target's memory and console"
    } else if has("set") && has("buffer") {
        "make load.window smaller, or raise net.core.rmem_max and net.core.wmem_max on both sides"
    } else if has("parameter") || has("block size") || has("bitrate") {
        "the two versions of iperf3 may not understand each other, or a load setting is out of its range"
    } else {
        "run the same iperf3 command by hand to see more"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_iperf3_is_shown_with_a_remedy_though_it_exits_with_0() {
        let raw = include_bytes!("../../tests/data/iperf3-refused.json");
        let message = read(raw).unwrap_err().to_string();
        assert!(message.contains("Connection refused"), "{message}");
        assert!(message.contains("does not answer"), "{message}");
    }

    #[test]
    fn a_server_that_dies_in_mid_test_is_named_as_the_cause() {
        let raw = br#"{"start":{},"intervals":[],"end":{},"error":"unable to write to stream socket: Connection reset by peer"}"#;
        let message = read(raw).unwrap_err().to_string();
        assert!(message.contains("ended in mid-test"), "{message}");
    }

    #[test]
    fn a_rate_is_divided_over_the_streams() {
        assert_eq!(bitrate_per_stream(100.0, 4), "25000000");
    }
}
