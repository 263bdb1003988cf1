// SPDX-License-Identifier: Apache-2.0
//! Xen's toolstack: calls of `xl` and `xenstore-read`, and parsers of their output. Every call has a deadline.

use crate::HostError;
use crate::command::{MOST_OUTPUT, plain};
use crate::kernel_file::Written;
use crate::untrusted;
use crate::wait::within;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of a call in seconds, far above any duration, an emulated Dom0's creation of a domain included (4 s).
const LIMIT_SECONDS: &str = "120";

/// Time limit for a destroyed domain to vanish.
const DESTROY_LIMIT: Duration = Duration::from_secs(15);

/// The prefix of the names of vtax's domains; no other domain is ever destroyed.
pub const PREFIX: &str = "vtax-";

/// The directory of libxl's log of each domain's QEMU.
const LOG_DIR: &str = "/var/log/xen";

/// A domain in the list of `xl list`.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The name in its configuration.
    pub name: String,
    /// The domain's number, not used again before the hypervisor ends.
    pub id: u32,
    /// The state flags of `xl`, such as `-b----`: running, blocked, paused, shut down, crashed, dying.
    flags: String,
}

impl Listed {
    /// The reason why its guest has stopped running; `None` while it runs.
    pub fn end(&self) -> Option<&'static str> {
        if self.flags.contains('c') {
            Some("crashed")
        } else if self.flags.contains('s') {
            Some("shut itself down")
        } else if self.flags.contains('d') {
            Some("is dying")
        } else {
            None
        }
    }
}

/// Parses the table of `xl list`: `Name ID Mem VCPUs State Time(s)`. Names may contain blanks, and malformed lines
/// are left out.
fn parse_list(text: &str) -> Vec<Listed> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let _seconds: f64 = words.next()?.parse().ok()?;
            let flags = words.next()?.to_owned();
            let _vcpus: u32 = words.next()?.parse().ok()?;
            let _memory: u64 = words.next()?.parse().ok()?;
            let id_word = words.next()?;
            let id = id_word.parse().ok()?;
            let mut name: Vec<&str> = words.collect();
            name.reverse();
            (!name.is_empty()).then(|| Listed {
                name: name.join(" "),
                id,
                flags,
            })
        })
        .collect()
}

/// The command line of a call, which ends after `LIMIT_SECONDS` in any case.
pub fn line(program: &str, arguments: &[&str]) -> Vec<String> {
    ["timeout", "--kill-after=5", LIMIT_SECONDS, program]
        .iter()
        .chain(arguments)
        .map(|word| (*word).to_owned())
        .collect()
}

/// Runs a command to its end and returns its output.
///
/// # Errors
/// When it cannot be started or fails, with the end of its output.
pub fn output(mut command: Command, what: &str) -> Result<String, HostError> {
    let output = untrusted::output(command.stdin(Stdio::null()), MOST_OUTPUT)
        .map_err(HostError::process("start", format!("`{what}`")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(HostError::Program {
        command: what.to_owned(),
        status: if output.status.code() == Some(124) {
            format!("no answer within {LIMIT_SECONDS} s")
        } else {
            output.status.to_string()
        },
        output: text(&output.stderr) + &text(&output.stdout),
    })
}

fn run(program: &str, arguments: &[&str]) -> Result<String, HostError> {
    let mut words = line(program, arguments).into_iter();
    let mut command = plain(words.next().unwrap_or_default());
    command.args(words);
    output(command, &format!("{program} {}", arguments.join(" ")))
}

/// Every domain.
///
/// # Errors
/// When `xl` fails.
pub fn list() -> Result<Vec<Listed>, HostError> {
    Ok(parse_list(&run("xl", &["list"])?))
}

/// The domain of that name.
///
/// # Errors
/// As [`list`].
pub fn find(name: &str) -> Result<Option<Listed>, HostError> {
    Ok(list()?.into_iter().find(|domain| domain.name == name))
}

/// A share of processors in the schedulers' unit: percent of one processor, at least 1, since 0 means no cap.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 1 and 65,535"
)]
pub fn percent(processors: f64) -> u32 {
    (processors * 100.0).round().clamp(1.0, 65_535.0) as u32
}

/// A Xen scheduler that can cap domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheduler {
    /// The subcommand of `xl`.
    command: &'static str,
}

impl Scheduler {
    /// The scheduler of this host.
    ///
    /// # Errors
    /// When `xl` does not answer, or the scheduler has no caps.
    pub fn find() -> Result<Self, HostError> {
        let shown = run("xl", &["info"])?;
        let name = fact(&shown, "xen_scheduler").unwrap_or_default();
        let command = match name {
            "credit2" => "sched-credit2",
            "credit" => "sched-credit",
            other => {
                return Err(HostError::Missing {
                    what: format!("a scheduler of Xen that caps domains (this one is `{other}`)"),
                    remedy: "boot Xen with sched=credit2".to_owned(),
                });
            }
        };
        Ok(Self { command })
    }

    /// The cap of a domain, in percent of a processor; 0 is none.
    ///
    /// # Errors
    /// When `xl` does not show the domain's cap.
    pub fn cap(self, domain: u32) -> Result<u32, HostError> {
        let shown = run("xl", &[self.command, "-d", &domain.to_string()])?;
        parse_cap(&shown, domain).ok_or_else(|| HostError::Protocol {
            peer: format!("`xl {}`", self.command),
            detail: format!("it shows no cap of the domain {domain}: {}", shown.trim()),
        })
    }

    /// Sets the cap of a domain in percent of a processor; 0 is none.
    ///
    /// # Errors
    /// When `xl` refuses, or the domain is gone.
    pub fn set_cap(self, domain: u32, percent: u32) -> Result<(), HostError> {
        let (domain, percent) = (domain.to_string(), percent.to_string());
        run("xl", &[self.command, "-d", &domain, "-c", &percent]).map(drop)
    }
}

/// Restores the cap of a domain, where a cap that vtax set is still in force; without `written` the caps of vtax are
/// unknown, and the old cap is restored in any case. A domain that is gone needs no restoration. Returns the reason,
/// in words, where a cap is left.
///
/// # Errors
/// When `xl` does not answer or refuses.
pub fn restore_cap(
    domain: u32,
    percent: u32,
    written: Option<&Written>,
) -> Result<Option<String>, HostError> {
    if !is_there(domain)? {
        return Ok(None);
    }
    let restore = || {
        let scheduler = Scheduler::find()?;
        if let Some(why) = left_cap(scheduler.cap(domain)?, percent, written) {
            return Ok(Some(why));
        }
        scheduler.set_cap(domain, percent).map(|()| None)
    };
    let restored = restore();
    // The domain may have ended in between.
    if restored.is_err() && !is_there(domain)? {
        return Ok(None);
    }
    restored
}

/// The reason to leave a domain's present cap.
fn left_cap(now: u32, old: u32, written: Option<&Written>) -> Option<String> {
    let is_ours = written.is_none_or(|written| written.has(&now.to_string()));
    (now != old && !is_ours).then(|| set_by_others(now))
}

/// The reason to leave a domain's cap of that many percent.
pub fn set_by_others(now: u32) -> String {
    format!("another program has set it to {now} % since")
}

/// Whether a domain of that number runs.
///
/// # Errors
/// As [`list`].
pub fn is_there(domain: u32) -> Result<bool, HostError> {
    Ok(list()?.iter().any(|listed| listed.id == domain))
}

/// The value of a key in the output of `xl info`.
fn fact<'a>(text: &'a str, wanted: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == wanted)
        .map(|(_, value)| value.trim())
}

/// Whether the hypervisor can run HVM domains: the processor's virtualization, with nested paging (hap) or shadow
/// page tables. Debian's Xen has no shadow page tables.
///
/// # Errors
/// When `xl` fails.
pub fn has_hvm() -> Result<bool, HostError> {
    Ok(knows_hvm(&run("xl", &["info"])?))
}

fn knows_hvm(info: &str) -> bool {
    let words: Vec<&str> = fact(info, "virt_caps")
        .map(|words| words.split_whitespace().collect())
        .unwrap_or_default();
    words.contains(&"hvm") && (words.contains(&"hap") || words.contains(&"shadow"))
}

/// The cap of a domain in the table `Name ID Weight Cap`; names may contain blanks.
fn parse_cap(text: &str, domain: u32) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace().rev();
        let cap = words.next()?.parse().ok()?;
        let _weight: u32 = words.next()?.parse().ok()?;
        (words.next()?.parse() == Ok(domain)).then_some(cap)
    })
}

/// Unpauses a domain that was created paused.
///
/// # Errors
/// When `xl` fails.
pub fn unpause(name: &str) -> Result<(), HostError> {
    run("xl", &["unpause", name]).map(drop)
}

/// The socket of the channel that is a domain's console 1, its second console.
///
/// # Errors
/// When the store does not answer or has no such entry.
pub fn channel(id: u32) -> Result<PathBuf, HostError> {
    let backend = run(
        "xenstore-read",
        &[&format!("/local/domain/{id}/device/console/1/backend")],
    )?;
    let path = run("xenstore-read", &[&format!("{}/path", backend.trim_end())])?;
    Ok(PathBuf::from(path.trim_end()))
}

/// The terminal of a domain's console.
///
/// # Errors
/// When the store does not answer or has no such entry.
pub fn console(id: u32) -> Result<PathBuf, HostError> {
    let path = format!("/local/domain/{id}/console/tty");
    let tty = run("xenstore-read", &[&path])?;
    Ok(PathBuf::from(tty.trim_end()))
}

/// Destroys the domain of that name, if there is one, and removes libxl's logs of it. The domain's processes in Dom0
/// end too.
///
/// # Errors
/// When the name is not one of vtax's, or the domain does not vanish.
pub fn destroy(name: &str) -> Result<(), HostError> {
    if !is_ours(name) {
        return Err(HostError::Invalid {
            what: format!("the domain {name:?} of the journal"),
            problem: "it is not named like one of ours and is not destroyed; look at `xl list`, \
                      then run `vtax restore --forget`"
                .to_owned(),
        });
    }
    let mut destroyed = Ok(());
    let ended = within(DESTROY_LIMIT, Duration::from_millis(200), || {
        if find(name)?.is_none() {
            return Ok(Some(()));
        }
        destroyed = run("xl", &["destroy", name]).map(drop);
        Ok::<_, HostError>(find(name)?.is_none().then_some(()))
    })?;
    if ended.is_some() {
        return remove_logs(Path::new(LOG_DIR), name);
    }
    destroyed?;
    Err(HostError::Timeout {
        what: format!("the end of the domain {name}"),
        seconds: DESTROY_LIMIT.as_secs(),
        evidence: "`xl list` still shows it".into(),
    })
}

fn is_ours(name: &str) -> bool {
    name.len() > PREFIX.len()
        && name.starts_with(PREFIX)
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
}

/// Removes `qemu-dm-NAME.log` and `xl-NAME.log`, with the older ones that libxl numbers.
fn remove_logs(folder: &Path, name: &str) -> Result<(), HostError> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let of_it = ["qemu-dm-", "xl-"]
            .iter()
            .filter_map(|prefix| file.strip_prefix(prefix)?.strip_prefix(name))
            .any(|rest| rest.starts_with(".log"));
        if !of_it {
            continue;
        }
        match fs::remove_file(entry.path()) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                return Err(HostError::file("remove", entry.path())(cause));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first two as xl 4.17 printed them in an emulated host, the others in its format.
    const LIST: &str = "\
Name                                        ID   Mem VCPUs\tState\tTime(s)
Domain-0                                     0  1536     1     r-----     749.2
vtax-trial-2402-0-2402-0                     8   512     1     -b----      21.4
two words                                    7   128     1     ---s--       0.0
dead                                        12   128     1     ----c-       1.9
(null)                                      13     0     1     --p--d       1.9
";

    #[test]
    fn a_cap_that_another_program_set_meanwhile_is_left() {
        let written = Written {
            values: vec!["30".to_owned(), "20".to_owned()],
            file: None,
        };
        for ours in [20, 30, 50] {
            assert_eq!(left_cap(ours, 50, Some(&written)), None);
        }
        assert_eq!(left_cap(60, 50, None), None, "it is not known");
        let why = left_cap(60, 50, Some(&written)).unwrap();
        assert!(why.contains("60 %"), "{why}");
    }

    #[test]
    fn a_list_is_read_with_the_names_that_people_give() {
        let list = parse_list(LIST);
        let seen: Vec<(&str, u32, Option<&str>)> = list
            .iter()
            .map(|domain| (domain.name.as_str(), domain.id, domain.end()))
            .collect();
        assert_eq!(
            seen,
            [
                ("Domain-0", 0, None),
                ("vtax-trial-2402-0-2402-0", 8, None),
                ("two words", 7, Some("shut itself down")),
                ("dead", 12, Some("crashed")),
                ("(null)", 13, Some("is dying")),
            ]
        );
    }

    /// As xl 4.17 prints them.
    #[test]
    fn a_scheduler_and_its_caps_are_read() {
        let info = "host                   : dom0\nxen_scheduler          : credit2\nxen_pagesize : 4096\n";
        assert_eq!(fact(info, "xen_scheduler"), Some("credit2"));
        assert_eq!(fact("xen_version: 4.17\n", "xen_scheduler"), None);
        assert!(knows_hvm(
            "virt_caps              : pv hvm hap gnttab-v1 gnttab-v2\n"
        ));
        for without in [
            "virt_caps              : pv hvm gnttab-v1 gnttab-v2\n",
            "virt_caps : pv hvm_directio hap\n",
            "",
        ] {
            assert!(!knows_hvm(without), "{without}");
        }
        let table = "Name                                ID Weight  Cap\n\
                     two words                            3    256   30\n";
        assert_eq!(parse_cap(table, 3), Some(30));
        assert_eq!(parse_cap(table, 30), None);
        assert_eq!(parse_cap("", 3), None);
    }

    #[test]
    fn a_share_is_a_cap_and_never_none() {
        let shares = [0.0, 0.001, 0.3, 0.306, 2.0, 1e9];
        assert_eq!(shares.map(percent), [1, 1, 30, 31, 200, 65_535]);
    }

    #[test]
    fn a_domain_that_is_not_ours_is_never_destroyed() {
        for name in [
            "Domain-0",
            "0",
            "vtax-",
            "vtax-a b",
            "vtax-a;reboot",
            "--all",
        ] {
            let message = destroy(name).unwrap_err().to_string();
            assert!(message.contains("is not destroyed"), "{name}: {message}");
        }
    }

    #[test]
    fn only_the_logs_of_the_domain_itself_go() {
        let folder = tempfile::tempdir().unwrap();
        for file in [
            "qemu-dm-vtax-1.log",
            "qemu-dm-vtax-1.log.1",
            "xl-vtax-1.log",
            "qemu-dm-vtax-12.log",
            "xen-hotplug.log",
        ] {
            fs::write(folder.path().join(file), "x").unwrap();
        }
        remove_logs(folder.path(), "vtax-1").unwrap();
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["qemu-dm-vtax-12.log", "xen-hotplug.log"]);
    }

    proptest! {
        #[test]
        fn no_list_makes_it_panic(text in "[ -~\\n\\t]{0,200}") {
            parse_list(&text);
        }
    }
}
