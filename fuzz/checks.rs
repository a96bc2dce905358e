//! Bodies of the fuzz targets `config`, `csv`, `manifest`, `model`, `state` and `frames`. Each accepts any bytes and panics only if the program is
//! faulty. `ddp/tests/library/mutated_inputs.rs` calls them with a fixed number of mutated `seeds`, with any compiler.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use ddp::checkpoint::{CheckpointStore, MANIFEST_FILE, Manifest, ShardRange, StateReader, step_name};
use ddp::config::Config;
use ddp::kernels::hint::with_hint;
use ddp::storage::disk::OsDisk;
use ddp::storage::tensor_file::{self, TensorToWrite, Values};
use ddp_tables::fit::scan::column_stats;
use ddp_tables::predict::SavedModel;
use ddp_tables::source::SourceSpec;

/// A checkpoint: its manifest and its files.
const MANIFEST: &[u8] = include_bytes!(
    "../ddp/tests/fixtures/saved_runs/classification/finished/checkpoints/step-36/manifest.json"
);
const FILES: [(&str, &[u8]); 2] = [
    (
        "model.safetensors",
        include_bytes!(
            "../ddp/tests/fixtures/saved_runs/classification/finished/checkpoints/step-36/model.safetensors"
        ),
    ),
    (
        "optimizer-00000-of-00001.safetensors",
        include_bytes!(
            "../ddp/tests/fixtures/saved_runs/classification/finished/checkpoints/step-36/optimizer-00000-of-00001.safetensors"
        ),
    ),
];

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
    let Ok(mut forged) = serde_json::from_slice::<Manifest>(bytes) else { return };
    // Files that exist are as they were, so that their content is compared with the manifest.
    let own = Manifest::from_bytes(MANIFEST).expect("a good manifest");
    for entry in &mut forged.files {
        if let Some(file) = own.files.iter().find(|file| file.name == entry.name) {
            entry.clone_from(file);
        }
    }
    let signed = forged.to_bytes();
    let Ok(manifest) = Manifest::from_bytes(&signed) else { return };
    assert_eq!(manifest.to_bytes(), signed);
    let run = scratch("run");
    let store = CheckpointStore::for_run(&run);
    let step = manifest.run.step;
    let folder = store.folder().join(step_name(step));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    std::fs::write(folder.join(MANIFEST_FILE), &signed).expect("a file can be written");
    for (name, content) in FILES {
        std::fs::write(folder.join(name), content).expect("a file can be written");
    }
    // Its claims about the run are used in computations.
    if let Ok(checkpoint) = store.checkpoint(step) {
        let _ = (checkpoint.verify(), checkpoint.verify_epochs());
        let run = &checkpoint.manifest().run;
        let _ = (run.epoch(), run.epoch_under_way(), run.rows_of_epoch(), checkpoint.manifest().n_bytes());
    }
    let _ = store.newest_valid();
    std::fs::remove_dir_all(&run).expect("a folder can be removed");
}

/// The ranges in the metadata of a checkpoint's file of optimizer state, in a checkpoint that is whole: they are refused, or all
/// state is read.
pub(crate) fn state(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut manifest = Manifest::from_bytes(MANIFEST).expect("a good manifest");
    let run = scratch("state");
    let folder = CheckpointStore::for_run(&run).step_folder(manifest.run.step);
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    for (name, content) in FILES {
        std::fs::write(folder.join(name), content).expect("a file can be written");
    }
    let values = [0.5; 128];
    let tensor =
        |name: &String| TensorToWrite { name: name.clone(), dims: vec![128], values: Values::F32(&values) };
    let tensors: Vec<_> = manifest.state.iter().map(tensor).collect();
    let metadata = HashMap::from([("ddp_train.pieces".to_owned(), text.to_owned())]);
    let entry = manifest.files.iter_mut().find(|entry| entry.name == FILES[1].0).expect("a file of state");
    (_, *entry) =
        tensor_file::write(&OsDisk, &folder.join(FILES[1].0), &tensors, &metadata).expect("written");
    std::fs::write(folder.join(MANIFEST_FILE), manifest.to_bytes()).expect("a file can be written");
    let checkpoint = CheckpointStore::for_run(&run).checkpoint(manifest.run.step).expect("a checkpoint");
    let is_whole = checkpoint.verify().is_ok();
    if let Ok(reader) = StateReader::open(&checkpoint) {
        let mut offset = 0;
        let wanted = manifest.parameters.iter().map(|parameter| {
            let (param, end) = (parameter.name.clone(), parameter.numel());
            offset += end;
            ShardRange { param, start: 0, end, offset: offset - end }
        });
        let wanted: Vec<_> = wanted.collect();
        for name in &manifest.state {
            let read = reader.read(&wanted, name, &mut vec![0.0; offset]);
            assert!(read.is_ok() || !is_whole, "{read:?}");
        }
    }
    std::fs::remove_dir_all(&run).expect("a folder can be removed");
}

/// The header of a model's file, whose values are zeros: it is refused with a way out, or the model is made.
pub(crate) fn model(bytes: &[u8]) {
    const MAX_BYTES: u64 = 1 << 16;
    let header = serde_json::from_slice::<serde_json::Value>(bytes).unwrap_or_default();
    let ends = header.as_object().into_iter().flatten().filter_map(|(_, of)| of["data_offsets"][1].as_u64());
    let n_bytes = ends.max().unwrap_or(0).min(MAX_BYTES) as usize;
    let path = scratch("model.safetensors");
    let file = [&(bytes.len() as u64).to_le_bytes()[..], bytes, &vec![0; n_bytes]].concat();
    std::fs::write(&path, file).expect("a file can be written");
    let opened = SavedModel::open(&path);
    let made = opened.map(|model| {
        let _ = (model.labels(), model.heads(), model.output_names(), model.output_units());
        let _ = (model.known_features(), model.fingerprint(), model.is_checkpoint());
        model.network(2, ddp::Device::Cpu).map(drop)
    });
    std::fs::remove_file(&path).expect("a file can be removed");
    if let Err(error) = made.and_then(|network| network) {
        let message = with_hint(&error);
        assert!(message.contains("\nhint: "), "no way out in: {message}");
        assert!(message.len() < 8192 + 8 * bytes.len(), "{} bytes of message", message.len());
    }
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
