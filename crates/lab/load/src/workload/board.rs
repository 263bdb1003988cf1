// SPDX-License-Identifier: Apache-2.0
//! `board`: a bulletin board in three tiers, all in the target: Apache, PHP (FPM) and MariaDB. Each
//! request is for the page of the latest stories: one query and one page made of it.
//!
//! It is like RUBBoS' StoriesOfTheDay and is not RUBBoS, whose PHP of 2004 does not run on current PHP and whose data
//! are not available.

use super::check::Claim;
use super::driver::script;
use super::http_closed::DRIVER;
use super::output::*;
use super::*;
use crate::generator;
use crate::http::Arguments;

/// The workload.
pub struct Board;

const PROGRAMS: &[Program] = &[
    Program::of("apache2", "apache2-bin"),
    Program::of("php-fpm8.2", "php8.2-fpm"),
    Program::of("mariadbd", "mariadb-server"),
];
const CLIENTS: Parameter = Parameter::new("load.connections", Domain::Integer(1, 1024), "100")
    .help("clients, one request at a time on each");
const REQUESTS: Parameter =
    Parameter::new("load.requests", Domain::Integer(1, 100_000_000), "500000")
        .help("pages asked for in all");
const STORIES: Parameter = Parameter::new("load.stories", Domain::Integer(10, 10_000_000), "10000")
    .help("stories in the database, of a tenth as many users");
const CHILDREN: Parameter = Parameter::new("load.children", Domain::Integer(1, 256), "8")
    .help("processes of PHP, which make one page at a time each");

/// `$1` is the scratch disk, which a file for `disk-read` fills, `$2` the number of stories, `$3` of PHP's processes;
/// then Apache's command. PHP finds the database by its socket. All tables are the same in each trial.
const SERVICE: &str = r#"# MariaDB, PHP and Apache
for program in mariadbd mariadb php-fpm8.2 apache2; do
  command -v "$program" >/dev/null || { echo "$program: not found" >&2; exit 127; }
done
umask 022; here=$1/vtax-board; stories=$2; children=$3; shift 3
rm -rf "$here" "${here%/*}/vtax-disk-read" && mkdir -p "$here/data/vtax" && chmod 755 "$here" && cd "$here" || exit
cat >board.php <<'PHP'
<?php
// The latest stories and who wrote them.
$query = 'select s.id, s.title, s.body, u.name from stories s join users u on u.id = s.writer
          order by s.id desc limit 10';
$rows = (new mysqli('localhost', 'root', '', 'vtax'))->query($query);
ob_start();
echo "<html><head><title>Stories of the day</title></head><body>\n";
foreach ($rows as $row) {
    printf("<h3><a href=\"/story?id=%d\">%s</a></h3>\n<p>by %s: %s</p>\n", $row['id'],
        htmlspecialchars($row['title']), htmlspecialchars($row['name']), htmlspecialchars($row['body']));
}
echo "</body></html>\n";
header('Content-Length: ' . ob_get_length());
PHP
cat >fpm.conf <<FPM
[global]
error_log = /proc/self/fd/2
log_level = error
[board]
user = www-data
group = www-data
listen = $here/php
listen.mode = 0666
pm = static
pm.max_children = $children
php_admin_value[mysqli.default_socket] = $here/database
php_admin_value[opcache.enable] = 1
FPM
mariadbd --no-defaults --user=root --datadir="$here/data" --socket="$here/database" --pid-file="$here/pid" \
  --skip-networking --skip-grant-tables --log-warnings=0 --max-connections=300 \
  --innodb-log-file-size=8M --innodb-stats-persistent=OFF &
until mariadb --no-defaults --socket="$here/database" --execute='select 1' >/dev/null 2>&1; do
  kill -0 $! 2>/dev/null || { echo "mariadbd ended while it started" >&2; exit 1; }
  sleep 0.1
done
mariadb --no-defaults --socket="$here/database" vtax <<SQL || exit
create table users (id int primary key, name varchar(40));
create table stories (id int primary key, writer int, title varchar(100), body text);
insert into users select seq, concat('user ', seq) from seq_1_to_$((stories / 10));
insert into stories select seq, 1 + mod(seq * 7919, $((stories / 10))),
  concat('Story ', seq, ' of the day'), repeat(concat('word', mod(seq, 97), ' '), 60) from seq_1_to_$stories;
SQL
php-fpm8.2 --nodaemonize --fpm-config "$here/fpm.conf" &
until [ -S php ]; do
  kill -0 $! 2>/dev/null || { echo "php-fpm8.2 ended while it started" >&2; exit 1; }
  sleep 0.1
done
mkdir -p /tmp/vtax-http && exec "$@"
"#;

static ABOUT: About = About {
    kind: "board",
    summary: "pages of a bulletin board in three tiers (Apache, PHP, MariaDB in the target)",
    parameters: &[CLIENTS, REQUESTS, STORIES, CHILDREN],
    target_programs: PROGRAMS,
    packages: &["mariadb-server", "php8.2-fpm", "php8.2-mysql"],
    ..About::NONE
};

impl Workload for Board {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn extent(&self, _settings: &Settings) -> Extent {
        Extent::ToCompletion
    }

    fn scratch_mib(&self, settings: &Settings) -> u64 {
        256 + STORIES.integer(settings).unsigned_abs() / 500
    }

    fn serve(&self, context: &mut ServeContext) -> Outcome<Service> {
        let scratch = Scratch::of(context.target).directory;
        let scratch = scratch.to_string_lossy();
        let forward = format!(
            r#"ProxyPass "{}" "unix:{scratch}/vtax-board/php|fcgi://localhost{scratch}/vtax-board/board.php""#,
            apache::PATH
        );
        // Without it, Apache 2.4.59 and later drops the length that PHP reports.
        let trust = "SetEnv ap_trust_cgilike_cl yes".to_owned();
        let modules = ["env", "proxy", "proxy_fcgi"];
        let apache = apache::server(
            CLIENTS.integer(context.settings),
            &modules,
            &[forward, trust],
        );
        let (stories, children) = (
            STORIES.integer(context.settings).to_string(),
            CHILDREN.integer(context.settings).to_string(),
        );
        let words = [&*scratch, &stories, &children].into_iter();
        let words: Vec<&str> = words.chain(apache.iter().map(String::as_str)).collect();
        let line = script("sh", SERVICE, &words);
        context.start("apache2", &line, apache::PORT, PROGRAMS)
    }

    fn load(&self, spec: LoadSpec) -> Outcome<LoadCommand> {
        let arguments = Arguments {
            common: generator::Arguments {
                connections: u32::try_from(CLIENTS.integer(spec.settings)).unwrap_or(1),
                timeout: 60.0,
                ..generator::Arguments::new(apache::socket(spec.address))
            },
            path: apache::PATH.to_owned(),
            closed: true,
            downloads: Some(REQUESTS.integer(spec.settings).unsigned_abs()),
            close: false,
        };
        open_loop::generator("http", arguments.to_flags()).map(LoadCommand::client)
    }

    fn parse(&self, raw: &[u8], settings: &Settings, _timing: Timing) -> Outcome<WorkloadResult> {
        let (report, histogram) = open_loop::read(DRIVER, raw, "closed")?;
        let pages = number(DRIVER, "requests", Some(report.requests as f64))?;
        // A failed query leaves an empty page.
        if pages == 0.0 || report.bytes < report.requests.saturating_mul(1000) {
            let detail = format!(
                "{} pages came with {} bytes in all, which are no stories; read the target's console",
                report.requests, report.bytes
            );
            return Err(garbage(DRIVER, &detail));
        }
        let mut metrics = Metrics::default();
        metrics.latency("time of a page", &report.latency);
        let rate = pages / report.seconds;
        metrics.add_in(metric::RATE, rate, REQUEST_RATE, "pages served");
        metrics.lead(metric::RATE);
        let phrase = "serve 1 page of the board";
        let work = metrics.done(
            self.extent(settings),
            work(rate, Base::Request, phrase),
            work(pages, Base::Request, phrase),
            (report.seconds, "time until all pages were served"),
        );
        let asked = REQUESTS.integer(settings) as f64;
        let (what, unit) = ("the number of pages", Unit::of(Base::Request));
        let suspect = shortfall(what, pages, asked, unit)
            .into_iter()
            .chain(check::excess(what, pages, asked, unit, report.seconds));
        Ok(WorkloadResult {
            suspect: suspect.collect(),
            claims: Claim::totals(pages, report.bytes as f64, report.seconds),
            histograms: open_loop::named("latency", histogram),
            ..metrics.result(work)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_and_empty_ones_are_no_pages() {
        let raw = include_str!("../../tests/data/board.json");
        let parse = |raw: &str| Board.parse(raw.as_bytes(), &Settings::default(), TIMING);
        let result = parse(raw).unwrap();
        let value = |name: &str| result.metrics[name].quantity.value;
        assert!(
            (value("rate") * value("elapsed") - 500.0).abs() < 1e-6,
            "{result:?}"
        );
        let bytes = raw.split("\"bytes\":").nth(1).unwrap();
        let bytes = bytes.split(',').next().unwrap();
        let empty = raw.replace(&format!("\"bytes\":{bytes}"), "\"bytes\":500");
        assert!(
            parse(&empty)
                .unwrap_err()
                .to_string()
                .contains("no stories")
        );
    }
}
