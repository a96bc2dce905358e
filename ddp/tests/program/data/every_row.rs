//! For any format, shards, order and number of ranks and threads, every row is visited once per epoch, with its own label and
//! weight, and in the same order.

use std::sync::Arc;

use ddp::config::Config;
use ddp::data::Dataset;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, Shuffle};
use ddp::data::order::epoch_order::BlockLayout;
use ddp::data::order::partition::EvalPartition;
use ddp::data::split;
use ddp_comm::threads;
use ddp_kernels::Device;
use proptest::prelude::*;

use super::files::Element;
use super::sets::{Format, Rows, Set, formats};

const ENOUGH: u64 = 1 << 30;
const N_EPOCHS: u64 = 2;

/// Order in which rows are visited.
#[derive(Debug, Clone, Copy)]
struct Visit {
    world_size: usize,
    global_rows: usize,
    n_threads: usize,
    seed: u64,
    /// 0: no shuffle; 1: full shuffle; else blocks.
    shuffle: u8,
    /// Number of rows that all ranks have already visited.
    cursor: u64,
}

/// The labels (equal to the row indices) of the rows of each step, with the shards of all ranks concatenated; also checks each
/// row's features and weight.
fn visited(dataset: &Arc<dyn Dataset>, visit: Visit) -> Vec<Vec<usize>> {
    let Visit { world_size, global_rows, n_threads, seed, shuffle, cursor } = visit;
    let n_rows = dataset.len();
    let of_ranks = threads::run(world_size, |world| {
        let shuffle = match shuffle {
            0 => Shuffle::Off,
            1 => Shuffle::Full,
            // Ten rows per block, three blocks per window.
            _ => Shuffle::Blocks(Arc::new(BlockLayout::new(n_rows, 100 << 10, None, 3 << 20))),
        };
        let plan = BatchPlan { shuffle, seed, ..BatchPlan::new(global_rows) };
        let plan = BatchPlan { n_epochs: Some(N_EPOCHS), cursor, ..plan };
        let options =
            LoaderOptions { threads: Some(n_threads), prefetch: 2, ..LoaderOptions::new(Device::Cpu) };
        let mut loader = DataLoader::new(&world, dataset.clone(), &plan, options).unwrap();
        assert_eq!(loader.n_threads(), n_threads);
        let mut steps = Vec::new();
        while let Some(step) = loader.next_step().unwrap() {
            let batch = step.batch().unwrap();
            let x = batch.x.as_slice::<f32>("test", "x").unwrap();
            let labels = batch.targets.as_slice::<i64>("test", "targets").unwrap();
            let weights = batch.weights.map(|weights| weights.as_slice::<f32>("test", "weights").unwrap());
            let rows: Vec<usize> = labels.iter().map(|&label| label as usize).collect();
            assert_rows(dataset, &rows, x, weights);
            steps.push(rows);
        }
        steps
    });
    let n_steps = of_ranks[0].len();
    assert!(of_ranks.iter().all(|steps| steps.len() == n_steps), "all ranks take as many steps");
    (0..n_steps).map(|step| of_ranks.iter().flat_map(|steps| steps[step].clone()).collect()).collect()
}

/// Asserts that features and weights belong to these rows.
fn assert_rows(dataset: &Arc<dyn Dataset>, rows: &[usize], x: &[f32], weights: Option<&[f32]>) {
    let n_features = dataset.layout().n_features();
    assert_eq!(x.len(), rows.len() * n_features);
    for (n, &row) in rows.iter().enumerate() {
        let want: Vec<f32> = (0..n_features).map(|column| Rows::feature(row, column) as f32).collect();
        assert_eq!(x[n * n_features..][..n_features], want, "features of row {row}");
    }
    assert_eq!(weights.is_some(), dataset.layout().has_weights);
    for (weight, &row) in weights.unwrap_or_default().iter().zip(rows) {
        assert_eq!(*weight, Rows::weight(row) as f32, "weight of row {row}");
    }
}

/// Asserts that each epoch visits the rows `want`, which are in ascending order, once.
fn assert_once_an_epoch(steps: &[Vec<usize>], want: &[usize]) {
    let steps_an_epoch = steps.len() / N_EPOCHS as usize;
    for epoch in steps.chunks(steps_an_epoch) {
        let mut rows = epoch.concat();
        rows.sort_unstable();
        assert_eq!(rows, want);
    }
}

fn cuts() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.0..1.0, 0..5)
}

/// Indices of the rows at which the files are split.
fn places(cuts: &[f64], n_rows: usize) -> Vec<usize> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| (cut * n_rows as f64) as usize).collect();
    places.sort_unstable();
    places
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn every_row_once_an_epoch_in_one_order(
        format in prop::sample::select(formats()),
        n in 2usize..250,
        n_features in 1usize..8,
        feature_cuts in cuts(),
        label_cuts in cuts(),
        is_weighted: bool,
        says_classes: bool,
        global_rows in 1usize..90,
        world_size in 1usize..=5,
        n_threads in 0usize..=3,
        shuffle in 0u8..3,
        seed: u64,
        stop in 0.0..1.0,
        fraction in 0.1..0.9,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let rows = Rows { n, n_features };
        let (cuts, label_cuts) = (places(&feature_cuts, n), places(&label_cuts, n));
        let set = Set::write(folder.path(), format, rows, &cuts, &label_cuts, is_weighted);
        let more: Vec<String> = says_classes.then(|| format!("data.classes={n}")).into_iter().collect();
        let dataset = set.open(ENOUGH, &more).unwrap();
        prop_assert_eq!(dataset.len(), n);
        prop_assert_eq!(dataset.layout().targets.n_outputs(), n);

        let visit = Visit { world_size: 1, global_rows, n_threads: 0, seed, shuffle, cursor: 0 };
        let alone = visited(&dataset, visit);
        assert_once_an_epoch(&alone, &(0..n).collect::<Vec<_>>());
        if shuffle == 0 {
            prop_assert_eq!(alone.concat()[..n].to_vec(), (0..n).collect::<Vec<_>>());
        }

        // Some ranks and threads map the file, others read it.
        let read = if set.stays_in_file { set.open(1, &more).unwrap() } else { dataset.clone() };
        prop_assert_eq!(dataset.fingerprint().unwrap(), read.fingerprint().unwrap());
        let visit = Visit { world_size, n_threads, ..visit };
        prop_assert_eq!(&visited(&dataset, visit), &alone);
        prop_assert_eq!(&visited(&read, Visit { n_threads: 3 - n_threads, ..visit }), &alone);

        let step = (stop * alone.len() as f64) as usize;
        let cursor = alone[..step].iter().map(|rows| rows.len() as u64).sum();
        prop_assert_eq!(&visited(&read, Visit { cursor, ..visit })[..], &alone[step..]);

        if let Ok((train, eval)) = split(&dataset, fraction, seed) {
            let (train, eval): (Arc<dyn Dataset>, Arc<dyn Dataset>) = (Arc::new(train), Arc::new(eval));
            let (mut of_train, mut of_eval) =
                (visited(&train, visit).concat(), visited(&eval, visit).concat());
            let mut all = [of_train.clone(), of_eval.clone()].concat();
            of_train.sort_unstable();
            of_eval.sort_unstable();
            all.sort_unstable();
            prop_assert_eq!((of_train.len(), of_eval.len()), (2 * train.len(), 2 * eval.len()));
            prop_assert_eq!(all, (0..2 * n).map(|i| i / 2).collect::<Vec<_>>());
        }
    }
}

/// The passes of an evaluation, each rank with its own shard.
#[test]
fn evaluation_sees_every_row_once() {
    for (format, is_weighted) in formats().into_iter().flat_map(|format| [(format, true), (format, false)]) {
        let folder = tempfile::tempdir().unwrap();
        let rows = Rows { n: 53, n_features: 3 };
        let set = Set::write(folder.path(), format, rows, &[20, 21], &[7], is_weighted);
        for memory_bytes in if set.stays_in_file { vec![ENOUGH, 1] } else { vec![ENOUGH] } {
            let dataset = set.open(memory_bytes, &[]).unwrap();
            let of_ranks = threads::run(3, |world| {
                let options = LoaderOptions { threads: Some(1), ..LoaderOptions::new(Device::Cpu) };
                let mut loader = DataLoader::passes(
                    &world,
                    dataset.clone(),
                    EvalPartition { n_parts: 3, max_rows: 7 },
                    options,
                )
                .unwrap();
                let mut rows = Vec::new();
                while let Some(step) = loader.next_step().unwrap() {
                    let batch = step.batch().unwrap();
                    let labels = batch.targets.as_slice::<i64>("test", "targets").unwrap();
                    let x = batch.x.as_slice::<f32>("test", "x").unwrap();
                    let these: Vec<usize> = labels.iter().map(|&label| label as usize).collect();
                    let weights = batch.weights.map(|w| w.as_slice::<f32>("test", "weights").unwrap());
                    assert_rows(&dataset, &these, x, weights);
                    rows.extend(these);
                }
                rows
            });
            assert_eq!(of_ranks.concat(), (0..53).collect::<Vec<_>>(), "{format:?}");
        }
    }
}

/// The loader uses the config's blocks: it visits all rows, far from their original order.
#[test]
fn windows_as_the_config_says() {
    let folder = tempfile::tempdir().unwrap();
    let format = Format::Npy { features: Element::F32, labels: Element::I64, is_big_endian: false };
    // Rows of 40 kB, so a block has about 26 of them.
    let set = Set::write(folder.path(), format, Rows { n: 200, n_features: 10_000 }, &[50], &[], false);
    let dataset = set.open(1, &[]).unwrap();
    let sets = ["data.shuffle_mode=blocks".to_owned(), "data.shuffle_window_mib=2".to_owned()];
    let config = Config::load(None, &sets).unwrap();
    let shuffle = Shuffle::new(&config.data, &*dataset);
    let plan = BatchPlan { shuffle, seed: 3, n_epochs: Some(1), ..BatchPlan::new(10) };
    let options = LoaderOptions { threads: Some(2), ..LoaderOptions::new(Device::Cpu) };
    let mut loader = DataLoader::new(&ddp_comm::World::single(), dataset, &plan, options).unwrap();
    let mut rows = Vec::new();
    while let Some(step) = loader.next_step().unwrap() {
        rows.extend_from_slice(step.batch().unwrap().targets.as_slice::<i64>("test", "targets").unwrap());
    }
    let n_neighbors = rows.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    assert!(n_neighbors < 40, "{rows:?}");
    rows.sort_unstable();
    assert_eq!(rows, (0..200).collect::<Vec<_>>());
}
