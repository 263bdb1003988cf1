// SPDX-License-Identifier: Apache-2.0
//! `sysbench-oltp`: transactions on MariaDB in the target, on its scratch disk (sysbench).

use super::check::{Amount, Claim};
use super::driver::{command, prepare_client, script, whole_seconds};
use super::open_loop::SEED;
use super::output::*;
use super::*;
use crate::generator::report::Times;

/// The workload.
pub struct SysbenchOltp;

const SERVER: &[Program] = &[Program::of("mariadbd", "mariadb-server")];
const CLIENT: &[Program] = &[Program::of("sysbench", "sysbench")];
const PORT: u16 = 3306;
const RATE: Parameter = Parameter::new("load.rate", Domain::Integer(0, 1_000_000), "50")
    .help("transactions per second, Poisson arrivals; 0: as fast as it goes");
const THREADS: Parameter = Parameter::new("load.threads", Domain::Integer(1, 1024), "8")
    .help("connections, one transaction at a time on each");
const ROWS: Parameter = Parameter::new("load.rows", Domain::Integer(1, 100_000_000), "10000")
    .help("rows of each of the two tables");

/// `$1` is the scratch disk, which another trial may have filled. A database is a directory of the
/// data. Without grant tables nothing has to be installed; with a small log, 40 MB are written.
const SERVICE: &str = r#"# MariaDB
rm -rf "$1/vtax-disk-read" "$1/vtax-mariadb" && mkdir -p "$1/vtax-mariadb/vtax" && cd "$1/vtax-mariadb" &&
exec mariadbd --no-defaults --user=root --datadir="$PWD" --socket="$PWD/socket" --pid-file="$PWD/pid" \
  --port=3306 --skip-grant-tables --skip-name-resolve --log-warnings=0 --max-connections=1100 \
  --innodb-log-file-size=8M --innodb-stats-persistent=OFF
"#;

fn sysbench(address: IpAddr, settings: &Settings, rest: &str) -> CommandLine {
    let size = ROWS.integer(settings);
    let line = format!(
        "sysbench oltp_read_write --db-driver=mysql --mysql-host={address} --mysql-port={PORT} \
         --mysql-user=root --mysql-db=vtax --tables=2 --table-size={size} {rest}"
    );
    command(line.split_whitespace())
}

static ABOUT: About = About {
    kind: "sysbench-oltp",
    summary: "database transactions at a fixed rate, open loop (sysbench, MariaDB in the target)",
    parameters: &[RATE, THREADS, ROWS, SEED],
    target_programs: SERVER,
    client_programs: CLIENT,
    packages: &["mariadb-server"],
    level: Some(LoadLevel::of(&RATE, OP_RATE, 1.0, "transactions asked")),
    ..About::NONE
};

impl Workload for SysbenchOltp {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn scratch_mib(&self, settings: &Settings) -> u64 {
        256 + ROWS.integer(settings).unsigned_abs() / 1000
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let directory = Scratch::of(context.target).directory;
        let line = script("sh", SERVICE, &[&directory.to_string_lossy()]);
        let service = context.start("mariadbd", &line, PORT, SERVER)?;
        let line = sysbench(context.target.about().address, context.settings, "prepare");
        prepare_client(context.client, &line, CLIENT)?;
        Ok(service)
    }

    /// A checkpoint at the end of the warm-up sets every count to 0.
    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let settings = spec.settings;
        let (threads, rate) = (THREADS.integer(settings), RATE.integer(settings));
        // Of 0 it would take the clock.
        let seed = SEED.integer(settings).max(1);
        let warmup = whole_seconds(spec.timing.warmup);
        let time = warmup + whole_seconds(spec.timing.duration).max(1);
        let mut rest =
            format!("--threads={threads} --rate={rate} --time={time} --rand-seed={seed}");
        if warmup > 0 {
            rest += &format!(" --report-checkpoints={warmup}");
        }
        rest += " --percentile=99 --histogram=on run";
        Ok(LoadCommand::client(sysbench(spec.address, settings, &rest)))
    }

    fn parse(&self, raw: &[u8], settings: &Settings, timing: Timing) -> Outcome<WorkloadResult> {
        let text = text("sysbench", raw)?;
        // The last report, with the histogram before it, is of what came after the checkpoint.
        let last = text.rsplit_once("Latency histogram");
        let (_, report) = last.ok_or_else(|| garbage("sysbench", "its histogram is missing"))?;
        let (mut rate, mut mean, mut max) = (None, None, None);
        let (mut times, mut counted) = (Times::new(), 0.0);
        for line in report.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["transactions:", _, each, "per", "sec.)"] => rate = figure(each),
                ["avg:", value] => mean = figure(value),
                ["max:", value] => max = figure(value),
                [value, bar, count] if bar.starts_with('|') => {
                    let value = number("sysbench", "histogram", figure(value))?;
                    let count = number("sysbench", "histogram", figure(count))?;
                    counted += count;
                    times.record_n(value / 1e3, count as u64);
                }
                _ => {}
            }
        }
        let rate = positive("sysbench", "transactions", rate)?;
        let mut summary = times.summary();
        summary.mean = number("sysbench", "avg", mean)? / 1e3;
        summary.max = number("sysbench", "max", max)? / 1e3;
        let mut metrics = Metrics::default();
        metrics.latency("transaction latency", &summary);
        metrics.add_in(metric::RATE, rate, OP_RATE, "transactions");
        let asked = RATE.number(settings);
        let unreached = random_shortfall(rate, asked, timing);
        let seconds = Duration::from_secs(whole_seconds(timing.duration).max(1));
        let mut suspect = Vec::new();
        // Its rate is of its time, and its histogram of its transactions.
        suspect.extend(check::duration("sysbench", counted / rate, seconds));
        let what = "the rate of transactions";
        suspect.extend(check::random_excess(
            what,
            rate,
            asked,
            OP_RATE,
            seconds.as_secs_f64(),
        ));
        let work = work(rate, Base::Operation, "commit 1 transaction");
        Ok(WorkloadResult {
            histograms: vec![("latency".to_owned(), times.0)],
            suspect,
            claims: vec![Claim::answers(Amount::PerSecond(rate))],
            unreached,
            ..metrics.result(WorkDone::Rate(work))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_after_the_checkpoint_and_its_histogram_are_read() {
        let raw = include_bytes!("../../tests/data/sysbench-oltp.txt");
        let parsed = SysbenchOltp.parse(raw, &Settings::default(), TIMING);
        let result = parsed.unwrap();
        assert_eq!(result.metrics["rate"].quantity.value, 58.05);
        assert!((result.metrics["latency.max"].quantity.value - 0.097_85).abs() < 1e-9);
        assert_eq!(result.histograms[0].1.len(), 176);
    }
}
