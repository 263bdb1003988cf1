// SPDX-License-Identifier: Apache-2.0
//! The device's configuration space (virtio 1.3, 5.1.4), which front ends that are not specific to NICs read from the
//! back end.

use crate::features::Features;
use crate::frame::Mac;

/// Bytes of the fields up to `supported_hash_types`. Fields of features that are not offered are 0.
const FIELDS: usize = 24;

/// The end of what a front end may read. Bytes behind the fields are 0: some front ends read a size of their own.
const END: u32 = 4096;

/// The bit of the field `status` for a link that is up.
const LINK_UP: u16 = 1;

/// Bytes of the address, which is the first field.
const MAC: usize = size_of::<Mac>();

/// The values of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigSpace {
    /// The guest's address, if the operator gives one.
    pub mac: Option<Mac>,
    /// The MTU, if the operator gives one.
    pub mtu: Option<u16>,
    /// Whether the link is up.
    pub link_up: bool,
    /// The number of queue pairs.
    pub pairs: u8,
}

/// Why a range or a write is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigSpaceError {
    /// The range does not end within the space.
    #[error("a range of the device's configuration ends after its 4,096 bytes")]
    Range,
    /// A field is read-only.
    #[error("a write to the device's configuration changes a field that is read-only")]
    ReadOnly,
}

impl ConfigSpace {
    /// The features whose fields have values.
    pub fn features(&self) -> Features {
        let mut features = Features::STATUS.with(Features::MQ);
        if self.mac.is_some() {
            features = features.with(Features::MAC);
        }
        if self.mtu.is_some() {
            features = features.with(Features::MTU);
        }
        features
    }

    fn fields(&self) -> [u8; FIELDS] {
        let mut bytes = [0; FIELDS];
        let status = if self.link_up { LINK_UP } else { 0 };
        let words = [status, u16::from(self.pairs), self.mtu.unwrap_or(0)];
        bytes[..MAC].copy_from_slice(&self.mac.unwrap_or_default());
        for (field, word) in bytes[MAC..].chunks_exact_mut(2).zip(words) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads `size` bytes from `offset` on.
    ///
    /// # Errors
    /// [`ConfigSpaceError::Range`].
    pub fn read(&self, offset: u32, size: u32) -> Result<Vec<u8>, ConfigSpaceError> {
        if offset.checked_add(size).is_none_or(|end| end > END) {
            return Err(ConfigSpaceError::Range);
        }
        let fields = self.fields();
        let at = |index: u32| fields.get(index as usize).copied().unwrap_or(0);
        Ok((offset..offset + size).map(at).collect())
    }

    /// Writes bytes from `offset` on. All fields are read-only, but for the address with a legacy driver that cannot set
    /// it on the control queue. A write of the values that are there is none.
    ///
    /// # Errors
    /// When the range is not in the space, or a field changes that is read-only. Then nothing has changed.
    pub fn write(
        &mut self,
        offset: u32,
        bytes: &[u8],
        features: Features,
    ) -> Result<(), ConfigSpaceError> {
        let size = u32::try_from(bytes.len()).map_err(|_| ConfigSpaceError::Range)?;
        let present = self.read(offset, size)?;
        let modern = Features::VERSION_1.with(Features::CTRL_MAC_ADDR);
        let writable = if features.within(modern) == Features::default() {
            MAC
        } else {
            0
        };
        let changed = |(index, (old, new)): &(usize, (&u8, &u8))| old != new && *index >= writable;
        if (offset as usize..)
            .zip(present.iter().zip(bytes))
            .any(|byte| changed(&byte))
        {
            return Err(ConfigSpaceError::ReadOnly);
        }
        if present != bytes {
            let mut mac = self.mac.unwrap_or_default();
            for (byte, new) in mac.iter_mut().skip(offset as usize).zip(bytes) {
                *byte = *new;
            }
            self.mac = Some(mac);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPACE: ConfigSpace = ConfigSpace {
        mac: Some([0x52, 0x54, 0, 1, 2, 3]),
        mtu: Some(1500),
        link_up: true,
        pairs: 4,
    };

    #[test]
    fn fields_are_where_the_standard_has_them() {
        let bytes = SPACE.read(0, 24).unwrap();
        assert_eq!(bytes[..6], [0x52, 0x54, 0, 1, 2, 3]);
        assert_eq!(bytes[6..12], [1, 0, 4, 0, 0xdc, 5]);
        assert_eq!(bytes[12..], [0; 12]);
        assert_eq!(SPACE.read(8, 2).unwrap(), [4, 0]);
        let down = ConfigSpace {
            link_up: false,
            ..SPACE
        };
        assert_eq!(down.read(6, 1).unwrap(), [0]);
        let without = ConfigSpace {
            mac: None,
            mtu: None,
            ..SPACE
        };
        assert_eq!(
            without.features(),
            Features::STATUS.with(Features::MQ),
            "no feature without a value"
        );
    }

    #[test]
    fn a_range_ends_within_the_space() {
        assert_eq!(SPACE.read(20, 236).unwrap(), [0; 236]);
        assert_eq!(SPACE.read(4_095, 1).unwrap(), [0]);
        for (offset, size) in [(4_095, 2), (4_096, 1), (u32::MAX, 1), (1, u32::MAX)] {
            assert_eq!(SPACE.read(offset, size), Err(ConfigSpaceError::Range));
        }
        let mut space = SPACE;
        let write = space.write(4_090, &[0; 8], Features::default());
        assert_eq!(write, Err(ConfigSpaceError::Range));
    }

    #[test]
    fn only_a_legacy_driver_sets_its_address() {
        for features in [
            Features::VERSION_1,
            Features::CTRL_MAC_ADDR,
            Features::OFFERED,
        ] {
            let mut space = SPACE;
            let write = space.write(0, &[2, 0, 0, 0, 0, 9], features);
            assert_eq!(write, Err(ConfigSpaceError::ReadOnly), "{features:?}");
            assert_eq!(space, SPACE);
            space.write(0, &SPACE.fields(), features).unwrap();
        }
        let mut space = SPACE;
        space.write(4, &[8, 9], Features::CSUM).unwrap();
        assert_eq!(space.mac, Some([0x52, 0x54, 0, 1, 8, 9]));
        let beyond = space.write(4, &[1, 1, 0], Features::CSUM);
        assert_eq!(beyond, Err(ConfigSpaceError::ReadOnly), "the status");
        assert_eq!(space.mac, Some([0x52, 0x54, 0, 1, 8, 9]));
    }

    proptest! {
        #[test]
        fn a_write_that_is_taken_is_read_back(
            offset in 0..40_u32, bytes in proptest::collection::vec(any::<u8>(), 0..12), features: u64,
        ) {
            let mut space = SPACE;
            let size = u32::try_from(bytes.len()).unwrap();
            match space.write(offset, &bytes, Features(features)) {
                Ok(()) => prop_assert_eq!(space.read(offset, size).unwrap(), bytes),
                Err(_) => prop_assert_eq!(space, SPACE),
            }
        }
    }
}
