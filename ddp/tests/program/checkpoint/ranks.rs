//! Ranks that save together, and ranks that do not arrive.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ddp::checkpoint::{CheckpointError, CheckpointStore, Contents, Saver};

use super::fixture::*;

#[test]
fn rank_0_waits_for_slow_ones() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 1, []);
    std::thread::scope(|scope| {
        for rank in 0..3u64 {
            let (store, layout) = (store.clone(), &layout);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(60 * (3 - rank) % 120));
                let mut saver = Saver::new(store, options(layout, rank as usize, 3));
                for step in 1..=3 {
                    save(&mut saver, &run_state(step)).unwrap();
                }
            });
        }
    });
    let found = store.newest_valid().unwrap().found.unwrap();
    assert_eq!((found.manifest().run.step, found.manifest().world_size), (3, 3));
    check_content(&found, &layout, 2);
    let mut files: Vec<_> =
        std::fs::read_dir(found.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    files.sort();
    let want = ["manifest.json", "model.safetensors", "optimizer-00000-of-00003.safetensors"];
    assert_eq!(files[..3], want);
    assert_eq!(files.len(), 5, "no notes of ranks are left: {files:?}");
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 4, [1]);
    let started = Instant::now();
    let run = |rank: usize| {
        let mut options = options(&layout, rank, 4);
        options.rank_timeout = Duration::from_millis(200);
        save(&mut Saver::new(CheckpointStore::for_run(dir.path()), options), &run_state(2))
    };
    let error = std::thread::scope(|scope| {
        scope.spawn(|| run(2).unwrap());
        run(0).unwrap_err()
    });
    assert!((Duration::from_millis(200)..Duration::from_secs(60)).contains(&started.elapsed()));
    assert!(matches!(&error, CheckpointError::RanksMissing { .. }));
    let message = error.to_string();
    assert!(message.contains("ranks 1 and 3 wrote nothing for "), "{message}");
    assert!(message.contains("the newest good checkpoint is step-1"), "{message}");
    assert_eq!(names(&store), ["latest", "step-1"]);
}

/// Rank 0 waits neither in the background nor in a save that training waits for.
#[test]
fn a_lost_rank_is_not_waited_for() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 2, [1]);
    let options = options(&layout, 0, 2);
    let is_rank_lost = options.is_rank_lost.clone();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            is_rank_lost.store(true, Ordering::Release);
        });
        save(&mut Saver::new(store.clone(), options), &run_state(2)).unwrap_err()
    });
    assert!(matches!(&error, CheckpointError::Abandoned { step: 2, .. }), "{error}");
    assert!(error.to_string().contains("the newest good checkpoint is step-1"), "{error}");
    assert_eq!(names(&store), ["latest", "step-1"]);
}

/// Rank 1 holds the weights of the best evaluation for the loss of rank 0.
#[test]
fn rank_0_alone_saves_the_best_weights() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = CheckpointStore::for_run(dir.path());
    store.prepare().unwrap();
    let best = vec![0.5; layout.flat_len()];
    std::thread::scope(|scope| {
        for rank in [1, 0] {
            let (mut saver, weights) = (Saver::new(store.clone(), options(&layout, rank, 2)), &best);
            let own = vec![0.0; shards(&layout, 2)[rank].len()];
            scope.spawn(move || {
                let weights = Some(&weights[..]);
                let state: Vec<_> = STATES.iter().map(|_| vec![&own[..]]).collect();
                let contents = Contents { best: weights, state: &state, ..Contents::default() };
                let of_rank_0 = Contents { weights, ..contents };
                saver.save_all(&run_state(2), if rank == 0 { of_rank_0 } else { contents }).unwrap();
            });
        }
    });
    let found = store.newest_valid().unwrap().found.unwrap();
    let read = found.best_weights(&layout).unwrap().unwrap();
    for entry in layout.entries() {
        assert_eq!(read[entry.range()], best[entry.range()], "{}", entry.name);
    }
}

/// Only rank 0 knows the weights, and the others write their files meanwhile or later.
#[test]
fn weights_that_are_not_finite_leave_no_files_of_other_ranks() {
    for delays in [[0, 150, 300], [150, 0, 300]] {
        let dir = temp_dir();
        let layout = layout(&[3, 5, 2]);
        let store = saved(dir.path(), &layout, 3, [1]);
        let errors = std::thread::scope(|scope| {
            let ranks = (0..3).map(|rank| {
                let mut saver = Saver::new(store.clone(), options(&layout, rank, 3));
                let weights = vec![f32::NAN; layout.flat_len()];
                let weights = (rank == 0).then_some(weights);
                let own = shards(&layout, 3)[rank].clone();
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(delays[rank]));
                    let state = vec![0.0; own.len()];
                    let state: Vec<_> = STATES.iter().map(|_| state.as_slice()).collect();
                    saver.save(&run_state(2), weights.as_deref(), &state).err()
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(
            matches!(errors[..], [Some(CheckpointError::NotFinite { step: 2, .. }), None, None]),
            "{errors:?}"
        );
        assert_eq!(names(&store), ["latest", "step-1"]);
    }
}

#[test]
fn a_rank_whose_file_still_grows_is_not_silent() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 1, []);
    std::thread::scope(|scope| {
        let (store, layout) = (&store, &layout);
        scope.spawn(move || {
            // Imitates a rank on a slow disk: a few more bytes again and again, for longer than the limit.
            let temp = store.folder().join(".step-2-0.tmp");
            std::fs::create_dir_all(&temp).unwrap();
            for n in 1..=30 {
                std::fs::write(temp.join("growing"), vec![0; n * 100]).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
            std::fs::remove_file(temp.join("growing")).unwrap();
            save(&mut Saver::new(store.clone(), options(layout, 1, 2)), &run_state(2)).unwrap();
        });
        let mut options = options(layout, 0, 2);
        options.rank_timeout = Duration::from_millis(1500);
        save(&mut Saver::new(store.clone(), options), &run_state(2)).unwrap();
    });
    check_content(&store.newest_valid().unwrap().found.unwrap(), &layout, 1);
}

/// With the same number of ranks each rank opens the file that it wrote, whatever happens to the others; with another number it opens
/// those that hold its shard.
#[test]
fn a_rank_opens_only_the_state_files_that_it_reads() {
    let dir = temp_dir();
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 4, [1]);
    let checkpoint = store.checkpoint(1).unwrap();
    let of_rank = |rank: usize| checkpoint.path().join(format!("optimizer-{rank:05}-of-00004.safetensors"));
    let aside = |rank: usize| dir.path().join(rank.to_string());
    let is_parameter = |at: &usize| layout.entries().iter().any(|entry| entry.range().contains(at));
    for (n_ranks, rank) in (0..4).map(|rank| (4, rank)).chain([(8, 3), (8, 7), (2, 1), (1, 0)]) {
        for hidden in 0..4 {
            let readers = readers(&checkpoint, n_ranks).unwrap();
            std::fs::rename(of_rank(hidden), aside(hidden)).unwrap();
            let loaded = load_rank(&checkpoint, &layout, n_ranks, rank, &readers[rank]).map(drop);
            std::fs::rename(aside(hidden), of_rank(hidden)).unwrap();
            let stored = &shards(&layout, 4)[hidden];
            let holds_some =
                shards(&layout, n_ranks)[rank].clone().any(|at| stored.contains(&at) && is_parameter(&at));
            // What the rank verifies is open since it read the headers.
            let is_needed = holds_some && hidden % n_ranks != rank;
            assert!(!is_needed || n_ranks != 4, "each reads its own");
            assert_eq!(
                loaded.is_err(),
                is_needed,
                "{n_ranks} ranks, rank {rank} without file {hidden}: {loaded:?}"
            );
        }
    }
}
