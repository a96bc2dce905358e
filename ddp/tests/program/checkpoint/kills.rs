//! A process is killed at a random moment of saving: no acknowledged checkpoint is lost, and none is incomplete.
//!
//! `KILLS=1000 cargo test -p ddp-train --test program checkpoint::kills` kills 1000 times instead of the usual 20.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ddp::checkpoint::{CheckpointStore, SaveOptions, SaveOutcome, Saver, SnapshotBuffers, Writer};

use tempfile::TempDir;

use super::fixture::*;

/// Environment variable with the folder for [`saves_until_it_is_killed`].
const FOLDER: &str = "DDP_TEST_SAVES_IN";
/// Environment variable with the widths of its model.
const WIDTHS: &str = "DDP_TEST_SAVES_WIDTHS";
/// Files of a few kB.
const SMALL: [usize; 3] = [20, 60, 10];
/// About 9 MiB of weights.
const LARGE: [usize; 3] = [1501, 1567, 3];
const N_KILLS: &str = "KILLS";
/// Time limit until the process has saved at least once; it starts in a few ms.
const START: Duration = Duration::from_secs(60);

/// The process that is killed: resumes from the newest checkpoint, saves one step after another with two ranks as threads,
/// and prints each step once its checkpoint is acknowledged.
#[test]
#[ignore = "a process that the other test starts and kills"]
fn saves_until_it_is_killed() {
    let Some(out) = std::env::var_os(FOLDER) else { panic!("needs {FOLDER}") };
    let out = Path::new(&out);
    let widths: Vec<usize> =
        std::env::var(WIDTHS).unwrap().split(',').map(|width| width.parse().unwrap()).collect();
    let layout = layout(&widths);
    let store = CheckpointStore::for_run(out);
    store.prepare().unwrap();
    let start = store.newest_valid().unwrap().found.map_or(0, |found| found.manifest().run.step);
    let acknowledged = AtomicU64::new(start);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (store, layout, acknowledged) = (store.clone(), &layout, &acknowledged);
            scope.spawn(move || {
                let options = SaveOptions { keep: 2, keep_best: true, ..options(layout, rank, 2) };
                let mut writer =
                    Writer::start(Saver::new(store, options), SnapshotBuffers::default()).unwrap();
                for step in start + 1.. {
                    let (mut buffers, _) = writer.take_buffers();
                    for outcome in writer.poll() {
                        let SaveOutcome::Saved(saved) = outcome else {
                            // Exit immediately, because the other rank would wait for this one.
                            eprintln!("{outcome:?}");
                            std::process::exit(1);
                        };
                        if rank == 0 {
                            acknowledged.store(saved.step, Ordering::Release);
                            let mut stdout = std::io::stdout().lock();
                            writeln!(stdout, "saved {}", saved.step).and_then(|()| stdout.flush()).unwrap();
                        }
                    }
                    // A rank may be one save ahead, as in training.
                    while acknowledged.load(Ordering::Acquire) + 2 < step {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    let own = shards(layout, 2)[rank].clone();
                    let state: Vec<_> = STATES.iter().map(|name| values(name, step, own.clone())).collect();
                    let state: Vec<&[f32]> = state.iter().map(Vec::as_slice).collect();
                    let weights = values("weights", step, 0..layout.flat_len());
                    buffers.fill((rank == 0).then_some(&weights), &state).unwrap();
                    writer.save(run_state_with_best(step, step - step % 5), buffers).unwrap();
                }
            });
        }
    });
}

fn n_kills() -> usize {
    std::env::var(N_KILLS).map_or(20, |n| n.parse().unwrap())
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_torn() {
    let n_kills = n_kills();
    let last = kill_again_and_again(tempfile::tempdir().unwrap(), SMALL, n_kills, Duration::from_millis(40));
    assert!(last > n_kills as u64, "each process saves");
}

/// Files of several chunks, on a disk.
#[test]
fn nothing_of_large_files_either() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    kill_again_and_again(dir, LARGE, n_kills().div_ceil(20), Duration::from_millis(400));
}

/// Repeatedly starts a process that saves a model of these widths and kills it within a random time; returns the last step.
fn kill_again_and_again(dir: TempDir, widths: [usize; 3], n_kills: usize, within: Duration) -> u64 {
    let layout = layout(&widths);
    let store = CheckpointStore::for_run(dir.path());
    let mut random = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (mut n_lost, mut n_unreadable, mut n_torn, mut n_mid_save, mut last) = (0, 0, 0, 0, 0);
    for kill in 0..n_kills {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let after = within.mul_f64((random >> 33) as f64 / f64::from(1_u32 << 31));
        let acknowledged = save_and_kill(dir.path(), widths, after);

        n_mid_save += usize::from(names(&store).iter().any(|name| name.starts_with('.')));
        let search = store.newest_valid().unwrap();
        let steps = store.steps().unwrap().into_iter();
        n_torn += steps.filter(|&step| store.checkpoint(step).and_then(|c| c.verify()).is_err()).count();
        let Some(found) = search.found else {
            n_unreadable += 1;
            continue;
        };
        load(&found, &layout, 3).unwrap();
        let step = found.manifest().run.step;
        assert!(step >= last, "kill {kill}: step {step} after {last}");
        n_lost += usize::from(acknowledged.is_some_and(|acknowledged| step < acknowledged));
        last = step;
    }
    println!(
        "{n_kills} kills at steps up to {last}, {n_mid_save} of them in the middle of a save: unreadable {n_unreadable}, \
         acknowledged and lost {n_lost}, torn {n_torn}"
    );
    assert_eq!((n_unreadable, n_lost, n_torn), (0, 0, 0));
    assert!(
        n_mid_save * 4 > n_kills || n_kills < 20,
        "most moments are those of a save: {n_mid_save} of {n_kills}"
    );
    last
}

/// Starts the process, kills it `after` its first acknowledged save, and returns the last step that it acknowledged.
fn save_and_kill(out: &Path, widths: [usize; 3], after: Duration) -> Option<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "checkpoint::kills::saves_until_it_is_killed",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FOLDER, out)
        .env(WIDTHS, widths.map(|width| width.to_string()).join(","))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let started = std::time::Instant::now();
    let (mut line, mut text) = (String::new(), String::new());
    while !line.starts_with("saved ") {
        line.clear();
        let n = stdout.read_line(&mut line).unwrap();
        if n == 0 || started.elapsed() > START {
            let mut stderr = String::new();
            child.kill().unwrap();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            panic!("the process saved nothing: {stderr}");
        }
        text += &line;
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    stdout.read_to_string(&mut text).unwrap();
    // The last line may be truncated; the step in it was not acknowledged yet.
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    whole.lines().rev().find_map(|line| line.strip_prefix("saved ")?.parse().ok())
}
