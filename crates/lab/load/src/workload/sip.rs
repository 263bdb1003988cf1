// SPDX-License-Identifier: Apache-2.0
//! `sip`: telephone calls to an appliance that proxies statefully and answers with media.
//!
//! In the target Kamailio takes calls on UDP 5060, with a transaction for each, and hands them to SIPp's
//! user agent server beside it, which answers and sends back the sound that it gets. So the appliance
//! works for signals, and its host for packets of 20 ms of sound each, both ways. Chen, Kaeli & Murphy
//! had Asterisk for it. Without Record-Route the caller sends all of a call to the proxy.

use super::check::{Account, Amount, Claim};
use super::driver::{script, whole_seconds};
use super::output::*;
use super::*;
use crate::generator::report::Times;
use vtax_core::Quantity;

/// The workload.
pub struct Sip;

/// The kind in plans.
pub const KIND: &str = "sip";

const SERVER: &[Program] = &[
    Program::new("kamailio", "kamailio"),
    Program::new("sipp", "sip-tester"),
];
const CLIENT: &[Program] = &[Program::new("sipp", "sip-tester")];
/// By RFC 3261; Kamailio listens on TCP too, which is how the lab sees that it is up.
const PORT: u16 = 5060;
const RATE: Parameter = Parameter::new("load.rate", Domain::Number(0.1, 1e5), "20")
    .help("calls that begin each second, equally spaced");
const HOLD: Parameter = Parameter::new("load.hold_ms", Domain::Integer(0, 60_000), "500")
    .help("milliseconds of sound in a call, 50 packets of it a second and way");
/// Before 3.8, SIPp times calls by a clock (Linux' `CLOCK_MONOTONIC_COARSE`) that moves with the timer
/// interrupt, 250 times a second on Debian's kernels: most times are 0, 4 or 8 ms.
const COARSE_CLOCK: Duration = Duration::from_millis(4);
/// Each call in progress has a port for its sound.
const MOST_CALLS: u32 = 4000;
/// After these, calls that go on are given up: the first sends of SIP wait half a second for an answer.
const LAST_CALLS: u64 = 2;

/// The argument is the target's address. What SIPp answers, in its own language, is in `sip/`.
const SERVICE: &str = concat!(
    r#"# Kamailio, and SIPp to answer
address=$1 here=/tmp/vtax-sip
mkdir -p "$here" && cd "$here" || exit
cat >proxy.cfg <<CFG
debug=-3
log_stderror=yes
children=2
dns=no
rev_dns=no
auto_aliases=no
listen=udp:$address:5060
listen=tcp:$address:5060
loadmodule "tm.so"
request_route {
    t_relay_to_udp("$address", "5070");
}
CFG
cat >answer.xml <<'XML'
"#,
    include_str!("sip/answer.xml"),
    r#"XML
sipp -sf answer.xml -i "$address" -p 5070 -mi "$address" -mp 6000 -rtp_echo -nostdin >/dev/null 2>answer.log &
sleep 0.2
kill -0 $! 2>/dev/null || { echo "sipp ended while it started:" >&2; cat answer.log >&2; exit 1; }
exec kamailio -DD -E -m 64 -M 8 -f "$here/proxy.cfg"
"#
);

/// The arguments are the target's address, calls a second, milliseconds of a call, whole seconds of load,
/// seconds that the last calls have, and the most calls at once. Exit codes of SIPp below 200 report calls
/// that failed or went on, which its counts do too.
const CALLS: &str = concat!(
    r#"# SIPp, and what it counted
there=$(mktemp -d) && cd "$there" || exit
trap 'rm -rf "$there"' EXIT
cat >call.xml <<'XML'
"#,
    include_str!("sip/call.xml"),
    r#"XML
head -c 8000 /dev/zero | tr '\0' '\377' >voice
from=$(ip -oneline route get "$1" | sed -n 's/.* src \([^ ]*\).*/\1/p')
timeout --signal=KILL "$(($4 + $5))" sipp "$1:5060" -sf call.xml -i "$from" -mi "$from" -r "$2" -d "$3" \
  -timeout "$4" -l "$6" -trace_stat -stf counts.csv -fd 100ms -trace_rtt -rtt_freq 1 -nostdin >screen 2>errors
code=$?
if [ "$code" -ge 200 ] || [ ! -s counts.csv ]; then cat errors >&2; tail -n 3 screen >&2; exit 1; fi
cat counts.csv; sipp -v | sed -n 's/^ *\(SIPp v\)/version \1/p'; echo times; cat call_*_rtt.csv 2>/dev/null; exit 0
"#
);

/// The resolution of SIPp, by the version that it prints; one that prints none is old.
fn resolution(text: &str) -> Duration {
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("version SIPp v"));
    let mut numbers = version
        .unwrap_or_default()
        .split(|one: char| !one.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match (next(), next()) {
        (Some(major), Some(minor)) if (major, minor) >= (3, 8) => Duration::ZERO,
        _ => COARSE_CLOCK,
    }
}

/// A row of SIPp's counts.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Seconds since SIPp began.
    at: f64,
    begun: f64,
    succeeded: f64,
    failed: f64,
    sent_again: f64,
    current: f64,
}

/// The rows of SIPp's table, whose columns differ between versions: they go by their names.
fn rows(table: &str) -> Outcome<Vec<Counts>> {
    let mut lines = table.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(';').collect();
    let column = |name: &str| {
        let found = names.iter().position(|one| *one == name);
        found.ok_or_else(|| garbage("sipp", &format!("its counts have no column {name}")))
    };
    let (start, now) = (column("StartTime")?, column("CurrentTime")?);
    let counts = [
        column("OutgoingCall(C)")?,
        column("SuccessfulCall(C)")?,
        column("FailedCall(C)")?,
        column("Retransmissions(C)")?,
        column("CurrentCall")?,
    ];
    let mut rows = Vec::new();
    // The last line may be cut off where SIPp was stopped while it wrote.
    for line in lines {
        let cells: Vec<&str> = line.split(';').collect();
        // Date, time and seconds since 1970, with tabs between them.
        let time = |column: usize| figure(cells.get(column)?.rsplit('\t').next()?);
        let values = counts.map(|column| figure(cells.get(column)?));
        let (Some(start), Some(now)) = (time(start), time(now)) else {
            continue;
        };
        if let [
            Some(begun),
            Some(succeeded),
            Some(failed),
            Some(sent_again),
            Some(current),
        ] = values
        {
            rows.push(Counts {
                at: now - start,
                begun,
                succeeded,
                failed,
                sent_again,
                current,
            });
        }
    }
    Ok(rows)
}

static ABOUT: About = About {
    kind: KIND,
    summary: "telephone calls through a proxy, with sound (SIPp, Kamailio in the target)",
    parameters: &[RATE, HOLD],
    target_programs: SERVER,
    client_programs: CLIENT,
    packages: &["kamailio", "sip-tester"],
    level: Some(LoadLevel::new(&RATE, OP_RATE, 1.0, "calls begun")),
    ..About::NONE
};

impl Workload for Sip {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let line = script(
            "sh",
            SERVICE,
            &[&context.target.about().address.to_string()],
        );
        context.start("kamailio", &line, PORT, SERVER)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let words = [
            spec.address.to_string(),
            RATE.number(spec.settings).to_string(),
            HOLD.integer(spec.settings).to_string(),
            whole_seconds(spec.timing.warmup + spec.timing.duration).to_string(),
            (LAST_CALLS + HOLD.integer(spec.settings).unsigned_abs().div_ceil(1000)).to_string(),
            MOST_CALLS.to_string(),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(LoadCommand::client(script("sh", CALLS, &words)))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let text = text("sipp", raw)?;
        let (table, times) = text
            .split_once("\ntimes\n")
            .ok_or_else(|| garbage("sipp", "its counts or its times are missing"))?;
        let rows = rows(table)?;
        let (from, to) = (
            timing.warmup.as_secs_f64(),
            (timing.warmup + timing.duration).as_secs_f64(),
        );
        let begin = rows.iter().rfind(|row| row.at <= from).copied();
        let begin = begin.unwrap_or_default();
        let end = rows.iter().rfind(|row| row.at <= to + 0.05).copied();
        let end = end
            .filter(|end| end.at > begin.at)
            .ok_or_else(|| garbage("sipp", "no counts of the measured window"))?;
        let seconds = positive("sipp", "CurrentTime", Some(end.at - begin.at))?;
        let calls = number("sipp", "OutgoingCall(C)", Some(end.begun - begin.begun))?;
        let succeeded = end.succeeded - begin.succeeded;
        let succeeded = number("sipp", "SuccessfulCall(C)", Some(succeeded))?;
        let failed = number("sipp", "FailedCall(C)", Some(end.failed - begin.failed))?;
        let window = rows
            .iter()
            .filter(|row| row.at > begin.at && row.at <= end.at);
        let most = window.map(|row| row.current).fold(0.0, f64::max);
        let most = number("sipp", "CurrentCall", Some(most))?;
        let resolution = resolution(table).as_secs_f64();

        let mut answers = Times::new();
        for line in times.lines() {
            let mut cells = line.split(';').map(figure);
            // Milliseconds since SIPp began, and of the answer. A header has no numbers.
            if let (Some(Some(at)), Some(Some(took))) = (cells.next(), cells.next())
                && (from..to).contains(&(at / 1e3))
            {
                let took = number("sipp", "response_time_ms", Some(took))? / 1e3;
                answers.record_n(took.max(resolution), 1);
            }
        }
        let mut metrics = Metrics::default();
        let rate = succeeded / seconds;
        metrics.add_in(metric::RATE, rate, OP_RATE, "calls that succeeded");
        metrics.lead(metric::RATE);
        let share = |part: f64, of: f64| if of > 0.0 { 100.0 * part / of } else { 0.0 };
        let title = "share of the calls that ended, which failed";
        metrics.add(metric::ERRORS, share(failed, succeeded + failed), title);
        let again = end.sent_again - begin.sent_again;
        let again = number("sipp", "Retransmissions(C)", Some(again))?;
        metrics.add(metric::RETRANSMISSIONS, share(again, calls), "");
        metrics.add(metric::CALLS_CURRENT, most, "");
        let (mut suspect, mut unreached) = (Vec::new(), None);
        if answers.0.is_empty() {
            suspect.push("no call was answered in the measured window".to_owned());
        } else {
            let mut what = "time until a call is answered".to_owned();
            if resolution > 0.0 {
                let bound = Quantity::new(resolution, SECONDS);
                what += &format!(" ({bound}: at or below the resolution of SIPp before 3.8)");
            }
            metrics.latency(&what, &answers.summary());
        }
        let is_full = most >= f64::from(MOST_CALLS);
        let asked = RATE.number(settings);
        if is_full {
            suspect.push(format!(
                "{MOST_CALLS} calls were in progress, the most that there can be"
            ));
        } else {
            suspect.extend(check::excess(
                "SIPp's rate of calls",
                (calls - 1.0) / seconds,
                asked,
                OP_RATE,
                seconds,
            ));
            // A call more or less is at the window's edges.
            unreached = shortfall("SIPp", (calls + 1.0) / seconds, asked, OP_RATE);
        }
        // INVITE, ACK and BYE.
        let messages = Amount::PerSecond(3.0 * rate);
        let messages = Claim::at_most("messages of calls", messages, Account::FramesToTarget);
        let work = work(rate, Base::Operation, "serve 1 call");
        Ok(WorkloadResult {
            histograms: vec![("latency".to_owned(), answers.0)],
            suspect,
            claims: vec![messages],
            unreached,
            ..metrics.result(WorkDone::Rate(work))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIPp's 3.6.1, as in Debian 12.
    const RAW: &str = include_str!("../../tests/data/sip.csv");
    /// Debian 13's 3.7.3, which answered itself.
    const NEWER: &str = include_str!("../../tests/data/sip-3.7.3.csv");
    const OVERLOAD: &str = include_str!("../../tests/data/sip-overload.csv");

    fn parse(raw: &str, rate: f64) -> Outcome<WorkloadResult> {
        let rate = vtax_host::settings::Level::Number(rate);
        let settings = Settings([("load.rate".to_owned(), rate)].into());
        Sip.parse(raw.as_bytes(), &settings, TIMING)
    }

    #[test]
    fn calls_of_the_window_are_counted_and_timed_in_either_version() {
        for raw in [RAW, NEWER] {
            let result = parse(raw, 20.0).unwrap();
            let value = |name: &str| result.metrics[name].quantity.value;
            assert!((19.0..21.0).contains(&value("rate")), "{result:?}");
            assert_eq!((value("errors"), value("retransmissions")), (0.0, 0.0));
            assert!(value("calls.current") >= 9.0 && value("latency.p99") < 0.1);
            assert!((38..=42).contains(&result.histograms[0].1.len()));
            assert!(result.suspect.is_empty(), "{:?}", result.suspect);
            assert_eq!(result.unreached, None);
        }
        let unreached = parse(RAW, 100.0).unwrap().unreached.unwrap();
        assert!(unreached.contains("20"), "{unreached}");
    }

    #[test]
    fn no_time_below_the_clock_steps_of_sipp_before_3_8_is_reported() {
        for raw in [RAW, NEWER, OVERLOAD] {
            let result = parse(raw, 20.0).unwrap();
            for (name, metric) in &result.metrics {
                if name.starts_with("latency.") {
                    assert!(metric.quantity.value >= 0.004, "{name}: {metric:?}");
                    assert!(metric.title.contains("below the resolution"), "{metric:?}");
                }
            }
            assert!(result.histograms[0].1.min() >= 3_990_000);
        }
        // 3.8 counts microseconds.
        let newer = RAW.replace(
            "\ntimes\n",
            "\nversion SIPp v3.8.0-TLS-PCAP-SHA256.\ntimes\n",
        );
        let newer = newer
            .replace(";8;1", ";1.41;1")
            .replace(";4;1", ";1.41;1")
            .replace(";0;1", ";1.41;1");
        let result = parse(&newer, 20.0).unwrap();
        let median = &result.metrics["latency.p50"];
        assert!((median.quantity.value - 1.41e-3).abs() < 1e-5, "{median:?}");
        assert!(!median.title.contains("resolution"));
    }

    #[test]
    fn overload_shows_in_retransmissions_and_late_answers() {
        let result = parse(OVERLOAD, 2000.0).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert!(value("retransmissions") > 1.0, "{result:?}");
        assert!(value("latency.p99") > 0.4, "{result:?}");
        assert!(value("rate") < 1900.0, "{result:?}");
    }

    #[test]
    fn columns_go_by_their_names_and_a_missing_one_is_reported() {
        let moved = RAW
            .replace("TargetRate;", "TargetRate;New;")
            .replace(";20;", ";20;0;");
        let (moved, whole) = (parse(&moved, 20.0).unwrap(), parse(RAW, 20.0).unwrap());
        assert_eq!(moved.metrics["rate"], whole.metrics["rate"]);
        let without = RAW.replace("FailedCall(C)", "Failed");
        let printed = parse(&without, 20.0).unwrap_err().to_string();
        assert!(printed.contains("no column FailedCall(C)"), "{printed}");
    }
}
