//! Whole files: the first byte selects the format, the rest is the file. It is opened and all its rows are read, both mapped and
//! in pieces; both must give the same rows, and an error must contain a hint.
#![no_main]

use std::path::{Path, PathBuf};

use ddp::config::Config;
use ddp::kernels::hint::with_hint;
use ddp_tables::fit::scan::column_stats;
use ddp_tables::fit::stats::ColumnStats;
use ddp_tables::source::SourceSpec;
use libfuzzer_sys::fuzz_target;

/// File name endings; `tests/nightly` and `seeds.rs` refer to them by index, from 0.
const NAMES: [&str; 10] =
    ["npy", "npz", "safetensors", "idx", "csv", "csv.gz", "csv.zst", "npy.gz", "jsonl", "json"];
/// A small file can't contain more rows, because each row takes at least one byte.
const MAX_ROWS: usize = 1 << 24;

fuzz_target!(|bytes: &[u8]| {
    let Some((&kind, content)) = bytes.split_first() else { return };
    let name = NAMES[usize::from(kind) % NAMES.len()];
    let path = folder().join(format!("ddp-fuzz-{}.{name}", std::process::id()));
    std::fs::write(&path, content).expect("a file can be written");
    let mapped = read(&path, name, 1 << 20);
    if let Err(message) = &mapped {
        assert!(message.contains("\nhint: "), "no way out in: {message}");
    }
    if ["npy", "safetensors", "idx"].contains(&name) {
        assert_eq!(mapped.ok(), read(&path, name, 1).ok());
    }
});

/// In a memory file system if there is one.
fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Reads all rows; in a file with a single array, the array is used as its own labels.
fn read(path: &Path, name: &str, memory_bytes: u64) -> Result<ColumnStats, String> {
    let mut sets = vec![format!("data.train={}", path.display())];
    if ["npy", "idx", "npy.gz"].contains(&name) {
        sets.extend([format!("data.labels={}", path.display()), "data.task=regression".to_owned()]);
    }
    let config = Config::load(None, &sets).expect("good settings");
    let dataset = SourceSpec { memory_bytes, ..SourceSpec::train(&config.data) }.open();
    let dataset = dataset.map_err(|error| with_hint(&error))?;
    assert!(dataset.len() < MAX_ROWS, "{} rows", dataset.len());
    dataset.fingerprint().map_err(|error| with_hint(&error))?;
    column_stats(&*dataset, 0..dataset.len()).map_err(|error| with_hint(&error))
}
