//! Checkpoints of other runs, and files of sizes and kinds that no checkpoint has.

use std::fs;
use std::path::Path;

use ddp::checkpoint::{Checkpoint, Manifest, StateReader};
use ddp::storage::fault::FileEntry;

use super::fixture;
use crate::common::{run_line, run_line_ok, temp_dir};

/// Copies a step's folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_step_of_another_run_is_refused_by_its_run_id() {
    let folder = temp_dir();
    let path = folder.path();
    // The same config and data; only the id distinguishes them.
    run_line_ok(path, "train --set train.steps=20 --out a --set checkpoint.every_steps=10 --quiet");
    run_line_ok(path, "train --set train.steps=40 --out b --set checkpoint.every_steps=10 --quiet");
    copy(&path.join("b/checkpoints/step-40"), &path.join("a/checkpoints/step-40"));

    let listed = run_line(path, "checkpoint verify a");
    assert!(listed.status.code() == Some(1), "{listed:?}");
    let outcome = run_line_ok(path, "train --resume auto --out a --set train.steps=30");
    let skipped = "step-40: it belongs to another run: its run id is ";
    assert!(outcome.stderr.contains(skipped) && outcome.stderr.contains("step 20"), "{}", outcome.stderr);
    let named = run_line(path, "train --resume a/checkpoints/step-40 --out c");
    assert_ne!(named.status.code(), Some(0), "{named:?}");
    assert!(named.stderr.contains("it belongs to another run"), "{}", named.stderr);

    // A branch is a separate run, which resumes from its own checkpoints.
    let id = |run: &str| fs::read_to_string(path.join(run).join(".run-id")).unwrap();
    let before = [id("a"), id("b")];
    run_line_ok(path, "train --resume b/checkpoints/step-30 --out c --set train.steps=40 --quiet");
    run_line_ok(path, "train --resume auto --out c --set train.steps=50 --quiet");
    run_line_ok(path, "train --resume auto --out b --set train.steps=50 --quiet");
    assert_eq!([id("a"), id("b")], before, "a resumed run keeps its id");
    assert!(!before.contains(&id("c")) && before[0] != before[1]);
    // A new run in the same folder is a different run.
    run_line_ok(path, "train --set train.steps=10 --out a --overwrite --quiet");
    assert_ne!(id("a"), before[0]);
}

#[test]
fn checkpoints_without_their_run_are_resumed() {
    let folder = temp_dir();
    let path = folder.path();
    run_line_ok(path, "train --set train.steps=20 --out a --set checkpoint.every_steps=10 --quiet");
    // A copy of only the checkpoints gets the id of the run that it continues.
    for step in ["step-10", "step-20"] {
        copy(&path.join("a/checkpoints").join(step), &path.join("b/checkpoints").join(step));
    }
    run_line_ok(path, "train --resume b --set train.steps=30 --quiet");
    let id = |run: &str| fs::read_to_string(path.join(run).join(".run-id")).unwrap();
    assert_eq!(id("a"), id("b"));
    run_line_ok(path, "checkpoint verify b");
}

/// A marker file of a terabyte is not read, nor is a file whose length differs from its manifest.
#[test]
fn sizes_are_checked_before_anything_is_read() {
    let folder = temp_dir();
    let path = folder.path();
    run_line_ok(path, "train --set train.steps=20 --out a --set checkpoint.every_steps=10 --quiet");
    let huge = |name: &str| {
        fs::File::create(path.join("a/checkpoints").join(name)).unwrap().set_len(1 << 40).unwrap()
    };
    huge("latest");
    huge("step-20/model.safetensors");
    let outcome = run_line_ok(path, "train --resume auto --out a --set train.steps=30");
    let fault = "step-20: model.safetensors has 1099511627776 bytes, expected ";
    assert!(outcome.stderr.contains(fault) && outcome.stderr.contains("step 10"), "{}", outcome.stderr);
    huge("step-20/manifest.json");
    let outcome = run_line(path, "train --resume a/checkpoints/step-20 --out c");
    assert!(outcome.stderr.contains("manifest.json is truncated or not a manifest"), "{}", outcome.stderr);
}

/// Manifests whose parts contradict each other, with a checksum that fits: refused when they are read, by every command.
#[test]
fn manifests_that_contradict_themselves_are_refused() {
    let folder = temp_dir();
    let path = folder.path();
    run_line_ok(path, "train --set train.steps=20 --out a --set checkpoint.every_steps=10 --quiet");
    let step = path.join("a/checkpoints/step-20");
    let good = Manifest::read(&step).unwrap();
    type Change = fn(&mut Manifest);
    let changes: [(&str, Change); 5] = [
        ("`run.course` contradicts itself: 0 bins", |manifest| {
            manifest.run.course =
                serde_json::from_str(r#"{"first": 0.5, "bin_steps": 1, "bins": []}"#).unwrap();
        }),
        ("`run.epoch_loss.n_rows` is 18446744073709551615", |m| m.run.epoch_loss.n_rows = u64::MAX),
        ("it lists the parameter \"layers.0.weight\" twice", |m| m.parameters.push(m.parameters[0].clone())),
        ("its files of optimizer state are not those of 1 ranks", |m| m.files.truncate(1)),
        ("it does not list model.safetensors", |m| m.files.clear()),
    ];
    for (part, change) in changes {
        let mut forged = good.clone();
        change(&mut forged);
        if part.contains("optimizer state") {
            let name = "optimizer-00001-of-00002.safetensors".to_owned();
            forged.files.push(FileEntry { name, ..good.files[1].clone() });
        }
        fs::write(step.join("manifest.json"), forged.to_bytes()).unwrap();
        for line in [
            "train --resume a/checkpoints/step-20 --set train.steps=30 --out b",
            "checkpoint show a/checkpoints/step-20",
            "checkpoint verify a/checkpoints/step-20",
            "checkpoint export a/checkpoints/step-20 --out m.safetensors",
            "eval --checkpoint a/checkpoints/step-20",
        ] {
            let ended = run_line(path, line);
            let all = format!("{}{}", ended.stdout, ended.stderr);
            assert!(matches!(ended.status.code(), Some(1 | 2)), "{line}: {all}");
            assert!(all.contains(part) && !all.contains("panicked"), "{line}, expected {part}: {all}");
        }
    }
    // The run resumes from the checkpoint before.
    let outcome = run_line_ok(path, "train --resume auto --out a --set train.steps=30");
    assert!(outcome.stderr.contains("step 10"), "{}", outcome.stderr);
}

/// A range of the state that begins beyond all addresses is refused before anything is computed from it.
#[test]
fn forged_places_of_the_state_are_refused() {
    let folder = temp_dir();
    let store = fixture::saved(folder.path(), &fixture::layout(&[3, 5, 2]), 1, [1]);
    let step = store.step_folder(1);
    let mut manifest = Manifest::read(&step).unwrap();
    let entry = manifest.files.iter_mut().find(|file| file.name.starts_with("optimizer-")).unwrap();
    let path = step.join(&entry.name);
    let bytes = fs::read(&path).unwrap();
    let (len, rest) = bytes.split_at(8);
    let (header, values) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
    let header = String::from_utf8(header.to_vec()).unwrap();
    let forged = header.trim_end().replacen(r#"\"offset\":0"#, r#"\"offset\":18446744073709551615"#, 1);
    assert_ne!(forged, header.trim_end(), "{header}");
    let forged = format!("{forged:width$}", width = forged.len().next_multiple_of(8));
    let bytes = [&(forged.len() as u64).to_le_bytes()[..], forged.as_bytes(), values].concat();
    entry.bytes = bytes.len() as u64;
    fs::write(&path, bytes).unwrap();
    fs::write(step.join("manifest.json"), manifest.to_bytes()).unwrap();
    let fault = StateReader::open(&Checkpoint::read(&step).unwrap()).unwrap_err().to_string();
    assert!(fault.contains("starts at element 18446744073709551615"), "{fault}");
}
