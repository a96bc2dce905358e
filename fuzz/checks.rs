//! Bodies of the fuzz targets `config`, `csv`, `manifest` and `frames`. Each accepts any bytes and panics only if the program is
//! faulty. `ddp/tests/library/mutated_inputs.rs` calls them with a fixed number of mutated `seeds`, with any compiler.

use std::path::{Path, PathBuf};

use ddp::checkpoint::{CheckpointStore, MANIFEST_FILE, Manifest, step_name};
use ddp::config::Config;
use ddp::data::{SourceSpec, column_stats};
use ddp::kernels::hint::with_hint;

/// Token of the frames; mutated streams of zeros keep it.
const TOKEN: [u8; 16] = [0; 16];

/// A config file: it is refused with its place and a hint, or it keeps its meaning when it is saved and read again.
pub(crate) fn config(bytes: &[u8]) {
    let path = scratch("run.toml");
    std::fs::write(&path, bytes).expect("a file can be written");
    let loaded = Config::load(Some(&path), &[]);
    std::fs::remove_file(&path).expect("a file can be removed");
    match loaded {
        Ok(config) => {
            let saved = config.to_saved_toml();
            let again = Config::from_saved(&saved, &path);
            let again = again.unwrap_or_else(|error| panic!("a saved config is refused: {error}\n{saved}"));
            assert_eq!(again.to_saved_toml(), saved);
        }
        Err(error) => {
            let message = with_hint(&error);
            assert!(message.contains("\nhint: "), "no way out in: {message}");
            assert!(message.len() < 4096 + 4 * bytes.len(), "{} bytes of message", message.len());
        }
    }
}

/// A text table; the first byte selects how it is read.
pub(crate) fn csv(bytes: &[u8]) {
    let Some((&options, content)) = bytes.split_first() else { return };
    let path = scratch("rows.csv");
    std::fs::write(&path, content).expect("a file can be written");
    let is_on = |bit: u8| options & (1 << bit) != 0;
    let mut sets = vec![format!("data.train={}", path.display())];
    let delimiters = ["auto", ";", "tab", "whitespace"];
    sets.push(format!("data.delimiter={}", delimiters[usize::from(options & 3)]));
    sets.extend(is_on(2).then(|| "data.decimal=,".to_owned()));
    sets.extend(is_on(3).then(|| "data.missing=mean".to_owned()));
    sets.extend(is_on(4).then(|| "data.categorical=[\"a\"]".to_owned()));
    sets.extend(is_on(5).then(|| "data.datetime=parts".to_owned()));
    sets.extend(is_on(6).then(|| "data.task=regression".to_owned()));
    let config = Config::load(None, &sets).expect("good settings");
    let read = || -> ddp::Result<_> {
        let dataset = SourceSpec { memory_bytes: 1 << 24, ..SourceSpec::train(&config.data) }.open()?;
        assert!(dataset.len() <= content.len(), "{} rows of {} bytes", dataset.len(), content.len());
        dataset.fingerprint()?;
        Ok(column_stats(&*dataset, 0..dataset.len())?)
    };
    let outcome = read();
    std::fs::remove_file(&path).expect("a file can be removed");
    if let Err(error) = outcome {
        let message = with_hint(&error);
        assert!(message.contains("\nhint: "), "no way out in: {message}");
    }
}

/// The manifest of a checkpoint, also with a forged checksum that fits.
pub(crate) fn manifest(bytes: &[u8]) {
    if let Err(fault) = Manifest::from_bytes(bytes) {
        assert!(!fault.to_string().is_empty());
    }
    let Ok(forged) = serde_json::from_slice::<Manifest>(bytes) else { return };
    let signed = forged.to_bytes();
    let Ok(manifest) = Manifest::from_bytes(&signed) else { return };
    assert_eq!(manifest.to_bytes(), signed);
    let run = scratch("run");
    let store = CheckpointStore::of_run(&run);
    let step = manifest.run.step;
    let folder = store.folder().join(step_name(step));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    std::fs::write(folder.join(MANIFEST_FILE), &signed).expect("a file can be written");
    // None of the files that it names exists; its claims about the run are used in computations.
    if let Ok(checkpoint) = store.checkpoint(step) {
        let _ = (checkpoint.verify(), checkpoint.verify_epochs());
        let run = &checkpoint.manifest().run;
        let _ = (run.epoch(), run.epoch_under_way(), run.rows_of_epoch(), checkpoint.manifest().n_bytes());
    }
    let _ = store.newest_valid();
    std::fs::remove_dir_all(&run).expect("a folder can be removed");
}

/// Bytes received from the network on a watchdog's connection.
pub(crate) fn frames(bytes: &[u8]) {
    for world_size in [1, 2, 1000] {
        let (n_frames, n_bytes) = ddp_comm::watchdog::frames_in(bytes, &TOKEN, world_size);
        assert!(n_bytes <= bytes.len() && n_frames * 112 <= n_bytes);
    }
}

/// A path for this thread, in a memory file system if there is one.
fn scratch(name: &str) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let thread = format!("{:?}", std::thread::current().id());
    let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
    folder.join(format!("ddp-fuzz-{}-{digits}-{name}", std::process::id()))
}
