// SPDX-License-Identifier: Apache-2.0
//! The words of the command line.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The words of this process's command line.
pub fn words() -> Vec<OsString> {
    of_links(std::env::args_os().collect())
}

/// The words with the command that a link to vtax names: `vtax-nic ctl` is `vtax nic ctl`, and `vtax-mvm` is `vtax mvm`.
fn of_links(mut words: Vec<OsString>) -> Vec<OsString> {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    let command = match name.and_then(OsStr::to_str) {
        Some("vtax-nic") => "nic",
        Some("vtax-mvm") => "mvm",
        _ => return words,
    };
    // The usage lines of the help begin with the first word.
    words.splice(..1, ["vtax".into(), command.into()]);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_vtax_is_the_command_that_its_name_has() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        for (given, meant) in [
            ("/usr/bin/vtax-nic ctl list", "vtax nic ctl list"),
            ("vtax-mvm run", "vtax mvm run"),
            ("target/debug/vtax nic top", "target/debug/vtax nic top"),
        ] {
            assert_eq!(of_links(words(given)), words(meant));
        }
    }
}
