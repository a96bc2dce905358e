//! Frames on the watchdog's connections: a fixed header, and a short text in some kinds.
//!
//! | bytes  | content                                              |
//! |--------|------------------------------------------------------|
//! | 0..16  | token of the job, compared before anything else      |
//! | 16     | kind                                                 |
//! | 17     | phase                                                |
//! | 18     | 1 inside a collective, else 0                        |
//! | 20..24 | length of the text after the header                  |
//! | 24..28 | rank that sends                                      |
//! | 32..80 | step, ticks, collectives, buckets, words of the call |
//! | 80..112| name of the device, padded with zeros                |
//!
//! Numbers are little-endian. A frame from the network is untrusted: every field is checked.

use crate::phase::Phase;
use crate::progress::Standing;
use crate::token::Token;

/// Bytes of a header.
pub(super) const HEADER_LEN: usize = 112;
/// Most bytes of a text.
pub(super) const MAX_TEXT: usize = 16 << 10;
/// Bytes of a device's name.
const DEVICE_LEN: usize = 32;

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first frame of a connection, from the rank that connects.
    Hello,
    /// The answer.
    Welcome,
    /// Sent at regular intervals.
    Heartbeat,
    /// The rank ends as it should.
    Goodbye,
    /// The rank ends with the error in the text, and ends the job.
    Failing,
    /// The rank ends with the error in the text, and lets the others save before.
    Withdraws,
    /// The same of a rank that may save, too.
    StopsToSave,
    /// The job ends because of a lost rank; the text says which one.
    Verdict,
    /// The job ends because of a rank that has withdrawn, which reports it; the text says which one.
    Withdrawal,
    /// The answer to it: the last operations of the rank, one per line.
    Operations,
    /// The rank could save the state in the text; no text if it can't.
    Offer,
    /// It should, as the text says.
    Save,
    /// It has, or, without a text, has not. From the rank that reports: all ranks end.
    Saved,
    /// Updates of the rank's GPU are stopped.
    Closed,
    /// Updates of all are: communicators may be aborted.
    Abort,
    /// The rank aborts its communicator without the others.
    AbortsAlone,
}

impl Kind {
    const ALL: [Kind; 16] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Heartbeat,
        Kind::Goodbye,
        Kind::Failing,
        Kind::Withdraws,
        Kind::StopsToSave,
        Kind::Verdict,
        Kind::Withdrawal,
        Kind::Operations,
        Kind::Offer,
        Kind::Save,
        Kind::Saved,
        Kind::Closed,
        Kind::Abort,
        Kind::AbortsAlone,
    ];

    fn has_text(self) -> bool {
        matches!(
            self,
            Kind::Failing
                | Kind::Withdraws
                | Kind::StopsToSave
                | Kind::Verdict
                | Kind::Withdrawal
                | Kind::Operations
                | Kind::Offer
                | Kind::Save
                | Kind::Saved
        )
    }
}

/// A decoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) rank: usize,
    pub(super) standing: Standing,
    pub(super) text: String,
}

/// Bytes that are not a frame of this job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadFrame;

impl Frame {
    pub(super) fn encode(&self, token: &Token) -> Vec<u8> {
        let Standing { phase, step, ticks, n_collectives, n_buckets, call, is_inside, device } =
            &self.standing;
        let text = if self.kind.has_text() { up_to(&self.text, MAX_TEXT) } else { "" };
        let mut bytes = Vec::with_capacity(HEADER_LEN + text.len());
        bytes.extend(token);
        bytes.extend([self.kind as u8, phase.to_code(), u8::from(*is_inside), 0]);
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend((self.rank as u32).to_le_bytes());
        bytes.extend([0; 4]);
        for number in [step, ticks, n_collectives, n_buckets, &call[0], &call[1]] {
            bytes.extend(number.to_le_bytes());
        }
        let mut name = [0; DEVICE_LEN];
        let device = up_to(device, DEVICE_LEN).as_bytes();
        name[..device.len()].copy_from_slice(device);
        bytes.extend(name);
        bytes.extend(text.as_bytes());
        bytes
    }

    /// Decodes the first frame of `bytes` and returns it with its length; `None` if it is not complete yet.
    pub(super) fn decode(
        bytes: &[u8],
        token: &Token,
        world_size: usize,
    ) -> Result<Option<(Self, usize)>, BadFrame> {
        let n_of_token = bytes.len().min(token.len());
        // Every byte is compared, so that the time does not show where they differ.
        let differs = bytes.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b));
        if differs != 0 {
            return Err(BadFrame);
        }
        if n_of_token < token.len() || bytes.len() < HEADER_LEN {
            return Ok(None);
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let number = |index: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[32 + index * 8 + i]));
        let kind = *Kind::ALL.get(usize::from(bytes[16])).ok_or(BadFrame)?;
        let phase = Phase::from_code(bytes[17]).ok_or(BadFrame)?;
        let (text_len, rank) = (word(20) as usize, word(24) as usize);
        let most = if kind.has_text() { MAX_TEXT } else { 0 };
        if text_len > most || rank >= world_size || bytes[18] > 1 {
            return Err(BadFrame);
        }
        let len = HEADER_LEN + text_len;
        if bytes.len() < len {
            return Ok(None);
        }
        let device = bytes[80..HEADER_LEN].split(|&byte| byte == 0).next().unwrap_or_default();
        let standing = Standing {
            phase,
            step: number(0),
            ticks: number(1),
            n_collectives: number(2),
            n_buckets: number(3),
            call: [number(4), number(5)],
            is_inside: bytes[18] == 1,
            device: printable(device),
        };
        Ok(Some((Frame { kind, rank, standing, text: printable(&bytes[HEADER_LEN..len]) }, len)))
    }
}

/// Number of frames at the beginning of what a connection of a world of `world_size` ranks received, and their bytes. For fuzzing.
#[doc(hidden)]
pub fn frames_in(received: &[u8], token: &[u8; 16], world_size: usize) -> (usize, usize) {
    let (mut n_frames, mut n_bytes) = (0, 0);
    while let Ok(Some((_, len))) = Frame::decode(&received[n_bytes..], token, world_size) {
        n_frames += 1;
        n_bytes += len;
    }
    (n_frames, n_bytes)
}

/// The text without control characters, which could rewrite a terminal.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

/// The longest beginning of at most `max` bytes.
fn up_to(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::progress::Progress;

    const TOKEN: Token = *b"0123456789abcdef";

    fn frame(kind: Kind, text: &str) -> Frame {
        let progress = Progress::new();
        progress.set_step(7);
        progress.enter(crate::Call::BARRIER);
        progress.set_device("cuda:3".to_owned());
        Frame { kind, rank: 2, standing: progress.standing(), text: text.to_owned() }
    }

    #[test]
    fn frames_survive_the_wire() {
        for kind in Kind::ALL {
            let sent = frame(kind, if kind.has_text() { "why\nhint: ü" } else { "" });
            let bytes = sent.encode(&TOKEN);
            for len in 0..bytes.len() {
                assert_eq!(Frame::decode(&bytes[..len], &TOKEN, 3), Ok(None), "{len} bytes");
            }
            assert_eq!(Frame::decode(&bytes, &TOKEN, 3), Ok(Some((sent, bytes.len()))));
        }
    }

    #[test]
    fn long_texts_are_cut_and_control_characters_left_out() {
        let long = frame(Kind::Verdict, &"ü".repeat(MAX_TEXT)).encode(&TOKEN);
        let (decoded, len) = Frame::decode(&long, &TOKEN, 3).unwrap().unwrap();
        assert_eq!((decoded.text.len(), len), (MAX_TEXT, HEADER_LEN + MAX_TEXT));
        let odd = frame(Kind::Failing, "a\x1b[2Jb").encode(&TOKEN);
        assert_eq!(Frame::decode(&odd, &TOKEN, 3).unwrap().unwrap().0.text, "a[2Jb");
    }

    #[test]
    fn frames_of_others_are_refused() {
        let good = frame(Kind::Heartbeat, "").encode(&TOKEN);
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Frame::decode(&bytes, &TOKEN, 3)
        };
        // The token, the kind, the phase, the flag, the length of the text, the rank.
        for (at, byte) in
            [(0, 0), (15, 0), (16, Kind::ALL.len() as u8), (17, 8), (18, 2), (20, 1), (23, 255), (24, 3)]
        {
            assert_eq!(changed(at, byte), Err(BadFrame), "byte {at} as {byte}");
        }
        assert_eq!(Frame::decode(b"GET / HTTP/1.1\r\n", &TOKEN, 3), Err(BadFrame));
    }

    proptest! {
        #[test]
        fn no_bytes_are_trusted(mut bytes in prop::collection::vec(any::<u8>(), 0..300), has_token in any::<bool>()) {
            if has_token {
                bytes.splice(0..bytes.len().min(16), TOKEN);
            }
            if let Ok(Some((frame, len))) = Frame::decode(&bytes, &TOKEN, 3) {
                prop_assert!(len <= bytes.len() && frame.rank < 3 && frame.text.len() <= 3 * MAX_TEXT);
            }
        }
    }
}
