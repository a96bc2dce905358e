//! The data-parallel law on the library's trainer, with ranks that are threads: all ranks hold the same bits, any number
//! of them trains as one does, and every row is used once an epoch.

#![allow(clippy::unwrap_used)]

mod made_up;

use ddp::batches::Table;
use ddp::config::OptimizerKind;
use ddp::epoch::StepBatches;
use ddp::sampler::KeyedPermutation;
use ddp::shard::GlobalBatches;
use ddp::trainer::{StepRows, TrainerOptions};
use ddp_comm::{World, threads};
use ddp_kernels::{DType, Device, Tensor};
use made_up::{Setup, assert_close, losses, row_weights};
use proptest::prelude::*;

#[test]
fn any_number_of_ranks_trains_as_one_and_all_hold_the_same_bits() {
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        let setup = Setup { optimizer, ..Setup::usual() };
        let alone = setup.train_on(1);
        assert!(alone.losses.len() == 12 && alone.losses[11] < alone.losses[0], "{alone:?}");
        for world_size in 2..=5 {
            let trained = setup.train_on(world_size);
            assert_close(&format!("{optimizer}, {world_size} ranks"), &trained, &alone);
        }
    }
}

/// Each rank meets other codes, and so adds to other rows of the tables.
#[test]
fn embeddings_train_on_any_number_of_ranks_as_on_one() {
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        let setup = Setup { optimizer, ..Setup::embedded() };
        let alone = setup.train_on(1);
        assert!(alone.losses.len() == 12 && alone.losses[11] < alone.losses[0], "{alone:?}");
        for (world_size, n_micro) in [(1, 1), (1, 5), (2, 2), (3, 1), (5, 2)] {
            let trained = Setup { n_micro, ..setup.clone() }.train_on(world_size);
            assert_close(&format!("{optimizer}, {world_size} ranks, {n_micro} passes"), &trained, &alone);
        }
    }
    let usual = Setup::embedded().train_on(3);
    for bucket_bytes in [1, 25 << 20] {
        for overlap in [true, false] {
            let mut setup = Setup::embedded();
            setup.options = TrainerOptions { bucket_bytes, overlap, ..setup.options };
            assert!(setup.train_on(3) == usual, "{bucket_bytes} bytes a bucket, overlap {overlap}");
        }
    }
}

#[test]
fn weights_of_rows_keep_the_law() {
    for loss in losses() {
        let setup = Setup { row_weights: Some(row_weights(29)), loss, ..Setup::usual() };
        let alone = Setup { n_micro: 1, ..setup.clone() }.train_on(1);
        for world_size in [2, 3, 5] {
            let trained = setup.train_on(world_size);
            assert_close(&format!("{:?}, {world_size} ranks", setup.loss), &trained, &alone);
        }
        let options = TrainerOptions { divide_update_from: 1, ..setup.options };
        let divided = Setup { options, ..setup.clone() }.train_on(3);
        assert_close(&format!("{:?}, a divided update", setup.loss), &divided, &alone);
        let unweighted = Setup { row_weights: None, ..setup }.train_on(1);
        assert!(unweighted.weights != alone.weights, "the weights count");
    }
}

#[test]
fn any_number_of_micro_batches_trains_as_one() {
    let alone = Setup { n_micro: 1, ..Setup::usual() }.train_on(1);
    for (world_size, n_micro) in [(1, 2), (1, 12), (2, 3), (3, 5)] {
        let trained = Setup { n_micro, ..Setup::usual() }.train_on(world_size);
        assert_close(&format!("{world_size} ranks, {n_micro} micro-batches"), &trained, &alone);
    }
}

/// Sums are taken in rank order element by element, so where buckets end and when they start changes no bit.
#[test]
fn buckets_and_overlap_change_no_bit() {
    for world_size in [2, 3, 5] {
        let usual = Setup::usual().train_on(world_size);
        for bucket_bytes in [1, 1500, 4000, 25 << 20] {
            for overlap in [true, false] {
                let mut setup = Setup::usual();
                setup.options = TrainerOptions { bucket_bytes, overlap, ..setup.options };
                let trained = setup.train_on(world_size);
                assert!(
                    trained == usual,
                    "{world_size} ranks, {bucket_bytes} bytes a bucket, overlap {overlap}: other results"
                );
            }
        }
    }
}

/// Sums are taken in rank order and an element's update is the same whoever computes it, so dividing them over the ranks
/// changes no bit; but clipping follows the norm, whose sum is then taken in parts.
#[test]
fn dividing_the_update_changes_no_bit() {
    for world_size in [2, 3, 5] {
        let train = |divide_update_from, clip_grad_norm| {
            let mut setup = Setup::usual();
            setup.options = TrainerOptions { divide_update_from, clip_grad_norm, ..setup.options };
            setup.train_on(world_size)
        };
        let (divided, whole) = (train(1, 0.0), train(usize::MAX, 0.0));
        assert!(divided.weights == whole.weights, "{world_size} ranks: other weights");
        assert_close(&format!("{world_size} ranks, clipped"), &train(1, 0.7), &train(usize::MAX, 0.7));
    }
}

/// Rows whose one feature, whose label and whose weight are their own number.
fn numbered(n_rows: usize) -> Table {
    let x = Tensor::arange(n_rows, DType::F32, Device::Cpu).unwrap();
    let x = Tensor::from_slice(&x.to_vec::<f32>().unwrap(), &[n_rows, 1], Device::Cpu).unwrap();
    let weights = Tensor::from_slice(&x.to_vec::<f32>().unwrap(), &[n_rows], Device::Cpu).unwrap();
    Table::from_tensors(x, Tensor::arange(n_rows, DType::I64, Device::Cpu).unwrap(), Some(weights))
}

/// One row as a rank was given it: the row's number, and its place in the epoch.
type Given = (usize, usize);

/// The rows that this rank is given in one epoch, and into how many micro-batches each step is cut.
fn rows_of_rank(
    world: &World,
    table: &Table,
    order: &KeyedPermutation,
    global_rows: usize,
    n_micro: usize,
) -> (Vec<Given>, Vec<usize>) {
    let n_rows = table.n_rows();
    let max_rows = global_rows.min(n_rows).div_ceil(world.world_size()).div_ceil(n_micro);
    let mut buffers = table.buffers(max_rows).unwrap();
    let (mut given, mut n_passes) = (Vec::new(), Vec::new());
    for global in GlobalBatches::new(n_rows, global_rows) {
        let mut batches = StepBatches::new(world, table, order, &mut buffers, &global, n_micro);
        assert_eq!(batches.global_rows(), global.n_rows());
        n_passes.push(batches.n_micro_batches());
        for index in 0..batches.n_micro_batches() {
            let micro = batches.micro_batch(index).unwrap();
            let x = micro.rows.x.as_slice::<f32>("test", "x").unwrap();
            let labels = micro.rows.targets.as_slice::<i64>("test", "labels").unwrap();
            assert_eq!(x.len(), labels.len());
            let weights = micro.rows.weights.unwrap();
            assert_eq!(
                x,
                weights.as_slice::<f32>("test", "weights").unwrap(),
                "features and weight of one row"
            );
            for (i, (&x, &label)) in x.iter().zip(labels).enumerate() {
                assert_eq!(x, label as f32, "features and label of one row");
                given.push((label as usize, global.positions.start + micro.first_row + i));
            }
        }
    }
    (given, n_passes)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// All ranks' micro-batches together hold every row once an epoch, each at the place that the order gives it:
    /// what dropout is keyed by.
    #[test]
    fn every_row_is_used_once_an_epoch(
        n_rows in 1usize..160,
        global_rows in 1usize..80,
        n_micro in 1usize..=4,
        world_size in 1usize..=5,
        seed: u64,
        shuffle: bool,
    ) {
        let table = numbered(n_rows);
        let order = match shuffle {
            true => KeyedPermutation::new(n_rows, seed, 7),
            false => KeyedPermutation::identity(n_rows),
        };
        let ranks = threads::run(world_size, |world| {
            rows_of_rank(&world, &table, &order, global_rows, n_micro)
        });
        let mut places = vec![None; n_rows];
        for (given, n_passes) in &ranks {
            // A step's last pass ends in collectives, to which all ranks must come: none has fewer passes, or no pass.
            prop_assert_eq!(n_passes, &ranks[0].1);
            prop_assert!(n_passes.iter().all(|n| (1..=n_micro).contains(n)), "{:?}", n_passes);
            for &(row, place) in given {
                prop_assert_eq!(order.index(place), row);
                prop_assert_eq!(places[row].replace(place), None, "row {} twice", row);
            }
        }
        prop_assert!(places.iter().all(Option::is_some), "{:?}", places);
    }
}
