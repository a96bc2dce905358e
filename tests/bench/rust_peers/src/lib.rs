//! Arguments, made-up data and the timing of steps of the programs of this folder. Each trains the same two models with one library
//! and prints a line of JSON.
//!
//! - `mlp`: 64, 128, 10 with ReLU, 32 rows per step
//! - `char_gpt`: the transformer of `examples/src/bin/char_gpt`: 8 sequences of 32 characters, width 32, 4 heads, 2 blocks, AdamW

use std::time::Instant;

/// Columns of the rows of `mlp`, its hidden units and its classes.
pub const DIMS: [usize; 3] = [64, 128, 10];
/// Rows per step of `mlp`.
pub const BATCH: usize = 32;
/// Characters of a sequence of `char_gpt`, sequences per step, columns, heads, blocks and characters of the alphabet.
pub const CONTEXT: usize = 32;
pub const SEQUENCES: usize = 8;
pub const WIDTH: usize = 32;
pub const HEADS: usize = 4;
pub const BLOCKS: usize = 2;
pub const VOCAB: usize = 60;
pub const CHAR_GPT_LR: f64 = 3e-3;

/// `CASE OPTIMIZER STEPS`.
pub struct Args {
    pub case: String,
    pub optimizer: String,
    pub steps: usize,
}

impl Args {
    pub fn read() -> Self {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let [case, optimizer, steps] = &args[..] else { panic!("usage: CASE (mlp, char_gpt) OPTIMIZER (sgd, adamw) STEPS") };
        Args { case: case.clone(), optimizer: optimizer.clone(), steps: steps.parse().expect("STEPS is a number") }
    }

    /// Learning rate of `mlp`.
    pub fn lr(&self) -> f64 {
        if self.optimizer == "sgd" { 0.1 } else { 1e-3 }
    }

    /// Times `step(index)`, which returns a loss if it is asked for one, and prints the median and the losses of the ends.
    pub fn run(&self, library: &str, mut step: impl FnMut(usize, bool) -> Option<f64>) {
        let mut us = Vec::with_capacity(self.steps);
        let (mut first, mut last) = (f64::NAN, f64::NAN);
        for index in 0..self.steps {
            let reads_loss = index == 0 || index + 1 == self.steps;
            let start = Instant::now();
            let loss = step(index, reads_loss);
            us.push(start.elapsed().as_secs_f64() * 1e6);
            if let Some(loss) = loss {
                (first, last) = (if index == 0 { loss } else { first }, loss);
            }
        }
        // The first steps allocate and choose kernels.
        us.drain(..self.steps / 10);
        us.sort_by(f64::total_cmp);
        let at = |share: f64| us[(share * (us.len() - 1) as f64) as usize];
        println!(
            "{{\"library\":\"{library}\",\"case\":\"{}\",\"optimizer\":\"{}\",\"us_per_step\":{:.2},\"us_p10\":{:.2},\"first_loss\":{first:.4},\"last_loss\":{last:.4}}}",
            self.case, self.optimizer, at(0.5), at(0.1)
        );
    }
}

/// Numbers of a linear congruential generator.
pub struct Numbers(u64);

impl Numbers {
    pub fn new() -> Self {
        Numbers(1)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// In -1..1.
    pub fn float(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
}

/// 32 batches of `mlp`: rows, and as class the largest of their first columns.
pub fn mlp_batches() -> Vec<(Vec<f32>, Vec<i64>)> {
    let mut numbers = Numbers::new();
    let batch = |numbers: &mut Numbers| {
        let x: Vec<f32> = (0..BATCH * DIMS[0]).map(|_| numbers.float()).collect();
        let class = |row: &[f32]| (0..DIMS[2]).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0) as i64;
        let y = x.chunks(DIMS[0]).map(class).collect();
        (x, y)
    };
    (0..32).map(|_| batch(&mut numbers)).collect()
}

/// 16 batches of `char_gpt`: characters that repeat with a period, and the next ones.
pub fn char_batches() -> Vec<(Vec<i64>, Vec<i64>)> {
    let mut numbers = Numbers::new();
    let sequence = |numbers: &mut Numbers| {
        let (start, stride) = (numbers.below(VOCAB), 1 + numbers.below(5));
        (0..=CONTEXT).map(|i| ((start + i * stride) % VOCAB) as i64).collect::<Vec<_>>()
    };
    let batch = |numbers: &mut Numbers| {
        let sequences: Vec<_> = (0..SEQUENCES).map(|_| sequence(numbers)).collect();
        let x = sequences.iter().flat_map(|s| s[..CONTEXT].to_vec()).collect();
        let y = sequences.iter().flat_map(|s| s[1..].to_vec()).collect();
        (x, y)
    };
    (0..16).map(|_| batch(&mut numbers)).collect()
}
