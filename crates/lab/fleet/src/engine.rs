// SPDX-License-Identifier: Apache-2.0
//! The engine that starts the shards, as the argument of `--fleet`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// A Slurm cluster whose nodes share a file system with this machine.
    Slurm {
        /// The partition; the cluster's default without it.
        partition: Option<String>,
    },
    /// The machines of a file, through ssh.
    Ssh(PathBuf),
    /// A Kubernetes cluster.
    Kubernetes,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slurm { partition: None } => f.write_str("slurm"),
            Self::Slurm {
                partition: Some(partition),
            } => write!(f, "slurm:{partition}"),
            Self::Ssh(file) => write!(f, "ssh:{}", file.display()),
            Self::Kubernetes => f.write_str("kubernetes"),
        }
    }
}

/// A text that names no engine.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no engine: write `slurm`, `slurm:PARTITION`, `ssh:HOSTS.txt` or `kubernetes`")]
pub struct EngineError(String);

impl FromStr for Engine {
    type Err = EngineError;
    fn from_str(text: &str) -> Result<Self, EngineError> {
        let plain = |name: &str| {
            let ok = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && !name.starts_with('-') && name.chars().all(ok)
        };
        match text.split_once(':') {
            None if text == "slurm" => Ok(Self::Slurm { partition: None }),
            None if text == "kubernetes" => Ok(Self::Kubernetes),
            Some(("slurm", partition)) if plain(partition) => Ok(Self::Slurm {
                partition: Some(partition.to_owned()),
            }),
            Some(("ssh", file)) if !file.is_empty() => Ok(Self::Ssh(PathBuf::from(file))),
            _ => Err(EngineError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_slurm_ssh_or_kubernetes_and_no_partition_is_an_option() {
        for text in ["slurm", "slurm:main", "ssh:hosts.txt", "kubernetes"] {
            assert_eq!(
                text.parse::<Engine>().map(|engine| engine.to_string()),
                Ok(text.to_owned())
            );
        }
        for bad in [
            "",
            "slurm:",
            "slurm:-x",
            "slurm:a b",
            "ssh:",
            "ssh",
            "kubernetes:x",
            "nomad",
        ] {
            assert!(bad.parse::<Engine>().is_err(), "{bad}");
        }
    }
}
