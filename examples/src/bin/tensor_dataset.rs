//! Rows from tensors, in a custom order: batches arrive as tensors on the rank's device, each rank with its shard of them.
//!
//!     cargo run --release -p ddp-examples --bin tensor_dataset

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use ddp::data::{BatchPlan, DataLoader, LoaderOptions, Sampler, Shuffle, TensorDataset};
use ddp::prelude::*;

const N_ROWS: usize = 12;
const GLOBAL_BATCH: usize = 6;

/// Visits rows with positive targets twice as often as the others: a sampler for classes of different size.
#[derive(Debug)]
struct TwiceAsOften {
    positive: Vec<bool>,
}

impl Sampler for TwiceAsOften {
    fn rows(&self, epoch: u64) -> Vec<usize> {
        let times = |row: usize| if self.positive[row] { 2 } else { 1 };
        let mut rows: Vec<usize> = (0..N_ROWS).flat_map(|row| vec![row; times(row)]).collect();
        // The start differs in each epoch; all ranks compute the same one.
        let n = rows.len();
        rows.rotate_left(5 * epoch as usize % n);
        rows
    }
}

fn main() -> ddp::Result<()> {
    let x = Tensor::arange(N_ROWS, DType::F32, Device::cpu())?.into_shape(&[N_ROWS, 1])?;
    let y = x.gt(8.5)?.to_dtype(DType::I64)?.into_shape(&[N_ROWS])?;
    let positive = y.to_vec::<i64>()?.into_iter().map(|label| label == 1).collect();
    let sampler: Arc<dyn Sampler> = Arc::new(TwiceAsOften { positive });
    for (name, shuffle) in [("shuffled", Shuffle::Full), ("own order", Shuffle::Sampler(sampler))] {
        let of_ranks = ddp::launch(2, |world| -> ddp::Result<Vec<Vec<f32>>> {
            let device = Device::cpu();
            let rows = Arc::new(TensorDataset::new(&x, &y)?);
            let plan = BatchPlan {
                shuffle: shuffle.clone(),
                seed: 1,
                n_epochs: Some(1),
                ..BatchPlan::new(GLOBAL_BATCH)
            };
            let mut loader = DataLoader::new(world, rows, &plan, LoaderOptions::new(device))?;
            let mut batches = Vec::new();
            for batch in loader.iter()? {
                let (x, y) = batch?;
                assert_eq!((x.device(), y.dtype()), (device, DType::I64));
                batches.push(x.to_vec()?);
            }
            Ok(batches)
        })?;
        for (rank, batches) in of_ranks.iter().enumerate() {
            println!("{name}, rank {rank}: {batches:?}");
        }
    }
    Ok(())
}
