//! The state of a trainer: taken, restored and taken again it is the same, on any number of ranks.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::SystemTime;

use ddp::checkpoint::{Checkpoint, Manifest};
use ddp::config::{Activation, OptimizerKind};
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions};
use ddp::model::ModelSpec;
use ddp::train::TrainError;
use ddp::train::checkpoints::Checkpoints;
use ddp_comm::threads;
use ddp_kernels::Device;

use crate::made_up::Setup;
use crate::random_program::Program;

/// Trains for `n_steps` steps on `n_ranks` ranks, from the checkpoint in `from` if one is named, and saves in `to`.
fn run(
    setup: &Setup,
    n_ranks: usize,
    from: Option<&Path>,
    n_steps: usize,
    to: &Path,
) -> Result<(), TrainError> {
    let of_rank = |world: ddp_comm::World| {
        let mut trainer = setup.try_trainer(&world, Device::Cpu)?;
        let mut cursor = 0;
        if let Some(from) = from {
            cursor = Checkpoints::new(&world, &trainer, from)?.resume(&mut trainer)?.unwrap();
            // Also the copies of shards.
            assert_eq!(trainer.compare_replicas()?, None);
        }
        let plan = BatchPlan { cursor, ..setup.plan() };
        let mut loader = DataLoader::new(&world, setup.rows(), &plan, LoaderOptions::new(Device::Cpu))?;
        for _ in 0..n_steps {
            let Some(mut rows) = loader.next_step()? else { break };
            trainer.step_and_wait(&mut rows, false)?;
        }
        trainer.gather_weights()?;
        Checkpoints::new(&world, &trainer, to)?.save(&trainer, cursor + n_steps as u64)
    };
    threads::run(n_ranks, of_rank).into_iter().collect()
}

fn manifest(folder: &Path) -> Manifest {
    Checkpoint::find(folder).unwrap().found.unwrap().manifest().clone()
}

#[test]
fn what_is_taken_and_restored_is_taken_again() {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let random = time.as_nanos() as u64 % 1_000_000_000;
    println!("random seed: {random}");
    let mut n_checked = 0;
    for seed in (0..40).chain([random]) {
        let Program { setup, n_ranks, saved_after, resumed_on } = Program::draw(seed, false);
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let [first, other, again] = folders.each_ref().map(tempfile::TempDir::path);
        // Programs are refused, and steps diverge.
        if run(&setup, n_ranks, None, saved_after, first).is_err() {
            continue;
        }
        run(&setup, resumed_on, Some(first), 0, other).unwrap();
        run(&setup, n_ranks, Some(other), 0, again).unwrap();
        let [first, other, again] = [first, other, again].map(manifest);
        assert_eq!((&other.run, &other.state), (&first.run, &first.state), "seed {seed}");
        // With the checksum of each.
        assert_eq!((again.run, again.files), (first.run, first.files), "seed {seed}");
        n_checked += 1;
    }
    assert!(n_checked > 20, "{n_checked} programs");
}

#[test]
fn a_checkpoint_without_a_part_is_refused_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let saved = Setup { optimizer: OptimizerKind::Sgd, ..Setup::usual() };
    run(&saved, 2, None, 1, folder.path()).unwrap();
    let refused = |setup: &Setup| -> Vec<String> {
        let of_rank = |world: ddp_comm::World| {
            let mut trainer = setup.try_trainer(&world, Device::Cpu).unwrap();
            let checkpoints = Checkpoints::new(&world, &trainer, folder.path()).unwrap();
            checkpoints.resume(&mut trainer).unwrap_err().to_string()
        };
        threads::run(2, of_rank)
    };
    for error in refused(&Setup { optimizer: OptimizerKind::AdamW, ..saved.clone() }) {
        assert!(error.contains("lacks \"m\" for elements"), "{error}");
    }
    for error in refused(&Setup { ema_decay: 0.9, ..saved.clone() }) {
        assert!(error.contains("lacks \"ema\" for elements"), "{error}");
    }
    let mut dims = saved.spec.dims.clone();
    dims.insert(1, 3);
    for error in refused(&Setup { spec: ModelSpec::plain(&dims, Activation::Relu), ..saved.clone() }) {
        assert!(error.contains("is not in the checkpoint") && error.contains("in the model"), "{error}");
    }
}
