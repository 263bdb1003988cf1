// SPDX-License-Identifier: Apache-2.0
//! A host with more guests than this process may have open files. The one test of this program, for the limit is that
//! of its process.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs;
use std::path::Path;
use vtax_charge::{Charger, ChargerOptions, MethodChoice};
use vtax_observe::Roots;
use vtax_observe::clock::SystemClock;

/// Of open files, hard and soft.
const LIMIT: u64 = 64;
const GUESTS: u64 = 100;

fn put(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Two processors and containers of which each used so many milliseconds.
fn used(root: &Path, each_ms: u64) {
    let ticks = 1000 + GUESTS * each_ms / 10;
    let one = ticks / 2;
    let stat = format!(
        "cpu {ticks} 0 0 0 0 0 0 0 0 0\ncpu0 {one} 0 0 0 0 0 0 0 0 0\ncpu1 {one} 0 0 0 0 0 0 0 0 0\nctxt 1\n"
    );
    put(root, "proc/stat", &stat);
    let all = GUESTS * each_ms * 1_000_000;
    let groups = "sys/fs/cgroup/cpuacct";
    put(root, &format!("{groups}/cpuacct.usage"), &all.to_string());
    for guest in 0..GUESTS {
        let time = (each_ms * 1_000_000).to_string();
        put(
            root,
            &format!("{groups}/docker/{guest:064x}/cpuacct.usage"),
            &time,
        );
    }
}

#[test]
fn every_guest_is_charged_where_there_are_more_than_this_process_may_have_open_files() {
    let host = tempfile::tempdir().unwrap();
    used(host.path(), 0);
    let limit = Rlimit {
        current: Some(LIMIT),
        maximum: Some(LIMIT),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut charger = Charger::open(ChargerOptions {
        roots: Roots::below(host.path()),
        method: MethodChoice::Counted,
        ..ChargerOptions::default()
    })
    .unwrap();
    for pass in 1..5 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        // As much as fits into the time.
        used(host.path(), pass);
        let pass = charger.pass(&SystemClock).unwrap();
        assert!(pass.problems.is_empty(), "{:?}", pass.problems);
    }
    let totals = charger.totals();
    let charged = totals
        .guests
        .values()
        .filter(|guest| guest.stages.total().0 > 0);
    assert_eq!(charged.count() as u64, GUESTS);
    // There is room for others: sockets, queues, folders that are read.
    let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    assert!(open < LIMIT * 3 / 4, "{open} open files");
}
