// SPDX-License-Identifier: Apache-2.0
//! The operator's token in a file, for servers whose standard error others may read: the group `adm` reads the journal.

use crate::error::WebError;
use std::path::{Path, PathBuf};
use vtax_files::Dir;

/// The file of one server's token; it is removed on drop.
#[derive(Debug)]
pub struct TokenFile {
    dir: Dir,
    name: String,
}

impl TokenFile {
    /// Writes the token of the server on this port into the directory of vtax's state, readable by this user alone.
    ///
    /// # Errors
    /// When the directory belongs to another user, or the file cannot be written.
    pub fn write(state: &Path, port: u16, token: &str) -> Result<Self, WebError> {
        let name = format!("web-{port}.token");
        let written = Dir::private(state).and_then(|dir| {
            dir.write(&name, format!("{token}\n").as_bytes())?;
            Ok(dir)
        });
        let dir = written.map_err(WebError::TokenFile)?;
        Ok(Self { dir, name })
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // A file that cannot be removed holds a token that is no longer valid.
        let _ = self.dir.remove_file(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_written_down_is_its_users_alone_and_goes_with_the_page() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let file = TokenFile::write(&state, 7, "0123456789abcdef").unwrap();
        let path = file.path();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            vtax_http::Token::read(&path)
                .unwrap()
                .is("0123456789abcdef")
        );
        drop(file);
        assert!(!path.exists());
    }
}
