//! The models with burn on its CPU backend flex.

use burn::module::Param;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, SgdConfig};
use burn::prelude::*;
use burn::tensor::{Distribution, activation};
use rust_peers::*;

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
}

#[derive(Module, Debug)]
struct Block {
    norms: [LayerNorm; 2],
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Block {
            norms: [0, 1].map(|_| LayerNormConfig::new(WIDTH).init(device)),
            qkv: linear(WIDTH, 3 * WIDTH),
            out: linear(WIDTH, WIDTH),
            up: linear(WIDTH, 4 * WIDTH),
            down: linear(4 * WIDTH, WIDTH),
        }
    }

    fn forward(&self, x: Tensor<2>, mask: Tensor<4>) -> Tensor<2> {
        let head = WIDTH / HEADS;
        let qkv = self.qkv.forward(self.norms[0].forward(x.clone()));
        let part = |index: usize| {
            let part = qkv.clone().narrow(1, index * WIDTH, WIDTH).reshape([SEQUENCES, CONTEXT, HEADS, head]);
            part.swap_dims(1, 2)
        };
        let scores = part(0).matmul(part(1).swap_dims(2, 3)).mul_scalar(1.0 / (head as f64).sqrt()) + mask;
        let rows = activation::softmax(scores, 3).matmul(part(2));
        let x = x + self.out.forward(rows.swap_dims(1, 2).reshape([SEQUENCES * CONTEXT, WIDTH]));
        let hidden = activation::gelu(self.up.forward(self.norms[1].forward(x.clone())));
        x + self.down.forward(hidden)
    }
}

#[derive(Module, Debug)]
struct CharGpt {
    characters: Param<Tensor<2>>,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    last: LayerNorm,
}

fn mlp(args: &Args, device: &Device) {
    let linear = |from, to| LinearConfig::new(from, to).init(device);
    let mut model = Some(Mlp { first: linear(DIMS[0], DIMS[1]), second: linear(DIMS[1], DIMS[2]) });
    let batches: Vec<_> = mlp_batches()
        .into_iter()
        .map(|(x, y)| {
            (
                Tensor::<2>::from_data(TensorData::new(x, [BATCH, DIMS[0]]), device),
                Tensor::<1, Int>::from_data(TensorData::new(y, [BATCH]), device),
            )
        })
        .collect();
    let criterion = CrossEntropyLossConfig::new().init(device);
    let mut optimizer = match &args.optimizer[..] {
        "sgd" => SgdConfig::new().init(),
        _ => AdamWConfig::new().with_weight_decay(0.01).init(),
    };
    args.run("burn", |index, reads_loss| {
        let (x, y) = batches[index % batches.len()].clone();
        let owned = model.take().unwrap();
        let logits = owned.second.forward(activation::relu(owned.first.forward(x)));
        let loss = criterion.forward(logits, y);
        let grads = GradientsParams::from_grads(loss.backward(), &owned);
        model = Some(optimizer.step(args.lr(), owned, grads));
        reads_loss.then(|| f64::from(loss.into_scalar::<f32>()))
    });
}

fn char_gpt(args: &Args, device: &Device) {
    let small = |dims| Param::from_tensor(Tensor::<2>::random(dims, Distribution::Normal(0.0, 0.02), device));
    let mut model = Some(CharGpt {
        characters: small([VOCAB, WIDTH]),
        positions: small([CONTEXT, WIDTH]),
        blocks: (0..BLOCKS).map(|_| Block::new(device)).collect(),
        last: LayerNormConfig::new(WIDTH).init(device),
    });
    let n = SEQUENCES * CONTEXT;
    let mask = (0..CONTEXT * CONTEXT).map(|at| if at % CONTEXT > at / CONTEXT { f32::NEG_INFINITY } else { 0.0 });
    let mask = Tensor::<4>::from_data(TensorData::new(mask.collect::<Vec<_>>(), [1, 1, CONTEXT, CONTEXT]), device);
    let batches: Vec<_> = char_batches()
        .into_iter()
        .map(|codes| {
            let of = |codes| Tensor::<1, Int>::from_data(TensorData::new(codes, [n]), device);
            (of(codes.0), of(codes.1))
        })
        .collect();
    let criterion = CrossEntropyLossConfig::new().init(device);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).init();
    args.run("burn", |index, reads_loss| {
        let (codes, y) = batches[index % batches.len()].clone();
        let owned = model.take().unwrap();
        let rows = owned.characters.val().select(0, codes).reshape([SEQUENCES, CONTEXT, WIDTH]);
        let mut x = (rows + owned.positions.val().unsqueeze::<3>()).reshape([n, WIDTH]);
        for block in &owned.blocks {
            x = block.forward(x, mask.clone());
        }
        let logits = owned.last.forward(x).matmul(owned.characters.val().transpose());
        let loss = criterion.forward(logits, y);
        let grads = GradientsParams::from_grads(loss.backward(), &owned);
        model = Some(optimizer.step(CHAR_GPT_LR, owned, grads));
        reads_loss.then(|| f64::from(loss.into_scalar::<f32>()))
    });
}

fn main() {
    let args = Args::read();
    let device = Device::flex().autodiff();
    if args.case == "mlp" { mlp(&args, &device) } else { char_gpt(&args, &device) }
}
