//! Names that nobody can guess, so that nobody has put anything there.

use crate::FileError;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::{OsStr, OsString};

/// A random name is taken once in 2^64 times; more often is somebody else's doing.
const TRIES: u32 = 16;

/// 16 hexadecimal digits of the kernel's random numbers.
pub(crate) fn random() -> Result<String, Errno> {
    let mut bytes = [0_u8; 8];
    // So few bytes come whole.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// `.NAME.partial-RANDOM`, within the 255 bytes that a name may have.
pub(crate) fn partial(name: &OsStr) -> Result<OsString, Errno> {
    let mut hidden = OsString::from(".");
    // A long name is left out: the random end alone is unique.
    if name.len() <= 200 {
        hidden.push(name);
    }
    hidden.push(format!(".partial-{}", random()?));
    Ok(hidden)
}

/// Makes something of a random name: again by another one where something has the name.
pub(crate) fn unguessed<T>(mut make: impl FnMut() -> Result<T, FileError>) -> Result<T, FileError> {
    for _ in 1..TRIES {
        match make() {
            Err(error) if error.already_exists() => {}
            other => return other,
        }
    }
    make()
}
