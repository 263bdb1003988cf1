// SPDX-License-Identifier: Apache-2.0
//! The command line of `vtax-nic`, which follows QEMU's conventions for vhost-user back ends
//! (QEMU, `docs/interop/vhost-user.rst`, "Backend program conventions").

use crate::config::{Config, ConfigError, MAX_PORTS, PortConfig, TapConfig};
use crate::control::client::{ClientError, Ctl};
use crate::datapath::Datapath;
use crate::hold::Mode;
use crate::network::MAX_PAIRS;
use crate::serve::{self, ServeError};
use crate::telemetry::top::Top;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::path::PathBuf;
use vtax_args::time::whole_microseconds;
use vtax_core::terminal;
use vtax_log::Verbosity;

/// A vhost-user network back end that merges notifications within a latency budget
///
/// Two ports are a link, more are a switch: `vtax-nic --socket-path vm.sock --tap tap0`.
#[derive(Debug, Clone, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// A command other than serving ports
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// A port's vhost-user socket; once for each port
    #[arg(long, value_name = "PATH")]
    pub socket_path: Vec<PathBuf>,
    /// A port's socket that is open already; once for each port
    #[arg(long, value_name = "FDNUM")]
    pub fd: Vec<i32>,
    /// Print what this back end can do, as JSON, and end
    #[arg(long)]
    pub print_capabilities: bool,
    /// Connect to the sockets instead of listening on them
    #[arg(long)]
    pub client: bool,
    /// A tap to join to the ports; it is made if it does not exist
    #[arg(long, value_name = "NAME")]
    pub tap: Vec<String>,
    /// Queue pairs of each port, 1 to 8
    #[arg(long, value_name = "N", default_value_t = MAX_PAIRS)]
    pub queue_pairs: u8,
    /// Queues of each tap, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tap_queues: u8,
    /// Offer guests no checksum and segmentation offloads
    #[arg(long)]
    pub no_offloads: bool,
    /// The mover of the frames of a port on a tap of its own: the kernel (vhost-net), or this process
    #[arg(long, value_enum, value_name = "WHO", default_value_t)]
    pub datapath: Datapath,
    /// How notifications are held: off, fixed, paper or adaptive
    #[arg(long, value_name = "MODE", default_value_t)]
    pub mode: Mode,
    /// The time between two updates of mode paper [the paper's: 5s]
    #[arg(long = "update", value_name = "TIME", value_parser = whole_microseconds)]
    pub update_us: Option<u32>,
    /// The longest hold while the guest has not asked for another, such as 50us
    #[arg(long = "hold", value_name = "TIME", value_parser = whole_microseconds)]
    pub hold_us: Option<u32>,
    /// The longest hold that a guest may ask for
    #[arg(long = "cap", value_name = "TIME", value_parser = whole_microseconds)]
    pub cap_us: Option<u32>,
    /// A TOML file with ports and taps, instead of flags
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket_path", "fd", "tap"])]
    pub config: Option<PathBuf>,
    /// Worker threads; each network belongs to one
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// The socket of the operator's API, which `vtax-nic ctl` and `vtax-nic top` connect to
    #[arg(long, value_name = "PATH")]
    pub api: Option<PathBuf>,
    /// The address to listen on for Prometheus: unix:PATH or ADDRESS:PORT
    #[arg(long = "listen", value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// The file with the bearer token that clients must send, except on a UNIX socket
    #[arg(long = "token-file", value_name = "FILE")]
    pub metrics_token: Option<PathBuf>,
    /// The user to become once everything is open
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Run without seccomp and Landlock, for debugging
    #[arg(long)]
    pub no_sandbox: bool,
    /// How much is logged
    #[command(flatten)]
    pub verbosity: Verbosity,
}

/// Commands other than serving ports.
#[derive(Debug, Clone, Subcommand)]
pub enum Verb {
    /// Query or change a running vtax-nic
    Ctl(Ctl),
    /// Show a running vtax-nic's ports, live
    Top(Top),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A request to a running vtax-nic, or printing.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Serving ports.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl Cli {
    /// Runs the command. Serving ends with the process.
    ///
    /// # Errors
    /// When the command fails.
    pub fn execute(self) -> Result<(), CliError> {
        match &self.verb {
            Some(Verb::Ctl(ctl)) => Ok(ctl.run()?),
            Some(Verb::Top(top)) => Ok(top.run()?),
            None if self.print_capabilities => {
                Ok(writeln!(terminal::data(), "{CAPABILITIES}").map_err(ClientError::Print)?)
            }
            None => {
                self.verbosity.start_log();
                Ok(serve::serve(&self.config()?)?)
            }
        }
    }

    /// The configuration by the flags, or by the file that they name.
    ///
    /// # Errors
    /// When the file cannot be read, or the configuration is invalid.
    pub fn config(self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => self.flags(),
        };
        config.threads = self.threads.or(config.threads);
        config.api = self.api.or(config.api);
        config.metrics = self.metrics.or(config.metrics);
        config.metrics_token = self.metrics_token.or(config.metrics_token);
        config.user = self.user.or(config.user);
        config.no_sandbox |= self.no_sandbox;
        config.checked()
    }

    fn flags(&self) -> Config {
        let mut port = PortConfig {
            client: self.client,
            queue_pairs: self.queue_pairs,
            offloads: !self.no_offloads,
            datapath: self.datapath,
            ..PortConfig::default()
        };
        port.hold.mode = self.mode;
        port.hold.update_us = self.update_us.unwrap_or(0);
        port.policy.default_us = self.hold_us.unwrap_or(port.policy.default_us);
        port.policy.cap_us = self
            .cap_us
            .unwrap_or(port.policy.cap_us.max(port.policy.default_us));
        let paths = self.socket_path.iter().map(|path| PortConfig {
            socket_path: Some(path.clone()),
            ..port.clone()
        });
        let files = self.fd.iter().map(|fd| PortConfig {
            fd: Some(*fd),
            client: false,
            ..port.clone()
        });
        let taps = self.tap.iter().map(|name| TapConfig {
            name: name.clone(),
            network: String::new(),
            queues: self.tap_queues,
        });
        Config {
            // [`Config::checked`] refuses more, with a message.
            ports: paths.chain(files).take(MAX_PORTS + 1).collect(),
            taps: taps.collect(),
            ..Config::default()
        }
    }
}

/// The output of `--print-capabilities`, for QEMU's management.
pub const CAPABILITIES: &str = r#"{
  "type": "net"
}"#;
