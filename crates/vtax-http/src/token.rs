//! Who may ask from other hosts: whoever sends a secret that the operator wrote down.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Fewer characters can be guessed: 16 of base64 have 96 bits.
const SHORTEST: usize = 16;

/// More than any secret has.
const LONGEST: u64 = 4096;

/// A secret that clients send with each request, as `Authorization: Bearer SECRET` (RFC 6750).
#[derive(Clone)]
pub struct Token(Box<str>);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token in {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// It is no secret.
    #[error("the token in {}: {why}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What to change.
        why: &'static str,
    },
}

impl Token {
    /// Reads a token, which is all of a file that its owner alone may read.
    ///
    /// # Errors
    /// When the file cannot be read, others may read it, or it holds no secret.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |cause| TokenError::Read {
            path: path.to_owned(),
            cause,
        };
        let unfit = |why| {
            Err(TokenError::Unfit {
                path: path.to_owned(),
                why,
            })
        };
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        let mut text = String::new();
        file.take(LONGEST)
            .read_to_string(&mut text)
            .map_err(failed)?;
        let text = text.trim();
        if mode & 0o007 != 0 {
            return unfit("every user of this host may read or write it: chmod o= it");
        }
        if text.len() < SHORTEST {
            return unfit("it has fewer than 16 characters: head -c 24 /dev/urandom | base64");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return unfit("it is one word of printable ASCII characters, and nothing else");
        }
        Ok(Self(text.into()))
    }

    /// Whether an `Authorization` header holds it. Takes as long for a wrong one as for the right one.
    pub(crate) fn is_in(&self, authorization: &str) -> bool {
        let (scheme, secret) = authorization.split_once(' ').unwrap_or_default();
        let (secret, own) = (secret.trim().as_bytes(), self.0.as_bytes());
        let differences = own.iter().enumerate().fold(0, |sum, (at, byte)| {
            sum | (byte ^ secret.get(at).copied().unwrap_or(!byte))
        });
        let is_it = std::hint::black_box(differences) == 0 && secret.len() == own.len();
        is_it && scheme.eq_ignore_ascii_case("bearer")
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    fn token(text: &str, mode: u32) -> Result<Token, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Token::read(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn only_the_whole_token_is_it() {
        let token = token("0123456789abcdef\n", 0o600).unwrap();
        assert!(token.is_in("Bearer 0123456789abcdef"));
        assert!(token.is_in("bearer  0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeff",
            "Bearer 1123456789abcdef",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert!(!token.is_in(wrong), "{wrong:?}");
        }
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_token_that_others_know_or_can_guess_is_none() {
        for (text, mode, why) in [
            ("0123456789abcdef", 0o644, "every user"),
            ("0123456789abcdef", 0o602, "every user"),
            ("", 0o600, "fewer than 16"),
            ("0123456789abcde", 0o600, "fewer than 16"),
            ("0123456789 abcdef", 0o600, "one word"),
        ] {
            let refused = token(text, mode).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        assert!(
            token("0123456789abcdef", 0o640).is_ok(),
            "a group is chosen"
        );
        let missing = Token::read(Path::new("/nowhere/token")).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/token"));
    }
}
