//! Tokens: secrets that say what their bearer may do. They are compared by their digests, so that an
//! answer takes the same time however much of a guess is right.

use sha2::{Digest, Sha256};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Shorter ones can be guessed.
const SHORTEST: usize = 16;
/// Of one that is made here.
const BYTES: usize = 24;

/// A secret, of which only digests are kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    token: [u8; 32],
    /// What a browser keeps in the place of the token.
    cookie: String,
}

/// Secrets are not printed.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Of its text.
    pub fn new(text: &str) -> Self {
        Self {
            token: Sha256::digest(text).into(),
            cookie: format!(
                "{:x}",
                Sha256::digest(format!("cookie of vtax web\n{text}"))
            ),
        }
    }

    /// A new one, and its text to tell.
    ///
    /// # Errors
    /// When the kernel gives no random numbers.
    pub fn random() -> io::Result<(Self, String)> {
        let mut bytes = [0; BYTES];
        fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((Self::new(&text), text))
    }

    /// The first line of a file that only its owner can read.
    ///
    /// # Errors
    /// When it cannot be read, others can read it, or it is too short; with the remedy.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |cause: io::Error| {
            format!(
                "cannot read the token in {}: {cause}; this makes one: (umask 077; openssl rand -hex 24 > {0})",
                path.display()
            )
        };
        let mode = fs::metadata(path).map_err(failed)?.mode();
        if mode & 0o077 != 0 {
            return Err(format!(
                "others can read the token in {}: chmod 600 {0}",
                path.display()
            ));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let token = text.lines().next().unwrap_or("").trim();
        if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "the token in {} must be one line of at least {SHORTEST} letters, digits and signs: openssl rand -hex 24 > {0}",
                path.display()
            ));
        }
        Ok(Self::new(token))
    }

    /// Whether this text is the token.
    pub fn is(&self, text: &str) -> bool {
        let other: [u8; 32] = Sha256::digest(text).into();
        other == self.token
    }

    /// Whether a browser got this from [`Token::cookie`].
    pub fn is_cookie(&self, text: &str) -> bool {
        Sha256::digest(text) == Sha256::digest(&self.cookie)
    }

    /// What a browser keeps.
    pub fn cookie(&self) -> &str {
        &self.cookie
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_itself_and_nothing_near() {
        let token = Token::new("correct horse battery staple");
        assert!(token.is("correct horse battery staple"));
        assert!(!token.is("correct horse battery stapl"));
        assert!(!token.is("") && !token.is(token.cookie()));
        assert!(
            token.is_cookie(token.cookie()) && !token.is_cookie("correct horse battery staple")
        );
        let (one, text) = Token::random().unwrap();
        let (other, _) = Token::random().unwrap();
        assert!(one.is(&text) && !other.is(&text));
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Token::read(&path).unwrap_err().contains("openssl rand"));
        fs::write(&path, "0123456789abcdef\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Token::read(&path).unwrap_err().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Token::read(&path).unwrap().is("0123456789abcdef"));
        for weak in ["", "short", "with blanks in it, long enough"] {
            fs::write(&path, weak).unwrap();
            assert!(Token::read(&path).unwrap_err().contains("at least 16"));
        }
    }
}
