//! If any call of a save fails, or is the last one before the process or the machine dies, a complete checkpoint exists, no
//! acknowledged checkpoint is lost, and the next start continues normally.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ddp::checkpoint::{CheckpointError, SaveOptions, Saved};
use ddp::model::ParamLayout;
use ddp::storage::disk::{Disk, OsDisk};
use rustix::io::Errno;

use super::faulty_disk::{Fate, FaultyDisk};
use super::fixture::*;

const FULL: [Errno; 2] = [Errno::NOSPC, Errno::DQUOT];
/// Time limit for rank 0 to wait for a healthy rank, on a busy machine.
const PATIENT: Duration = Duration::from_secs(60);

/// The checkpoint that is saved while valid checkpoints of steps 1 to 3 exist.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Save {
    /// Step 4, after which 2 is deleted; 1 is the best and is kept.
    Next,
    /// Step 3 again.
    Again,
}

impl Save {
    fn step(self) -> u64 {
        if self == Save::Next { 4 } else { 3 }
    }

    /// Runs the save on these disks, by rank.
    fn run(
        self,
        out: &Path,
        layout: &ParamLayout,
        disks: &[Arc<dyn Disk>],
        rank_timeout: Duration,
    ) -> Vec<Result<Saved, CheckpointError>> {
        let keeping = |options: &mut SaveOptions| {
            (options.keep, options.keep_best) = (2, true);
            options.rank_timeout = rank_timeout;
        };
        save_on_ranks(out, layout, &run_state_with_best(self.step(), 1), disks, 2, keeping)
    }
}

/// A faulty disk for rank 0 or rank 1; the other disk is healthy.
fn disks(faulty_rank: usize, faulty: &Arc<FaultyDisk>) -> Vec<Arc<dyn Disk>> {
    let mut disks: Vec<Arc<dyn Disk>> = vec![Arc::new(OsDisk), Arc::new(OsDisk)];
    disks[faulty_rank] = faulty.clone();
    disks
}

/// Number of calls that a rank makes in a save without faults.
fn n_calls(save: Save, rank: usize) -> usize {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    saved(dir.path(), &layout, 2, 1..=3);
    let disk = Arc::new(FaultyDisk::good());
    for result in save.run(dir.path(), &layout, &disks(rank, &disk), PATIENT) {
        let saved = result.unwrap();
        assert_eq!(saved.notes, [""; 0]);
        assert_eq!(saved.deleted, if save == Save::Next && saved.bytes > 2000 { vec![2] } else { vec![] });
    }
    disk.n_calls()
}

/// Repeats the save with `fate` at each call in turn; `check` receives the result of each rank after the disk's content was
/// checked.
fn each_call(save: Save, rank: usize, fate: Fate, check: impl Fn(&str, &[Result<Saved, CheckpointError>])) {
    let layout = layout(&[3, 5, 2]);
    let n_calls = n_calls(save, rank);
    assert!(n_calls >= if rank == 0 { 15 } else { 7 }, "{n_calls}");
    for at in 0..n_calls {
        let case = format!("{save:?}, call {at} of rank {rank}, {fate:?}");
        let dir = temp_dir();
        let store = saved(dir.path(), &layout, 2, 1..=3);
        let disk = Arc::new(FaultyDisk::new(at, fate));
        let timeout = if rank == 0 { PATIENT } else { Duration::from_millis(100) };
        let results = save.run(dir.path(), &layout, &disks(rank, &disk), timeout);

        let search = store.newest_valid().unwrap();
        let found = search.found.unwrap();
        let step = found.manifest().run.step;
        let is_acknowledged = results[0].is_ok();
        assert!(step == save.step() || (step == 3 && !is_acknowledged), "{case}: {results:?}, found {step}");
        // A folder with a step's name is always complete; only `latest` may lag behind.
        assert!(search.skipped.is_empty(), "{case}: {:?}", search.skipped);
        for step in store.steps().unwrap() {
            let checked = store.checkpoint(step).and_then(|checkpoint| checkpoint.verify());
            assert_eq!(checked, Ok(()), "{case}: step {step}");
        }
        check_content(&found, &layout, 3);
        check(&case, &results);

        // The next start removes leftovers, and saves.
        store.prepare().unwrap();
        let results = save_on_ranks(dir.path(), &layout, &run_state(5), &os_disk(), 2, |_| {});
        results.into_iter().for_each(|result| assert_eq!(result.unwrap().notes, [""; 0], "{case}"));
        let found = store.newest_valid().unwrap().found.unwrap();
        assert_eq!(found.manifest().run.step, 5, "{case}");
        let left = names(&store);
        let is_known = |name: &String| name.starts_with("step-") || name == "latest" || name == "best";
        assert!(left.iter().all(is_known) && left.contains(&"step-1".to_owned()), "{case}: {left:?}");
        assert_eq!(store.marked(ddp::checkpoint::Marker::Latest).unwrap(), "step-5");
    }
}

/// Checks the message of a rank about a failed save.
fn check_message(case: &str, error: &CheckpointError, parts: &[&str]) {
    let message = ddp_kernels::hint::with_hint(error);
    for part in parts {
        assert!(message.contains(part), "{case}: no {part:?} in {message}");
    }
}

#[test]
fn a_full_disk_at_every_call_of_rank_0() {
    for errno in FULL {
        for fate in [Fate::FailOnce(errno), Fate::StaysFull(errno)] {
            each_call(Save::Next, 0, fate, |case, results| match &results[0] {
                // A fault after the checkpoint was safe is reported, but is not a failure. Removing the old one may need no disk
                // space.
                Ok(saved) => assert!(!saved.notes.is_empty() || saved.deleted == [2], "{case}: {saved:?}"),
                Err(error) => {
                    let system = std::io::Error::from(errno).to_string();
                    let parts =
                        ["the checkpoint of step 4 was not saved: can't ", &system, " needed, ", " free\n"];
                    check_message(case, error, &parts);
                    check_message(case, error, &["the newest good checkpoint is step-3\nhint: the disk "]);
                }
            });
        }
    }
}

#[test]
fn a_full_disk_at_every_call_of_another_rank() {
    for fate in [Fate::FailOnce(Errno::NOSPC), Fate::StaysFull(Errno::NOSPC)] {
        each_call(Save::Next, 1, fate, |case, results| {
            let own = results[1].as_ref().unwrap_err();
            check_message(
                case,
                own,
                &["can't ", "No space left on device", "step-3\nhint: the disk is full"],
            );
            // Rank 0 learns the reason if rank 1 could still leave a note, and otherwise that nothing arrived.
            let error = results[0].as_ref().unwrap_err();
            match error {
                CheckpointError::RankFailed { .. } => {
                    check_message(
                        case,
                        error,
                        &["rank 1: the checkpoint of step 4", "No space left on device"],
                    );
                }
                _ => check_message(
                    case,
                    error,
                    &["rank 1 wrote nothing for ", "is a folder that all hosts share"],
                ),
            }
            check_message(case, error, &["the newest good checkpoint is step-3"]);
        });
    }
}

#[test]
fn a_broken_disk_at_every_call() {
    for (save, rank) in [(Save::Next, 0), (Save::Next, 1), (Save::Again, 0)] {
        each_call(save, rank, Fate::FailOnce(Errno::IO), |case, results| {
            if let Err(error @ CheckpointError::Save { .. }) = &results[rank] {
                check_message(case, error, &["Input/output error", "hint: check permissions and the disk"]);
                assert!(!error.to_string().contains("needed"), "{case}: room is not what was wanting");
            }
        });
    }
}

#[test]
fn a_process_that_ends_at_every_call() {
    for (save, rank) in [(Save::Next, 0), (Save::Next, 1), (Save::Again, 0)] {
        each_call(save, rank, Fate::Killed, |_, _| {});
    }
}

#[test]
fn a_power_cut_at_every_call() {
    for (save, rank) in [(Save::Next, 0), (Save::Next, 1), (Save::Again, 0)] {
        each_call(save, rank, Fate::PowerCut, |_, _| {});
    }
}

/// A faulty disk that can't exchange names, like NFS.
#[derive(Debug)]
struct NoExchange(FaultyDisk);

impl Disk for NoExchange {
    fn create_dir_all(&self, path: &Path) -> std::io::Result<()> {
        self.0.create_dir_all(path)
    }
    fn create(&self, path: &Path) -> std::io::Result<ddp::storage::disk::OpenFile> {
        self.0.create(path)
    }
    fn write(&self, file: &mut ddp::storage::disk::OpenFile, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write(file, bytes)
    }
    fn sync(&self, file: &ddp::storage::disk::OpenFile) -> std::io::Result<()> {
        self.0.sync(file)
    }
    fn sync_dir(&self, path: &Path) -> std::io::Result<()> {
        self.0.sync_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.0.rename(from, to)
    }
    fn exchange(&self, _: &Path, _: &Path) -> std::io::Result<()> {
        Err(Errno::INVAL.into())
    }
    fn remove_file(&self, path: &Path) -> std::io::Result<()> {
        self.0.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> std::io::Result<()> {
        self.0.remove_dir_all(path)
    }
}

#[test]
fn the_same_step_again_where_names_cannot_be_exchanged() {
    let layout = layout(&[3, 5, 2]);
    for at in 0..40 {
        let dir = temp_dir();
        let store = saved(dir.path(), &layout, 2, 1..=3);
        let disk: Arc<dyn Disk> = Arc::new(NoExchange(FaultyDisk::new(at, Fate::Killed)));
        let results = Save::Again.run(dir.path(), &layout, &[disk, Arc::new(OsDisk)], PATIENT);
        // Between two renames, only the next start can find it.
        store.prepare().unwrap();
        let found = store.newest_valid().unwrap().found.unwrap();
        assert_eq!(found.manifest().run.step, 3, "call {at}: {results:?}");
        check_content(&found, &layout, 2);
        assert_eq!(
            names(&store),
            ["best", "latest", "step-1", "step-2", "step-3"].map(str::to_owned)
                [usize::from(store.marked(ddp::checkpoint::Marker::Best).is_none())..]
        );
    }
}
