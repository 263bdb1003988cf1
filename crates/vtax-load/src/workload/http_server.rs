//! Apache in the target with one file to serve, and the command line of the load generator that
//! asks for it.
//!
//! Apache gets its whole configuration on the command line, so that it is the same on every
//! platform whatever a distribution configures.

use super::driver::{command, prepare, script, start_service};
use super::output::{garbage, json, number, positive};
use super::{LoadClient, Program, Service};
use crate::http::{Arguments, Report};
use std::time::Duration;
use vtax_guest::platform::{CommandLine, Target};
use vtax_host::HostError;

/// What runs in the target.
pub const PROGRAMS: &[Program] = &[Program {
    name: "apache2",
    package: "apache2-bin",
}];

const PORT: u16 = 80;
const DIRECTORY: &str = "/tmp/vtax-http";
const THREADS: i64 = 64;
const CONTENT_LIMIT: Duration = Duration::from_secs(120);

/// Makes a file of `bytes` bytes, starts Apache and waits until it answers. Every connection
/// can have a thread of its own.
pub fn serve(
    target: &mut dyn Target,
    client: &dyn LoadClient,
    bytes: i64,
    connections: i64,
) -> Result<Service, HostError> {
    let bytes = bytes.to_string();
    let content = r#"umask 022 && mkdir -p "$1" && head -c "$2" /dev/zero > "$1/file""#;
    prepare(
        target,
        &script("sh", content, &[DIRECTORY, &bytes]),
        CONTENT_LIMIT,
        &[],
    )?;
    start_service(
        target,
        client,
        "apache2",
        &server(connections),
        PORT,
        PROGRAMS,
    )
}

fn server(connections: i64) -> CommandLine {
    let children = (connections.max(1) + THREADS - 1) / THREADS;
    let workers = children * THREADS;
    let mut line = command([
        "apache2",
        "-d",
        DIRECTORY,
        "-f",
        "/dev/null",
        "-DFOREGROUND",
    ]);
    // Modules have to be there before the directives that they understand; without authz_core
    // every request is refused.
    for module in ["mpm_event", "authz_core"] {
        let load = format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so");
        line.extend(["-C".to_owned(), load]);
    }
    let directives = [
        "ServerName vtax".to_owned(),
        format!("Listen {PORT}"),
        "ListenBacklog 4096".to_owned(),
        "User www-data".to_owned(),
        "Group www-data".to_owned(),
        format!("DocumentRoot {DIRECTORY}"),
        format!("PidFile {DIRECTORY}/pid"),
        format!("Mutex file:{DIRECTORY} default"),
        // Not /dev/stderr: a bare /dev does not have it.
        "ErrorLog /proc/self/fd/2".to_owned(),
        // Nobody reads along: a line for each failed request would fill the pipe and stop it.
        "LogLevel emerg".to_owned(),
        "KeepAlive On".to_owned(),
        "MaxKeepAliveRequests 0".to_owned(),
        "KeepAliveTimeout 600".to_owned(),
        format!("ThreadsPerChild {THREADS}"),
        format!("ServerLimit {children}"),
        format!("StartServers {children}"),
        format!("MaxRequestWorkers {workers}"),
        "MinSpareThreads 1".to_owned(),
        format!("MaxSpareThreads {}", workers + THREADS),
    ];
    line.extend(
        directives
            .into_iter()
            .flat_map(|directive| ["-c".to_owned(), directive]),
    );
    line
}

/// The command line of the load generator: this program again, as a process of its own.
pub fn client(arguments: &Arguments) -> Result<CommandLine, HostError> {
    let program = std::env::current_exe().map_err(|cause| {
        HostError::Other(format!(
            "cannot find the vtax program, which is also the HTTP load generator: {cause}"
        ))
    })?;
    let mut line = vec![
        program.to_string_lossy().into_owned(),
        "load".to_owned(),
        "http".to_owned(),
    ];
    line.extend(arguments.to_flags());
    Ok(line)
}

/// Where the file is.
pub fn arguments(target: &dyn Target, connections: i64) -> Arguments {
    Arguments {
        address: (target.address(), PORT).into(),
        path: "/file".to_owned(),
        connections: u32::try_from(connections).unwrap_or(1),
        warmup: 0.0,
        duration: 0.0,
        rate: 0.0,
        arrival: crate::http::Arrival::Constant,
        seed: 0,
        closed: false,
        downloads: None,
        timeout: 10.0,
    }
}

/// Reads what the load generator printed.
pub fn read(raw: &[u8], mode: &str) -> Result<Report, HostError> {
    const DRIVER: &str = "vtax load http";
    let report: Report = json(DRIVER, raw)?;
    if report.mode != mode {
        return Err(garbage(
            DRIVER,
            &format!("its mode is {:?}, not {mode:?}", report.mode),
        ));
    }
    positive(DRIVER, "seconds", Some(report.seconds))?;
    let latency = &report.latency;
    let lag = report.lag.unwrap_or_default();
    for time in [
        latency.p50,
        latency.p90,
        latency.p99,
        latency.p999,
        latency.max,
        latency.mean,
        lag.p99,
    ] {
        number(DRIVER, "latency", Some(time))?;
    }
    Ok(report)
}
