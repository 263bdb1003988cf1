// SPDX-License-Identifier: Apache-2.0
//! Cloud Hypervisor's command line. It has no option for the name of a VM; managers (Kata Containers, scripts) give
//! each VM an API socket of its own, and the path of the socket serves as the name.

use super::{Description, Platform, options};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Recognises a Cloud Hypervisor by its `arguments`.
pub(super) fn recognise(arguments: &[Vec<u8>], executable: Option<&[u8]>) -> Option<Description> {
    let is_it = |program: &[u8]| program.starts_with(b"cloud-hypervisor");
    if !is_it(super::base_name(arguments.first()?)) && !executable.is_some_and(is_it) {
        return None;
    }
    let socket =
        options::value(arguments, "api-socket").and_then(|value| options::named(value, "path"));
    let cpus = options::value(arguments, "cpus")
        .and_then(|value| options::named(value, "boot"))
        .and_then(|cpus| std::str::from_utf8(&cpus).ok()?.parse().ok());
    let kata = socket
        .as_ref()
        .is_some_and(|socket| options::contains(socket, b"/vc/vm/"));
    Some(Description {
        platform: Platform::CloudHypervisor,
        manager: kata.then_some("kata"),
        name: socket.as_deref().and_then(name_of_socket),
        cpus,
        ..Description::default()
    })
}

/// `/run/vc/vm/ID/clh-api.sock` is `ID`; `/tmp/web.sock` is `web`.
fn name_of_socket(socket: &[u8]) -> Option<Vec<u8>> {
    let path = Path::new(OsStr::from_bytes(socket));
    let stem = path.file_stem()?.as_bytes();
    let says_nothing = [&b"clh-api"[..], b"api", b"cloud-hypervisor", b"ch", b"vmm"];
    let name = if says_nothing.contains(&stem) {
        path.parent()?.file_name()?.as_bytes()
    } else {
        stem
    };
    Some(name.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_by_its_socket() {
        for (text, name, manager) in [
            ("cloud-hypervisor --api-socket /tmp/web.sock", "web", None),
            (
                "cloud-hypervisor --api-socket path=/run/a/api.sock",
                "a",
                None,
            ),
            (
                "cloud-hypervisor-static --api-socket=/run/b/ch.sock",
                "b",
                None,
            ),
            (
                "/opt/kata/bin/cloud-hypervisor --api-socket /run/vc/vm/4f2a/clh-api.sock",
                "4f2a",
                Some("kata"),
            ),
        ] {
            let line: Vec<Vec<u8>> = text.split(' ').map(|part| part.into()).collect();
            let found = recognise(&line, None).unwrap();
            assert_eq!(found.name.unwrap(), name.as_bytes(), "{text}");
            assert_eq!(found.manager, manager, "{text}");
        }
        let line: Vec<Vec<u8>> = ["cloud-hypervisor", "--cpus", "boot=2,max=4"]
            .map(Into::into)
            .into();
        let found = recognise(&line, None).unwrap();
        assert_eq!((found.name, found.cpus), (None, Some(2)));
    }
}
