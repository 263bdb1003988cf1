// SPDX-License-Identifier: Apache-2.0
//! Random file names that other users cannot guess and take in advance.

use crate::FileError;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::{OsStr, OsString};

/// A random name collides once in 2^64 times; more collisions are an attack.
const MOST_COLLISIONS: u32 = 16;

/// 16 hexadecimal digits from getrandom(2).
pub(crate) fn random() -> Result<String, Errno> {
    let mut bytes = [0_u8; 8];
    // getrandom(2) never returns fewer bytes for requests of up to 256.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// `.NAME.partial-RANDOM`, within the 255 bytes of a file name.
pub(crate) fn partial(name: &OsStr) -> Result<OsString, Errno> {
    let mut hidden = OsString::from(".");
    // A long name is left out: the random end is unique by itself.
    if name.len() <= 200 {
        hidden.push(name);
    }
    hidden.push(format!(".partial-{}", random()?));
    Ok(hidden)
}

/// Creates a file or directory of a random name, and retries with another name where the name exists.
pub(crate) fn unguessed<T>(mut make: impl FnMut() -> Result<T, FileError>) -> Result<T, FileError> {
    for _ in 1..MOST_COLLISIONS {
        match make() {
            Err(error) if error.already_exists() => {}
            other => return other,
        }
    }
    make()
}
