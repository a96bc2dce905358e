//! The data-parallel law for the library's trainer, with ranks as threads: all ranks hold the same bits, any number of ranks
//! trains the same model as one, and every row is used once per epoch.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::made_up::{Setup, assert_close, losses, row_weights};
use ddp::config::OptimizerKind;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, Shuffle};
use ddp::data::{Dataset, RowLayout, TargetLayout, Targets, TensorDataset, numbered_columns};
use ddp::train::trainer::{StepRows, TrainerOptions};
use ddp_comm::{World, threads};
use ddp_kernels::Device;
use ddp_kernels::KeyedPermutation;
use proptest::prelude::*;

#[test]
fn any_number_of_ranks_trains_as_one_and_all_hold_the_same_bits() {
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW, OptimizerKind::Lion] {
        let setup = Setup { optimizer, ..Setup::usual() };
        let alone = setup.train_on(1);
        assert!(alone.losses.len() == 12 && alone.losses[11] < alone.losses[0], "{alone:?}");
        for world_size in 2..=5 {
            let trained = setup.train_on(world_size);
            assert_close(&format!("{optimizer}, {world_size} ranks"), &trained, &alone);
        }
    }
}

/// Each rank sees different codes, and so updates different rows of the tables.
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
            assert!(setup.train_on(3) == usual, "{bucket_bytes} bytes per bucket, overlap {overlap}");
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

/// Sums are taken in rank order element by element, so the boundaries and start times of buckets change no bit.
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
                    "{world_size} ranks, {bucket_bytes} bytes per bucket, overlap {overlap}: other results"
                );
            }
        }
    }
}

/// Sums are taken in rank order, and the update of an element is the same on every rank, so dividing them over the ranks changes
/// no bit. Clipping is an exception: it depends on the norm, which is then summed in parts.
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

/// Rows whose only feature, label and weight equal their index.
fn numbered(n_rows: usize) -> Arc<dyn Dataset> {
    let numbers: Vec<f32> = (0..n_rows).map(|row| row as f32).collect();
    let mut layout = RowLayout::new(numbered_columns(1), TargetLayout::Classes { n_classes: n_rows.max(2) });
    layout.has_weights = true;
    let labels = Targets::Labels((0..n_rows as i64).collect());
    let source = "numbers".to_owned();
    Arc::new(TensorDataset {
        features: numbers.clone(),
        targets: labels,
        weights: Some(numbers),
        layout,
        source,
    })
}

/// One row that a rank received: its index, and its position in the epoch.
type Given = (usize, usize);

/// The rows that this rank receives in two epochs, and the number of micro-batches of each step.
fn rows_of_rank(
    world: &World,
    rows: &Arc<dyn Dataset>,
    (global_rows, n_micro): (usize, usize),
    (seed, shuffle): (u64, &Shuffle),
    n_threads: usize,
) -> (Vec<Given>, Vec<usize>) {
    let n_rows = rows.len();
    let plan = BatchPlan {
        partition: PartitionKind::Ranks { n_micro },
        shuffle: shuffle.clone(),
        seed,
        n_epochs: Some(2),
        ..BatchPlan::new(global_rows)
    };
    let options = LoaderOptions { threads: Some(n_threads), prefetch: 2, ..LoaderOptions::new(Device::Cpu) };
    let mut loader = DataLoader::new(world, rows.clone(), &plan, options).unwrap();
    let (mut given, mut n_micro_batches) = (Vec::new(), Vec::new());
    let mut begin = 0;
    while let Some(mut step) = loader.next_step().unwrap() {
        n_micro_batches.push(step.n_micro_batches());
        for index in 0..step.n_micro_batches() {
            let micro = step.micro_batch(index).unwrap();
            let x = micro.rows.x.as_slice::<f32>("test", "x").unwrap();
            let labels = micro.rows.targets.as_slice::<i64>("test", "labels").unwrap();
            assert_eq!(x.len(), labels.len());
            let weights = micro.rows.weights.unwrap();
            let weights = weights.as_slice::<f32>("test", "weights").unwrap();
            assert_eq!(x, weights, "features and weight of one row");
            for (i, (&x, &label)) in x.iter().zip(labels).enumerate() {
                assert_eq!(x, label as f32, "features and label of one row");
                given.push((label as usize, begin + micro.first_row + i));
            }
        }
        begin += step.global_rows();
        assert_eq!(step.ends_epoch(), begin.is_multiple_of(n_rows));
    }
    (given, n_micro_batches)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// The micro-batches of all ranks together contain every row once per epoch, each at its position in the order, which is the
    /// key of its dropout mask.
    #[test]
    fn every_row_is_used_once_an_epoch(
        n_rows in 1usize..160,
        global_rows in 1usize..80,
        n_micro in 1usize..=4,
        world_size in 1usize..=5,
        seed: u64,
        shuffle in prop_oneof![Just(Shuffle::Off), Just(Shuffle::Full)],
        n_threads in 0usize..=3,
    ) {
        let rows = numbered(n_rows);
        let ranks = threads::run(world_size, |world| {
            rows_of_rank(&world, &rows, (global_rows, n_micro), (seed, &shuffle), n_threads)
        });
        let mut places = vec![None; 2 * n_rows];
        for (given, n_micro_batches) in &ranks {
            // A step's last micro-batch ends in collectives that all ranks must enter, so every rank has the same number of them,
            // and at least one.
            prop_assert_eq!(n_micro_batches, &ranks[0].1);
            prop_assert!(n_micro_batches.iter().all(|n| (1..=n_micro).contains(n)), "{:?}", n_micro_batches);
            for &(row, place) in given {
                prop_assert_eq!(places[place].replace(row), None, "place {} twice", place);
            }
        }
        for (epoch, rows) in places.chunks(n_rows).enumerate() {
            let mut rows: Vec<_> = rows.iter().map(|row| row.unwrap()).collect();
            if matches!(shuffle, Shuffle::Full) {
                let order = KeyedPermutation::new(n_rows, seed, epoch as u64);
                prop_assert!(rows.iter().enumerate().all(|(place, &row)| order.index(place) == row));
            }
            rows.sort();
            prop_assert_eq!(rows, (0..n_rows).collect::<Vec<_>>());
        }
    }
}
