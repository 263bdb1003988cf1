// SPDX-License-Identifier: Apache-2.0
//! What an unpacked image lacks: device nodes, and owners that the user namespace of an ordinary user has no id for.

use vtax_host::untrusted::tar::Entry;

/// The bits by which a program gets the rights of its owner or its group.
const SET_ID: u32 = 0o6000;

/// The number of entries of each kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    /// Device nodes, which are left out.
    pub devices: u64,
    /// Files, directories and links with another owner or group, which belong to root instead.
    pub owners: u64,
}

impl Lost {
    /// Gives an entry to root where `has_id` has no id for its owner or its group. A program does not get root's rights
    /// by that.
    pub fn fit(&mut self, entry: &mut Entry, has_id: impl Fn(u32) -> bool) {
        let lacks = [entry.uid, entry.gid].map(|id| !has_id(id));
        for (id, lacks) in [&mut entry.uid, &mut entry.gid].into_iter().zip(lacks) {
            if lacks {
                *id = 0;
            }
        }
        if lacks.contains(&true) {
            entry.mode &= !SET_ID;
            entry.capability = None;
            self.owners += 1;
        }
    }

    /// Adds those of a further archive.
    pub fn add(&mut self, further: Self) {
        self.devices += further.devices;
        self.owners += further.owners;
    }

    /// The messages about them.
    pub fn lines(self) -> Vec<String> {
        let Self { devices, owners } = self;
        let devices =
            (devices > 0).then(|| format!("left out {devices} device nodes of the image"));
        let owners = (owners > 0).then(|| {
            format!(
                "{owners} files of the image belong to root instead of their owners, which have no id here; a range of ids \
                 (newuidmap) keeps them"
            )
        });
        devices.into_iter().chain(owners).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::untrusted::tar::Kind;

    #[test]
    fn an_owner_without_an_id_is_replaced_by_root_without_root_s_rights() {
        let entry = |uid, gid| Entry {
            name: "bin/program".into(),
            kind: Kind::File,
            mode: 0o6755,
            uid,
            gid,
            mtime: 0,
            size: 0,
            capability: Some(vec![1]),
        };
        let mut lost = Lost::default();
        let mut of_web = entry(33, 0);
        lost.fit(&mut of_web, |id| id == 0);
        let replaced = Entry {
            mode: 0o755,
            capability: None,
            ..entry(0, 0)
        };
        assert_eq!(of_web, replaced);
        let mut of_root = entry(0, 0);
        lost.fit(&mut of_root, |id| id == 0);
        assert_eq!(of_root, entry(0, 0));
        let mut of_range = entry(65_536, 65_537);
        lost.fit(&mut of_range, |id| id < 65_537);
        assert_eq!((of_range.uid, of_range.gid), (65_536, 0));
        assert_eq!(lost.owners, 2);
        assert_eq!(lost.lines().len(), 1);
    }
}
