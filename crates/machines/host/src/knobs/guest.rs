// SPDX-License-Identifier: Apache-2.0
//! How a setting of a guest's kernel is set and read: shell lines that run in the guest, or in its network namespace, and
//! the readings in their output.

use crate::HostError;
use crate::settings::Level;
use serde_json::Value;

/// The network device of every guest that vtax boots.
const DEVICE: &str = "eth0";

/// The program that sets and reads the settings of NAPI instances which have no file.
const NAPI: &str = include_str!("napi.pl");

/// A setting of a guest's kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GuestSetting {
    /// A file of the network device below `/sys/class/net`.
    DeviceFile(&'static str),
    /// Files below `/proc/sys`, all with the same value.
    Sysctls(&'static [&'static str]),
    /// An offload of the network device, by its names for `ethtool -K` and in `ethtool -k`.
    Feature(&'static str, &'static str),
    /// Words of an `ethtool` option that sets them, and of the one that shows them.
    Words {
        /// The option that sets.
        set: &'static str,
        /// The option that shows.
        show: &'static str,
        /// The words that can be set.
        words: &'static [&'static str],
    },
    /// The IRQ suspension of all NAPI instances of the device, over netlink.
    IrqSuspension,
}

impl GuestSetting {
    /// The shell lines that set a level and then print the reading of it.
    ///
    /// # Errors
    /// When the level is no value of the setting.
    pub fn script(&self, key: &str, level: &Level) -> Result<String, HostError> {
        let read = self.reading_script();
        let value = self.wanted(key, level)?;
        let set = match self {
            Self::DeviceFile(file) => assigned(&device_file(file), &value),
            Self::Sysctls(files) => {
                let lines = files.iter().map(|file| assigned(&sysctl(file), &value));
                lines.collect()
            }
            Self::Feature(short, _) => format!("ethtool -K {DEVICE} {short} {value}\n"),
            // `ethtool` fails where each value is in force already.
            Self::Words { set, .. } => {
                format!("ethtool {set} {DEVICE} {value} || [ $? -eq 80 ]\n")
            }
            Self::IrqSuspension => napi(&value),
        };
        Ok(set + &read)
    }

    /// The shell lines that print the reading.
    pub fn reading_script(&self) -> String {
        match self {
            Self::DeviceFile(file) => format!("cat {}\n", device_file(file)),
            Self::Sysctls(files) => {
                let paths: Vec<String> = files.iter().map(|file| sysctl(file)).collect();
                format!("cat {}\n", paths.join(" "))
            }
            Self::Feature(..) => format!("ethtool --json -k {DEVICE}\n"),
            Self::Words { show, .. } => format!("ethtool {show} {DEVICE}\n"),
            Self::IrqSuspension => napi(""),
        }
    }

    /// The reading of a level in force, in the form of [`GuestSetting::reading`].
    ///
    /// # Errors
    /// When the level is no value of the setting.
    pub fn wanted(&self, key: &str, level: &Level) -> Result<String, HostError> {
        let Self::Words { words, .. } = self else {
            return Ok(level.to_string());
        };
        let wrong = |what: String| {
            let example = words.iter().map(|word| format!("{word} N"));
            HostError::Setting(format!(
                "{key} = \"{level}\": {what}; it takes pairs of a word and a value, of: {}",
                example.collect::<Vec<_>>().join(", ")
            ))
        };
        let text = level.to_string();
        let pairs = pairs(&text).ok_or_else(|| wrong("a word has no value".to_owned()))?;
        for (word, value) in &pairs {
            if !words.contains(word) {
                return Err(wrong(format!("`{word}` is not known")));
            }
            let fits = if word.starts_with("adaptive") {
                ["on", "off"].contains(value)
            } else {
                value.parse::<u32>().is_ok()
            };
            if !fits {
                return Err(wrong(format!("`{value}` is no value of `{word}`")));
            }
        }
        let shown = pairs.iter().map(|(word, value)| format!("{word} {value}"));
        Ok(shown.collect::<Vec<_>>().join(" "))
    }

    /// The reading in the output of the reading's script: of the words of `level` alone. `None` where it has none.
    pub fn reading(&self, level: &Level, output: &str) -> Option<String> {
        match self {
            Self::DeviceFile(_) | Self::Sysctls(_) | Self::IrqSuspension => {
                let mut values: Vec<&str> = output.split_whitespace().collect();
                values.dedup();
                (!values.is_empty()).then(|| values.join(" "))
            }
            Self::Feature(_, name) => {
                let is_active = device(output)?.get(name)?.get("active")?.as_bool()?;
                Some(Level::Bool(is_active).to_string())
            }
            Self::Words { .. } => {
                let text = level.to_string();
                let shown = |word: &str| Some(format!("{word} {}", shown(output, word)?));
                let readings = pairs(&text)?.into_iter().map(|(word, _)| shown(word));
                Some(readings.collect::<Option<Vec<_>>>()?.join(" "))
            }
        }
    }
}

/// The words and values of an `ethtool` option; `None` where a word has no value, or there is none.
fn pairs(text: &str) -> Option<Vec<(&str, &str)>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.chunks(2).map(|pair| match pair {
        [word, value] => Some((*word, *value)),
        _ => None,
    });
    let pairs = pairs.collect::<Option<Vec<_>>>()?;
    (!pairs.is_empty()).then_some(pairs)
}

/// The value of a word in the output of `ethtool -c` or `ethtool -g`, which older ones have in no other form.
fn shown<'a>(output: &'a str, word: &str) -> Option<&'a str> {
    if let Some(direction) = word.strip_prefix("adaptive-") {
        // `Adaptive RX: off  TX: off`
        let line = output
            .lines()
            .find_map(|line| line.strip_prefix("Adaptive "))?;
        let mut words = line.split_whitespace();
        words.find(|word| word.trim_end_matches(':').eq_ignore_ascii_case(direction))?;
        return words.next();
    }
    // `ethtool -g` lists the maxima of the rings first.
    let current = output.split_once("Current hardware settings:");
    let lines = current.map_or(output, |(_, current)| current).lines();
    let mut values = lines.filter_map(|line| line.split_once(':'));
    let (_, value) = values.find(|(name, _)| name.trim().eq_ignore_ascii_case(word))?;
    Some(value.trim())
}

/// The first device of a JSON output of `ethtool`.
fn device(output: &str) -> Option<Value> {
    let mut all: Value = serde_json::from_str(output).ok()?;
    all.get_mut(0).map(Value::take)
}

fn device_file(name: &str) -> String {
    format!("/sys/class/net/{DEVICE}/{name}")
}

fn sysctl(name: &str) -> String {
    format!("/proc/sys/{name}")
}

/// The shell lines that write a value into a file of the kernel.
fn assigned(path: &str, value: &str) -> String {
    format!(
        "[ -e {path} ] || {{ echo \"Linux $(uname -r) has no {path}\" >&2; exit 1; }}\necho {value} >{path}\n"
    )
}

fn napi(value: &str) -> String {
    format!("perl - {DEVICE} {value} <<'END'\n{NAPI}END\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COALESCE: GuestSetting = GuestSetting::Words {
        set: "-C",
        show: "-c",
        words: &["adaptive-rx", "rx-usecs", "rx-frames"],
    };

    fn text(value: &str) -> Level {
        Level::Text(value.to_owned())
    }

    #[test]
    fn the_words_of_a_level_are_read_from_the_tables_of_ethtool() {
        let output = "Coalesce parameters for eth0:\nAdaptive RX: off  TX: on\nstats-block-usecs:\tn/a\n\nrx-usecs:\t100\n\
                      rx-frames:\t64\n";
        let level = text("rx-usecs  100 adaptive-rx off");
        let wanted = COALESCE.wanted("guest.coalesce", &level).unwrap();
        assert_eq!(wanted, "rx-usecs 100 adaptive-rx off");
        assert_eq!(COALESCE.reading(&level, output), Some(wanted));
        assert_eq!(shown(output, "adaptive-tx"), Some("on"));
        // A driver without the parameter leaves it out.
        assert_eq!(COALESCE.reading(&level, "Adaptive RX: off"), None);
        assert_eq!(COALESCE.reading(&level, "garbage"), None);
        let rings = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t256\nRX Mini:\tn/a\nTX:\t\t256\n\
                     Current hardware settings:\nRX:\t\t128\nRX Mini:\tn/a\nTX:\t\t64\n";
        assert_eq!(
            (shown(rings, "rx"), shown(rings, "tx")),
            (Some("128"), Some("64"))
        );
    }

    #[test]
    fn words_that_ethtool_would_refuse_or_a_shell_would_run_are_refused() {
        for (level, what) in [
            ("rx-usecs", "no value"),
            ("", "no value"),
            ("rx-usec 1", "`rx-usec` is not known"),
            ("rx-usecs $(reboot)", "`$(reboot)` is no value"),
            ("rx-usecs -1", "`-1` is no value"),
            ("adaptive-rx 1", "`1` is no value"),
        ] {
            let error = COALESCE.script("guest.coalesce", &text(level));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(what), "{level}: {error}");
        }
    }

    #[test]
    fn a_feature_is_read_as_active_or_not() {
        let gro = GuestSetting::Feature("gro", "generic-receive-offload");
        let output = r#"[{"ifname":"eth0","generic-receive-offload":{"active":true,"fixed":false,"requested":true}}]"#;
        assert_eq!(gro.reading(&Level::Bool(true), output).unwrap(), "on");
        let script = gro.script("guest.gro", &Level::Bool(false)).unwrap();
        assert_eq!(script, "ethtool -K eth0 gro off\nethtool --json -k eth0\n");
    }

    #[test]
    fn files_with_different_values_have_a_reading_of_their_own() {
        let poll = GuestSetting::Sysctls(&["net/core/busy_poll", "net/core/busy_read"]);
        let level = Level::Integer(50);
        assert_eq!(poll.reading(&level, "50\n50\n").unwrap(), "50");
        assert_eq!(poll.reading(&level, "50\n0\n").unwrap(), "50 0");
        assert_eq!(poll.reading(&level, ""), None);
    }

    #[test]
    fn the_lines_that_set_a_file_run_in_a_shell_and_report_a_kernel_without_it() {
        let missing = GuestSetting::DeviceFile("no_such_knob");
        let script = missing.script("guest.x", &Level::Integer(1)).unwrap();
        let mut shell = std::process::Command::new("sh");
        let output = shell.args(["-ec", &script]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            printed.starts_with("Linux ")
                && printed.contains("has no /sys/class/net/eth0/no_such_knob"),
            "{printed}"
        );
    }
}
