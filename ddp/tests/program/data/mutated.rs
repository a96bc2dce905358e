//! Files of all formats with flipped bits, truncated, or spliced: reading them gives rows or an error, never a panic, and never
//! takes terabytes of memory.

use std::path::{Path, PathBuf};

use ddp_tables::fit::scan::column_stats;
use ddp_tables::fit::stats::ColumnStats;
use proptest::prelude::*;
use proptest::sample::Index;

use super::files::Element;
use super::sets::{Format, Rows, Set};

/// Mutation of a file.
#[derive(Debug, Clone)]
enum Damage {
    Flip { at: Index, bit: u8 },
    Set { at: Index, to: u8 },
    Cut { at: Index },
    Remove { at: Index, n: usize },
    Copy { from: Index, to: Index, n: usize },
    Number { at: Index, value: u64 },
}

fn damage() -> impl Strategy<Value = Damage> {
    let huge = prop::sample::select(vec![0, 1, 0xffff, 1 << 31, u64::from(u32::MAX), 1 << 62, u64::MAX]);
    prop_oneof![
        4 => (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        2 => (any::<Index>(), prop::sample::select(b"0123456789[]{}(),:'\"\n\0\xff".to_vec()))
            .prop_map(|(at, to)| Damage::Set { at, to }),
        1 => any::<Index>().prop_map(|at| Damage::Cut { at }),
        1 => (any::<Index>(), 1usize..20).prop_map(|(at, n)| Damage::Remove { at, n }),
        2 => (any::<Index>(), any::<Index>(), 1usize..40).prop_map(|(from, to, n)| Damage::Copy { from, to, n }),
        2 => (any::<Index>(), huge).prop_map(|(at, value)| Damage::Number { at, value }),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        if len == 0 {
            return;
        }
        // Most misreadable bytes are at the start or end of a file.
        let place = |at: &Index| match at.index(3 * len) {
            near if near < len => near.min(200) % len,
            near if near < 2 * len => len - 1 - (near - len).min(200) % len,
            anywhere => anywhere - 2 * len,
        };
        match self {
            Damage::Flip { at, bit } => bytes[place(at)] ^= 1 << bit,
            Damage::Set { at, to } => bytes[place(at)] = *to,
            Damage::Cut { at } => bytes.truncate(at.index(len)),
            Damage::Remove { at, n } => {
                let at = place(at);
                bytes.drain(at..(at + n).min(len));
            }
            Damage::Copy { from, to, n } => {
                let from = place(from);
                let piece = bytes[from..(from + n).min(len)].to_vec();
                let to = place(to);
                bytes.splice(to..to, piece);
            }
            Damage::Number { at, value } => {
                let at = place(at);
                let n = (len - at).min(8);
                bytes[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
            }
        }
    }
}

fn format() -> impl Strategy<Value = Format> {
    use Element::*;
    prop::sample::select(vec![
        Format::Npy { features: F32, labels: I64, is_big_endian: false },
        Format::Npy { features: F64, labels: F32, is_big_endian: true },
        Format::Npz { is_deflated: false, features: F32 },
        Format::Npz { is_deflated: true, features: F16 },
        Format::Safetensors { features: Bf16, labels: I64 },
        Format::Safetensors { features: F32, labels: I64 },
        Format::Idx { features: U8, labels: U8 },
        Format::Csv { compression: "" },
        Format::Csv { compression: ".gz" },
        Format::Csv { compression: ".zst" },
    ])
}

/// Opens and reads all rows; returns the statistics or the error.
fn read(set: &Set, memory_bytes: u64) -> Result<ColumnStats, String> {
    let dataset = set.open(memory_bytes, &[]).map_err(|error| ddp_kernels::hint::with_hint(&error))?;
    assert!(dataset.len() <= 10_000, "{} rows of a file of a few kB", dataset.len());
    dataset.fingerprint().map_err(|error| ddp_kernels::hint::with_hint(&error))?;
    column_stats(&*dataset, 0..dataset.len()).map_err(|error| ddp_kernels::hint::with_hint(&error))
}

fn damage_one(folder: &Path, which: Index, damages: &[Damage]) {
    let all = files_in(folder);
    let path = &all[which.index(all.len())];
    let mut bytes = std::fs::read(path).unwrap();
    damages.iter().for_each(|damage| damage.apply(&mut bytes));
    std::fs::write(path, bytes).unwrap();
}

/// The files of a folder, sorted by name.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn damaged_files_give_rows_or_an_error(
        format in format(),
        which: Index,
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let set = Set::write(folder.path(), format, Rows { n: 23, n_features: 3 }, &[9], &[15], true);
        damage_one(folder.path(), which, &damages);
        let mapped = read(&set, 1 << 20);
        if let Err(message) = &mapped {
            prop_assert!(message.contains("\nhint: "), "no way out in: {}", message);
            prop_assert!(!message.contains("panicked"), "{}", message);
        }
        // Checksums are compared where the rows fit in memory.
        let is_by_checksum = mapped.as_ref().is_err_and(|message| message.contains("CRC-32"));
        if set.stays_in_file && !is_by_checksum {
            prop_assert_eq!(mapped.ok(), read(&set, 1).ok());
        }
    }
}
