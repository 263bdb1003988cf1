// SPDX-License-Identifier: Apache-2.0
//! The platform `xenapi`: a VM of a pool of XenServer or XCP-ng. An existing VM is only read; a clone of a template
//! is removed after its trial. Commands run in the VM through ssh. The pool supplies the counters of the VM, of
//! Domain 0 and of their host.

use super::ExternalGuest;
use super::on_host::LocalGuest;
use super::ssh::{self, TEMPLATE};
use crate::place::actor::Column;
use crate::place::clocks::Offset;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tracing::debug;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_core::{Base, Nanoseconds, Series, SeriesKind, Source, Unit};
use vtax_guest::platform::{Booted, GuestFiles, GuestKernel, Platform};
use vtax_host::HostError;
use vtax_host::cell::Seat;
use vtax_host::journal::Change;
use vtax_host::settings::{Domain, Level, Parameter, Settings};
use vtax_host::xenapi::{Access, Host, NOTHING, PREFIX, Pool, Updates, UpdatesError, Vm};
use vtax_observe::clock::{Clock, SystemClock};

/// The platform `xenapi`.
#[derive(Debug)]
pub(super) struct XenApi;

const HOST: Parameter = Parameter::unset("xenapi.host", Domain::Text("host")).help(
    "the coordinator of the pool: name or address of one of its hosts, with :PORT where that is not 443",
);
const LOGIN: Parameter = Parameter::unset("xenapi.login", Domain::Text("path"))
    .help("a file of mode 0600 with USER:PASSWORD; unset: the variable VTAX_XENAPI_LOGIN");
const CA: Parameter = Parameter::unset("xenapi.ca", Domain::Text("path"))
    .help("the certificates to trust, as PEM; unset: the public authorities'");
const FINGERPRINT: Parameter = Parameter::unset("xenapi.fingerprint", Domain::Text("SHA-256"))
    .help("SHA-256 of the certificate to trust, whatever name is in it; of several, with commas");
const VM: Parameter = Parameter::unset("xenapi.vm", Domain::Text("name"))
    .help("a VM that exists and runs, to be measured as it is");

/// The fact with the VM's UUID.
const UUID: &str = "xenapi.uuid";
/// The time limit of a clone's boot.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// The interval between two checks whether a clone has booted.
const BOOT_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The time limit for the pool's clock to advance by a second.
const TICK_LIMIT: Duration = Duration::from_secs(5);
/// The interval between two readings of the pool's clock, which counts seconds.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns the access to the pool that the settings name.
fn access(settings: &Settings) -> Result<Access, HostError> {
    // Paths are absolute, because the journal may be undone in another working directory.
    let path = |parameter: &Parameter| -> Result<Option<PathBuf>, HostError> {
        let path = settings.text(parameter.key);
        path.map(|path| std::path::absolute(path).map_err(HostError::file("find", path)))
            .transpose()
    };
    if settings.text(CA.key).is_some() && settings.text(FINGERPRINT.key).is_some() {
        return Err(HostError::Setting(
            "xenapi.ca and xenapi.fingerprint are two ways to know the pool: set one of them"
                .to_owned(),
        ));
    }
    Ok(Access {
        host: settings.text(HOST.key).unwrap_or_default().to_owned(),
        authorities: path(&CA)?,
        fingerprint: settings.text(FINGERPRINT.key).map(str::to_owned),
        login: path(&LOGIN)?,
    })
}

/// The VM to measure, by its name or its template's.
enum VmChoice<'a> {
    Existing(&'a str),
    Cloned(&'a str),
}

fn which(settings: &Settings) -> Result<VmChoice<'_>, HostError> {
    match (settings.text(VM.key), settings.text(TEMPLATE.key)) {
        (Some(name), None) => Ok(VmChoice::Existing(name)),
        (None, Some(name)) => Ok(VmChoice::Cloned(name)),
        _ => Err(HostError::Setting(
            "kind = \"xenapi\" needs either xenapi.vm, a VM that runs, or xenapi.template, to clone one from"
                .to_owned(),
        )),
    }
}

/// Finds the existing VM that the settings name; `None` where one is to be cloned.
///
/// # Errors
/// When the pool refuses the login, or the VM does not exist, does not run, or has no known address.
pub(super) fn named(settings: &Settings) -> Result<Option<ExternalGuest>, HostError> {
    match which(settings)? {
        VmChoice::Existing(name) => {
            let pool = Pool::log_in(&access(settings)?)?;
            existing(&pool, name, settings).map(Some)
        }
        VmChoice::Cloned(_) => Ok(None),
    }
}

/// Finds an existing VM, by calls that change nothing.
fn existing(pool: &Pool, name: &str, settings: &Settings) -> Result<ExternalGuest, HostError> {
    let (_, vm) = pool.one(name, false)?;
    if vm.power_state != "Running" {
        return Err(HostError::Busy {
            what: format!("the VM {name} is not running but {}", vm.power_state),
            remedy: "start it: vtax changes nothing of what others made".to_owned(),
        });
    }
    running(pool, &vm, settings)?.ok_or_else(|| HostError::Missing {
        what: format!("the address of {name}, which the pool does not know,"),
        remedy: "set ssh.to = \"root@ADDRESS\", or install the guest tools in it".to_owned(),
    })
}

/// Reads the address and the facts of a running VM; `None` when its address is unknown.
fn running(pool: &Pool, vm: &Vm, settings: &Settings) -> Result<Option<ExternalGuest>, HostError> {
    let mut settings = settings.clone();
    if settings.text(ssh::TO.key).is_none() {
        let networks = match vm.guest_metrics.as_str() {
            NOTHING => BTreeMap::new(),
            metrics => pool.get("VM_guest_metrics.get_networks", &[metrics])?,
        };
        let Some(address) = address(&networks) else {
            return Ok(None);
        };
        let to = Level::Text(format!("root@{address}"));
        settings.0.insert(ssh::TO.key.to_owned(), to);
    }
    let host: Host = pool.get("host.get_record", &[&vm.resident_on])?;
    let version = |key: &str| host.software_version.get(key).cloned().unwrap_or_default();
    let version = format!(
        "{} {}, Xen {}",
        version("product_brand"),
        version("product_version"),
        version("xen")
    );
    let facts = [
        ("host.place", format!("xenapi:{}", pool.host())),
        ("xenapi.vm", vm.name_label.clone()),
        (UUID, vm.uuid.clone()),
        ("xenapi.member", host.hostname),
        ("xenapi.version", version),
    ];
    let facts = facts.map(|(key, fact)| (key.to_owned(), fact));
    Ok(Some(ExternalGuest {
        facts: facts.into(),
        settings,
        identity: None,
    }))
}

/// Logs into a VM by ssh. This host has no counters of the VM.
fn machine(vm: ExternalGuest, owner: Owner) -> Result<ssh::Machine, HostError> {
    ssh::machine(&vm.settings, LocalGuest::unseen(owner, vm.facts))
}

/// Returns the facts of the existing VM that the settings name, its login included.
///
/// # Errors
/// As [`named`].
pub(crate) fn facts(settings: &Settings) -> Result<BTreeMap<String, String>, HostError> {
    let Some(vm) = named(settings)? else {
        return Ok(BTreeMap::new());
    };
    let login = vm.settings.text(ssh::TO.key).map(str::to_owned);
    let login = login.map(|login| (ssh::TO.key.to_owned(), login));
    Ok(vm.facts.into_iter().chain(login).collect())
}

/// Returns the first IPv4 address that a VM's tools report: `0/ip`, `0/ipv4/0`.
fn address(networks: &BTreeMap<String, String>) -> Option<Ipv4Addr> {
    let mut reported = networks
        .values()
        .filter_map(|text| text.parse::<Ipv4Addr>().ok());
    reported.find(|ip| !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified())
}

/// Returns the name of the clone for this seat, unique among hosts.
fn name(seat: &Seat<'_>) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.split('-').next().unwrap_or_default();
    format!("{PREFIX}{}-{}", seat.unique_name(), boot.trim())
}

/// Clones the template, starts the clone and waits until it accepts a login. The journal already holds the name.
fn clone(
    pool: &Pool,
    template: &str,
    name: &str,
    settings: &Settings,
    owner: &Owner,
) -> Result<ssh::Machine, HostError> {
    debug!(
        "the VM {name} is cloned from {template} in the pool {}",
        pool.host()
    );
    let (template, _) = pool.one(template, true)?;
    let vm: String = pool.get("VM.clone", &[&template, name])?;
    pool.call("VM.provision", &[&vm])?;
    pool.call_with(
        "VM.start",
        vec![vm.clone().into(), false.into(), false.into()],
    )?;
    let deadline = Instant::now() + BOOT_LIMIT;
    loop {
        let record: Vm = pool.get("VM.get_record", &[&vm])?;
        let mut last = format!(
            "it is {} and its tools report no address",
            record.power_state
        );
        if record.power_state == "Running"
            && let Some(found) = running(pool, &record, settings)?
        {
            match machine(found, owner.clone()) {
                Ok(machine) => return Ok(machine),
                Err(cause) => last = cause.to_string(),
            }
        }
        if Instant::now() >= deadline {
            return Err(HostError::Timeout {
                what: format!("a login to {name}, a clone in the pool {},", pool.host()),
                seconds: BOOT_LIMIT.as_secs(),
                evidence: last,
            });
        }
        std::thread::sleep(BOOT_POLL_INTERVAL);
    }
}

impl Platform for XenApi {
    fn kind(&self) -> &'static str {
        "xenapi"
    }

    fn parameters(&self) -> &'static [Parameter] {
        static PARAMETERS: LazyLock<Vec<Parameter>> = LazyLock::new(|| {
            [
                &[HOST, LOGIN, CA, FINGERPRINT, VM, TEMPLATE][..],
                ssh::LOGIN,
            ]
            .concat()
        });
        &PARAMETERS
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        let which = which(settings)?;
        let pool = Pool::log_in(&access(settings)?)?;
        match which {
            VmChoice::Existing(name) => ssh::check(&existing(&pool, name, settings)?.settings),
            VmChoice::Cloned(template) => {
                ssh::check_link(settings)?;
                pool.one(template, true).map(drop)
            }
        }
    }

    fn guest_kernel(&self) -> GuestKernel {
        GuestKernel::External
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_secs(15)
    }

    fn is_external(&self, _settings: &Settings) -> bool {
        true
    }

    fn lacks(&self, settings: &Settings, programs: &[&str]) -> Result<Vec<String>, HostError> {
        match named(settings)? {
            Some(existing) => ssh::lacks(&existing.settings, programs),
            // The clone does not exist yet.
            None => Ok(Vec::new()),
        }
    }

    fn outlives(&self, seat: &Seat<'_>, settings: &Settings) -> Vec<Change> {
        match (which(settings), access(settings)) {
            (Ok(VmChoice::Cloned(_)), Ok(pool)) => vec![Change::PoolVm {
                pool,
                name: name(seat),
            }],
            _ => Vec::new(),
        }
    }

    fn boot(&self, seat: &Seat, _guest: &GuestFiles, settings: &Settings) -> Booted {
        let access = access(settings)?;
        let pool = Pool::log_in(&access)?;
        let machine = match which(settings)? {
            VmChoice::Existing(vm) => machine(existing(&pool, vm, settings)?, seat.owner())?,
            VmChoice::Cloned(template) => {
                let name = name(seat);
                let mut machine = clone(&pool, template, &name, settings, &seat.owner())?;
                machine.end = Some(Box::new(move || Pool::log_in(&access)?.end(&name)));
                machine
            }
        };
        Ok(Box::new(machine))
    }
}

/// The statistics that a pool keeps of a VM and its host (`rrd_updates`).
pub(crate) struct HostStatistics {
    pool: Pool,
    vm: String,
    reference: String,
    host: Host,
    dom0: String,
}

impl HostStatistics {
    /// Returns the statistics of a target of this platform, by its settings and facts; `None` for other platforms.
    ///
    /// # Errors
    /// When the pool does not answer.
    pub fn begin(
        settings: &Settings,
        facts: &BTreeMap<String, String>,
    ) -> Result<Option<Self>, HostError> {
        let (Some(_), Some(vm)) = (settings.text(HOST.key), facts.get(UUID)) else {
            return Ok(None);
        };
        let pool = Pool::log_in(&access(settings)?)?;
        let reference = Self::runs_on(&pool, vm)?;
        let host: Host = pool.get("host.get_record", &[&reference])?;
        let dom0 = pool.get("VM.get_uuid", &[&host.control_domain])?;
        Ok(Some(Self {
            vm: vm.clone(),
            pool,
            reference,
            host,
            dom0,
        }))
    }

    fn runs_on(pool: &Pool, vm: &str) -> Result<String, HostError> {
        let vm: String = pool.get("VM.get_by_uuid", &[vm])?;
        pool.get("VM.get_resident_on", &[&vm])
    }

    /// Whether the VM is still on the same host.
    ///
    /// # Errors
    /// When the pool does not answer.
    pub fn has_stayed(&self) -> Result<bool, HostError> {
        Ok(Self::runs_on(&self.pool, &self.vm)? == self.reference)
    }

    /// Returns the host's name.
    pub fn host(&self) -> &str {
        &self.host.hostname
    }

    /// Returns the offset of the host's wall clock from this host's monotonic clock. The wall clock counts seconds, so
    /// that the end of a second is known to within the time between two readings.
    ///
    /// # Errors
    /// When the pool does not answer, or the host's clock does not advance.
    pub fn clock(&self) -> Result<Offset, HostError> {
        let began = Instant::now();
        let mut last: Option<(Nanoseconds, i64)> = None;
        loop {
            let before = SystemClock.now();
            let text: String = self.pool.get("host.get_servertime", &[&self.reference])?;
            let after = SystemClock.now();
            let shown = seconds(&text).ok_or_else(|| HostError::Protocol {
                peer: format!("the pool {}", self.pool.host()),
                detail: format!("host.get_servertime: {text:?} is no time"),
            })?;
            if let Some((earlier, _)) = last.filter(|(_, was)| *was != shown) {
                let round = after.saturating_since(earlier);
                let at = Nanoseconds(earlier.0.saturating_add(round.0 / 2));
                return Ok(Offset {
                    at,
                    ahead: i128::from(shown) * 1_000_000_000 - i128::from(at.0),
                    bound: Nanoseconds(round.0.div_ceil(2)),
                });
            }
            if began.elapsed() >= TICK_LIMIT {
                return Err(HostError::Timeout {
                    what: format!("the next second of the clock of {}", self.host()),
                    seconds: TICK_LIMIT.as_secs(),
                    evidence: text,
                });
            }
            last = Some((before, shown));
            std::thread::sleep(CLOCK_POLL_INTERVAL);
        }
    }

    /// Returns the rows since a time of the host's clock, in seconds since 1970.
    ///
    /// # Errors
    /// When the pool does not answer.
    pub fn updates(&self, start: u64) -> Result<Updates, HostError> {
        self.pool.updates(&self.host, start)
    }

    /// Returns the rows as counters, which are sums of averages, and the number of the host's processors.
    ///
    /// # Errors
    /// The columns that are missing.
    pub fn counters(&self, updates: &Updates) -> Result<(Vec<Column>, usize), UpdatesError> {
        counters(updates, &self.vm, &self.dom0, &self.host.uuid)
    }
}

/// Parses a time such as `20261123T20:37:39Z` into seconds since 1970.
fn seconds(text: &str) -> Option<i64> {
    let civil = text.strip_suffix('Z')?.split('.').next()?;
    let time = jiff::civil::DateTime::strptime("%Y%m%dT%H:%M:%S", civil).ok()?;
    let zoned = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_second())
}

/// Returns the metric of a VM's device from the host's side: the host receives the bytes that the VM sends.
fn exchanged(name: &str) -> Option<&'static str> {
    let (device, way) = name.rsplit_once('_')?;
    let (kind, number) = device.split_once('_')?;
    // The number of `vbd_xvda_iops_read` is no plain name.
    let is_one = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match (kind, way) {
        _ if !is_one => None,
        ("vif", "tx") => Some(counter::NET_RX_BYTES),
        ("vif", "rx") => Some(counter::NET_TX_BYTES),
        ("vbd", "read") => Some(counter::BLOCK_READ_BYTES),
        ("vbd", "write") => Some(counter::BLOCK_WRITE_BYTES),
        _ => None,
    }
}

fn is_processor(name: &str) -> bool {
    let number = name.strip_prefix("cpu").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns counters of a VM, of Domain 0 and of their host. Domain 0's time is charged to the VMs in proportion
/// to the bytes that they exchanged with it, row by row.
fn counters(
    updates: &Updates,
    vm: &str,
    dom0: &str,
    host: &str,
) -> Result<(Vec<Column>, usize), UpdatesError> {
    let processors = |of: (&str, &str)| -> Vec<usize> {
        let columns = updates.columns();
        let own =
            columns.filter(|(_, kind, uuid, name)| (*kind, *uuid) == of && is_processor(name));
        own.map(|(column, ..)| column).collect()
    };
    let (own, of_dom0) = (processors(("vm", vm)), processors(("vm", dom0)));
    let of_host = processors(("host", host));
    for (columns, whose) in [
        (&own, "the VM"),
        (&of_dom0, "Domain 0"),
        (&of_host, "the host"),
    ] {
        if columns.is_empty() {
            return Err(UpdatesError::NoProcessor(whose));
        }
    }
    // Column, whether it is the target's, and its metric.
    let devices: Vec<(usize, bool, &str)> = updates
        .columns()
        .filter(|(_, kind, uuid, _)| *kind == "vm" && *uuid != dom0)
        .filter_map(|(column, _, uuid, name)| Some((column, uuid == vm, exchanged(name)?)))
        .collect();
    let column = |owner: Owner, metric: &str, base: Base, source: Source| Column {
        series: Series {
            owner,
            metric: metric.to_owned(),
            unit: Unit::from_base(base),
            kind: SeriesKind::Counter,
            source,
        },
        at: Vec::new(),
        values: Vec::new(),
    };
    let (time, measured) = (Base::Nanosecond, Source::Measured);
    let mut columns = vec![
        column(Owner::Host, counter::CPU_IDLE, time, measured),
        column(Owner::Dom0, counter::CPU_TOTAL, time, measured),
        column(Owner::Target, counter::CPU_VCPU, time, measured),
        column(Owner::Target, counter::CPU_BACKEND, time, Source::Modelled),
        column(Owner::Target, counter::CPU_TOTAL, time, Source::Modelled),
    ];
    let bytes = [
        counter::NET_RX_BYTES,
        counter::NET_TX_BYTES,
        counter::BLOCK_READ_BYTES,
        counter::BLOCK_WRITE_BYTES,
    ];
    columns.extend(bytes.map(|name| column(Owner::Target, name, Base::Byte, measured)));
    for (at, values) in &updates.rows {
        let value = |column: &usize| values.get(*column).copied().unwrap_or(f64::NAN);
        let sum = |columns: &[usize]| columns.iter().map(value).sum::<f64>();
        // A removed device exchanged nothing.
        let some = |column: &usize| Some(value(column)).filter(|value| value.is_finite());
        let exchange = |is_counted: &dyn Fn(bool, &str) -> bool| -> f64 {
            let counted = devices
                .iter()
                .filter(|(_, own, what)| is_counted(*own, what));
            counted.filter_map(|(column, ..)| some(column)).sum()
        };
        let (vcpu, of_dom0) = (sum(&own), sum(&of_dom0));
        let idle: f64 = of_host.iter().map(|column| 1.0 - value(column)).sum();
        let (ours, all) = (exchange(&|own, _| own), exchange(&|_, _| true));
        let share = if all > 0.0 { ours / all } else { 0.0 };
        let charged = of_dom0 * share;
        let cpu = [idle, of_dom0, vcpu, charged, vcpu + charged].map(|busy| busy * 1e9);
        let carried = bytes.map(|name| exchange(&|own, what| own && what == name));
        if cpu.iter().any(|value| !value.is_finite()) {
            // Counters cannot continue across a row without values, so they start again after it.
            for column in &mut columns {
                column.at.clear();
                column.values.clear();
            }
            continue;
        }
        for (column, rate) in columns.iter_mut().zip(cpu.iter().chain(&carried)) {
            if column.at.is_empty() {
                column.at.push(time_of(at.saturating_sub(updates.step)));
                column.values.push(0.0);
            }
            #[allow(clippy::cast_precision_loss, reason = "seconds between two rows")]
            let spent = rate.max(0.0) * updates.step as f64;
            let before = column.values.last().copied().unwrap_or_default();
            column.at.push(time_of(*at));
            column.values.push(before + spent);
        }
    }
    Ok((columns, of_host.len()))
}

fn time_of(seconds: u64) -> Nanoseconds {
    Nanoseconds(seconds.saturating_mul(1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updates(rows: &[(u64, &[f64])]) -> Updates {
        let legend = [
            "vm:web:cpu0",
            "vm:web:cpu1",
            "vm:web:cpu_usage",
            "vm:web:vif_0_tx",
            "vm:web:vbd_xvda_write",
            "vm:web:vbd_xvda_iops_write",
            "vm:db:vif_1_rx",
            "vm:zero:cpu0",
            "vm:zero:vif_0_tx",
            "host:h:cpu0",
            "host:h:cpu1",
            "host:h:cpu_avg",
        ];
        let rows = rows.iter().map(|(at, values)| (*at, values.to_vec()));
        Updates {
            step: 5,
            legend: legend.map(|name| format!("AVERAGE:{name}")).to_vec(),
            rows: rows.collect(),
        }
    }

    const ROW: &[f64] = &[
        0.5, 0.25, 0.9, 300.0, 100.0, 9e9, 1200.0, 0.4, 9e9, 1.0, 0.25, 0.9,
    ];

    fn of(columns: &[Column], owner: &Owner, metric: &str) -> Vec<f64> {
        let mut found = columns.iter();
        let found =
            found.find(|column| column.series.owner == *owner && column.series.metric == metric);
        found
            .unwrap()
            .values
            .iter()
            .map(|value| value / 1e9)
            .collect()
    }

    #[test]
    fn domain_0s_time_is_charged_by_what_each_vm_exchanged_with_it() {
        let (columns, processors) =
            counters(&updates(&[(100, ROW), (105, ROW)]), "web", "zero", "h").unwrap();
        assert_eq!(processors, 2);
        assert_eq!(
            of(&columns, &Owner::Target, counter::CPU_VCPU),
            [0.0, 3.75, 7.5]
        );
        assert_eq!(
            of(&columns, &Owner::Dom0, counter::CPU_TOTAL),
            [0.0, 2.0, 4.0]
        );
        // 400 of 1600 bytes.
        assert_eq!(
            of(&columns, &Owner::Target, counter::CPU_BACKEND),
            [0.0, 0.5, 1.0]
        );
        assert_eq!(
            of(&columns, &Owner::Target, counter::CPU_TOTAL),
            [0.0, 4.25, 8.5]
        );
        assert_eq!(
            of(&columns, &Owner::Host, counter::CPU_IDLE),
            [0.0, 3.75, 7.5]
        );
        let sent = of(&columns, &Owner::Target, counter::NET_RX_BYTES);
        assert!((sent[2] * 1e9 - 3000.0).abs() < 1e-6, "{sent:?}");
        assert_eq!(columns[0].at, [95, 100, 105].map(time_of));
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let mut unknown = ROW.to_vec();
        unknown[7] = f64::NAN;
        let rows = [(100, ROW), (105, &unknown), (110, ROW)];
        let (columns, _) = counters(&updates(&rows), "web", "zero", "h").unwrap();
        assert_eq!(columns[0].at, [105, 110].map(time_of));
        // A removed device exchanges nothing. Without exchanged bytes no VM is charged.
        let mut quiet = ROW.to_vec();
        for column in [3, 4, 6] {
            quiet[column] = f64::NAN;
        }
        let (columns, _) = counters(&updates(&[(100, &quiet)]), "web", "zero", "h").unwrap();
        assert_eq!(
            of(&columns, &Owner::Target, counter::CPU_BACKEND),
            [0.0, 0.0]
        );
        for (vm, dom0, host, printed) in [
            ("gone", "zero", "h", "the VM"),
            ("web", "gone", "h", "Domain 0"),
            ("web", "zero", "gone", "the host"),
        ] {
            let wrong = counters(&updates(&[(100, ROW)]), vm, dom0, host).unwrap_err();
            assert!(wrong.to_string().contains(printed), "{wrong}");
        }
    }

    #[test]
    fn the_pools_times_and_addresses_are_read() {
        assert_eq!(seconds("19700102T00:00:01Z"), Some(86_401));
        assert_eq!(seconds("19700102T00:00:01.5Z"), Some(86_401));
        for wrong in ["", "19700102T00:00:01", "tomorrowZ", "19701402T00:00:01Z"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
        let reported = |text: &[&str]| {
            let numbered = text.iter().enumerate();
            address(
                &numbered
                    .map(|(at, ip)| (at.to_string(), (*ip).to_owned()))
                    .collect(),
            )
        };
        assert_eq!(
            reported(&["fe80::1", "169.254.0.9", "10.1.2.3"]),
            Some(Ipv4Addr::new(10, 1, 2, 3))
        );
        assert_eq!(reported(&["fe80::1", "127.0.0.1"]), None);
    }
}
