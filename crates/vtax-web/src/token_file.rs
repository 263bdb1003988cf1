//! The operator's token in a file of its own, where what the page says may be read by others: the journal of a service
//! is read by the group `adm`.

use crate::WebError;
use std::path::{Path, PathBuf};
use vtax_files::Dir;

/// The file of a token that was made for one page; it is removed with it.
#[derive(Debug)]
pub struct TokenFile {
    dir: Dir,
    name: String,
}

impl TokenFile {
    /// Writes the token of the page on this port below the directory of vtax's state, for this user alone.
    ///
    /// # Errors
    /// When there is no such directory of this user's, or the disk does not take it.
    pub fn write(state: &Path, port: u16, token: &str) -> Result<Self, WebError> {
        let name = format!("web-{port}.token");
        let written = Dir::private(state).and_then(|dir| {
            dir.write(&name, format!("{token}\n").as_bytes())?;
            Ok(dir)
        });
        match written {
            Ok(dir) => Ok(Self { dir, name }),
            Err(error) => Err(WebError::Listener(format!(
                "cannot keep the operator's token: {error}; give one with --token FILE, or --watch-only"
            ))),
        }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // One that stays is of a page that is gone: it opens nothing.
        let _ = self.dir.remove_file(&self.name);
    }
}

#[cfg(test)]
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
