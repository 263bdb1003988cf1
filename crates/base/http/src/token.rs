// SPDX-License-Identifier: Apache-2.0
//! Bearer tokens (RFC 6750): read from an operator's file, or generated.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The shortest token in characters: 16 characters of base64 have 96 bits, which cannot be guessed.
const SHORTEST_TOKEN: usize = 16;

/// The most bytes read of a token's file, longer than any token.
const LONGEST_FILE: u64 = 4096;

/// Random bytes of a generated token.
const RANDOM_BYTES: usize = 24;

/// A secret that clients send with each request, as `Authorization: Bearer SECRET` (RFC 6750).
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

/// The reason why a token cannot be used.
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
        /// The kernel's reason.
        cause: io::Error,
    },
    /// The text is no secret, or others can read the file.
    #[error("the token in {}: {why}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The remedy.
        why: &'static str,
    },
}

impl Token {
    /// Reads a token: the whole text of a file that only its owner, or a group, may read.
    ///
    /// # Errors
    /// When the file cannot be read, every user may read it, or the text is no secret.
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
        file.take(LONGEST_FILE)
            .read_to_string(&mut text)
            .map_err(failed)?;
        let text = text.trim();
        if mode & 0o007 != 0 {
            return unfit("every user of this host may read or write it: chmod o= it");
        }
        if text.len() < SHORTEST_TOKEN {
            return unfit("it has fewer than 16 characters: openssl rand -hex 24 makes one");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return unfit("it is one word of printable ASCII characters, and nothing else");
        }
        Ok(Self::from_text(text))
    }

    /// The token of a text that the caller has checked.
    pub fn from_text(text: &str) -> Self {
        Self(text.into())
    }

    /// Generates a token; also returns its text.
    ///
    /// # Errors
    /// When the kernel provides no random numbers.
    pub fn random() -> io::Result<(Self, String)> {
        let mut bytes = [0; RANDOM_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Self::from_text(&text), text))
    }

    /// The `Authorization` header with the token.
    #[must_use]
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// A secret derived from the token for one purpose. It reveals neither the token nor the secrets of other purposes.
    #[must_use]
    pub fn derived(&self, purpose: &str) -> String {
        format!("{:x}", Sha256::digest(format!("{purpose}\n{}", self.0)))
    }

    /// Whether a text is the token, compared in constant time.
    pub fn is(&self, text: &str) -> bool {
        is_same(&self.0, text)
    }

    /// Whether a text is the derived secret of a purpose.
    pub fn is_derived(&self, purpose: &str, text: &str) -> bool {
        is_same(&self.derived(purpose), text)
    }

    /// Whether an `Authorization` header has the token.
    pub(crate) fn is_in(&self, authorization: &str) -> bool {
        let (scheme, secret) = authorization.split_once(' ').unwrap_or_default();
        self.is(secret.trim()) && scheme.eq_ignore_ascii_case("bearer")
    }
}

/// Compares two secrets in a time that depends on their lengths only.
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
        assert!(one.is(&text) && !other.is(&text) && one == Token::from_text(&text));
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
