//! Where a plan runs: on this host, or on another one through the system's ssh.

mod ssh;

pub use ssh::{Line, SshRun, run_over_ssh};

use std::fmt;
use std::str::FromStr;

/// A place, as `--at` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This host.
    Local,
    /// Another host, as ssh understands the name.
    Ssh(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Ssh(host) => write!(f, "ssh:{host}"),
        }
    }
}

impl FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "local" => Ok(Self::Local),
            // A name that starts with a dash would be an option to ssh.
            Some(("ssh", host)) if !host.is_empty() && !host.starts_with('-') => {
                Ok(Self::Ssh(host.to_owned()))
            }
            _ => Err(format!(
                "`{text}` is not a place: write `local` or `ssh:HOST`"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_local_or_ssh_and_no_host_is_an_option() {
        assert_eq!("local".parse(), Ok(Place::Local));
        assert_eq!("ssh:root@h2".parse(), Ok(Place::Ssh("root@h2".into())));
        for bad in ["", "ssh:", "ssh", "ssh:-oProxyCommand=x", "moon:x"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}
