//! Reading files of results, which others may have written, without taking more memory than they deserve.

use super::ResultsError;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// When it cannot be read, is no regular file, or is longer.
pub(super) fn read(path: &Path, most: u64) -> Result<Vec<u8>, ResultsError> {
    let failed = |cause| ResultsError::io("read", path)(cause);
    // Before it is opened: the opening of a pipe waits for its writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    // `most` bounds what was read, whatever the file's length says.
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
        return Err(ResultsError::TooLong {
            path: path.to_owned(),
            most,
        });
    }
    Ok(bytes)
}
