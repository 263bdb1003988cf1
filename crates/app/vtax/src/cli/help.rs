// SPDX-License-Identifier: Apache-2.0
//! The help of vtax: commands in groups, two examples for each command, and topics that belong to no command.

use super::Cli;
use clap::{Command, CommandFactory};

/// The commands by purpose, in the order of the help.
pub const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Look at this host",
        &[
            "doctor", "top", "record", "advise", "charge", "exporter", "share", "web", "explain",
        ],
    ),
    ("Measure", &["run", "plan", "merge", "image"]),
    (
        "Judge",
        &["report", "compare", "history", "survey", "export"],
    ),
    (
        "Set up this host",
        &["cap", "meter", "nic", "mvm", "restore"],
    ),
    ("Research", &["testbed", "density", "accuracy", "atlas"]),
];

/// Help that belongs to no command: the word after `vtax help`, and the text.
pub const TOPICS: [(&str, &str); 3] = [
    (
        "exit-status",
        "\
Exit status:
  0    the command did what was asked
  1    it failed; standard error gives the reason
  2    the command line is wrong
  3    inconclusive: no trial counts, or the trials are too few to decide a gate
  4    a gate of `vtax compare --fail-on` was missed
  5    this host cannot do it: a program, device or kernel feature is missing
  130  it was interrupted, and left the host as it was
A second signal N ends at once a command that is ending in order: 128 + N. Where nobody reads its
output any more, a command ends quietly, as by SIGPIPE.",
    ),
    (
        "environment",
        "\
Environment:
  VTAX_STATE_DIR    the journal of changes to this host, and the lock
                    [/var/lib/vtax; for users other than root ~/.local/state/vtax]
  VTAX_CACHE_DIR    images of guests and testbeds [/var/cache/vtax; else ~/.cache/vtax]
  VTAX_WALL_METER   the wall meter, as sigrok names it: DRIVER:conn=PORT
  VTAX_WALL_VOLTS   the volts that go with a wall meter of amperes
  VTAX_POWER_MODEL  the power model, a file of `vtax meter calibrate`",
    ),
    (
        "charging",
        "\
Charging, of every command that shows what guests cost:
  --method METHOD     how soft interrupts are charged
                        auto     traced where BPF works, else counted
                        traced   by BPF programs; an error where BPF does not work
                        counted  by what each guest exchanged, and the weights
                        both     the traced charge is shown; `vtax charge` writes the records of each
  --weights WEIGHTS   the costs of exchanges, relative to each other, where soft interrupts are
                      counted: NAME=NUMBER with commas between, of received, sent (packets),
                      kibibyte, block-request, other (soft interrupts that do no I/O)
                      `vtax accuracy` fits them to a host
  --idle RULE         the party that pays for the energy of an idle host
                        host         the host
                        equal        all guests alike
                        reservation  guests by their processors
  --idle-watts WATTS  the power of the idle host
                      Without it the power is learned from intervals in which the processors were
                      idle (busy for 5 % or less). With a real meter energy is not charged before
                      the first of them.",
    ),
];

/// Two examples for each command: its words, then each command line with its effect.
pub const EXAMPLES: &[(&str, [(&str, &str); 2])] = &[
    (
        "doctor",
        [
            ("vtax doctor", "what this host can run and measure"),
            ("vtax doctor --json", "the same for a program"),
        ],
    ),
    (
        "explain",
        [
            ("vtax explain cpu.per_work", "a metric"),
            (
                "vtax explain 'other programs used'",
                "a reason to suspect a trial",
            ),
        ],
    ),
    (
        "plan check",
        [
            (
                "vtax plan check plan.toml",
                "treatments, trials and expected time",
            ),
            (
                "vtax plan check plan.toml --results results/redis --width 2",
                "how many blocks an interval of ±2 % needs",
            ),
        ],
    ),
    (
        "plan new",
        [
            (
                "vtax plan new --for libvirt:web-1 -o web-1.toml",
                "a plan for a VM that exists",
            ),
            (
                "vtax plan new --for command",
                "a plan for a program of yours",
            ),
        ],
    ),
    (
        "plan list",
        [
            (
                "vtax plan list",
                "plans that run by their names, from any directory",
            ),
            ("vtax plan list --json", "the same for a program"),
        ],
    ),
    (
        "plan show",
        [
            ("vtax plan show network-tax", "a plan, to read"),
            (
                "vtax plan show papers/rossi > rossi.toml",
                "a plan, to change",
            ),
        ],
    ),
    (
        "plan keys",
        [
            ("vtax plan keys mtu", "keys about the MTU"),
            ("vtax plan keys --json", "all keys for a program"),
        ],
    ),
    (
        "run",
        [
            ("vtax run plan.toml --quick", "a plan, for a first look"),
            (
                "vtax run --platform native,container -- sha256sum /usr/bin/perl",
                "a command, without a plan",
            ),
        ],
    ),
    (
        "merge",
        [
            (
                "vtax merge host-a host-b --results both",
                "shards of two machines",
            ),
            (
                "vtax merge shards/* --results whole",
                "all shards of a directory",
            ),
        ],
    ),
    (
        "report",
        [
            ("vtax report results/redis", "report.html, and a table"),
            (
                "vtax report results/redis --figures svg -o figures",
                "figures for a paper",
            ),
        ],
    ),
    (
        "compare",
        [
            ("vtax compare base new --of tax", "what changed"),
            (
                "vtax compare base new --fail-on 'cpu.per_work > +5%' --format md",
                "a gate for a pipeline",
            ),
        ],
    ),
    (
        "history",
        [
            (
                "vtax history monday tuesday wednesday",
                "since which run a number is another",
            ),
            (
                "vtax history monday tuesday -o history.html",
                "the same as a page",
            ),
        ],
    ),
    (
        "survey",
        [
            ("vtax survey results", "all runs below a directory"),
            (
                "vtax survey results -o trials.parquet",
                "all trials as one file",
            ),
        ],
    ),
    (
        "export",
        [
            (
                "vtax export results/redis > trials.csv",
                "one row for each trial and metric",
            ),
            (
                "vtax export results/redis comparisons",
                "ratios with their intervals",
            ),
        ],
    ),
    (
        "atlas",
        [
            (
                "vtax atlas shea/fig-7 --run --quick",
                "the plans of one figure of a paper, then its page",
            ),
            ("vtax atlas -o atlas.html", "all figures, without a run"),
        ],
    ),
    (
        "advise",
        [
            (
                "vtax advise hour",
                "the knobs for each guest of a recording, with estimates",
            ),
            (
                "vtax advise top.jsonl web-1 -o proof.toml",
                "one guest in lines of `vtax top --json`, and the plan that measures what is advised",
            ),
        ],
    ),
    (
        "top",
        [
            ("vtax top --sort softirq", "guests by soft interrupts"),
            ("vtax top --count 1 --json", "one interval for a program"),
        ],
    ),
    (
        "charge",
        [
            (
                "vtax charge --interval 10s > guests.csv",
                "records as CSV, until Ctrl-C",
            ),
            (
                "vtax charge --by pod --count 6 --json",
                "a minute of Kubernetes' pods",
            ),
        ],
    ),
    (
        "record",
        [
            (
                "vtax record -o before --for 1h --note 'kernel 6.1'",
                "an hour",
            ),
            ("vtax record -o today", "until stopped"),
        ],
    ),
    (
        "cap",
        [
            (
                "vtax cap --guest web-1=0.5 --dry-run",
                "what a share would change",
            ),
            (
                "vtax cap --each 1",
                "one processor for each guest, host work included",
            ),
        ],
    ),
    (
        "exporter",
        [
            ("vtax exporter", "for a Prometheus on this host"),
            (
                "vtax exporter --listen 0.0.0.0:19190 --token-file /etc/vtax/token",
                "for one on another host",
            ),
        ],
    ),
    (
        "share",
        [
            ("vtax share", "what this guest costs its host"),
            ("vtax share --count 1 --json", "once, for a program"),
        ],
    ),
    (
        "web",
        [
            ("vtax web", "a page at http://127.0.0.1:19191"),
            (
                "vtax web --watch-only --results-root nightly",
                "the results of a directory, read-only",
            ),
        ],
    ),
    (
        "meter list",
        [
            ("vtax meter list", "meters, and why others are absent"),
            ("vtax meter list --json", "the same for a program"),
        ],
    ),
    (
        "meter calibrate",
        [
            (
                "vtax meter calibrate -o model.toml",
                "a power model of this host",
            ),
            (
                "vtax meter calibrate --step 30s",
                "the same with less noise",
            ),
        ],
    ),
    (
        "image build",
        [
            ("vtax image build", "the image, if it is not built"),
            ("vtax image build --force", "again"),
        ],
    ),
    (
        "testbed build",
        [
            ("vtax testbed build kvm", "an emulated host with KVM"),
            (
                "vtax testbed build qemu",
                "the QEMU that emulates hosts best",
            ),
        ],
    ),
    (
        "testbed shell",
        [
            ("vtax testbed shell kvm", "a console of an emulated host"),
            (
                "vtax testbed shell xen --testbed plans/two-processors.toml",
                "with settings",
            ),
        ],
    ),
    (
        "testbed list",
        [
            ("vtax testbed list", "what is in the cache"),
            ("vtax testbed list --json", "the same for a program"),
        ],
    ),
    (
        "testbed rm",
        [
            ("vtax testbed rm xen", "images of hosts with Xen"),
            ("vtax testbed rm qemu", "the QEMU that was built"),
        ],
    ),
    (
        "testbed cost",
        [
            ("vtax testbed cost --list", "the cost models"),
            (
                "vtax testbed cost results/guard --model nehalem",
                "results with another model",
            ),
        ],
    ),
    (
        "testbed guard",
        [
            ("vtax testbed guard", "plans/guard.toml against its counts"),
            ("vtax testbed guard --accept", "take the new counts"),
        ],
    ),
    (
        "mvm build",
        [
            (
                "vtax mvm build web -o web.img",
                "a boot sector that serves HTTP",
            ),
            ("vtax mvm build idle --format qcow2", "one for another VMM"),
        ],
    ),
    (
        "mvm run",
        [
            ("vtax mvm run --guests 1000", "a thousand web servers"),
            (
                "vtax mvm run --image idle --guests 100 --live",
                "guests that never park",
            ),
        ],
    ),
    (
        "nic",
        [
            (
                "vtax nic --socket-path /run/vm1.sock --tap tap0 --hold 50us",
                "one port on a tap",
            ),
            ("vtax nic --config nic.toml", "ports by a file"),
        ],
    ),
    (
        "nic ctl list",
        [
            ("vtax nic ctl --api /run/nic.sock list", "all ports"),
            ("vtax nic ctl --api /run/nic.sock list vm1", "one port"),
        ],
    ),
    (
        "nic ctl stats",
        [
            (
                "vtax nic ctl --api /run/nic.sock stats",
                "counters of all ports",
            ),
            (
                "vtax nic ctl --api /run/nic.sock stats vm1",
                "counters of one port",
            ),
        ],
    ),
    (
        "nic ctl watch",
        [
            ("vtax nic ctl --api /run/nic.sock watch", "once a second"),
            (
                "vtax nic ctl --api /run/nic.sock watch vm1 --interval 100ms",
                "ten times a second",
            ),
        ],
    ),
    (
        "nic ctl set",
        [
            (
                "vtax nic ctl --api /run/nic.sock set vm1 --cap 200us",
                "the longest hold of a port",
            ),
            (
                "vtax nic ctl --api /run/nic.sock set all --mode off",
                "no holds",
            ),
        ],
    ),
    (
        "nic ctl clear-override",
        [
            (
                "vtax nic ctl --api /run/nic.sock clear-override vm1",
                "one port",
            ),
            (
                "vtax nic ctl --api /run/nic.sock clear-override all",
                "all ports",
            ),
        ],
    ),
    (
        "nic top",
        [
            ("vtax nic top --api /run/nic.sock", "a live table"),
            ("vtax nic top --api /run/nic.sock --count 1", "one interval"),
        ],
    ),
    (
        "density",
        [
            (
                "vtax density --platform qemu --max 8",
                "how many VMs of QEMU fit, up to 8",
            ),
            (
                "vtax density plans/papers/bratterud-kvm.toml --place testbed:kvm",
                "a plan in emulated hosts",
            ),
        ],
    ),
    (
        "accuracy run",
        [
            (
                "vtax accuracy run plans/papers/cherkasova-accuracy.toml --place testbed:kvm",
                "in an emulated host",
            ),
            (
                "vtax accuracy run plan.toml --results study",
                "on this host",
            ),
        ],
    ),
    (
        "accuracy table",
        [
            ("vtax accuracy table study", "the errors of a study"),
            ("vtax accuracy table study --json", "every measurement"),
        ],
    ),
    (
        "restore",
        [
            ("vtax restore", "undo what a killed run left"),
            ("vtax restore --forget", "give up on what cannot be undone"),
        ],
    ),
];

/// The longest list of values that stands in the text of an option. A longer one is for completions.
const MOST_VALUES: usize = 20;

/// The whole command line, with the help of each command.
pub fn parser() -> Command {
    let command = on_one_line(documented());
    let summary = summary(&command);
    command.override_help(summary)
}

/// The command line with values in the texts of options, and with examples.
pub(super) fn documented() -> Command {
    with_examples(with_values(Cli::command()), "")
}

/// Adds the values that an argument takes to its text, in place of a line for each.
fn with_values(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let values = argument.get_possible_values();
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        // A flag has the values true and false.
        let takes = argument.get_action().takes_values();
        let ([first @ .., last], true) = (names.as_slice(), takes) else {
            return argument;
        };
        let help = argument.get_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let argument = argument.hide_possible_values(true);
        if names.len() > MOST_VALUES || names.iter().all(|name| help.contains(name)) {
            return argument;
        }
        let or = if first.is_empty() { "" } else { " or " };
        argument.help(format!("{help}: {}{or}{last}", first.join(", ")))
    });
    command.mut_subcommands(with_values)
}

/// Puts the text of each option beside it. Without a long text anywhere, clap has this layout for `--help`, too.
fn on_one_line(command: Command) -> Command {
    let long = command.get_long_about().map(ToString::to_string);
    let command = match long.as_deref().and_then(|long| long.split_once("\n\n")) {
        None => command,
        Some((_, more)) => command.before_help(more.to_owned()).help_template(
            "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}",
        ),
    };
    let command = command.long_about(None::<&str>);
    command.mut_subcommands(on_one_line)
}

/// Adds the examples to the commands of which `path` has the words.
fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned())
        .collect();
    let command = names.iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |one| with_examples(one, path.trim_start()))
    });
    let lines: String = examples(path)
        .iter()
        .map(|(line, effect)| format!("\n  # {effect}\n  {line}"))
        .collect();
    match lines.as_str() {
        "" => command,
        lines => command.after_help(format!("Examples:{lines}")),
    }
}

/// Two examples of a command. Those of a group are the first ones of the commands in it.
fn examples(path: &str) -> Vec<(&'static str, &'static str)> {
    if let Some((_, own)) = EXAMPLES.iter().find(|(of, _)| *of == path) {
        return own.to_vec();
    }
    let start = format!("{path} ");
    let of_group = || EXAMPLES.iter().filter(|(of, _)| of.starts_with(&start));
    let firsts = of_group().map(|(_, [first, _])| *first);
    let seconds = of_group().map(|(_, [_, second])| *second);
    firsts.chain(seconds).take(2).collect()
}

/// The help of vtax itself: the commands by group.
fn summary(command: &Command) -> String {
    let mut text = String::from(
        "Measure what virtualization costs, in CPU, energy and latency.\n\nUsage: vtax COMMAND\n",
    );
    for (group, names) in GROUPS {
        text.push_str(&format!("\n{group}\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:<9} {about}\n"));
        }
    }
    let topics = TOPICS.map(|(name, _)| format!("vtax help {name}"));
    text + &format!(
        "\nOptions and examples of a command: vtax help COMMAND\nTopics: {}\nNext step on this host: vtax\n",
        topics.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;
    use std::collections::BTreeSet;

    /// Every visible command that has a help of its own, by its words.
    fn commands<'a>(command: &'a Command, path: &str, found: &mut Vec<(String, &'a Command)>) {
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let path = format!("{path} {}", one.get_name()).trim_start().to_owned();
            commands(one, &path, found);
            found.push((path, one));
        }
    }

    fn all(parser: &Command) -> Vec<(String, &Command)> {
        let mut found = Vec::new();
        commands(parser, "", &mut found);
        found
    }

    #[test]
    fn every_visible_command_is_in_one_group() {
        let parser = parser();
        let visible: Vec<&str> = parser
            .get_subcommands()
            .filter(|one| !one.is_hide_set())
            .map(Command::get_name)
            .filter(|name| *name != "help")
            .collect();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        grouped.sort_unstable();
        let mut sorted = visible;
        sorted.sort_unstable();
        assert_eq!(grouped, sorted);
    }

    #[test]
    fn the_help_of_vtax_fits_on_a_screen() {
        let help = parser().render_help().to_string();
        assert!(help.lines().count() <= 48, "{help}");
        let long: Vec<&str> = help
            .lines()
            .filter(|line| line.chars().count() > 80)
            .collect();
        assert!(long.is_empty(), "{}", long.join("\n"));
    }

    /// What `vtax PATH --help` prints where no terminal has another width.
    fn help_of(path: &str) -> String {
        let words = ["vtax"]
            .into_iter()
            .chain(path.split(' '))
            .chain(["--help"]);
        parser()
            .try_get_matches_from(words)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_text_of_an_option_stands_beside_it_and_has_its_values() {
        for (path, _) in all(&parser()) {
            let help = help_of(&path);
            // An option whose text is on the next line is alone in its line.
            let alone = help.lines().map(str::trim_start);
            let alone = alone.filter(|line| line.starts_with('-') && !line.contains("  "));
            assert_eq!(alone.collect::<String>(), "", "{path}: {help}");
            assert!(!help.contains("ossible values"), "{path}: {help}");
        }
        let top = help_of("top");
        let format =
            "  --format <FORMAT>  The format of the output: text or json [default: text]\n";
        assert!(top.contains(format), "{top}");
        let run = help_of("run");
        for kind in super::super::values::platforms() {
            assert!(run.contains(kind), "{kind}");
        }
        assert!(help_of("compare").contains("text, json, md, csv or bencher"));
        let report = "Write report.html of a run or recording, and print its table\n\nThe figures ";
        assert!(help_of("report").starts_with(report));
    }

    #[test]
    fn the_options_of_charging_are_a_short_group_in_every_command_and_have_a_topic() {
        let (_, topic) = TOPICS.iter().find(|(name, _)| *name == "charging").unwrap();
        let parser = parser();
        let has = |command: &Command| {
            let mut options = command.get_arguments();
            options.any(|one| one.get_long() == Some("idle-watts"))
        };
        let commands = all(&parser).into_iter().filter(|(_, one)| has(one));
        let paths: Vec<String> = commands.map(|(path, _)| path).collect();
        assert_eq!(paths.len(), 6, "{paths:?}");
        for path in paths {
            let help = help_of(&path);
            let (_, group) = help.split_once("\nCharging:\n").unwrap();
            let lines = group.lines().take_while(|line| !line.is_empty()).count();
            assert!(
                lines <= 6 && group.contains("vtax help charging"),
                "{path}: {help}"
            );
            for option in ["--method", "--weights", "--idle ", "--idle-watts"] {
                assert!(group.contains(option) && topic.contains(option), "{option}");
            }
        }
    }

    #[test]
    fn every_command_has_two_examples_that_the_parser_accepts() {
        let parser = parser();
        let all = all(&parser);
        let with: BTreeSet<&str> = EXAMPLES.iter().map(|(path, _)| *path).collect();
        let without: Vec<&String> = all
            .iter()
            .filter(|(path, one)| {
                let is_group = one.is_subcommand_required_set() && one.has_subcommands();
                let is_listed = is_group || with.contains(path.as_str());
                path != "help" && !(is_listed && one.get_after_help().is_some())
            })
            .map(|(path, _)| path)
            .collect();
        assert_eq!(
            with.len(),
            EXAMPLES.len(),
            "a command is twice in the table"
        );
        assert!(without.is_empty(), "without examples: {without:?}");
        for (path, examples) in EXAMPLES {
            assert!(
                all.iter().any(|(known, _)| known == path),
                "no command {path}"
            );
            for (line, effect) in examples {
                assert!(
                    line.starts_with(
                        &format!("vtax {path}")
                            .split(" ctl ")
                            .next()
                            .unwrap()
                            .to_owned()
                    ),
                    "{line}"
                );
                assert!(!effect.is_empty() && line.len() <= 100, "{line}");
                let words = words(line);
                let parsed = super::parser().try_get_matches_from(&words);
                let parsed = parsed.and_then(|found| Cli::from_arg_matches(&found));
                assert!(parsed.is_ok(), "{line}: {}", parsed.err().unwrap());
            }
        }
    }

    /// The words of a line of shell, without its redirections.
    fn words(line: &str) -> Vec<String> {
        let line = line
            .split(" > ")
            .next()
            .filter(|_| !line.contains("cpu.per_work >"))
            .unwrap_or(line);
        vtax_load::workload::command::words::split(line).unwrap()
    }
}
