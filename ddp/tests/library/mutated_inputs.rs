//! Runs the fuzz targets without a fuzzer: a fixed number of mutations of each seed, the same in every run. `MUTATIONS=100`
//! multiplies their number by a hundred.

#[path = "../../../fuzz/checks.rs"]
#[allow(dead_code)]
mod checks;

use std::path::Path;

/// Strings that are inserted into an input, because readers treat them specially.
const PIECES: [&[u8]; 24] = [
    b"\"",
    b"'",
    b"[",
    b"]",
    b"{",
    b"}",
    b"\n",
    b"\r\n",
    b",",
    b";",
    b"\t",
    b"=",
    b"#",
    b"\\",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"-",
    b"1e999",
    b"nan",
    b"18446744073709551616",
    b"9223372036854775808",
    b"\"\"\"",
    b"[[a]]\n",
];

/// A random number generator (SplitMix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Applies one random change to the input.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        match self.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..(at + 1 + self.below(20)).min(bytes.len()))),
            4 => {
                let from = self.below(bytes.len());
                let piece = bytes[from..(from + 1 + self.below(40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => drop(
                bytes.splice(
                    at..at,
                    std::iter::repeat_n(bytes.get(at).copied().unwrap_or(b'['), 1 + self.below(300))
                        .collect::<Vec<_>>(),
                ),
            ),
            6 => {
                // Replaces a digit by many.
                let digits = bytes
                    .iter()
                    .enumerate()
                    .filter(|(_, byte)| byte.is_ascii_digit())
                    .map(|(at, _)| at)
                    .collect::<Vec<_>>();
                if !digits.is_empty() {
                    let digit = digits[self.below(digits.len())];
                    let value = [0, 1, u64::from(u32::MAX), 1 << 52, 1 << 63, u64::MAX][self.below(6)];
                    bytes.splice(digit..=digit, value.to_string().into_bytes());
                }
            }
            _ => {
                let piece = PIECES[self.below(PIECES.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
        }
    }
}

/// Calls `check` with each seed of a target, and with `n` mutations of each.
fn check_mutations(target: &str, n: usize, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(seeds.len() > 1, "{target} has {} seeds", seeds.len());
    let times = std::env::var("MUTATIONS").map_or(1, |times| times.parse::<usize>().unwrap());
    let mut draw = Draw(1);
    for seed in seeds {
        let bytes = std::fs::read(&seed).unwrap();
        check(&bytes);
        for number in 0..n * times {
            let mut mutated = bytes.clone();
            (0..1 + draw.below(4)).for_each(|_| draw.mutate(&mut mutated));
            let outcome = std::panic::catch_unwind(|| check(&mutated));
            assert!(
                outcome.is_ok(),
                "mutation {number} of {}: {:?}",
                seed.display(),
                String::from_utf8_lossy(&mutated)
            );
        }
    }
}

#[test]
fn configs() {
    check_mutations("config", 1000, checks::config);
}

#[test]
fn tables_of_text() {
    check_mutations("csv", 700, checks::csv);
}

#[test]
fn manifests() {
    check_mutations("manifest", 1000, checks::manifest);
}

#[test]
fn headers_of_models() {
    check_mutations("model", 500, checks::model);
}

#[test]
fn ranges_of_optimizer_state() {
    check_mutations("state", 500, checks::state);
}

#[test]
fn frames_of_the_watchdog() {
    check_mutations("frames", 5000, checks::frames);
}
