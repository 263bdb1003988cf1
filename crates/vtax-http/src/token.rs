//! Tokens: secrets that say what their bearer may do. The operator writes one down, or one is made.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Fewer characters can be guessed: 16 of base64 have 96 bits.
const SHORTEST: usize = 16;

/// More than any secret has.
const LONGEST: u64 = 4096;

/// Of one that is made here.
const BYTES: usize = 24;

/// A secret that clients send with each request, as `Authorization: Bearer SECRET` (RFC 6750).
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error(
        "cannot read the token in {0}: {cause}; this makes one: (umask 077; openssl rand -hex 24 > {0})",
        path.display()
    )]
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
            return unfit("it has fewer than 16 characters: openssl rand -hex 24 makes one");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return unfit("it is one word of printable ASCII characters, and nothing else");
        }
        Ok(Self::of(text))
    }

    /// The one of this text, which whoever calls found good enough.
    pub fn of(text: &str) -> Self {
        Self(text.into())
    }

    /// A new one, and its text to tell.
    ///
    /// # Errors
    /// When the kernel gives no random numbers.
    pub fn random() -> io::Result<(Self, String)> {
        let mut bytes = [0; BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Self::of(&text), text))
    }

    /// The `Authorization` header that shows it to a server.
    #[must_use]
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// A secret that stands for this one in one use, and tells nothing of it or of other uses.
    #[must_use]
    pub fn derived(&self, purpose: &str) -> String {
        format!("{:x}", Sha256::digest(format!("{purpose}\n{}", self.0)))
    }

    /// Whether this text is the token. Takes as long for a wrong one as for the right one.
    pub fn is(&self, text: &str) -> bool {
        is_same(&self.0, text)
    }

    /// Whether this text is the secret that stands for the token in one use.
    pub fn is_derived(&self, purpose: &str, text: &str) -> bool {
        is_same(&self.derived(purpose), text)
    }

    /// Whether an `Authorization` header holds it.
    pub(crate) fn is_in(&self, authorization: &str) -> bool {
        let (scheme, secret) = authorization.split_once(' ').unwrap_or_default();
        self.is(secret.trim()) && scheme.eq_ignore_ascii_case("bearer")
    }
}

/// Compares all of two secrets, wherever they differ first.
fn is_same(own: &str, shown: &str) -> bool {
    let (own, shown) = (own.as_bytes(), shown.as_bytes());
    let differences = own.iter().enumerate().fold(0, |sum, (at, byte)| {
        sum | (byte ^ shown.get(at).copied().unwrap_or(!byte))
    });
    std::hint::black_box(differences) == 0 && shown.len() == own.len()
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
    fn what_stands_for_a_token_in_one_use_is_neither_it_nor_good_for_another() {
        let (one, text) = Token::random().unwrap();
        let (other, _) = Token::random().unwrap();
        assert!(one.is(&text) && !other.is(&text) && one == Token::of(&text));
        let cookie = one.derived("cookie");
        assert!(one.is_derived("cookie", &cookie));
        assert!(!one.is(&cookie) && !one.is_derived("key", &cookie));
        assert!(!other.is_derived("cookie", &cookie) && !one.is_derived("cookie", ""));
        assert!(!cookie.contains(&text));
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
        assert!(
            missing
                .to_string()
                .contains("openssl rand -hex 24 > /nowhere/token")
        );
    }
}
