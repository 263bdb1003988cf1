// SPDX-License-Identifier: Apache-2.0
//! The guests that a cap holds, and the limit in force at its end: fake guests in a tree of files like the kernel's.

use super::controller::MOST_OF_SHARE;
use super::*;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;
use vtax_charge::fake::Host;
use vtax_inventory::Platform;

const QUOTA: &str = "cpu.cfs_quota_us";

/// Control groups of v1, one for each guest, with a limit of half a processor.
struct Groups(TempDir);

impl Groups {
    fn new(names: &[&str]) -> Self {
        let groups = Self(tempfile::tempdir().unwrap());
        for name in names {
            groups.make(name, "50000");
        }
        groups
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("groups").join(name)
    }

    fn make(&self, name: &str, limit: &str) {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("cpu.cfs_period_us"), "100000").unwrap();
        fs::write(path.join("cpuacct.usage"), "0").unwrap();
        fs::write(path.join(QUOTA), limit).unwrap();
    }

    /// Replaces a group by a new one at its path. The old one is kept, so that its inode is not reused.
    fn make_anew(&self, name: &str, limit: &str) {
        fs::rename(self.path(name), self.0.path().join("ended")).unwrap();
        self.make(name, limit);
    }

    fn limit(&self, name: &str) -> String {
        fs::read_to_string(self.path(name).join(QUOTA)).unwrap()
    }

    fn set(&self, name: &str, limit: &str) {
        fs::write(self.path(name).join(QUOTA), limit).unwrap();
    }

    fn hierarchy(&self) -> Hierarchy {
        Hierarchy {
            mounted: self.0.path().join("groups"),
            v1: true,
        }
    }

    fn journal(&self) -> Journal {
        Journal::open(&self.0.path().join("state")).unwrap()
    }

    /// Takes a snapshot of guests that are in the groups of their names.
    fn pass(&self, host: &mut Host) -> LedgerSnapshot {
        let mut snapshot = host.pass(200_000_000);
        for guest in &mut snapshot.guests {
            guest.group = Some(PathBuf::from(&guest.name));
        }
        snapshot
    }
}

fn options(guests: &[(&str, f64)]) -> CapOptions {
    CapOptions {
        interval: Duration::from_secs(1),
        count: None,
        guests: guests
            .iter()
            .map(|(name, share)| ((*name).to_owned(), *share))
            .collect(),
        each: None,
        is_rehearsal: false,
        json: false,
    }
}

/// Runs three intervals, after which limits are in force, and returns the messages.
fn hold(cap: &mut Cap<'_>, groups: &Groups, host: &mut Host, journal: &mut Journal) -> String {
    let mut printed = Vec::new();
    for _ in 0..3 {
        let snapshot = groups.pass(host);
        let mut say = |line: &str| printed.push(line.to_owned());
        cap.interval(&snapshot, journal, &mut io::sink(), &mut say)
            .unwrap();
    }
    printed.join("\n")
}

fn end(journal: &mut Journal) -> String {
    journal.undo_all().unwrap();
    let mut printed = Vec::new();
    say_left(journal, &mut |line| printed.push(line.to_owned()));
    printed.join("\n")
}

#[test]
fn every_guest_of_a_name_is_held_and_their_number_is_reported() {
    let groups = Groups::new(&["web", "web (pid 2)", "db"]);
    let mut host = Host::default();
    for (number, name) in [(1, "web"), (2, "web (pid 2)"), (3, "db")] {
        host.start_named(number, name, Platform::Docker);
    }
    let options = options(&[("web", 0.1)]);
    let mut journal = groups.journal();
    let mut cap = Cap::new(groups.hierarchy(), &options);
    let mut printed = Vec::new();
    for _ in 0..3 {
        let mut snapshot = groups.pass(&mut host);
        snapshot.guests[1].called = "web".to_owned();
        let mut say = |line: &str| printed.push(line.to_owned());
        cap.interval(&snapshot, &mut journal, &mut io::sink(), &mut say)
            .unwrap();
    }
    for name in ["web", "web (pid 2)"] {
        let limit: f64 = groups.limit(name).parse().unwrap();
        assert!(limit <= 0.1 * MOST_OF_SHARE * 1e5, "{name}: {limit}");
    }
    assert_eq!(
        printed,
        ["2 guests are called web: each is held to 0.1 processors"]
    );
    end(&mut journal);
    assert_eq!(groups.limit("web (pid 2)"), "50000");
    cap.check_named().unwrap();
}

#[test]
fn a_guest_that_is_named_apart_has_the_share_of_that_name() {
    let options = options(&[("web", 0.1), ("web (pid 2)", 0.4)]);
    let mut host = Host::default();
    host.start_named(1, "web (pid 2)", Platform::Docker);
    let mut guest = host.pass(1).guests.remove(0);
    guest.called = "web".to_owned();
    assert_eq!(named(&options, &guest).unwrap().1, 0.4);
}

#[test]
fn a_name_of_which_no_guest_was_held_is_an_error_at_the_end() {
    let groups = Groups::new(&["web"]);
    let mut host = Host::default();
    let options = options(&[("web", 0.1), ("nosuch", 0.1)]);
    let mut journal = groups.journal();
    let mut cap = Cap::new(groups.hierarchy(), &options);
    let mut printed = Vec::new();
    let none = groups.pass(&mut host);
    cap.tell_missing(&none, &mut |line| printed.push(line.to_owned()));
    assert_eq!(
        printed[0],
        "no guest is called nosuch yet; there are no guests"
    );
    host.start_named(1, "web", Platform::Docker);
    hold(&mut cap, &groups, &mut host, &mut journal);
    let error = cap.check_named().unwrap_err().to_string();
    assert_eq!(error, "no guest called nosuch was held; there are: web");
}

#[test]
fn a_limit_that_an_operator_sets_meanwhile_is_the_guests_at_the_end_and_holds_it_from_then_on() {
    let groups = Groups::new(&["web"]);
    let mut host = Host::default();
    host.start_named(1, "web", Platform::Docker);
    let options = options(&[]);
    let mut journal = groups.journal();
    let mut cap = Cap::new(groups.hierarchy(), &options);
    hold(&mut cap, &groups, &mut host, &mut journal);
    assert_ne!(groups.limit("web"), "50000", "it is held");
    groups.set("web", "60000");
    let printed = hold(&mut cap, &groups, &mut host, &mut journal);
    assert!(
        printed.contains("web") && printed.contains("60000"),
        "{printed}"
    );
    hold(&mut cap, &groups, &mut host, &mut journal);
    assert_ne!(groups.limit("web"), "60000", "it is held again");
    let share = cap.held[&1].1.controller.share();
    assert!((share - 0.6).abs() < 1e-9, "{share}");
    end(&mut journal);
    assert_eq!(groups.limit("web"), "60000");
}

#[test]
fn a_limit_that_an_operator_sets_in_the_last_interval_stays_and_is_reported() {
    let groups = Groups::new(&["web"]);
    let mut host = Host::default();
    host.start_named(1, "web", Platform::Docker);
    let options = options(&[("web", 0.2)]);
    let mut journal = groups.journal();
    let mut cap = Cap::new(groups.hierarchy(), &options);
    hold(&mut cap, &groups, &mut host, &mut journal);
    groups.set("web", "60000");
    let printed = end(&mut journal);
    assert_eq!(groups.limit("web"), "60000");
    assert!(
        printed.contains("another program has set it to `60000`"),
        "{printed}"
    );
}

#[test]
fn a_group_that_is_made_anew_at_its_path_keeps_its_own_limit() {
    let groups = Groups::new(&["web"]);
    let mut host = Host::default();
    host.start_named(1, "web", Platform::Docker);
    let options = options(&[("web", 0.2)]);
    let mut journal = groups.journal();
    let mut cap = Cap::new(groups.hierarchy(), &options);
    hold(&mut cap, &groups, &mut host, &mut journal);
    groups.make_anew("web", "77000");
    // The next `vtax cap` restores the limits that a killed one had set.
    drop(journal);
    let printed = end(&mut groups.journal());
    assert_eq!(groups.limit("web"), "77000");
    assert!(printed.contains("made anew"), "{printed}");
    // A cap that continues holds the new group and restores its own limit.
    let mut journal = groups.journal();
    let mut cap = Cap::new(groups.hierarchy(), &options);
    hold(&mut cap, &groups, &mut host, &mut journal);
    fs::remove_dir_all(groups.0.path().join("ended")).unwrap();
    groups.make_anew("web", "88000");
    for _ in 0..2 {
        hold(&mut cap, &groups, &mut host, &mut journal);
    }
    assert_ne!(groups.limit("web"), "88000", "it is held");
    end(&mut journal);
    assert_eq!(groups.limit("web"), "88000");
}
