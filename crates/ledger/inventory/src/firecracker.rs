// SPDX-License-Identifier: Apache-2.0
//! Firecracker's command line, with and without its jailer.

use super::{Description, Platform, options};

/// Recognises a Firecracker by its `arguments`.
pub(super) fn recognise(arguments: &[Vec<u8>], executable: Option<&[u8]>) -> Option<Description> {
    let is_it = |program: &[u8]| program == b"firecracker" || program.starts_with(b"firecracker-v");
    if !is_it(super::base_name(arguments.first()?)) && !executable.is_some_and(is_it) {
        return None;
    }
    let id = options::value(arguments, "id").filter(|id| !id.is_empty());
    Some(Description {
        platform: Platform::Firecracker,
        name: id.map(<[u8]>::to_vec),
        ..Description::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_by_its_id() {
        for (text, name) in [
            ("firecracker --id vm7 --api-sock /run/x", Some("vm7")),
            ("/firecracker --id=vm7 --start-time-us 1", Some("vm7")),
            ("firecracker-v1.7.0-x86_64 --api-sock /tmp/f", None),
        ] {
            let line: Vec<Vec<u8>> = text.split(' ').map(|part| part.into()).collect();
            let found = recognise(&line, None).unwrap();
            assert_eq!(found.name.as_deref(), name.map(str::as_bytes), "{text}");
        }
        let jailer: Vec<Vec<u8>> = ["jailer", "--id", "x"].map(Into::into).into();
        assert!(recognise(&jailer, None).is_none());
    }
}
