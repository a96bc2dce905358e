//! The facts of a message that its two ranks compare before any data: the type and the shape of its tensor.

use ddp_kernels::{DType, MAX_DIMS, Shape};

use crate::{Call, CallKind, CommError};

/// Words of an envelope.
pub(crate) const ENVELOPE_WORDS: usize = 2 + MAX_DIMS;

/// The tensor of a message, as one of the two ranks has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) kind: CallKind,
    dtype: DType,
    shape: Shape,
}

impl Envelope {
    pub(crate) fn new(kind: CallKind, dtype: DType, shape: Shape) -> Self {
        Envelope { kind, dtype, shape }
    }

    pub(crate) fn call(&self) -> Call {
        Call { kind: self.kind, dtype: self.dtype, len: self.shape.numel() }
    }

    /// The words that the ranks exchange.
    pub(crate) fn to_words(self) -> [u64; ENVELOPE_WORDS] {
        let dims = self.shape.dims();
        let mut words = [0; ENVELOPE_WORDS];
        (words[0], words[1]) = (self.call().to_words()[0], dims.len() as u64);
        dims.iter().zip(&mut words[2..]).for_each(|(dim, word)| *word = *dim as u64);
        words
    }

    /// The envelope of words; `None` if they are none.
    pub(crate) fn from_words(words: [u64; ENVELOPE_WORDS]) -> Option<Self> {
        let Call { kind, dtype, .. } = Call::from_words([words[0], 0])?;
        let dims: Vec<usize> = words[2..].iter().map(|word| *word as usize).collect();
        Some(Envelope { kind, dtype, shape: Shape::new(dims.get(..words[1] as usize)?).ok()? })
    }

    /// Compares it with the envelope of the other rank.
    ///
    /// # Errors
    /// [`CommError::MessageMismatch`], the same on both ranks; [`CommError::NoReceiver`] if both send, or both receive.
    pub(crate) fn check(self, rank: usize, other: Option<Envelope>) -> Result<(), CommError> {
        let text = |of: Envelope| format!("{} {}", of.shape, of.dtype);
        let (from, to) = match (self.kind, other.map(|other| other.kind)) {
            (CallKind::Send { to }, Some(CallKind::Receive { .. })) => (rank, to),
            (CallKind::Receive { from }, Some(CallKind::Send { .. })) => (from, rank),
            (CallKind::Send { to: other } | CallKind::Receive { from: other }, _) => {
                let ranks = vec![rank.min(other), rank.max(other)];
                return Err(CommError::NoReceiver { op: self.call().name(), ranks });
            }
            _ => unreachable!("an envelope is of a message"),
        };
        match other {
            Some(other) if (other.shape, other.dtype) != (self.shape, self.dtype) => {
                let (sent, received) = if from == rank { (self, other) } else { (other, self) };
                Err(CommError::MessageMismatch { from, to, sent: text(sent), received: text(received) })
            }
            _ => Ok(()),
        }
    }
}
