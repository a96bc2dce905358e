//! `ddp-train bench checkpoint`: pause of the snapshot, and speed of checkpoint write and read.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ddp::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, Load, RunState, SaveOptions, Saver, ShardRange,
    SnapshotBuffers, StateReader,
};
use ddp::data::SavedPreprocessor;
use ddp::model::file::ModelInfo;
use ddp::model::{ModelSpec, ParamLayout};
use ddp::storage::stream::Caching;
use ddp::storage::user_file::{FileError, open_regular};
use ddp_comm::World;
use ddp_kernels::Device;
use ddp_kernels::ops::Activation;
use rustix::fs::{Advice, fadvise};

use super::place::{Place, Work};
use super::report::{self, Row};
use super::timing::Times;
use crate::cli::BenchCheckpointArgs;
use crate::error::Result;
use crate::exit::Stop;

/// Runs the benchmark on rank 0 and prints the results; the other ranks wait.
pub(super) fn checkpoint(world: &World, args: &BenchCheckpointArgs) -> Result<(), Stop> {
    let place = Place::pin(world, &args.place, Work::Operations, &[])?;
    let rows = if world.rank().0 == 0 { measure(args) } else { Ok(Vec::new()) };
    let rows = world.collective_result(rows)?;
    report::print(world, "checkpoint", &place, args.place.json, &rows)?;
    Ok(())
}

fn measure(args: &BenchCheckpointArgs) -> Result<Vec<Row>> {
    let layout = ParamLayout::new(&ModelSpec::plain(&args.dims.0, Activation::Relu));
    let n = layout.flat_len();
    let names: Vec<String> = (0..args.states).map(|i| format!("state{i}")).collect();
    let weights = random(n, 1);
    let state: Vec<Vec<f32>> = (0..args.states).map(|i| random(n, 2 + i as u32)).collect();
    let state: Vec<&[f32]> = state.iter().map(Vec::as_slice).collect();
    let mut buffers = SnapshotBuffers::for_device(Device::Cpu, n, &vec![n; args.states])?;
    buffers.touch();

    // A separate folder, so that other files in the given folder are kept.
    let store = CheckpointStore::at(&args.out.join(format!("checkpoint-bench-{}", std::process::id())));
    store.prepare()?;
    let options = SaveOptions {
        run_id: None,
        info: ModelInfo {
            config: String::new(),
            preprocessor: SavedPreprocessor::identity(vec!["x".to_owned(); args.dims.0[0]]),
            n_steps: None,
            held_out: None,
        },
        layout: layout.clone(),
        data_fingerprint: String::new(),
        world_size: 1,
        rank: 0,
        n_savers: 1,
        state_names: names.clone(),
        shard_ranges: ShardRange::from_ranges(&layout, std::slice::from_ref(&(0..n))),
        keep: 0,
        keep_best: false,
        rank_timeout: SaveOptions::RANK_TIMEOUT,
        is_rank_lost: Arc::default(),
    };
    let mut saver = Saver::new(store.clone(), options);
    let mut ms: [Vec<f64>; 3] = Default::default();
    let (mut read_weights, mut read_state) = (random(n, 0), vec![random(n, 0); args.states]);
    for step in 1..=args.repeats as u64 {
        let (taken, snapshot_ms) = timed(|| buffers.fill(Some(&weights), &state));
        taken?;
        ms[0].push(snapshot_ms);
        let run = RunState { step, n_rows: 1, global_rows: 1, ..RunState::default() };
        let (saved, save_ms) = timed(|| saver.save(&run, Some(buffers.weights()), &buffers.state()));
        saved?;
        ms[1].push(save_ms);

        let folder = store.step_folder(step);
        drop_cache(&folder)?;
        let (read, read_ms) = timed(|| -> Result<()> {
            let checkpoint = Checkpoint::read(&folder)
                .map_err(|fault| CheckpointError::Damaged { path: folder.clone(), fault })?;
            let state = names.iter().map(String::as_str).zip(read_state.iter_mut().map(Vec::as_mut_slice));
            let reader = StateReader::open(&checkpoint).map_err(|fault| checkpoint.damaged(fault))?;
            checkpoint.load(Load {
                layout: &layout,
                weights: &mut read_weights,
                shard_ranges: &saver.options().shard_ranges,
                state: state.collect(),
                rank: 0,
                world_size: 1,
                reader: &reader,
                caching: Caching::Bypass,
            })?;
            Ok(())
        });
        read?;
        ms[2].push(read_ms);
        store.delete(step)?;
    }
    store.delete_all()?;
    let size_bytes = 4 * n * (1 + args.states);
    let whats = ["snapshot", "save", "resume"];
    let measured = |(what, ms)| {
        let times = Times::of(ms);
        Row::default()
            .plain("<what", "what", what)
            .bytes("size", "size_bytes", size_bytes)
            .times(times)
            .number("GB/s", "gb_per_s", times.giga_per_s(size_bytes as f64))
    };
    Ok(whats.into_iter().zip(ms).map(measured).collect())
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64() * 1e3)
}

/// Drops the files from the page cache, so that they are read from disk.
fn drop_cache(folder: &Path) -> Result<()> {
    let advise = || -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            fadvise(open_regular(&entry?.path())?, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    };
    advise().map_err(|source| {
        FileError::Unreadable { what: "checkpoint", path: folder.to_owned(), source }.into()
    })
}

/// Incompressible random numbers.
fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        f32::from_bits(x & 0xbf7f_ffff)
    };
    (0..n).map(|_| next()).collect()
}
