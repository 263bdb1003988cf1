// SPDX-License-Identifier: Apache-2.0
//! Counters of a subject's network devices, from `/proc/PID/net/dev` of a process in the
//! device's network namespace.
//!
//! Directions are the host's view of the device: what a guest *sends*, its tap *receives*. The
//! counts of a subject's devices are summed. A packet may be an aggregate of many segments: with
//! segmentation offloads on, a "packet" of a tap or veth can carry 64 KiB.
//!
//! The open file keeps the network namespace alive until the observer has stopped.

use super::counter::{Counter, Findings, Rule};
use super::series::Column;
use crate::{Instrument, NetDevice, ObserveError, Readings};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::{KernelFile, net_devices};

const METRICS: [&str; 8] = [
    counter::NET_RX_BYTES,
    counter::NET_RX_PACKETS,
    counter::NET_RX_ERRORS,
    counter::NET_RX_DROPS,
    counter::NET_TX_BYTES,
    counter::NET_TX_PACKETS,
    counter::NET_TX_ERRORS,
    counter::NET_TX_DROPS,
];

/// The network devices of one subject.
#[derive(Debug)]
pub struct NetDevices {
    name: String,
    namespaces: Vec<Namespace>,
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Namespace {
    process: u32,
    file: KernelFile,
    devices: Vec<Device>,
}

#[derive(Debug)]
struct Device {
    name: String,
    counters: [Counter; METRICS.len()],
}

impl NetDevices {
    /// Opens one file for each network namespace.
    ///
    /// # Errors
    /// When a namespace's process is gone or may not be inspected.
    pub fn open(owner: &Owner, proc: &Path, devices: &[NetDevice]) -> Result<Self, ObserveError> {
        let mut namespaces: Vec<Namespace> = Vec::new();
        for device in devices {
            let process = device.namespace_of;
            let entry = Device {
                name: device.name.clone(),
                // A device that is created again with its old name counts from zero.
                counters: std::array::from_fn(|_| Counter::new(Rule::FROM_ZERO)),
            };
            match namespaces.iter_mut().find(|known| known.process == process) {
                Some(namespace) => namespace.devices.push(entry),
                None => namespaces.push(Namespace {
                    process,
                    file: KernelFile::open(proc.join(process.to_string()).join("net/dev"))?,
                    devices: vec![entry],
                }),
            }
        }
        Ok(Self {
            name: format!("network {owner}"),
            namespaces,
            columns: METRICS.map(|metric| Column::counter(owner, metric)).into(),
        })
    }
}

impl Device {
    fn take(&mut self, table: &[u8], path: &Path, findings: &mut Findings) -> Option<()> {
        let device = net_devices(table).find(|device| device.name == self.name.as_bytes())?;
        let (rx, tx) = device.traffic()?;
        let values = [rx, tx].map(|way| [way.bytes, way.packets, way.errors, way.drops]);
        let values = values.into_iter().flatten();
        for ((counter, metric), value) in self.counters.iter_mut().zip(METRICS).zip(values) {
            let change = counter.advance(value);
            if !change.is_exact() {
                findings.note(path, &format!("{metric} of {}", self.name), change);
            }
        }
        Some(())
    }
}

impl Instrument for NetDevices {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut sums = [0u64; METRICS.len()];
        let mut findings = Findings::default();
        for namespace in &mut self.namespaces {
            let path = namespace.file.path().to_owned();
            let table = namespace.file.read()?;
            for device in &mut namespace.devices {
                if device.take(table, &path, &mut findings).is_none() {
                    return Err(ObserveError::Unavailable {
                        what: format!("network device {}", device.name),
                        reason: format!(
                            "{} lists no such device: it was removed, renamed or moved to \
                             another network namespace",
                            path.display()
                        ),
                    });
                }
                for (sum, counter) in sums.iter_mut().zip(&device.counters) {
                    *sum = sum.saturating_add(counter.total());
                }
            }
        }
        for (column, sum) in self.columns.iter_mut().zip(sums) {
            column.record_count(sum, into);
        }
        findings.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use std::fs;

    const HEAD: &str = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n";

    fn device(name: &str) -> NetDevice {
        NetDevice {
            namespace_of: 7,
            name: name.to_owned(),
        }
    }

    fn tree(lines: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("7/net")).unwrap();
        fs::write(root.path().join("7/net/dev"), format!("{HEAD}{lines}")).unwrap();
        root
    }

    fn read(devices: &mut NetDevices, readings: &mut Readings) -> Snapshot {
        readings.clear_values();
        devices.read(Nanoseconds(0), readings).unwrap();
        Snapshot::from_readings(Nanoseconds(0), readings)
    }

    #[test]
    fn the_counters_of_a_subjects_devices_are_summed() {
        let root = tree(
            "  tap0:1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n tap01: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0\n  eth1: 10 20 30 40 0 0 0 0 50 60 70 80 0 0 0 0\n",
        );
        let mut devices = NetDevices::open(
            &Owner::Target,
            root.path(),
            &[device("tap0"), device("eth1")],
        )
        .unwrap();
        let snapshot = read(&mut devices, &mut Readings::default());
        let value = |metric| snapshot.get(&Owner::Target, metric).unwrap().value;
        assert_eq!(value(counter::NET_RX_BYTES), 11.0);
        assert_eq!(value(counter::NET_RX_PACKETS), 22.0);
        assert_eq!(value(counter::NET_RX_ERRORS), 33.0);
        assert_eq!(value(counter::NET_RX_DROPS), 44.0);
        assert_eq!(value(counter::NET_TX_BYTES), 55.0);
        assert_eq!(value(counter::NET_TX_PACKETS), 66.0);
        assert_eq!(value(counter::NET_TX_ERRORS), 77.0);
        assert_eq!(value(counter::NET_TX_DROPS), 88.0);
    }

    #[test]
    fn a_device_that_vanished_is_named() {
        let root = tree("  tap0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n");
        let mut devices = NetDevices::open(&Owner::Target, root.path(), &[device("tap0")]).unwrap();
        let mut readings = Readings::default();
        read(&mut devices, &mut readings);
        fs::write(root.path().join("7/net/dev"), HEAD).unwrap();
        let error = devices.read(Nanoseconds(1), &mut readings).unwrap_err();
        assert!(error.to_string().contains("network device tap0"), "{error}");
    }

    #[test]
    fn a_device_that_was_made_anew_gives_no_negative_step_and_is_named() {
        let root = tree("  tap0: 100 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n");
        let mut devices = NetDevices::open(&Owner::Target, root.path(), &[device("tap0")]).unwrap();
        let mut readings = Readings::default();
        let before = read(&mut devices, &mut readings);
        let anew = format!("{HEAD}  tap0: 30 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
        fs::write(root.path().join("7/net/dev"), anew).unwrap();
        readings.clear_values();
        let error = devices.read(Nanoseconds(0), &mut readings).unwrap_err();
        assert!(
            error.to_string().contains("net.rx_bytes of tap0"),
            "{error}"
        );
        let after = Snapshot::from_readings(Nanoseconds(0), &readings);
        let step = after
            .since(&before, &Owner::Target, counter::NET_RX_BYTES)
            .unwrap();
        assert_eq!(step.value, 30.0);
    }

    #[test]
    fn hostile_device_names_are_matched_whole_and_never_as_paths() {
        let root = tree("  ../../x: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n");
        let mut devices =
            NetDevices::open(&Owner::Target, root.path(), &[device("../../x")]).unwrap();
        let snapshot = read(&mut devices, &mut Readings::default());
        assert_eq!(
            snapshot
                .get(&Owner::Target, counter::NET_RX_BYTES)
                .unwrap()
                .value,
            1.0
        );
        let mut devices = NetDevices::open(&Owner::Target, root.path(), &[device("x")]).unwrap();
        assert!(
            devices
                .read(Nanoseconds(0), &mut Readings::default())
                .is_err()
        );
    }

    #[test]
    fn traffic_on_the_loopback_device_of_this_process_is_counted() {
        let device = NetDevice {
            namespace_of: std::process::id(),
            name: "lo".to_owned(),
        };
        let mut devices = NetDevices::open(&Owner::Target, Path::new("/proc"), &[device]).unwrap();
        let mut readings = Readings::default();
        let before = read(&mut devices, &mut readings);
        let receiver = match std::net::UdpSocket::bind("127.0.0.1:0") {
            Ok(socket) => socket,
            Err(error) => {
                eprintln!("SKIPPED: no loopback network here: {error}");
                return;
            }
        };
        let to = receiver.local_addr().unwrap();
        receiver.send_to(&[0; 1000], to).unwrap();
        let after = read(&mut devices, &mut readings);
        let step = after
            .since(&before, &Owner::Target, counter::NET_TX_BYTES)
            .unwrap();
        assert!(step.value >= 1000.0, "{step}");
    }
}
