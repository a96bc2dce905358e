//! Small checkpoints whose values all follow from the step.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ddp::checkpoint::{
    Best, Checkpoint, CheckpointError, CheckpointStore, Load, RunState, SaveOptions, Saved, Saver,
    ShardRange, StateReader, StateShare,
};
use ddp::data::order::epoch_proof::{EpochProof, RowsHash};
use ddp::data::{Normalizer, SavedPreprocessor};
use ddp::model::file::ModelInfo;
use ddp::model::{ModelSpec, ParamLayout};
use ddp::report::EvalMetrics;
use ddp::storage::disk::{Disk, OsDisk};
use ddp::storage::stream::Caching;
use ddp_kernels::ops::Activation;
use tempfile::TempDir;

/// Names of the state tensors.
pub(crate) const STATES: [&str; 3] = ["m", "v", "ema"];
/// Number of rows of an epoch, and of a step.
const N_ROWS: u64 = 10;
const GLOBAL_ROWS: u64 = 4;

/// A folder in a memory file system if there is one, because these tests try thousands of operations and do not test the disk.
pub(crate) fn temp_dir() -> TempDir {
    let in_memory = Path::new("/dev/shm");
    if in_memory.is_dir() { TempDir::new_in(in_memory).unwrap() } else { TempDir::new().unwrap() }
}

/// The layout of a network of these widths.
pub(crate) fn layout(dims: &[usize]) -> ParamLayout {
    ParamLayout::new(&ModelSpec { layer_norm: true, ..ModelSpec::plain(dims, Activation::Relu) })
}

/// Equal shards of the flat buffer, one per rank.
pub(crate) fn shards(layout: &ParamLayout, n_savers: usize) -> Vec<Range<usize>> {
    let len = layout.flat_len().div_ceil(n_savers);
    (0..n_savers).map(|i| (i * len).min(layout.flat_len())..((i + 1) * len).min(layout.flat_len())).collect()
}

/// The options with which rank `rank` of `n_savers` saves.
pub(crate) fn options(layout: &ParamLayout, rank: usize, n_savers: usize) -> SaveOptions {
    let shard_ranges = ShardRange::from_ranges(layout, &[shards(layout, n_savers)[rank].clone()]);
    SaveOptions {
        run_id: None,
        info: ModelInfo {
            config: "[train]\nepochs = 3\n".to_owned(),
            preprocessor: SavedPreprocessor {
                normalizer: Some(Normalizer::new(vec![1.0, 2.0, 3.0], vec![0.5; 3])),
                ..SavedPreprocessor::identity(["a", "b", "c"].map(str::to_owned).to_vec())
            },
            n_steps: None,
            held_out: None,
        },
        layout: layout.clone(),
        data_fingerprint: "00ff00ff00ff00ff".to_owned(),
        world_size: n_savers,
        rank,
        n_savers,
        state_names: STATES.map(str::to_owned).to_vec(),
        shard_ranges,
        keep: 0,
        keep_best: false,
        rank_timeout: Duration::from_secs(20),
        is_rank_lost: Arc::default(),
    }
}

/// State of a run after `step` steps of 4 of 10 rows.
pub(crate) fn run_state(step: u64) -> RunState {
    let mut proof = EpochProof::default();
    let cursor: u64 = (1..=step).map(|_| GLOBAL_ROWS).sum();
    (0..cursor / N_ROWS).for_each(|_| proof.finish_epoch(RowsHash::for_all_rows(N_ROWS)));
    proof.current = (0..cursor % N_ROWS).collect();
    RunState { step, cursor, n_rows: N_ROWS, global_rows: GLOBAL_ROWS, seed: 7, proof, ..RunState::default() }
}

/// Same as [`run_state`], with the best evaluation so far after step `best`.
pub(crate) fn run_state_with_best(step: u64, best: u64) -> RunState {
    let best = Best {
        metric: "eval_loss".to_owned(),
        value: 0.25,
        step: best,
        epoch: 1,
        eval: EvalMetrics::default(),
        class_use: None,
        is_last: false,
    };
    RunState { best: Some(best), ..run_state(step) }
}

/// Element `at` of the flat buffer of `what` after `step`: any bits except NaN.
pub(crate) fn value(what: &str, step: u64, at: usize) -> f32 {
    let key = what.bytes().fold(step, |key, byte| key.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let bits = (key ^ (at as u64) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    f32::from_bits((bits >> 33) as u32 & 0xbf7f_ffff)
}

/// Elements `range` of the flat buffer of `what` after `step`.
pub(crate) fn values(what: &str, step: u64, range: Range<usize>) -> Vec<f32> {
    range.map(|at| value(what, step, at)).collect()
}

/// Saves this rank's shard.
pub(crate) fn save(saver: &mut Saver, run: &RunState) -> Result<Saved, CheckpointError> {
    let options = saver.options();
    let layout = &options.layout;
    let own = shards(layout, options.n_savers)[options.rank].clone();
    let weights = (options.rank == 0).then(|| values("weights", run.step, 0..layout.flat_len()));
    let state: Vec<Vec<f32>> = STATES.iter().map(|name| values(name, run.step, own.clone())).collect();
    let state: Vec<&[f32]> = state.iter().map(Vec::as_slice).collect();
    saver.save(run, weights.as_deref(), &state)
}

/// Saves with `n_savers` ranks, each a thread, on `disks` in turn; returns the result of each rank.
pub(crate) fn save_on_ranks(
    out: &Path,
    layout: &ParamLayout,
    run: &RunState,
    disks: &[Arc<dyn Disk>],
    n_savers: usize,
    change: impl Fn(&mut SaveOptions) + Sync,
) -> Vec<Result<Saved, CheckpointError>> {
    let save_one = |rank: usize| {
        let mut options = options(layout, rank, n_savers);
        change(&mut options);
        let store = CheckpointStore::for_run(out).with_disk(disks[rank % disks.len()].clone());
        save(&mut Saver::new(store, options), run)
    };
    std::thread::scope(|scope| {
        let save_one = &save_one;
        let ranks: Vec<_> = (0..n_savers).map(|rank| scope.spawn(move || save_one(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The operating system's disk.
pub(crate) fn os_disk() -> Vec<Arc<dyn Disk>> {
    vec![Arc::new(OsDisk)]
}

/// Prepares the folder and saves these steps with `n_savers` ranks.
pub(crate) fn saved(
    out: &Path,
    layout: &ParamLayout,
    n_savers: usize,
    steps: impl IntoIterator<Item = u64>,
) -> CheckpointStore {
    let store = CheckpointStore::for_run(out);
    store.prepare().unwrap();
    for step in steps {
        for result in save_on_ranks(out, layout, &run_state(step), &os_disk(), n_savers, |_| {}) {
            assert_eq!(result.unwrap().notes, [""; 0]);
        }
    }
    store
}

/// Checks that a checkpoint has the content of its step, bit for bit, as read by `n_ranks`.
pub(crate) fn check_content(checkpoint: &Checkpoint, layout: &ParamLayout, n_ranks: usize) {
    load(checkpoint, layout, n_ranks).unwrap();
    // Check again by name, as commands read it.
    let step = checkpoint.manifest().run.step;
    let reader = StateReader::open(checkpoint).unwrap();
    for shard in shards(layout, n_ranks) {
        for name in STATES {
            let mut state = vec![0.0; shard.len()];
            reader
                .read(&ShardRange::from_ranges(layout, std::slice::from_ref(&shard)), name, &mut state)
                .unwrap();
            for at in layout.entries().iter().flat_map(|entry| entry.range()).filter(|at| shard.contains(at))
            {
                let (got, want) = (state[at - shard.start], value(name, step, at));
                assert_eq!(got.to_bits(), want.to_bits(), "{name}[{at}] of step {step}");
            }
        }
    }
}

/// Loaded values of a rank: its shard, all weights, and its shard of the state.
type LoadedRank = (Range<usize>, Vec<f32>, Vec<Vec<f32>>);

/// Exchanges the headers of the state files between `n_ranks`; returns the reader of each.
pub(crate) fn readers(checkpoint: &Checkpoint, n_ranks: usize) -> Result<Vec<StateReader>, CheckpointError> {
    let damaged = |fault| checkpoint.damaged(fault);
    // Invalid headers usually mean a changed file.
    let invalid = |fault| damaged(checkpoint.verify().err().unwrap_or(fault));
    let shares = (0..n_ranks).map(|rank| StateShare::open(checkpoint, rank, n_ranks));
    let shares = shares.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    let headers: Vec<_> = shares.iter().map(StateShare::to_bytes).collect();
    let headers: Vec<_> = headers.iter().map(Vec::as_slice).collect();
    let readers = shares.into_iter().map(|share| StateReader::from_shares(checkpoint, share, &headers));
    readers.collect::<Result<Vec<_>, _>>().map_err(damaged)
}

/// Loads the shard of one of `n_ranks`.
pub(crate) fn load_rank(
    checkpoint: &Checkpoint,
    layout: &ParamLayout,
    n_ranks: usize,
    rank: usize,
    reader: &StateReader,
) -> Result<LoadedRank, CheckpointError> {
    let shard = shards(layout, n_ranks)[rank].clone();
    let mut weights = vec![f32::NAN; layout.flat_len()];
    let mut state = vec![vec![f32::NAN; shard.len()]; STATES.len()];
    checkpoint.load(Load {
        layout,
        weights: &mut weights,
        shard_ranges: &ShardRange::from_ranges(layout, std::slice::from_ref(&shard)),
        state: STATES.into_iter().zip(state.iter_mut().map(Vec::as_mut_slice)).collect(),
        rank,
        world_size: n_ranks,
        reader,
        caching: if rank.is_multiple_of(2) { Caching::Bypass } else { Caching::Keep },
    })?;
    Ok((shard, weights, state))
}

/// Loads the shards of `n_ranks` and checks them bit for bit; returns the first error of any rank.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    layout: &ParamLayout,
    n_ranks: usize,
) -> Result<(), CheckpointError> {
    let step = checkpoint.manifest().run.step;
    let readers = readers(checkpoint, n_ranks)?;
    let load_one = |(rank, reader)| load_rank(checkpoint, layout, n_ranks, rank, reader);
    let loaded = readers.iter().enumerate().map(load_one).collect::<Result<Vec<_>, _>>()?;
    for (shard, weights, state) in loaded {
        for at in layout.entries().iter().flat_map(|entry| entry.range()) {
            assert_eq!(
                weights[at].to_bits(),
                value("weights", step, at).to_bits(),
                "weight {at} of step {step}"
            );
        }
        for (name, state) in STATES.into_iter().zip(state) {
            for at in layout.entries().iter().flat_map(|entry| entry.range()).filter(|at| shard.contains(at))
            {
                let (got, want) = (state[at - shard.start], value(name, step, at));
                assert_eq!(got.to_bits(), want.to_bits(), "{name}[{at}] of step {step}");
            }
        }
    }
    Ok(())
}

/// Names in the folder of checkpoints, sorted.
pub(crate) fn names(store: &CheckpointStore) -> Vec<String> {
    let entries = std::fs::read_dir(store.folder()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
