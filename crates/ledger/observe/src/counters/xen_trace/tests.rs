// SPDX-License-Identifier: Apache-2.0

use super::*;
use proptest::prelude::*;

/// The first 100 ms that `xentrace -D -e 0x2a1000` wrote in Dom0 of Xen 4.17 (`testbed:xen`, at rest): one processor of
/// 1 GHz. The expected counts are those of another program.
static AT_REST: &[u8] = include_bytes!("dom0-at-rest.bin");

fn watching(domains: &[u16]) -> Tally {
    Tally {
        domains: domains
            .iter()
            .map(|domain| (*domain, Scheduling::default()))
            .collect(),
        ..Tally::default()
    }
}

fn count(tally: &mut Tally, pieces: &[&[u8]]) -> Result<(), NotRecords> {
    let mut records = Records::default();
    let mut pieces = pieces.iter();
    pieces.try_for_each(|piece| records.take(piece, |record| tally.count(record)))
}

#[test]
fn what_xentrace_wrote_of_dom0_at_rest_is_counted_in_pieces_of_any_size() {
    for size in [1, 7, 64, AT_REST.len()] {
        let mut tally = watching(&[DOM0]);
        let pieces: Vec<&[u8]> = AT_REST.chunks(size).collect();
        count(&mut tally, &pieces).unwrap();
        let dom0 = &tally.domains[&DOM0];
        assert_eq!((tally.hypercalls, tally.switches, tally.lost), (187, 0, 0));
        assert_eq!(tally.covered(), 100_117_472);
        assert_eq!((dom0.waited, dom0.wakeups), (59_614, 18));
    }
}

/// A record with a time stamp.
fn record(event: u32, tsc: u64, data: &[u32]) -> Vec<u8> {
    let extra = u32::try_from(data.len()).unwrap();
    let header = event | extra << 28 | 1 << 31;
    let words = [header, tsc as u32, (tsc >> 32) as u32];
    let words = words.into_iter().chain(data.iter().copied());
    words.flat_map(u32::to_le_bytes).collect()
}

/// A window of a processor with these records.
fn window(processor: u32, records: &[Vec<u8>]) -> Vec<u8> {
    let records = records.concat();
    let length = u32::try_from(records.len()).unwrap();
    let words = [CPU_CHANGE | 2 << 28, processor, length];
    let begin: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    [begin, records].concat()
}

/// A virtual processor of a domain goes from a run state to another.
fn change(domain: u32, vcpu: u32, old: u32, new: u32, tsc: u64) -> Vec<u8> {
    let event = RUNSTATE_CHANGE | old << 8 | new << 4;
    record(event, tsc, &[domain << 16 | vcpu])
}

const BLOCKED: u32 = 2;

#[test]
fn a_switch_is_to_another_domain_whatever_idles_in_between() {
    let runs = |domain, tsc| change(domain, 0, RUNNABLE, RUNNING, tsc);
    let idle = u32::from(IDLE);
    let mut tally = watching(&[]);
    let first = window(0, &[runs(0, 1), runs(idle, 2), runs(0, 3), runs(5, 4)]);
    let other = window(1, &[runs(5, 4), runs(idle, 5), runs(5, 6)]);
    let second = window(0, &[runs(idle, 7), runs(0, 8)]);
    count(&mut tally, &[&first, &other, &second]).unwrap();
    assert_eq!(tally.switches, 2);
}

#[test]
fn waiting_is_counted_in_either_order_of_two_processors_records() {
    let wakes = window(0, &[change(5, 1, BLOCKED, RUNNABLE, 100)]);
    let runs = window(1, &[change(5, 1, RUNNABLE, RUNNING, 130)]);
    let blocks = window(1, &[change(5, 1, RUNNING, BLOCKED, 150)]);
    for order in [[&wakes, &runs, &blocks], [&runs, &wakes, &blocks]] {
        let mut tally = watching(&[5]);
        count(&mut tally, &order.map(Vec::as_slice)).unwrap();
        let domain = &tally.domains[&5];
        assert_eq!((domain.waited(150), domain.wakeups), (30, 1));
    }
    // One that was runnable before the trace began waits from its next time on.
    let mut tally = watching(&[5]);
    let later = window(0, &[change(5, 1, BLOCKED, RUNNABLE, 200)]);
    count(&mut tally, &[&runs, &blocks, &later]).unwrap();
    assert_eq!(tally.domains[&5].waited(260), 60);
}

#[test]
fn hypercalls_and_exits_are_counted_in_every_form() {
    let events = [
        PV_HYPERCALL,
        PV_HYPERCALL | FLAG_64,
        PV_HYPERCALL_V2,
        VM_EXIT,
        VM_EXIT | FLAG_64,
        VM_EXIT | FLAG_NESTED,
        // An entry of a guest, a page fault, a system call's trap: none of them.
        0x8_1001,
        0x20_1104,
        0x20_1103,
    ];
    let records: Vec<Vec<u8>> = (0..)
        .zip(events)
        .map(|(at, event)| record(event, at, &[7]))
        .collect();
    let mut tally = watching(&[]);
    count(&mut tally, &[&window(0, &records)]).unwrap();
    assert_eq!((tally.hypercalls, tally.vm_exits), (3, 3));
}

#[test]
fn lost_records_are_counted_and_a_window_that_does_not_add_up_is_refused() {
    let lost = record(LOST_RECORDS, 9, &[41, 0, 0, 0]);
    let mut tally = watching(&[]);
    count(&mut tally, &[&window(0, &[lost])]).unwrap();
    assert_eq!(tally.lost, 41);

    let mut cut = window(0, &[record(PV_HYPERCALL_V2, 1, &[3])]);
    let longer = window(0, &[record(PV_HYPERCALL_V2, 1, &[3]), Vec::new()]);
    cut.truncate(cut.len() - 4);
    for bad in [[cut, longer].concat(), b"Usage: xentrace".repeat(9)] {
        assert!(count(&mut watching(&[]), &[&bad]).is_err());
    }
}

#[test]
fn without_a_domain_to_trace_nothing_starts_and_without_xentrace_the_remedy_is_named() {
    let root = tempfile::tempdir().unwrap();
    let roots = Roots::below(root.path());
    let mut subject = Subject {
        domain: Some(3),
        ..Subject::default()
    };
    let opened = XenTrace::open(std::slice::from_ref(&subject), &roots);
    assert!(opened.unwrap().is_none());
    let version = roots.sys.join("hypervisor/version");
    std::fs::create_dir_all(&version).unwrap();
    for part in ["major", "minor"] {
        std::fs::write(version.join(part), "99\n").unwrap();
    }
    subject.is_traced = true;
    let error = XenTrace::open(std::slice::from_ref(&subject), &roots).unwrap_err();
    assert!(error.to_string().contains("xen-utils-99.99"), "{error}");
    let other = roots.proc.join("7");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("comm"), "xentrace\n").unwrap();
    let error = XenTrace::open(&[subject], &roots).unwrap_err();
    assert!(error.to_string().contains("another xentrace"), "{error}");
}

#[test]
fn the_frequency_is_the_one_that_xen_measured() {
    let info = "host : x\nvirt_caps : pv\ncpu_mhz                : 2400.012\n";
    assert_eq!(parse_megahertz(info), Some(2400.012));
    for bad in ["", "cpu_mhz : fast", "cpu_mhz : 0", "cpu_mhz : inf"] {
        assert_eq!(parse_megahertz(bad), None);
    }
}

proptest! {
    #[test]
    fn no_output_of_a_program_stops_the_count(bytes in prop::collection::vec(any::<u8>(), 0..600), size in 1_usize..50) {
        let mut tally = watching(&[DOM0, 5]);
        let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
        let _ = count(&mut tally, &pieces);
        // Within one window that holds them all, too.
        let mut tally = watching(&[DOM0, 5]);
        let _ = count(&mut tally, &[&window(0, std::slice::from_ref(&bytes))]);
        let _ = tally.covered();
    }

    #[test]
    fn any_run_states_give_times_within_the_trace(
        changes in prop::collection::vec((0_u32..3, 0_u32..3, 0_u32..4, 0_u32..4, any::<u64>()), 0..60)
    ) {
        let records: Vec<Vec<u8>> = changes.iter().map(|(domain, vcpu, old, new, tsc)| change(*domain, *vcpu, *old, *new, *tsc)).collect();
        let mut tally = watching(&[DOM0, 1]);
        prop_assert!(count(&mut tally, &[&window(0, &records)]).is_ok());
        for scheduling in tally.domains.values() {
            let _ = scheduling.waited(u64::MAX);
        }
    }
}

/// Reads a stream in pieces; what is kept has a bound, and nothing that is published falls.
fn read_hostile(stream: &[u8], piece: usize) -> Tally {
    let (mut records, mut tally) = (Records::default(), watching(&[DOM0, 1]));
    let mut before = [0; 6];
    let mut waited = Rising::new(&Owner::Host, counter::XEN_HYPERCALLS);
    for piece in stream.chunks(piece.max(1)) {
        if records.take(piece, |record| tally.count(record)).is_err() {
            break;
        }
        assert!(records.rest.len() < 40, "longer than the longest record");
        let of = |of: fn(&Scheduling) -> u64| tally.domains.values().map(of).sum::<u64>();
        let now = [
            tally.hypercalls,
            tally.vm_exits,
            tally.switches,
            tally.lost,
            tally.covered(),
            of(|domain| domain.wakeups),
        ];
        assert!(now.iter().zip(before).all(|(now, before)| *now >= before));
        before = now;
        let last = tally.span.map_or(0, |(_, last)| last);
        let shown = waited.last;
        waited.record(
            tally.domains[&DOM0].waited(last) as f64,
            &mut Readings::default(),
        );
        assert!(waited.last >= shown);
        assert!(tally.ran.len() <= MOST_PROCESSORS as usize);
        let edges = tally.domains.values().map(|domain| domain.edges.len());
        assert!(edges.max().unwrap_or(0) <= 1 << 16);
    }
    tally
}

#[test]
fn a_window_of_a_processor_that_no_host_has_is_refused() {
    for (processor, is_read) in [
        (0, true),
        (65_535, true),
        (65_536, false),
        (u32::MAX, false),
    ] {
        let stream = window(processor, &[change(0, 0, 1, 0, 5)]);
        let read = count(&mut watching(&[]), &[stream.as_slice()]);
        assert_eq!(read.is_ok(), is_read, "{processor}");
    }
}

/// 400,000 windows of as many processors: what is kept for each processor has a bound.
#[test]
fn many_processors_take_no_more_memory_than_a_host_may_have() {
    let (mut records, mut tally) = (Records::default(), watching(&[]));
    let mut refused = 0;
    for processor in 0..400_000 {
        let stream = window(processor, &[change(0, 0, 1, 0, 5)]);
        let read = records.take(&stream, |record| tally.count(record));
        if read.is_err() {
            refused += 1;
            records = Records::default();
        }
    }
    assert_eq!((tally.ran.len(), refused), (65_536, 400_000 - 65_536));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn random_bytes_are_read_within_bounds(
        stream in prop::collection::vec(any::<u8>(), 0..4000), piece in 1usize..600,
    ) {
        read_hostile(&stream, piece);
    }

    /// Records whose types are those of Xen, with any time stamps, lengths, processors and domains.
    #[test]
    fn records_in_any_order_with_any_numbers_are_read_within_bounds(
        records in prop::collection::vec(
            (0usize..8, any::<u64>(), prop::collection::vec(any::<u32>(), 0..8), any::<bool>()), 0..80),
        lie in prop::option::of((any::<prop::sample::Index>(), any::<u32>())),
        piece in 1usize..200,
    ) {
        let events = [LOST_RECORDS, CPU_CHANGE, RUNSTATE_CHANGE, RUNSTATE_CHANGE | 0x110,
            RUNSTATE_CHANGE | 0x210, RUNSTATE_CHANGE | 0x100, PV_HYPERCALL_V2, VM_EXIT];
        let mut stream = Vec::new();
        for (number, (event, tsc, data, is_small)) in records.iter().enumerate() {
            let tsc = if *is_small { tsc % 1000 } else { *tsc };
            let mut data = data.clone();
            data.truncate(7);
            if let (true, Some(first)) = (*is_small, data.first_mut()) {
                *first %= 4;
            }
            stream.extend(window(number as u32 % 4, &[record(events[*event], tsc, &data)]));
        }
        if let (Some((at, number)), false) = (lie, stream.is_empty()) {
            let at = at.index(stream.len() / 4) * 4;
            stream[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        read_hostile(&stream, piece);
    }

    /// What xentrace wrote, with bytes changed, cut out and repeated.
    #[test]
    fn a_damaged_trace_is_read_within_bounds(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..12),
        piece in 1usize..5000,
    ) {
        let mut stream = AT_REST.to_vec();
        for (at, byte, change) in changes {
            let at = at.index(stream.len());
            match change {
                0 => stream[at] = byte,
                1 => drop(stream.drain(at..(at + usize::from(byte)).min(stream.len() - 1).max(at))),
                _ => {
                    let again = stream[at..(at + usize::from(byte)).min(stream.len())].to_vec();
                    stream.splice(at..at, again);
                }
            }
        }
        read_hostile(&stream, piece);
    }
}
