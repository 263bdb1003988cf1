// SPDX-License-Identifier: Apache-2.0
//! The catalogue of reasons to suspect a trial or to call it disturbed: where each comes from, why it matters, and the
//! remedy.

use crate::suspect;

/// A kind of reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// A short name.
    pub name: &'static str,
    /// Words that each of its texts contains.
    pub words: &'static [&'static str],
    /// Whether the trial does not count. A disturbed trial counts, and scatters more.
    pub is_suspect: bool,
    /// Why it matters.
    pub because: &'static str,
    /// Where the finding comes from, with its limit.
    pub source: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

const QUIET: &str =
    "Run again on a quiet host, or leave the machine more processors than the plan uses.";

/// Every kind of reason.
pub const REASONS: &[Reason] = &[
    Reason {
        name: "foreign-load",
        words: &["other programs used"],
        is_suspect: false,
        because: "Processor time is charged to the program that used it, so costs stay right. Waiting for a processor hits all treatments of a block alike, and values scatter more.",
        source: "/proc/stat, less the time of the trial's own threads. Limit: 5 % of the machine, and 0.2 s.",
        remedy: QUIET,
    },
    Reason {
        name: "steal",
        words: &["the hypervisor below this host took"],
        is_suspect: false,
        because: "This host is itself a guest and waited for a processor. Stolen time is charged to no guest; it lengthens every measured duration.",
        source: "The steal column of /proc/stat. Limit: 25 % of the machine.",
        remedy: "Measure on hardware, on a host with processors of its own, or with --place testbed:kvm, whose counts repeat.",
    },
    Reason {
        name: "throttling",
        words: &["the processor was throttled for heat"],
        is_suspect: false,
        because: "Work took more time and other power than at the usual frequency. Blocks spread this over all treatments.",
        source: "core_throttle_count and package_throttle_count of /sys/devices/system/cpu/cpu*/thermal_throttle. Limit: none.",
        remedy: "Cool the machine, or hold a lower frequency with host.governor.",
    },
    Reason {
        name: "frequency",
        words: &["the mean CPU frequency went from"],
        is_suspect: false,
        because: "The same work takes other processor time at another frequency.",
        source: "scaling_cur_freq of cpufreq at both ends of the window. Limit: 10 %.",
        remedy: "Set host.governor = \"performance\" in the plan.",
    },
    Reason {
        name: "swapping",
        words: &["the host swapped"],
        is_suspect: false,
        because: "Reading pages back takes time. None of it is charged to the wrong guest.",
        source: "pswpin and pswpout of /proc/vmstat. Limit: 256 pages.",
        remedy: "Give guests less memory, or stop other programs.",
    },
    Reason {
        name: "clock-step",
        words: &["the wall clock moved by"],
        is_suspect: true,
        because: "The clock was set during the trial, so times that use it may be wrong.",
        source: "CLOCK_REALTIME against CLOCK_MONOTONIC. Limit: 1 ms, and 500 ppm of the window, which NTP may slew.",
        remedy: "Let chronyd slew and not step, then run again.",
    },
    Reason {
        name: "left-running",
        words: &["the command left", "running"],
        is_suspect: true,
        because: "The window ends with the command. What its processes do afterwards is work that no cost includes, so the command looks cheaper than it is.",
        source: "The processes of the target before the command, and 0.1 s after its end.",
        remedy: "Let the command wait for what it starts (`wait` in a shell), or start a service with `serve`.",
    },
    Reason {
        name: "not-waited-for",
        words: &["the command did not wait for processes"],
        is_suspect: true,
        because: "The cost of a command is its own CPU time and that of the processes that it waits for. Work of others is missing from it.",
        source: "The CPU time that the target's control groups count beyond that of the commands by their waiters. Limit: 25 % and 0.1 s.",
        remedy: "Let the command wait for what it starts (`wait` in a shell), or start a service with `serve`.",
    },
    Reason {
        name: "left-groups",
        words: &["left the target's control groups"],
        is_suspect: true,
        because: "CPU time is counted by control groups, so the costs lack that of this process.",
        source: "The groups of all processes of the target after the command, and the CPU time of the commands by their waiters. Limit: 25 % and 0.1 s more than that of the groups.",
        remedy: "Let the command start no process by a service of the host, and move none to another group.",
    },
    Reason {
        name: "killed-process",
        words: &["for lack of memory"],
        is_suspect: true,
        because: "The killed process may have been one of the trial.",
        source: "oom_kill of /proc/vmstat. Limit: none.",
        remedy: "Give guests less memory, or the host more.",
    },
    Reason {
        name: "missed-samples",
        words: &["the sampler missed", "went by between two samples"],
        is_suspect: true,
        because: "Meters that have watts only are summed over the passes of the sampler, so joules may lack a part.",
        source: "vtax's own sampling thread. Limits: 5 % of its passes, and a gap of three periods.",
        remedy: "Lower sample_hz, or leave the machine more processors.",
    },
    Reason {
        name: "unreadable-instrument",
        words: &["could not be read"],
        is_suspect: true,
        because: "A total may lack a part.",
        source: "The instrument that the reason names, with its error.",
        remedy: "vtax doctor shows what keeps vtax from reading it.",
    },
    Reason {
        name: "full-disk",
        words: &["are left on the disk of the results"],
        is_suspect: true,
        because: "The record of the trial may lack a part.",
        source: "statvfs(3) of the results directory. Limit: 256 MiB.",
        remedy: "Free space, or write results elsewhere with --results.",
    },
    Reason {
        name: "late-generator",
        words: &["the load generator itself sent late"],
        is_suspect: true,
        because: "Another load than the plan's was measured: requests left later than they were due.",
        source: "The load generator's own lateness (lag.p99).",
        remedy: "Lower the load, or give the client a processor or a machine of its own.",
    },
    Reason {
        name: "unreached-load",
        words: &["were asked for: more than", "no request was due"],
        is_suspect: true,
        because: "Another load or another time than the plan's was measured.",
        source: "The load generator's report against the plan.",
        remedy: "Lower the load, or find the limit with a search over load levels.",
    },
    Reason {
        name: "load-errors",
        words: &[
            "connections failed",
            "was answered as asked",
            "requests was answered",
        ],
        is_suspect: true,
        because: "Failed requests cost less than answered ones, so the cost of a request is wrong.",
        source: "The load generator's report.",
        remedy: "Check that the service runs and can be reached, and lower the load.",
    },
    Reason {
        name: "contradiction",
        words: &[
            "the load generator claims",
            "receiver counted",
            "of processor time, and",
            "of the datagrams as lost",
        ],
        is_suspect: true,
        because: "The load generator and the host's counters disagree, so one of them is wrong.",
        source: "The load generator's report against the counters of the target's devices.",
        remedy: "Look at the generator's output in the trial's directory, and try another workload of the same kind.",
    },
];

/// Returns the kinds of reasons for a text: a name, a whole reason, or words of one.
pub fn find(text: &str) -> Vec<&'static Reason> {
    let text = text.trim().to_lowercase();
    let of_text = |reason: &&Reason| {
        let contains = |words: &&str| {
            let words = words.to_lowercase();
            text.contains(&words) || (text.len() > 3 && words.contains(&text))
        };
        reason.name == text || reason.words.iter().any(contains)
    };
    if text.is_empty() {
        Vec::new()
    } else {
        REASONS.iter().filter(of_text).collect()
    }
}

const _: () = {
    // The limits in the texts are those of the checks.
    assert!(suspect::FOREIGN_LOAD_SHARE == 0.05 && suspect::FOREIGN_LOAD_MINIMUM.0 == 200_000_000);
    assert!(suspect::STEAL_SHARE == 0.25 && suspect::FREQUENCY_DRIFT == 0.10);
    assert!(
        suspect::SWAP_PAGES == 256 && suspect::MISSED_SHARE == 0.05 && suspect::GAP_PERIODS == 3.0
    );
    assert!(suspect::CLOCK_STEP.0 == 1_000_000 && suspect::CLOCK_SLEW_PPM == 500);
    assert!(suspect::FREE_DISK_MINIMUM.0 == 256 << 20);
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_reason_is_found_by_its_name_its_text_and_words_of_it() {
        for text in [
            "foreign-load",
            "other programs used 2.45 s of CPU time",
            "Other programs",
        ] {
            let found = find(text);
            assert!(
                matches!(found.as_slice(), [one] if one.name == "foreign-load"),
                "{text}: {found:?}"
            );
        }
        assert!(find("").is_empty() && find("no such reason").is_empty());
    }

    #[test]
    fn names_are_unique_and_texts_are_sentences() {
        let names: BTreeSet<&str> = REASONS.iter().map(|reason| reason.name).collect();
        assert_eq!(names.len(), REASONS.len());
        for reason in REASONS {
            for text in [reason.because, reason.source, reason.remedy] {
                assert!(text.ends_with('.'), "{}: {text}", reason.name);
            }
        }
    }
}
