// SPDX-License-Identifier: Apache-2.0
//! Xen's domains, as the toolstack in Dom0 lists them.
//!
//! `xl list` gives every domain's name and CPU time, in tenths of a second; where libxenstat is installed, the
//! hypervisor gives the CPU time in nanoseconds. `xl list -l`, run when a domain is new, gives its UUID. Dom0 itself is
//! this host.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use vtax_core::Nanoseconds;
use vtax_kernel::text;
use vtax_observe::counters::XenClock;
use vtax_observe::{ObserveError, Roots};

/// One domain.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Domain {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) uuid: Option<String>,
    pub(super) cpus: u32,
    /// CPU time since its creation.
    pub(super) time: Nanoseconds,
}

/// The toolstack of this host.
#[derive(Debug)]
pub(super) struct Toolstack {
    program: PathBuf,
    clock: Option<XenClock>,
    /// UUIDs by domain id and name.
    uuids: Vec<(u32, Option<String>)>,
}

/// Whether this host is the Dom0 of a Xen.
pub fn is_dom0(roots: &Roots) -> bool {
    roots
        .proc_text("xen/capabilities")
        .is_some_and(|text| text.split_whitespace().any(|word| word == "control_d"))
}

impl Toolstack {
    /// Returns `None` where this host is not a Dom0.
    pub(super) fn open(roots: &Roots) -> Option<Self> {
        is_dom0(roots).then(|| Self {
            program: roots.program("xl").unwrap_or_else(|| "xl".into()),
            clock: XenClock::open(&roots.sys).ok(),
            uuids: Vec::new(),
        })
    }

    /// Lists every domain except Dom0.
    pub(super) fn domains(&mut self) -> Result<Vec<Domain>, ObserveError> {
        let mut domains = parse_list(&self.run(&["list"])?);
        let is_known = |id: u32| self.uuids.iter().any(|(known, _)| *known == id);
        if domains.iter().any(|domain| !is_known(domain.id)) {
            self.uuids = parse_long_list(&self.run(&["list", "-l"])?);
            // A domain without an entry (it is being created) is not looked up again on every pass.
            for domain in &domains {
                if !self.uuids.iter().any(|(known, _)| *known == domain.id) {
                    self.uuids.push((domain.id, None));
                }
            }
        }
        for domain in &mut domains {
            let known = self.uuids.iter().find(|(id, _)| *id == domain.id);
            domain.uuid = known.and_then(|(_, uuid)| uuid.clone());
        }
        if let Some(clock) = &self.clock {
            let ids: Vec<u32> = domains.iter().map(|domain| domain.id).collect();
            for (domain, time) in domains.iter_mut().zip(clock.read(&ids)?) {
                // A domain that has ended since the listing keeps the time from the list.
                domain.time = time.unwrap_or(domain.time);
            }
        }
        Ok(domains)
    }

    fn run(&self, arguments: &[&str]) -> Result<Vec<u8>, ObserveError> {
        let failed = |detail: String| ObserveError::Program {
            command: format!("{} {}", self.program.display(), arguments.join(" ")),
            detail,
        };
        let output = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|cause| failed(cause.to_string()))?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            let printed = String::from_utf8_lossy(&output.stderr);
            Err(failed(format!("{}: {}", output.status, printed.trim())))
        }
    }
}

/// `Name ID Mem VCPUs State Time(s)`; the name may hold spaces, so columns count from the end.
fn parse_list(table: &[u8]) -> Vec<Domain> {
    let domain = |line: &[u8]| {
        let fields: Vec<&[u8]> = text::fields(line).collect();
        let [name @ .., id, _memory, cpus, _state, seconds] = fields.as_slice() else {
            return None;
        };
        let id = text::small(id)?;
        (id != 0 && !name.is_empty()).then_some(Domain {
            id,
            name: super::name::sanitised(&name.join(&b' ')),
            uuid: None,
            cpus: text::small(cpus)?,
            time: Nanoseconds(seconds_in_ns(seconds)?),
        })
    };
    text::lines(table).skip(1).filter_map(domain).collect()
}

fn seconds_in_ns(text: &[u8]) -> Option<u64> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let whole = text::number(parts.next()?)?;
    let tenths = parts.next().map_or(Some(0), text::number)?;
    whole
        .checked_mul(1_000_000_000)?
        .checked_add(tenths.min(9) * 100_000_000)
}

fn parse_long_list(json: &[u8]) -> Vec<(u32, Option<String>)> {
    let Ok(Value::Array(domains)) = serde_json::from_slice(json) else {
        return Vec::new();
    };
    domains
        .iter()
        .filter_map(|domain| {
            let id = u32::try_from(domain.get("domid")?.as_u64()?).ok()?;
            let uuid = domain
                .pointer("/config/c_info/uuid")
                .and_then(Value::as_str)
                .and_then(|uuid| super::uuid(uuid.as_bytes()));
            Some((id, uuid))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const LIST: &str = "\
Name                                        ID   Mem VCPUs	State	Time(s)
Domain-0                                     0  4096     4     r-----    1234.5
web                                          1   512     2     -b----      17.3
two words                                    2   512     1     r-----       0.0
";
    const LONG: &str = r#"[{"domid":0},{"domid":1,"config":{"c_info":{"name":"web","uuid":"1B4E28BA-2fa1-11d2-883f-0016d3cca427"}}}]"#;

    fn dom0() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["proc/xen", "bin"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        std::fs::write(root.path().join("proc/xen/capabilities"), "control_d\n").unwrap();
        let script = format!(
            "#!/bin/sh\nif [ \"$2\" = -l ]; then cat <<'E'\n{LONG}\nE\nelse cat <<'E'\n{LIST}E\nfi\n"
        );
        let program = root.path().join("bin/xl");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        root
    }

    #[test]
    fn only_a_control_domain_is_dom0() {
        let root = dom0();
        let roots = Roots::below(root.path());
        assert!(is_dom0(&roots));
        let file = root.path().join("proc/xen/capabilities");
        std::fs::write(&file, "").unwrap();
        assert!(!is_dom0(&roots));
        std::fs::remove_file(&file).unwrap();
        assert!(!is_dom0(&roots));
    }

    #[test]
    fn domains_are_listed_with_their_time_and_dom0_is_not_among_them() {
        let root = dom0();
        let mut xen = Toolstack::open(&Roots::below(root.path())).unwrap();
        let domains = xen.domains().unwrap();
        assert_eq!(domains.len(), 2);
        assert_eq!(
            (domains[0].id, domains[0].cpus, domains[0].time.0),
            (1, 2, 17_300_000_000)
        );
        assert_eq!(
            domains[0].uuid.as_deref(),
            Some("1b4e28ba-2fa1-11d2-883f-0016d3cca427")
        );
        assert_eq!(
            (domains[1].name.as_str(), &domains[1].uuid),
            ("two words", &None)
        );
    }

    #[test]
    fn a_host_that_is_no_dom0_has_no_domains_and_a_broken_toolstack_says_so() {
        let root = tempfile::tempdir().unwrap();
        assert!(Toolstack::open(&Roots::below(root.path())).is_none());
        let root = dom0();
        let mut roots = Roots::below(root.path());
        roots.path.clear();
        let mut xen = Toolstack::open(&roots).unwrap();
        let error = xen.domains().unwrap_err();
        assert!(error.to_string().contains("xl list"), "{error}");
        assert!(parse_list(b"garbage\nmore garbage\n").is_empty());
        assert!(parse_long_list(b"[{\"domid\":\"x\"}]").is_empty());
    }
}
