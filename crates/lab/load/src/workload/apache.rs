// SPDX-License-Identifier: Apache-2.0
//! Apache in the target with one file, for HTTP workloads.
//!
//! Apache gets its whole configuration on the command line, so that it is the same on every
//! platform whatever a distribution configures.

use super::driver::{command, prepare, script};
use super::*;
use std::net::SocketAddr;

/// The program in the target.
pub const PROGRAMS: &[Program] = &[Program::of("apache2", "apache2-bin")];
/// The path of the file.
pub const PATH: &str = "/file";

/// The port that Apache listens on.
pub const PORT: u16 = 80;
/// The directory of its content and its process number.
pub const DIRECTORY: &str = "/tmp/vtax-http";
const THREADS: i64 = 64;

/// Makes a file of `bytes` bytes, starts Apache and waits until it answers. Every connection
/// can have a thread of its own.
pub fn serve(context: &mut ServeContext, bytes: i64, connections: i64) -> Outcome<Service> {
    let bytes = bytes.to_string();
    let content = r#"umask 022 && mkdir -p "$1" && head -c "$2" /dev/zero > "$1/file""#;
    prepare(
        context.target,
        &script("sh", content, &[DIRECTORY, &bytes]),
        &[],
    )?;
    let line = server(connections, &[], &[]);
    context.start("apache2", &line, PORT, PROGRAMS)
}

/// Returns Apache's command line for a number of connections, with additional modules and directives.
pub fn server(connections: i64, modules: &[&str], more: &[String]) -> CommandLine {
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
    // Modules must be loaded before their directives. Without authz_core every request is refused.
    for module in ["mpm_event", "authz_core"].iter().chain(modules) {
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
        // Nothing reads the log: a line for each failed request would fill the pipe and block Apache.
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
            .iter()
            .chain(more)
            .cloned()
            .flat_map(|directive| ["-c".to_owned(), directive]),
    );
    line
}

/// Returns the address that Apache listens on.
pub fn socket(address: IpAddr) -> SocketAddr {
    (address, PORT).into()
}
