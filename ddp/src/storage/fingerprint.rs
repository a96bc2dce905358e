//! Hashes that ranks use to compare their input files. They detect differences but are not cryptographic.

/// FNV-1a on 64-bit words, with a rotation that moves high bits to low ones.
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    /// Adds a number.
    pub fn number(&mut self, word: u64) {
        self.0 = (self.0 ^ word).rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Adds a text, with its length.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        text.bytes().for_each(|byte| self.number(u64::from(byte)));
    }

    /// Adds bytes, with their number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.number(u64::from_le_bytes(*word)));
        rest.iter().for_each(|&byte| self.number(u64::from(byte)));
    }

    /// Adds bytes, with their number: from 64 KiB on by the [hash of the block](Fingerprint::of_block), which takes half of the time.
    pub fn block(&mut self, block: &[u8]) {
        const LEAST_BYTES: usize = 64 << 10;
        if block.len() < LEAST_BYTES {
            return self.bytes(block);
        }
        self.number(block.len() as u64);
        self.number(Self::of_block(block));
    }

    /// Hash of a block of bytes, in four independent chains that a CPU computes in parallel.
    pub fn of_block(block: &[u8]) -> u64 {
        let mut sums: [Fingerprint; 4] = std::array::from_fn(|_| Fingerprint::default());
        let (fours, rest) = block.as_chunks::<32>();
        for four in fours {
            let (words, _) = four.as_chunks::<8>();
            sums.iter_mut().zip(words).for_each(|(sum, word)| sum.number(u64::from_le_bytes(*word)));
        }
        let mut all = Fingerprint::default();
        sums.into_iter().for_each(|sum| all.number(sum.finish()));
        all.bytes(rest);
        all.finish()
    }

    /// The hash of all that was added.
    pub fn finish(mut self) -> u64 {
        self.number(0);
        self.0 ^ self.0 >> 32
    }
}

/// Hashes `bytes`.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hash = Fingerprint::default();
    hash.bytes(bytes);
    hash.finish()
}
