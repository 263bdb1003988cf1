// SPDX-License-Identifier: Apache-2.0
//! Several guests in one cell: each has a seat of its own, isolated from the others.

use crate::common::{Bench, config, cpu_micros, journalled, line, shell};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vtax_core::owner::Owner;
use vtax_guest::platform::bubblewrap::Bubblewrap;
use vtax_guest::platform::container::Container;
use vtax_guest::platform::native::Native;
use vtax_guest::platform::{Platform, Target};
use vtax_host::cell::{Cell, CellConfig, Seat, SeatConfig, link, process};
use vtax_host::settings::Settings;
use vtax_host::{loop_device, scratch};
use vtax_observe::Subject;
use vtax_testkit::{skip, skip_in_part};

/// Runs the same test on guests of several platforms in one cell; reports platforms that cannot run here.
fn together(test: impl Fn(&mut Bench, &[&dyn Platform])) {
    let mut bench = Bench::new();
    for platforms in [
        &[&Native as &dyn Platform, &Container][..],
        &[&Native, &Native],
        &[&Container, &Native, &Container],
        &[&Bubblewrap, &Native],
    ] {
        let checked = platforms
            .iter()
            .try_for_each(|platform| platform.check(&Settings::default()));
        match checked {
            Ok(()) => test(&mut bench, platforms),
            Err(error) => skip_in_part(&format!("{}: {error}", kinds(platforms))),
        }
    }
}

fn kinds(platforms: &[&dyn Platform]) -> String {
    let kinds: Vec<&str> = platforms.iter().map(|platform| platform.kind()).collect();
    kinds.join(" beside ")
}

/// A cell with this number of seats: the target's, `guest1`, `guest2` and so on.
fn seated(name: &str, seats: usize) -> CellConfig {
    let mut config = config(name);
    config.seats.extend((1..seats).map(|seat| SeatConfig {
        name: format!("guest{seat}"),
        ..SeatConfig::default()
    }));
    config
}

fn boot(bench: &Bench, cell: &Cell, platforms: &[&dyn Platform]) -> Vec<Box<dyn Target>> {
    let boot = |(seat, platform): (Seat<'_>, &&dyn Platform)| {
        platform.boot(&seat, &bench.guest, &Settings::default())
    };
    let guests: Result<_, _> = cell.seats().zip(platforms).map(boot).collect();
    guests.unwrap()
}

fn end(cell: Cell, guests: Vec<Box<dyn Target>>) {
    for guest in guests {
        guest.stop().unwrap();
    }
    cell.destroy().unwrap();
}

/// The number of different values.
fn different<T: Ord>(of: impl IntoIterator<Item = T>) -> usize {
    of.into_iter().collect::<BTreeSet<T>>().len()
}

/// The text that the other end of a connection sends; `ask` runs a shell script.
fn answer(ask: &mut dyn FnMut(&str) -> String, address: &str) -> String {
    let connect = format!("busybox nc {address} 7000");
    ask(&format!(
        "for i in $(seq 200); do {connect} 2>/dev/null && exit; sleep 0.02; done; exit 1"
    ))
}

fn ask_client(seat: &Seat<'_>, script: &str) -> String {
    let client = seat.client().start(&line(&["sh", "-c", script])).unwrap();
    let output = client.wait().unwrap();
    assert!(output.code == 0, "`{script}`: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_guest_reaches_the_others_and_every_client() {
    together(|bench, platforms| {
        let count = platforms.len();
        let cell = bench.cell(seated("reach", count));
        let mut guests = boot(bench, &cell, platforms);
        let names: Vec<String> = cell.seats().map(|seat| seat.owner().to_string()).collect();
        let addresses: Vec<String> = guests
            .iter()
            .map(|guest| guest.about().address.to_string())
            .collect();
        let clients = cell.seats().map(|seat| seat.client_address().to_string());
        let clients: Vec<String> = clients.collect();
        assert_eq!(different(addresses.iter().chain(&clients)), 2 * count);
        for (guest, name) in guests.iter_mut().zip(&names) {
            let server = ["busybox", "nc", "-ll", "-p", "7000", "-e", "echo", name];
            guest.start(&line(&server)).unwrap();
        }
        for (address, name) in addresses.iter().zip(&names) {
            let expected = format!("{name}\n");
            for guest in &mut guests {
                let mut ask = |script: &str| shell(&mut **guest, script);
                assert_eq!(answer(&mut ask, address), expected);
            }
            for seat in cell.seats() {
                let mut ask = |script: &str| ask_client(&seat, script);
                assert_eq!(answer(&mut ask, address), expected);
            }
        }
        let v6 = cell
            .seats()
            .filter_map(|seat| Some(seat.address_v6()?.0.to_string()));
        let v6: Vec<String> = v6.collect();
        for guest in &mut guests {
            for address in clients.iter().chain(&v6) {
                shell(&mut **guest, &format!("ping -c 1 -W 2 {address}"));
            }
        }
        end(cell, guests);
    });
}

#[test]
fn nothing_that_is_read_of_one_guest_or_client_is_read_of_another() {
    together(|bench, platforms| {
        let cell = bench.cell(seated("subjects", platforms.len()));
        let mut guests = boot(bench, &cell, platforms);
        let mut subjects: Vec<Subject> = guests
            .iter()
            .map(|guest| guest.about().subject.clone())
            .collect();
        subjects.extend(cell.seats().map(|seat| seat.client().subject()));
        let count = subjects.len();
        assert_eq!(different(subjects.iter().map(|of| &of.owner)), count);
        assert_eq!(
            (&subjects[0].owner, &subjects[1].owner),
            (&Owner::Target, &Owner::named("guest1"))
        );
        for (index, subject) in subjects.iter().enumerate() {
            let [device] = &subject.net_devices[..] else {
                panic!("{:?}", subject.net_devices);
            };
            let path = format!("/proc/{}/net/dev", device.namespace_of);
            let devices = fs::read_to_string(path).unwrap();
            assert!(devices.contains(&format!("{}:", device.name)), "{devices}");
            for other in &subjects[..index] {
                assert_ne!(device.name, other.net_devices[0].name);
                let one_holds_another = subject.cgroups.iter().any(|folder| {
                    let mut others = other.cgroups.iter();
                    others.any(|of| of.starts_with(folder) || folder.starts_with(of))
                });
                assert!(!one_holds_another, "{subject:?} {other:?}");
            }
        }

        let used = || subjects.iter().map(cpu_micros).collect::<Vec<u64>>();
        let before = used();
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        shell(&mut *guests[1], work);
        for (index, (after, before)) in used().iter().zip(before).enumerate() {
            let spent = after - before;
            assert_eq!(spent > 20_000, index == 1, "{index}: {spent} µs");
        }
        end(cell, guests);
    });
}

#[test]
fn guests_have_files_of_their_own() {
    together(|bench, platforms| {
        let cell = bench.cell(seated("files", platforms.len()));
        let mut guests = boot(bench, &cell, platforms);
        let folders = cell.seats().map(|seat| seat.run_dir());
        assert_eq!(different(folders), guests.len());
        let names = cell.seats().map(|seat| seat.unique_name());
        assert_eq!(different(names), guests.len());
        let marks = ["/etc/mark", "/run/mark", "/tmp/mark"];
        for (seat, guest) in cell.seats().zip(&mut guests) {
            for mark in marks {
                let owner = seat.owner();
                shell(&mut **guest, &format!("echo {owner} > {mark}"));
            }
        }
        for (seat, guest) in cell.seats().zip(&mut guests) {
            for mark in marks {
                let read = shell(&mut **guest, &format!("cat {mark}"));
                assert_eq!(read.trim(), seat.owner().to_string(), "{mark}");
            }
        }
        end(cell, guests);
    });
}

#[test]
fn the_end_of_one_guest_does_not_touch_the_others() {
    together(|bench, platforms| {
        let cell = bench.cell(seated("end", platforms.len()));
        let mut guests = boot(bench, &cell, platforms);
        let sleepers: Vec<_> = guests
            .iter_mut()
            .map(|guest| guest.start(&line(&["sleep", "1000"])).unwrap())
            .collect();
        let mut left: Vec<_> = cell.seats().zip(guests).zip(sleepers).collect();
        while !left.is_empty() {
            let ((_, ended), _) = left.remove(0);
            let groups = ended.about().subject.cgroups.clone();
            ended.stop().unwrap();
            for folder in groups {
                let inside = fs::read_to_string(folder.join("cgroup.procs")).unwrap();
                assert_eq!(inside, "", "{}", folder.display());
            }
            for ((seat, guest), sleeper) in &mut left {
                assert!(guest.poll(*sleeper).unwrap().is_none());
                shell(&mut **guest, "cat /proc/uptime");
                let address = guest.about().address;
                ask_client(seat, &format!("busybox ping -c 1 -W 2 {address}"));
            }
        }
        cell.destroy().unwrap();
    });
}

#[test]
fn each_guest_has_the_scratch_disk_of_its_seat() {
    together(|bench, platforms| {
        let folder = bench.folder.path().join("cache");
        let image = scratch::image(&folder, 2).unwrap_or_else(|error| skip!("{error}"));
        let mut config = seated("scratch", platforms.len());
        for (number, seat) in config.seats.iter_mut().enumerate() {
            let disk = folder.join(format!("of-{number}.ext4"));
            fs::copy(&image, &disk).unwrap();
            seat.scratch = Some(disk);
        }
        let disks: Vec<PathBuf> = config
            .seats
            .iter()
            .filter_map(|seat| seat.scratch.clone())
            .collect();
        let cell = bench.cell(config);
        let mut guests = boot(bench, &cell, platforms);
        for ((seat, guest), disk) in cell.seats().zip(&mut guests).zip(&disks) {
            let (_, directory) = guest.about().scratch.clone();
            let owner = seat.owner().to_string();
            let script = format!("cd {}; echo > {owner}; ls", directory.display());
            let listed = shell(&mut **guest, &script);
            let files: Vec<&str> = listed.split_whitespace().collect();
            let mut expected = vec![owner.as_str(), "lost+found", scratch::DATA_FILE];
            expected.sort_unstable();
            assert_eq!(files, expected);
            let devices = guest.about().subject.block_devices.clone();
            assert_eq!(devices.len(), 1);
            assert_eq!(devices, loop_device::attached_to(disk));
        }
        end(cell, guests);
        for disk in disks {
            assert_eq!(loop_device::attached_to(&disk), Vec::<String>::new());
        }
    });
}

#[test]
fn a_destroyed_cell_of_several_guests_leaves_nothing() {
    together(|bench, platforms| {
        let links = || fs::read_to_string("/proc/net/dev").unwrap().lines().count();
        let before = links();
        let cell = bench.cell(seated("gone", platforms.len()));
        let mut guests = boot(bench, &cell, platforms);
        let mut children = Vec::new();
        let mut inside = vec![cell.holder_pid()];
        for (seat, guest) in cell.seats().zip(&mut guests) {
            guest.start(&line(&["sleep", "1000"])).unwrap();
            let client = seat.client().start(&line(&["sleep", "1000"])).unwrap();
            inside.push(cell.host_pid(client.id(), Duration::from_secs(5)).unwrap());
            children.push(client);
        }
        let groups = journalled(&bench.journal);
        assert!(!groups.is_empty());
        // The guests are not stopped; the end of the cell ends them.
        cell.destroy().unwrap();
        for child in children {
            child.wait().unwrap();
        }
        let left: Vec<&u32> = inside
            .iter()
            .filter(|pid| process::is_alive(**pid))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(groups.iter().all(|path| !path.exists()));
        assert_eq!(links(), before);
        assert!(!Path::new("/run/seat1").exists());
        drop(guests);
    });
}

#[test(needs = [test_all("takes 5 s")])]
fn a_cell_has_as_many_seats_as_addresses_and_says_so() {
    let mut bench = Bench::new();
    let config = seated("crowd", link::MOST_SEATS + 1);
    let message = Cell::create(config, &mut bench.journal)
        .unwrap_err()
        .to_string();
    let (most, asked) = (link::MOST_SEATS, link::MOST_SEATS + 1);
    assert!(
        message.contains(&format!("{most} guests"))
            && message.contains(&format!("{asked} are asked for"))
            && message.contains("fewer"),
        "{message}"
    );
    assert!(journalled(&bench.journal).is_empty());

    let cell = bench.cell(seated("full", link::MOST_SEATS));
    let last = cell.seats().last().unwrap();
    last.attach_veth().unwrap();
    let (address, _) = last.address();
    ask_client(&last, &format!("busybox ping -c 1 -W 2 {address}"));
    cell.destroy().unwrap();
}

#[test]
fn guests_that_would_share_a_name_or_a_disk_are_refused() {
    let mut bench = Bench::new();
    let mut same_name = seated("twins", 3);
    same_name.seats[2].name = "guest1".to_owned();
    let mut same_disk = seated("twins", 3);
    for seat in &mut same_disk.seats[1..] {
        seat.scratch = Some("/a/disk".into());
    }
    for (config, reason) in [
        (same_name, "two guests of a cell are called guest1"),
        (same_disk, "guest1 and guest2 have the same scratch disk"),
    ] {
        let refused = Cell::create(config, &mut bench.journal).unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
    }
    assert!(journalled(&bench.journal).is_empty());
}

#[test]
fn a_cell_without_seats_has_no_target() {
    let mut bench = Bench::new();
    let cell = bench.cell(CellConfig {
        seats: Vec::new(),
        ..config("empty")
    });
    let message = cell.target().unwrap_err().to_string();
    assert!(message.contains("has no seats"), "{message}");
    cell.destroy().unwrap();
}
