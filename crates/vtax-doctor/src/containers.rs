//! Containers: the control group layout, and which OCI runtime really runs a bundle on it.

use super::{Answer, Finding, Options, Topic};
use serde_json::json;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use vtax_host::Roots;
use vtax_host::facts::{CgroupLayout, CgroupVersion};

pub(super) const RUNTIMES: [&str; 2] = ["runc", "crun"];

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    let layout = CgroupLayout::detect(roots);
    let mut findings = vec![control_groups(&layout)];
    findings.extend(RUNTIMES.map(|runtime| oci_runtime(roots, options, runtime, &layout)));
    // One runtime is enough: the other then needs no remedy.
    if findings
        .iter()
        .any(|finding| RUNTIMES.contains(&finding.name.as_str()) && finding.answer == Answer::Yes)
    {
        for finding in &mut findings {
            if RUNTIMES.contains(&finding.name.as_str()) && finding.answer == Answer::No {
                finding.remedy = Some("not needed: another runtime works".to_owned());
                finding.package = None;
            }
        }
    }
    findings
}

fn control_groups(layout: &CgroupLayout) -> Finding {
    let needed = ["cpuset", "memory"];
    let missing: Vec<&str> = needed
        .into_iter()
        .chain(["cpu"])
        .filter(|controller| !layout.has(controller))
        .collect();
    let seen = match layout.version {
        CgroupVersion::V1 => format!("v1: {}", list(layout.v1.keys())),
        CgroupVersion::V2 => format!("v2: {}", list(&layout.v2_controllers)),
        CgroupVersion::Hybrid if layout.v2_controllers.is_empty() => {
            format!(
                "hybrid: {} on v1; v2 without controllers",
                list(layout.v1.keys())
            )
        }
        CgroupVersion::Hybrid => format!(
            "hybrid: {} on v1; {} on v2",
            list(layout.v1.keys()),
            list(&layout.v2_controllers)
        ),
        CgroupVersion::None => "none is mounted".to_owned(),
    };
    let finding = |answer| Finding::new(Topic::Containers, "control groups", answer, seen.clone());
    if layout.version == CgroupVersion::None {
        finding(Answer::No).remedy("mount -t cgroup2 cgroup2 /sys/fs/cgroup; CPU time cannot be charged to targets without")
    } else if missing.is_empty() {
        finding(Answer::Yes)
    } else {
        finding(Answer::Partly).remedy(format!(
            "no controller {}; on v2: echo +{} > /sys/fs/cgroup/cgroup.subtree_control; on v1 it must be mounted",
            missing.join(", "),
            missing.join(" +")
        ))
    }
}

fn list<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    words
        .into_iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

fn oci_runtime(roots: &Roots, options: &Options, runtime: &str, layout: &CgroupLayout) -> Finding {
    let finding =
        |answer, evidence: String| Finding::new(Topic::Containers, runtime, answer, evidence);
    let Some(program) = roots.program(runtime) else {
        return finding(Answer::No, "not installed".to_owned())
            .remedy(format!("apt-get install {runtime}"))
            .package(runtime);
    };
    match run_true(options, &program) {
        Ok(()) => finding(
            Answer::Yes,
            format!("ran a container on this layout ({})", layout.version),
        ),
        Err(why) => finding(
            Answer::No,
            format!(
                "does not run a container on this layout ({}): {why}",
                layout.version
            ),
        )
        .remedy("use the other runtime (runc knows v1, v2 and hybrid layouts), as root"),
    }
}

/// Runs `true` from the host's own `/usr` in a bundle that is removed afterwards.
fn run_true(options: &Options, runtime: &Path) -> Result<(), String> {
    let bundle = tempfile::Builder::new()
        .prefix("vtax-doctor-")
        .tempdir()
        .map_err(|cause| {
            format!(
                "cannot create a bundle: {cause}",
                cause = super::reason(&cause)
            )
        })?;
    // The directory's name is unique on this host, and so is the container's.
    let name = bundle
        .path()
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let prepared = prepare_bundle(bundle.path(), &name);
    prepared.map_err(|cause| {
        format!(
            "cannot fill a bundle: {cause}",
            cause = super::reason(&cause)
        )
    })?;
    let state = bundle.path().join("state").to_string_lossy().into_owned();
    let directory = bundle.path().to_string_lossy().into_owned();
    let limit = Duration::from_secs(20);
    let ended = options.probes.run(
        runtime,
        &["--root", &state, "run", "--bundle", &directory, &name],
        limit,
    );
    if !matches!(&ended, Ok(output) if output.success) {
        // What a failed start leaves behind: its state and its control groups.
        let _best_effort = options.probes.run(
            runtime,
            &["--root", &state, "delete", "--force", &name],
            limit,
        );
    }
    match ended {
        Ok(output) if output.success => Ok(()),
        Ok(output) => Err(message(&output.last_words())),
        Err(cause) => Err(super::reason(&cause)),
    }
}

/// The message of a logged line: runc writes `time="…" level=error msg="…"`.
fn message(line: &str) -> String {
    let message = line
        .split_once("msg=\"")
        .and_then(|(_, rest)| rest.strip_suffix('"'));
    message.unwrap_or(line).replace("\\\"", "\"")
}

fn prepare_bundle(bundle: &Path, name: &str) -> io::Result<()> {
    let root = bundle.join("rootfs");
    let mut mounts = vec![json!({ "destination": "/proc", "type": "proc", "source": "proc" })];
    fs::create_dir_all(root.join("proc"))?;
    for part in ["usr", "bin", "sbin", "lib", "lib64"] {
        let host = Path::new("/").join(part);
        let Ok(metadata) = host.symlink_metadata() else {
            continue;
        };
        if metadata.is_symlink() {
            symlink(fs::read_link(&host)?, root.join(part))?;
        } else {
            fs::create_dir(root.join(part))?;
            mounts.push(json!({ "destination": host, "type": "bind", "source": host, "options": ["rbind", "ro"] }));
        }
    }
    let config = json!({
        "ociVersion": "1.0.2",
        "root": { "path": "rootfs", "readonly": true },
        "mounts": mounts,
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": ["true"],
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {},
        },
        "linux": {
            "cgroupsPath": format!("/{name}"),
            "namespaces": [
                { "type": "pid" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" },
            ],
        },
    });
    fs::write(bundle.join("config.json"), config.to_string())
}
