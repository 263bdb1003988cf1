// SPDX-License-Identifier: Apache-2.0
//! Recognition of vtax's micro VMs: one process runs a population of VMs, which is one guest of the ledger.

use super::{Description, Platform, options};

/// Recognises a population of micro VMs by its `arguments`.
pub(super) fn recognise(arguments: &[Vec<u8>], _: Option<&[u8]>) -> Option<Description> {
    let mut words = arguments.iter().map(Vec::as_slice);
    let runs = match super::base_name(words.next()?) {
        b"vtax-mvm" => words.next()?,
        b"vtax" if words.next()? == b"mvm" => words.next()?,
        _ => return None,
    };
    if !matches!(runs, b"run" | b"shard") {
        return None;
    }
    let image = options::value(arguments, "image").unwrap_or(b"web");
    let count = options::value(arguments, "count").unwrap_or(b"1");
    Some(Description {
        platform: Platform::MicroVm,
        name: Some([super::base_name(image), b" x", count].concat()),
        ..Description::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_population_is_named_by_its_image_and_size() {
        for (text, name) in [
            ("vtax mvm run --image echo --count 500", Some("echo x500")),
            ("/usr/bin/vtax-mvm run", Some("web x1")),
            ("vtax mvm build web", None),
            ("vtax run plan.toml", None),
            ("vtax", None),
        ] {
            let line: Vec<Vec<u8>> = text.split(' ').map(|part| part.into()).collect();
            let found = recognise(&line, None).and_then(|found| found.name);
            assert_eq!(found.as_deref(), name.map(str::as_bytes), "{text}");
        }
    }
}
