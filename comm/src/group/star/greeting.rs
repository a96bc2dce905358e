//! The first words of a rank to rank 0, and its answers.
//!
//! | bytes of a greeting | content                                        |
//! |---------------------|------------------------------------------------|
//! | 0..8                | version of this exchange                       |
//! | 8..24               | token of the job                               |
//! | 24..40              | rank, number of ranks, process id, purpose     |
//! | 40..56              | nonce of rank 0, in the greeting of a lifeline |
//! | 56..120             | name of the host, padded with zeros            |
//!
//! Numbers are little-endian. An answer is one byte, followed by rank 0's nonce or by a text with its length.

use std::io::{self, ErrorKind, Read};

use crate::token::Token;

const VERSION: [u8; 8] = *b"ddprank2";
pub(super) const GREETING_LEN: usize = 120;
const HOST_LEN: usize = 64;
/// Longest text of an answer.
const MAX_TEXT: u32 = 1 << 16;

/// Answers of rank 0: it knows the rank, and its nonce follows.
pub(super) const WELCOME: u8 = 1;
/// All ranks have come.
pub(super) const GO: u8 = 2;
/// The job ends; the reason follows.
pub(super) const REFUSED: u8 = 3;
/// Rank 0 belongs to another job; the reason follows.
pub(super) const TURNED_AWAY: u8 = 4;
/// The ranks that are missing follow, as a text.
pub(super) const NOTICE: u8 = 5;

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Collectives,
    Lifeline,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) token: Token,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) pid: u32,
    pub(super) purpose: Purpose,
    pub(super) nonce: Token,
    pub(super) host: String,
}

impl Greeting {
    pub(super) fn encode(&self) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[..8].copy_from_slice(&VERSION);
        bytes[8..24].copy_from_slice(&self.token);
        let numbers = [self.rank as u32, self.world_size as u32, self.pid, self.purpose as u32];
        for (to, number) in bytes[24..40].chunks_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes[40..56].copy_from_slice(&self.nonce);
        let len = self.host.len().min(HOST_LEN);
        bytes[56..56 + len].copy_from_slice(&self.host.as_bytes()[..len]);
        bytes
    }

    /// The greeting, once `bytes` hold all of it.
    ///
    /// # Errors
    /// At the first byte that no rank of any job sends.
    pub(super) fn decode(bytes: &[u8]) -> io::Result<Option<Self>> {
        if bytes.iter().zip(&VERSION).any(|(got, expected)| got != expected) {
            return Err(ErrorKind::InvalidData.into());
        }
        let Ok(bytes) = <&[u8; GREETING_LEN]>::try_from(bytes) else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let token = |at: usize| -> Token { std::array::from_fn(|i| bytes[at + i]) };
        let (rank, world_size) = (word(24) as usize, word(28) as usize);
        let purpose = match word(36) {
            0 => Purpose::Collectives,
            1 => Purpose::Lifeline,
            _ => return Err(ErrorKind::InvalidData.into()),
        };
        if rank >= world_size {
            return Err(ErrorKind::InvalidData.into());
        }
        let host = shown(bytes[56..].split(|&byte| byte == 0).next().unwrap_or_default());
        let (pid, nonce) = (word(32), token(40));
        Ok(Some(Greeting { token: token(8), rank, world_size, pid, purpose, nonce, host }))
    }
}

/// Compares every byte, so that the time does not show where they differ.
pub(super) fn is_same(a: &Token, b: &Token) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// An answer with a text.
pub(super) fn with_text(answer: u8, text: &str) -> Vec<u8> {
    [&[answer], &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The text of an answer.
///
/// # Errors
/// The errors of `from`.
pub(super) fn read_text(from: &mut impl Read) -> io::Result<String> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let mut text = Vec::new();
    from.take(u32::from_le_bytes(len).min(MAX_TEXT).into()).read_to_end(&mut text)?;
    Ok(shown(&text))
}

/// Text of another process, without characters that a terminal obeys.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_read_as_it_was_written_and_junk_is_refused_at_its_first_byte() {
        let greeting = Greeting {
            token: [7; 16],
            rank: 1,
            world_size: 3,
            pid: 9,
            purpose: Purpose::Lifeline,
            nonce: [3; 16],
            host: "node7".to_owned(),
        };
        let bytes = greeting.encode();
        assert_eq!(Greeting::decode(&bytes).unwrap(), Some(greeting.clone()));
        for len in 0..GREETING_LEN {
            assert_eq!(Greeting::decode(&bytes[..len]).unwrap(), None);
        }
        for junk in [&b"GET / HTTP/1.1\r\n"[..], b"d\0", b"ddprank1"] {
            assert!(Greeting::decode(junk).is_err());
        }
        assert!(Greeting::decode(&Greeting { rank: 3, ..greeting }.encode()).is_err());
        assert!(is_same(&[1; 16], &[1; 16]) && !is_same(&[1; 16], &[2; 16]));
    }

    #[test]
    fn texts_obey_no_terminal_and_are_bounded() {
        let answer = with_text(REFUSED, "a\x1b[31mb");
        assert_eq!(read_text(&mut &answer[1..]).unwrap(), "a[31mb");
        let endless = [&u32::MAX.to_le_bytes()[..], &[b'x'; 1 << 17]].concat();
        assert_eq!(read_text(&mut &endless[..]).unwrap().len(), 1 << 16);
    }
}
