//! A secret of a job, by which its processes know each other.

use std::fs::File;
use std::io::{self, Read as _};

/// Bytes that nobody can guess.
pub(crate) type Token = [u8; 16];

/// A new token.
///
/// # Errors
/// The system's error.
pub(crate) fn random_token() -> io::Result<Token> {
    let mut token = Token::default();
    File::open("/dev/urandom")?.read_exact(&mut token)?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ() {
        assert_ne!(random_token().unwrap(), random_token().unwrap());
    }
}
