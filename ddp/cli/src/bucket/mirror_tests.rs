//! Tests of the mirror on a folder in the place of a mounted bucket.

use std::sync::LazyLock;

use super::super::owner::Owner;
use super::*;

const STEPS: [u64; 3] = [28, 35, 38];
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/saved_runs/regression/stopped");
const OPTIMIZER: &str = "optimizer-00000-of-00001.safetensors";

/// Copies the checkpoint of a step into a run's folder.
pub(in super::super) fn copy_step(step: u64, run: &Path) {
    let (from, to) = (Path::new(RUN).join(checkpoint(step)), run.join(checkpoint(step)));
    fs::create_dir_all(&to).unwrap();
    for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Changes one byte of a checkpoint.
pub(in super::super) fn damage(step: u64, run: &Path) {
    let path = run.join(checkpoint(step)).join(OPTIMIZER);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Works on a home with all checkpoints, and on an empty bucket next to it.
fn with_work(test: impl FnOnce(&mut Work, &Path)) {
    // Another writer's sign of life, that has ended: nobody waits for one.
    static ENDED: LazyLock<Vec<u8>> = LazyLock::new(|| {
        br#"{"host":"a","pid":1,"nonce":"0","job_id":null,"n_renewed":1,"has_ended":true}"#.to_vec()
    });
    let folder = tempfile::tempdir().unwrap();
    let (home, there) = (folder.path().join("home"), folder.path().join("there"));
    let address = there.display().to_string();
    let bucket = Bucket::open(&address).unwrap();
    bucket.put(".owner", ENDED.clone(), If::Always).unwrap();
    let owner = Owner::take(&bucket, &address, "here", None, false).unwrap();
    let beat = Beat::start(owner, Bucket::open(&address).unwrap()).unwrap();
    STEPS.iter().for_each(|step| copy_step(*step, &home));
    let State::Begun(mut work) = Mirror::new(address, home, bucket, beat, false).state else {
        unreachable!()
    };
    test(&mut work, &there);
    work.beat.end();
}

fn complete(there: &Path) -> Vec<u64> {
    let store = CheckpointStore::for_run(there);
    let steps = store.steps().unwrap().into_iter();
    steps.filter(|step| store.checkpoint(*step).is_ok_and(|found| found.verify().is_ok())).collect()
}

#[test]
fn an_opened_checkpoint_outlives_its_deletion() {
    with_work(|work, there| {
        let folder = work.home.join(checkpoint(38));
        let expected = fs::read(folder.join(OPTIMIZER)).unwrap();
        let held = Held::open(&folder, false).unwrap().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        for (name, file) in &held.files {
            work.upload(name, file).unwrap();
        }
        assert_eq!(fs::read(there.join(OPTIMIZER)).unwrap(), expected);
        assert!(Held::open(&folder, false).unwrap().is_none(), "it is gone");
    });
}

#[test]
fn a_damaged_checkpoint_stays_at_home() {
    with_work(|work, there| {
        damage(38, &work.home);
        work.pass(false).unwrap();
        assert_eq!(complete(there), [35]);
        assert!(!there.join(checkpoint(38)).exists());
        work.pass(true).unwrap();
        assert_eq!(complete(there), [28, 35]);
        // The run has come to that step again.
        copy_step(38, &work.home);
        work.pass(false).unwrap();
        assert_eq!(complete(there), STEPS);
    });
}

#[test]
fn a_damaged_checkpoint_replaces_no_intact_one() {
    with_work(|work, there| {
        copy_step(38, there);
        damage(38, &work.home);
        // Also its manifest differs.
        let manifest = work.home.join(checkpoint(38)).join(MANIFEST_FILE);
        let text = fs::read_to_string(&manifest).unwrap();
        fs::write(&manifest, text.replacen('{', "{ ", 1)).unwrap();
        work.pass(true).unwrap();
        assert_eq!(complete(there), STEPS);
    });
}

#[test]
fn folders_of_others_stop_no_mirror() {
    with_work(|work, there| {
        fs::create_dir_all(work.home.join(checkpoint(99))).unwrap();
        fs::create_dir(work.home.join(checkpoint(38)).join("notes")).unwrap();
        work.pass(false).unwrap();
        assert_eq!(complete(there), [38]);
    });
}

#[test]
fn no_more_checkpoints_are_kept_than_asked() {
    with_work(|work, there| {
        work.keep = 2;
        copy_step(28, there);
        fs::remove_dir_all(work.home.join(checkpoint(28))).unwrap();
        work.pass(false).unwrap();
        assert_eq!(complete(there), [28, 38], "both are of the two newest there");
        work.pass(true).unwrap();
        assert_eq!(complete(there), [35, 38]);
    });
}
