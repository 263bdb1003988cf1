// SPDX-License-Identifier: Apache-2.0
//! Opens everything that a configuration names, enters the sandbox, and runs the workers.

use crate::config::{Config, Members, PortConfig};
use crate::control::api::{Mailbox, mailbox};
use crate::control::server::{self, OperatorListeners};
use crate::datapath::{self, Datapath};
use crate::front_end::{FrontEnd, SocketError};
use crate::memory::{self, Room};
use crate::network::{DatapathError, Guest, Network, Port, Tap, TapError};
use crate::poller::{self, PortId};
use crate::sandbox::{self, SandboxError};
use crate::signal;
use crate::worker::Worker;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::num::NonZeroU64;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use tracing::{info, warn};
use vtax_core::counted;
use vtax_http::ListenError;
use vtax_http::unix::{self, Users};
use vtax_log::Startup;

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port's socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A tap.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The operator's sockets.
    #[error(transparent)]
    Operator(#[from] ListenError),
    /// A descriptor given with `--fd` that is not open.
    #[error("port {port}: file descriptor {fd} is not an open socket")]
    Descriptor {
        /// The port.
        port: String,
        /// The number given.
        fd: i32,
    },
    /// A port whose frames the kernel is to move and cannot.
    #[error(
        "port {port}: the kernel cannot move its frames: {why} (datapath = \"auto\" does without)"
    )]
    Kernel {
        /// The port.
        port: String,
        /// The reason.
        why: DatapathError,
    },
    /// Anything else of the kernel.
    #[error("cannot {what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's reason.
        cause: std::io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> ServeError {
    move |cause| ServeError::System { what, cause }
}

/// Serves until every port has lost a front end that cannot reconnect: without end, unless all ports were given
/// connected sockets (`--fd`).
///
/// # Errors
/// When something cannot be opened, or the kernel fails the worker.
pub fn serve(config: &Config) -> Result<(), ServeError> {
    memory::survive_truncation().map_err(system("catch SIGBUS"))?;
    if let Err(cause) = memory::open_pager() {
        warn!(
            "this kernel reports no missing pages (userfaultfd: {cause}): memory that a front end shares and \
             nobody has touched is populated without a limit"
        );
    }
    let room = Room::read();
    if !signal::prepare() {
        warn!(
            "this kernel has no asynchronous I/O: a hostile front end (not its guest) \
             can stop the worker"
        );
    }
    let mut descriptors = getrlimit(Resource::Nofile);
    descriptors.current = descriptors.maximum;
    // 64 ports of 8 pairs need some 4,000. A lower hard limit is tolerated.
    let _ = setrlimit(Resource::Nofile, descriptors);
    let networks = config.networks();
    let threads = config.threads.unwrap_or(1).min(networks.len()).max(1);
    let mut plans: Vec<Plan> = Vec::new();
    for _ in 0..threads {
        plans.push(Plan::new()?);
    }
    // The networks with the most ports first, each to the worker with the fewest.
    let mut networks: Vec<Members<'_>> = networks.into_values().collect();
    networks.sort_by_key(|members| std::cmp::Reverse(members.ports.len()));
    for members in networks {
        if let Some(plan) = plans.iter_mut().min_by_key(|plan| plan.front_ends.len()) {
            plan.add(config, &members, room)?;
        }
    }
    let (api, metrics) = (config.api.as_deref(), config.metrics.as_deref());
    let token = config.metrics_token.as_deref();
    let listeners = OperatorListeners {
        api: api
            .map(|path| unix::listen(path, Users::Owner))
            .transpose()?,
        metrics: metrics
            .map(|at| server::listen_metrics(at, token))
            .transpose()?,
    };
    let in_kernel = plans.iter().any(|plan| plan.in_kernel);
    let senders: Vec<_> = plans.iter().map(|plan| plan.sender.clone()).collect();
    let workers = plans.into_iter().map(Plan::into_worker);
    let workers = workers.collect::<Result<Vec<_>, _>>()?;
    // Timers as exact as the kernel can make them; threads inherit it.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut startup = Startup::connect();
    sandbox::drop_privileges(config.user.as_deref())?;
    // The first reading of the clock maps the vDSO, which the sandbox forbids. Without it every later reading would be
    // a system call.
    let _ = poller::now();
    if config.no_sandbox {
        warn!("no sandbox: a fault of this program can be used against this host");
    } else {
        sandbox::enter(&client_sockets(config), in_kernel)?;
    }
    memory::start_pager().map_err(system("start the pager"))?;
    let _metrics = server::spawn(listeners, &senders)?;
    let mut others = Vec::new();
    let mut workers = workers.into_iter();
    let first = workers.next();
    for (mut worker, number) in workers.zip(2..) {
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || worker.run())
            .map_err(system("start a worker"))?;
        others.push(thread);
    }
    info!(
        "vtax-nic {} serves {} by {}",
        env!("CARGO_PKG_VERSION"),
        counted(config.ports.len(), "port"),
        counted(threads, "worker")
    );
    startup.report_ready();
    let mut result = first.map_or(Ok(()), |mut worker| worker.run());
    for thread in others {
        let ended = thread.join().unwrap_or(Ok(()));
        result = result.and(ended);
    }
    if result.is_ok() {
        info!("every front end has left");
    }
    result.map_err(|cause| system("wait for events")(cause.into()))
}

fn client_sockets(config: &Config) -> Vec<&Path> {
    let clients = config.ports.iter().filter(|port| port.client);
    clients
        .filter_map(|port| port.socket_path.as_deref())
        .collect()
}

/// The networks and front ends of one worker.
struct Plan {
    networks: Vec<Network>,
    front_ends: Vec<(PortId, FrontEnd)>,
    sender: crate::control::api::MailboxSender,
    mailbox: Mailbox,
    /// Whether the kernel moves frames of some port.
    in_kernel: bool,
}

impl Plan {
    fn new() -> Result<Self, ServeError> {
        let (sender, mailbox) = mailbox().map_err(system("make a mailbox"))?;
        Ok(Self {
            networks: Vec::new(),
            front_ends: Vec::new(),
            sender,
            mailbox,
            in_kernel: false,
        })
    }

    fn add(
        &mut self,
        config: &Config,
        members: &Members<'_>,
        room: Room,
    ) -> Result<(), ServeError> {
        let number = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let network = number(self.networks.len());
        let mut ports = Vec::new();
        let mut taps = Vec::new();
        for tap in &members.taps {
            taps.push(Tap::open(&tap.name, tap.queues)?);
        }
        for port in &members.ports {
            let id = PortId {
                network,
                port: number(ports.len()),
            };
            let alone = match (members.ports.len(), taps.as_slice()) {
                (1, [tap]) => Some(tap.ends().map_err(system("share a tap"))?),
                _ => None,
            };
            let is_alone = alone.is_some();
            let chosen = port
                .datapath
                .choose(alone, port.queue_pairs, datapath::open);
            let kernel = match chosen {
                Err(why) if port.datapath == Datapath::Kernel => {
                    let port = port.name.clone();
                    return Err(ServeError::Kernel { port, why });
                }
                chosen => chosen,
            };
            let (pairs, features) = (port.queue_pairs, port.features());
            let mut guest = Guest::new(id, pairs, features, port.hold, port.policy)
                .with_limits(&port.limits.or_by_room(room, config.ports.len()))
                .with_datapath(kernel);
            if port.generic {
                guest = guest.with_config_space(port.address(), port.mtu);
            }
            if is_alone {
                info!("port {}: data path: {}", port.name, guest.datapath());
            }
            self.in_kernel |= guest.is_in_kernel();
            ports.push(Port::Guest(Box::new(guest)));
            self.front_ends.push((id, front_end(id, port)?));
        }
        ports.extend(taps.into_iter().map(|tap| Port::Tap(Box::new(tap))));
        self.networks.push(Network::new(ports));
        Ok(())
    }

    fn into_worker(self) -> Result<Worker, ServeError> {
        Worker::new(self.networks, self.front_ends, self.mailbox)
            .map_err(|cause| system("prepare to wait for events")(cause.into()))
    }
}

fn front_end(id: PortId, port: &PortConfig) -> Result<FrontEnd, ServeError> {
    if let Some(fd) = port.fd {
        let wrong = || ServeError::Descriptor {
            port: port.name.clone(),
            fd,
        };
        return given(fd)
            .map(|socket| FrontEnd::given(id, &port.name, socket))
            .ok_or_else(wrong);
    }
    let path = port.socket_path.as_deref().unwrap_or(Path::new(""));
    if port.client {
        Ok(FrontEnd::connect(id, &port.name, path))
    } else {
        Ok(FrontEnd::listen(id, &port.name, path)?)
    }
}

/// Takes over a descriptor that the program was started with.
#[expect(unsafe_code, reason = "the operator gives the number to this process")]
fn given(fd: i32) -> Option<OwnedFd> {
    // SAFETY: F_GETFD only asks whether the number is open.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: the number is open, is none of the standard streams, and the command line gives it to this port before
    // the program opens another descriptor that could have the number.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    let _ = rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC);
    rustix::net::sockopt::socket_type(&owned)
        .is_ok()
        .then_some(owned)
}
