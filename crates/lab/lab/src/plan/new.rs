// SPDX-License-Identifier: Apache-2.0
//! `vtax plan new`: a complete plan with comments for a guest that exists, or for a command.

use super::write::{PlanText, name_of};
use super::{Catalogue, Plan, treatments};
use crate::LabError;
use crate::external::libvirt::Described;
use crate::external::look::{self, GuestLook};
use serde::Deserialize;
use std::fmt;
use std::fs;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;
use vtax_core::counted;
use vtax_host::HostError;
use vtax_host::command::is_ssh_host;
use vtax_host::settings::{Level, Settings};
use vtax_host::xenapi::LOGIN;
use vtax_load::workload::Program;

/// The subject of a new plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A domain of this host's libvirt.
    Libvirt(String),
    /// A machine or guest, as ssh takes it.
    Ssh(String),
    /// A VM of a pool: the pool's coordinator and the VM.
    XenApi(String, String),
    /// A local image or container of podman or docker.
    Podman(String),
    /// A command.
    Command,
}

/// A text that names no subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is nothing that a plan can be for: write libvirt:DOMAIN, ssh:HOST, xenapi:POOL/VM, podman:NAME or command"
)]
pub struct SubjectError(String);

impl FromStr for Subject {
    type Err = SubjectError;
    fn from_str(text: &str) -> Result<Self, SubjectError> {
        let wrong = || SubjectError(text.to_owned());
        if text == "command" {
            return Ok(Self::Command);
        }
        let (kind, name) = text.split_once(':').ok_or_else(wrong)?;
        // A name that starts with a dash would be an option of a program.
        if name.is_empty() || name.starts_with('-') || name.contains(char::is_control) {
            return Err(wrong());
        }
        let name = name.to_owned();
        match kind {
            "libvirt" => Ok(Self::Libvirt(name)),
            "ssh" if is_ssh_host(&name) => Ok(Self::Ssh(name)),
            "podman" | "docker" => Ok(Self::Podman(name)),
            "xenapi" => match name.split_once('/') {
                Some((pool, vm)) if !pool.is_empty() && !vm.is_empty() => {
                    Ok(Self::XenApi(pool.to_owned(), vm.to_owned()))
                }
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Libvirt(name) => write!(f, "libvirt:{name}"),
            Self::Ssh(name) => write!(f, "ssh:{name}"),
            Self::XenApi(pool, vm) => write!(f, "xenapi:{pool}/{vm}"),
            Self::Podman(name) => write!(f, "podman:{name}"),
            Self::Command => f.write_str("command"),
        }
    }
}

/// A new plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPlan {
    /// The text.
    pub text: String,
    /// The facts that could not be looked up, each with its reason.
    pub notes: Vec<String>,
}

/// The workloads of a plan for a guest, by the program that the guest needs: the first one that it has is measured.
const WORKLOADS: [(&str, Program, &str, &str); 2] = [
    (
        "http-rate",
        Program::new("apache2", "apache2-bin"),
        "rate = 100",
        "100 HTTP requests a second to an Apache of its own on port 80",
    ),
    (
        "iperf3-receive",
        Program::new("iperf3", "iperf3"),
        "rate_mbit = 50",
        "a TCP stream of 50 Mbit/s to an iperf3 of its own on port 5201",
    ),
];

/// The texts of plans.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Texts {
    intro: String,
    command_run: String,
    guest_run: String,
    guest: String,
    fair: String,
    pair: String,
    commands: String,
    image: String,
    command: String,
}

/// Tests check that the file can be read.
static TEXTS: LazyLock<Texts> =
    LazyLock::new(|| toml::from_str(include_str!("new.toml")).unwrap_or_default());

/// Writes a plan. Facts about the guest are read: nothing is changed.
///
/// # Errors
/// When there is no such domain, or the guest accepts no login.
pub fn new_plan(subject: &Subject, catalogue: &Catalogue) -> Result<NewPlan, LabError> {
    let mut notes = Vec::new();
    let (facts, body, what) = match subject {
        Subject::Libvirt(name) => {
            let domain = Described::from_name(name)?;
            let mut keys = PlanText::default();
            keys.text("kind", "libvirt").text("libvirt.domain", name);
            if let Some(uri) = &domain.uri {
                keys.text("libvirt.uri", uri);
            }
            match &domain.address {
                Some(address) => keys.text("ssh.to", &format!("root@{address}")),
                None => keys
                    .comment("ssh.to = \"root@ADDRESS\"")
                    .because("libvirt does not know the address: set it"),
            };
            (domain.facts, keys, What::Guest(None))
        }
        Subject::Ssh(host) => {
            let mut keys = PlanText::default();
            keys.text("kind", "ssh").text("ssh.to", host);
            let to = ("ssh.to".to_owned(), Level::Text(host.clone()));
            let programs = WORKLOADS.map(|(_, program, ..)| program);
            let look = look::look("ssh", &Settings([to].into()), &programs)?;
            let facts = look.as_ref().map(shown).unwrap_or_default();
            (facts, keys, What::Guest(look.map(Box::new)))
        }
        Subject::XenApi(pool, vm) => {
            let mut keys = PlanText::default();
            keys.text("kind", "xenapi")
                .text("xenapi.host", pool)
                .text("xenapi.vm", vm);
            keys.comment("xenapi.login = \"/root/pool.login\"")
                .because("mode 0600, USER:PASSWORD; or set VTAX_XENAPI_LOGIN");
            keys.comment("xenapi.ca = \"/root/pool.pem\"")
                .because("or xenapi.fingerprint = \"SHA-256\"");
            let looked = match std::env::var_os(LOGIN) {
                None => Err(format!(
                    "the variable {LOGIN} is not set: set the login in the plan, and `vtax run --dry-run` looks"
                )),
                Some(_) => xenapi_facts(pool, vm).map_err(|cause| cause.to_string()),
            };
            let facts = looked.unwrap_or_else(|why| {
                notes.push(format!("{subject} was not looked up: {why}"));
                Vec::new()
            });
            (facts, keys, What::Guest(None))
        }
        Subject::Podman(name) => (Vec::new(), PlanText::default(), What::Image(name)),
        Subject::Command => (Vec::new(), PlanText::default(), What::Command),
    };
    let body = what.body(subject, &body);
    let name = name_of(&subject.to_string().replace([':', '/', '@'], "-"), "new");
    // The comments hold the plan's own numbers.
    let plan = Plan::read(&format!("{name}.toml"), &body, catalogue)
        .map_err(|wrong| LabError::Plan(wrong.to_string()))?;
    let all = treatments(&plan, catalogue);
    let trials = all.len() * plan.repetitions as usize;
    let time = plan.expected_time(&all, catalogue);
    let mut head = PlanText::default();
    head.comment(&TEXTS.intro.replace("{subject}", &subject.to_string()));
    if !facts.is_empty() {
        head.comment("\nLooked up without a change:");
        for (name, value) in &facts {
            head.comment(&format!("  {name}: {value}"));
        }
    }
    what.explain(
        &mut head,
        &format!("{}, about {}", counted(trials, "trial"), minutes(time)),
    );
    head.blank();
    Ok(NewPlan {
        text: head.finish() + &body,
        notes,
    })
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        _ => format!("{} min", seconds.div_ceil(60)),
    }
}

/// The facts of a VM of a pool.
fn xenapi_facts(pool: &str, vm: &str) -> Result<Vec<(String, String)>, HostError> {
    let text = |key: &str, value: &str| (key.to_owned(), Level::Text(value.to_owned()));
    let settings = Settings([text("xenapi.host", pool), text("xenapi.vm", vm)].into());
    let found = crate::external::xenapi::facts(&settings)?;
    Ok(found.into_iter().collect())
}

/// The facts of a guest for a reader.
fn shown(look: &GuestLook) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let mut facts = vec![
        fact("kernel", look.kernel.clone()),
        fact("distribution", look.distribution.clone()),
        fact("processors", format!("{} ({})", look.processors, look.cpu)),
        fact("memory", format!("{} MiB", look.memory_kib >> 10)),
        fact("machine", look.hardware.clone()),
    ];
    facts.extend(
        look.address
            .map(|address| fact("address", address.to_string())),
    );
    let ports: Vec<String> = look.listens.iter().map(u16::to_string).collect();
    facts.push(fact("ports with a server", ports.join(", ")));
    let on_host = look.facts.get("host.guest").cloned();
    facts.extend(on_host.map(|name| fact("guest of this host", name)));
    facts.retain(|(_, value)| !value.trim().is_empty());
    facts
}

/// What a plan measures.
enum What<'a> {
    /// A guest, and what a login to it shows.
    Guest(Option<Box<GuestLook>>),
    /// An image or container.
    Image(&'a str),
    /// A command.
    Command,
}

impl What<'_> {
    /// Writes the keys of the plan.
    fn body(&self, subject: &Subject, platform: &PlanText) -> String {
        let mut plan = PlanText::default();
        let name = name_of(&subject.to_string().replace([':', '/', '@'], "-"), "new");
        plan.text("name", &name)
            .because("of the results directory, results/NAME");
        plan.text("description", &format!("what {subject} costs"));
        match self {
            Self::Guest(look) => {
                plan.append(&TEXTS.guest).append(&platform.clone().finish());
                self.guest_workloads(&mut plan, look.as_deref());
                plan.blank().comment(&TEXTS.fair).switched_off(&TEXTS.pair);
            }
            Self::Image(name) => {
                plan.append(&TEXTS.commands)
                    .text("image", &format!("podman:{name}"))
                    .because("the same files on every platform")
                    .append(&TEXTS.image);
            }
            Self::Command => {
                plan.append(&TEXTS.commands).append(&TEXTS.command);
            }
        }
        plan.finish()
    }

    /// Writes the first workload whose program the guest has, and the others as comments.
    fn guest_workloads(&self, plan: &mut PlanText, look: Option<&GuestLook>) {
        let lacks = |program: &Program| {
            look.is_some_and(|look| look.missing.iter().any(|(name, _)| name == program.name))
        };
        let chosen = chosen(look);
        for (number, (kind, program, rate, load)) in WORKLOADS.iter().enumerate() {
            let mut workload = PlanText::default();
            workload
                .section("workload")
                .text("kind", kind)
                .because(load);
            let (key, value) = rate.split_once(" = ").unwrap_or((rate, ""));
            workload.value(key, value);
            if number == chosen {
                plan.append(&workload.finish());
            } else {
                plan.blank();
                if lacks(program) {
                    plan.comment(&format!(
                        "The guest has no {} (Debian package {}) for:",
                        program.name, program.package
                    ));
                }
                plan.switched_off(&workload.finish());
            }
        }
    }

    /// Writes what a run does, what can go wrong, and how to undo it.
    fn explain(&self, head: &mut PlanText, trials: &str) {
        let Self::Guest(look) = self else {
            head.comment(&TEXTS.command_run.replace("{trials}", trials));
            return;
        };
        let size = fs::metadata("/proc/self/exe").map_or(0, |found| found.len().div_ceil(1 << 20));
        let (kind, program, _, load) = WORKLOADS
            .get(chosen(look.as_deref()))
            .unwrap_or(&WORKLOADS[0]);
        let values = [
            ("{trials}", trials),
            ("{size}", &size.to_string()),
            ("{program}", program.name),
            ("{kind}", kind),
            ("{load}", load),
        ];
        let text = TEXTS.guest_run.clone();
        head.comment(
            &values
                .into_iter()
                .fold(text, |text, (from, to)| text.replace(from, to)),
        );
    }
}

/// The index of the workload that a plan for a guest measures.
fn chosen(look: Option<&GuestLook>) -> usize {
    let has = |program: &Program| {
        look.is_none_or(|look| !look.missing.iter().any(|(name, _)| name == program.name))
    };
    let found = WORKLOADS.iter().position(|(_, program, ..)| has(program));
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(missing: &[&str]) -> GuestLook {
        let missing = missing
            .iter()
            .map(|name| ((*name).to_owned(), "p".to_owned()));
        GuestLook {
            kernel: "6.1.0\nname = 1".to_owned(),
            missing: missing.collect(),
            ..GuestLook::default()
        }
    }

    #[test]
    fn subjects_are_read_and_options_and_half_names_refused() {
        for text in [
            "libvirt:web 1",
            "ssh:root@a",
            "xenapi:pool/a b",
            "podman:x",
            "command",
        ] {
            let subject: Subject = text.parse().unwrap();
            assert_eq!(subject.to_string(), text);
        }
        for text in [
            "",
            "web",
            "libvirt:",
            "ssh:-oProxyCommand=x",
            "ssh:a b",
            "xenapi:pool",
            "xenapi:/x",
        ] {
            assert!(text.parse::<Subject>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_guest_s_plan_takes_the_workload_whose_program_the_guest_has() {
        let catalogue = Catalogue::standard();
        let subject = Subject::Ssh("root@web".to_owned());
        for (missing, kind) in [
            (&[][..], "http-rate"),
            (&["apache2"], "iperf3-receive"),
            (&["apache2", "iperf3"], "http-rate"),
        ] {
            let mut keys = PlanText::default();
            keys.text("kind", "ssh").text("ssh.to", "root@web");
            let body = What::Guest(Some(Box::new(guest(missing)))).body(&subject, &keys);
            let plan = Plan::read("plan.toml", &body, &catalogue)
                .unwrap_or_else(|wrong| panic!("{wrong}\n{body}"));
            assert_eq!(plan.workloads.len(), 1, "{body}");
            assert_eq!(plan.workloads[0].kind, kind, "{body}");
            assert_eq!(plan.name, "ssh-root-web");
        }
    }

    #[test]
    fn plans_for_commands_and_pools_are_complete() {
        let catalogue = Catalogue::standard();
        for subject in [
            "command",
            "xenapi:pool.example/web",
            "podman:localhost/app:1",
        ] {
            let new = new_plan(&subject.parse().unwrap(), &catalogue).unwrap();
            let plan = Plan::read("plan.toml", &new.text, &catalogue)
                .unwrap_or_else(|wrong| panic!("{wrong}\n{}", new.text));
            assert_eq!(plan.repetitions, 10);
            for part in [
                "What a run does",
                "What can go wrong",
                "How to undo it",
                "--dry-run",
            ] {
                assert!(new.text.contains(part), "{part}: {}", new.text);
            }
            assert!(
                new.text.lines().all(|line| line.chars().count() <= 120),
                "{}",
                new.text
            );
        }
    }

    #[test]
    fn the_fair_pair_is_a_plan_when_its_signs_are_removed() {
        let mut plan = PlanText::default();
        plan.text("name", "pair")
            .section("platform")
            .text("kind", "ssh")
            .text("ssh.to", "root@web");
        plan.append(&TEXTS.pair);
        let text = plan.finish();
        let plan = Plan::read("plan.toml", &text, &Catalogue::standard())
            .unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert_eq!((plan.platforms.len(), plan.workloads.len()), (3, 1));
    }

    #[test]
    fn what_a_guest_shows_of_itself_stays_in_comments() {
        let facts = shown(&guest(&[]));
        let mut head = PlanText::default();
        for (name, value) in &facts {
            head.comment(&format!("  {name}: {value}"));
        }
        assert!(head.finish().lines().all(|line| line.starts_with('#')));
    }
}
