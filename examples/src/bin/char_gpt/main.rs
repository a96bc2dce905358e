//! A small decoder transformer that learns five sonnets character by character: embeddings of characters and positions, causal
//! attention, and a head that shares its weights with the embedding. Two layers are custom ones, expressions, the others come from the
//! library; the trainer, the loader and the ranks are the same as for any model.
//!
//!     cargo run --release -p ddp-examples --bin char_gpt [STEPS] [RANKS] [--initial FILE] [--double] [--own-backward]
//!     mpirun -n 4 target/release/char_gpt
//!
//! `--initial` writes the initial weights, for `tests/golden/char_gpt.py`, which trains the same model in PyTorch. `--double`
//! also trains the first steps in f64, on one device. `--own-backward` takes an attention whose backward pass is written out.

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

mod double;
mod layers;
mod own_attention;

use std::path::Path;
use std::sync::Arc;

use ddp::data::{BatchPlan, DataLoader, GroupSampler, LoaderOptions, Sampler, Shuffle, TensorDataset};
use ddp::distributed::World;
use ddp::nn::{
    Activation, GradcheckOptions, Linear, LinearSpec, LossHead, Network, Precision, Sequential, Sizes,
    gradcheck,
};
use ddp::optim::{OptimizerConfig, OptimizerKind};
use ddp::prelude::*;
use ddp::train::{Trainer, TrainerOptions};
use layers::{causal_attention, character_embedding, character_table};
use own_attention::CausalAttention;

/// Five of Shakespeare's sonnets (18, 29, 73, 116, 130), in the public domain.
const TEXT: &str = include_str!("sonnets.txt");
/// Characters per sequence, and sequences per step over all ranks.
const CONTEXT: usize = 32;
const GLOBAL_SEQUENCES: usize = 8;
const WIDTH: usize = 32;
const HEADS: usize = 4;
const N_BLOCKS: usize = 2;
const LEARNING_RATE: f64 = 3e-3;
const SEED: u64 = 0;

/// The characters of the text, sorted; the code of a character is its index.
fn vocabulary() -> Vec<char> {
    let mut characters: Vec<char> = TEXT.chars().collect();
    characters.sort_unstable();
    characters.dedup();
    characters
}

/// Codes of the text: as many sequences as fill whole steps, plus one more character.
fn codes(vocabulary: &[char]) -> Vec<usize> {
    let code = |character| vocabulary.binary_search(&character).unwrap_or(0);
    let mut codes: Vec<usize> = TEXT.chars().map(code).collect();
    let step = CONTEXT * GLOBAL_SEQUENCES;
    codes.truncate((codes.len() - 1) / step * step + 1);
    codes
}

/// One row per character; its target is the next character.
fn rows(codes: &[usize]) -> ddp::Result<TensorDataset> {
    let n = codes.len() - 1;
    let x = Tensor::from_vec(codes[..n].iter().map(|&code| code as f32).collect(), &[n, 1], Device::cpu())?;
    let y = Tensor::from_vec(codes[1..].iter().map(|&code| code as i64).collect(), &[n], Device::cpu())?;
    Ok(TensorDataset::new(&x, &y)?)
}

/// A block: attention and a perceptron, each with a norm before it and a skip connection around it.
fn block(layers: Sequential, index: usize, has_own_backward: bool) -> Result<Sequential, KernelError> {
    let name = format!("attention.{index}");
    let attention = causal_attention(&name, CONTEXT, HEADS, WIDTH)?;
    let layers = layers.residual(|body| {
        let body = body.layer_norm().linear(3 * WIDTH);
        let body = if has_own_backward {
            body.layer(CausalAttention::new(&name, CONTEXT, HEADS, WIDTH))
        } else {
            body.layer(attention)
        };
        body.linear(WIDTH)
    });
    let perceptron =
        |body: Sequential| body.layer_norm().linear(4 * WIDTH).activation(Activation::Gelu).linear(WIDTH);
    Ok(layers.residual(perceptron))
}

fn transformer(vocab: usize, has_own_backward: bool) -> Result<Sequential, KernelError> {
    let mut layers = Sequential::new(1).layer(character_embedding(CONTEXT, vocab, WIDTH));
    for index in 0..N_BLOCKS {
        layers = block(layers, index, has_own_backward)?;
    }
    Ok(layers.layer_norm().layer(Linear::new(LinearSpec::from_params(character_table(vocab, WIDTH), None))))
}

fn adamw() -> OptimizerConfig {
    OptimizerConfig { weight_decay: 0.0, ..OptimizerConfig::new(OptimizerKind::AdamW, LEARNING_RATE) }
}

/// Initializes embeddings with 0.02 times standard normal numbers, as in GPT-2.
fn shrink_embeddings(model: &mut Network) -> ddp::Result<()> {
    let mut state = model.state_dict(Device::cpu())?;
    state.retain(|name, _| name.starts_with("embedding."));
    for values in state.values_mut() {
        *values = &*values * 0.02;
    }
    model.load_state_dict(&state, false)?;
    Ok(())
}

/// The losses of the rank, a generated text, and with `--double` the losses in f64.
type Trained = (Vec<f64>, String, Vec<f64>);

fn train(world: &World, args: &Args) -> ddp::Result<Trained> {
    let device = world.connect()?;
    let vocabulary = vocabulary();
    let codes = codes(&vocabulary);
    let (rows, global_rows) = (rows(&codes)?, CONTEXT * GLOBAL_SEQUENCES);
    let n_rows = codes.len() - 1;

    let max_rows = global_rows.div_ceil(world.world_size());
    let sizes = Sizes { max_rows, device, precision: Precision::F32 };
    let adamw = adamw();
    let options = TrainerOptions { seed: SEED, ..TrainerOptions::default() };
    let layers = transformer(vocabulary.len(), args.has_own_backward)?;
    let mut trainer = Trainer::for_layers(world, layers, sizes, LossHead::cross_entropy(), &adamw, options)?;
    shrink_embeddings(trainer.model_and_loss().0)?;
    // The order of the sequences; the characters of a sequence stay together.
    let order = GroupSampler::new(n_rows, CONTEXT, SEED);
    if let (Some(path), 0) = (&args.initial, world.rank().0) {
        write_initial(Path::new(path), trainer.model(), &order)?;
    }
    let mut in_f64 = Vec::new();
    if args.is_double && world.rank().0 == 0 {
        let steps = (&order, args.n_steps.min(20));
        in_f64 = double::losses(trainer.model(), &codes, vocabulary.len(), &adamw, steps)?;
    }
    let order = Shuffle::Sampler(Arc::new(order));
    let plan = BatchPlan { shuffle: order, seed: SEED, ..BatchPlan::new(global_rows) };
    let mut loader = DataLoader::new(world, Arc::new(rows), &plan, LoaderOptions::new(device))?;
    let mut losses = Vec::with_capacity(args.n_steps);
    while losses.len() < args.n_steps
        && let Some(mut batch) = loader.next_step()?
    {
        losses.push(trainer.step_and_wait(&mut batch, false)?.sums.mean());
    }
    let text = continued(trainer.model_and_loss().0, &codes[..CONTEXT], &vocabulary)?;
    Ok((losses, text, in_f64))
}

/// Writes the weights, and in a second file the order of the sequences of two epochs.
fn write_initial(path: &Path, model: &Network, order: &GroupSampler) -> ddp::Result<()> {
    io::write_safetensors(path, &model.state_dict(Device::cpu())?)?;
    let rows = [order.rows(0), order.rows(1)].concat();
    let sequences: Vec<i64> = rows.iter().step_by(CONTEXT).map(|row| (row / CONTEXT) as i64).collect();
    let n = sequences.len();
    ddp_tables::io::write_npy(
        path.with_file_name("order.npy"),
        &Tensor::from_vec(sequences, &[n], Device::cpu())?,
    )?;
    Ok(())
}

/// Generates the most likely next characters after `start`, which has the length of the context.
fn continued(model: &mut Network, start: &[usize], vocabulary: &[char]) -> ddp::Result<String> {
    let mut codes = start.to_vec();
    for _ in 0..80 {
        let window: Vec<f32> = codes[codes.len() - CONTEXT..].iter().map(|&code| code as f32).collect();
        let x = Tensor::from_vec(window, &[CONTEXT, 1], model.device())?;
        model.forward(&x)?;
        let last = model.outputs()?.rows(CONTEXT - 1, CONTEXT)?.to_tensor()?;
        codes.push(last.argmax(1)?.item::<i64>()? as usize);
    }
    Ok(codes[CONTEXT..].iter().map(|&code| vocabulary[code]).collect())
}

struct Args {
    n_steps: usize,
    n_ranks: usize,
    initial: Option<String>,
    is_double: bool,
    has_own_backward: bool,
}

impl Args {
    fn read() -> Self {
        let mut args: Vec<String> = std::env::args().skip(1).collect();
        let at = args.iter().position(|arg| arg == "--initial");
        let initial = at.filter(|at| at + 1 < args.len()).map(|at| args.drain(at..at + 2).nth(1));
        let mut take = |flag| args.iter().position(|arg| arg == flag).map(|at| args.remove(at)).is_some();
        let (is_double, has_own_backward) = (take("--double"), take("--own-backward"));
        let number = |index: usize| args.get(index).and_then(|arg| arg.parse().ok());
        Args {
            n_steps: number(0).unwrap_or(300),
            n_ranks: number(1).unwrap_or(2),
            initial: initial.flatten(),
            is_double,
            has_own_backward,
        }
    }
}

fn main() -> ddp::Result<()> {
    let args = Args::read();
    let vocabulary = vocabulary();
    // Checks the gradients of one sequence with difference quotients.
    let sizes = Sizes { max_rows: CONTEXT, device: Device::cpu(), precision: Precision::F64 };
    let mut model = transformer(vocabulary.len(), args.has_own_backward)?.build(sizes, SEED)?;
    let x: Vec<f64> = codes(&vocabulary)[..CONTEXT].iter().map(|&code| code as f64).collect();
    let x = Tensor::from_vec(x, &[CONTEXT, 1], Device::cpu())?;
    gradcheck(&mut model, x.view(), &GradcheckOptions::f64())?;

    let ranks = ddp::launch(args.n_ranks, |world| train(world, &args))?;
    let (losses, text, in_f64) = &ranks[0];
    for (step, loss) in losses.iter().enumerate() {
        if step < 20 || (step + 1) % 50 == 0 {
            println!("step {}: loss {loss:.6}", step + 1);
        }
    }
    for (step, loss) in in_f64.iter().enumerate() {
        println!("f64 step {}: loss {loss:.15}", step + 1);
    }
    let same = ranks.iter().filter(|(of_rank, ..)| of_rank == losses).count();
    println!("{same} of {} ranks of this process have the same losses", ranks.len());
    println!("{}...\n{text}", TEXT.chars().take(CONTEXT).collect::<String>());
    Ok(())
}
