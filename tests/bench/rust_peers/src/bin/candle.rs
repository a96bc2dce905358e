//! The models with candle.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{AdamW, Init, Linear, Module, Optimizer, ParamsAdamW, SGD, VarBuilder, VarMap, linear, loss, ops};
use rust_peers::*;

struct Block {
    norms: [(Tensor, Tensor); 2],
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(vb: &VarBuilder, index: usize) -> Result<Self> {
        let vb = vb.pp(format!("block{index}"));
        Ok(Block {
            norms: [norm(&vb.pp("n1"))?, norm(&vb.pp("n2"))?],
            qkv: linear(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
            out: linear(WIDTH, WIDTH, vb.pp("out"))?,
            up: linear(WIDTH, 4 * WIDTH, vb.pp("up"))?,
            down: linear(4 * WIDTH, WIDTH, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let head = WIDTH / HEADS;
        let qkv = self.qkv.forward(&normalized(x, &self.norms[0])?)?;
        let part = |index: usize| {
            let part = qkv.narrow(D::Minus1, index * WIDTH, WIDTH)?.reshape((SEQUENCES, CONTEXT, HEADS, head))?;
            part.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = (q.matmul(&k.t()?)? * (1.0 / (head as f64).sqrt()))?.broadcast_add(mask)?;
        let rows = ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        let rows = rows.transpose(1, 2)?.reshape((SEQUENCES * CONTEXT, WIDTH))?;
        let x = (x + self.out.forward(&rows)?)?;
        let hidden = self.up.forward(&normalized(&x, &self.norms[1])?)?.gelu_erf()?;
        x + self.down.forward(&hidden)?
    }
}

fn norm(vb: &VarBuilder) -> Result<(Tensor, Tensor)> {
    Ok((vb.get_with_hints(WIDTH, "weight", Init::Const(1.0))?, vb.get_with_hints(WIDTH, "bias", Init::Const(0.0))?))
}

/// The composed layer norm: the fused one has no backward.
fn normalized(x: &Tensor, (weight, bias): &(Tensor, Tensor)) -> Result<Tensor> {
    ops::layer_norm_slow(x, weight, bias, 1e-5)
}

fn mlp(args: &Args) -> Result<()> {
    let (vars, device) = (VarMap::new(), Device::Cpu);
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &device);
    let (first, second) = (linear(DIMS[0], DIMS[1], vb.pp("0"))?, linear(DIMS[1], DIMS[2], vb.pp("1"))?);
    let batches = mlp_batches().into_iter().map(|(x, y)| {
        Ok((Tensor::from_vec(x, (BATCH, DIMS[0]), &device)?, Tensor::from_vec(y, BATCH, &device)?))
    });
    let batches = batches.collect::<Result<Vec<_>>>()?;
    let mut sgd = SGD::new(vars.all_vars(), args.lr())?;
    let mut adamw = AdamW::new(vars.all_vars(), ParamsAdamW { lr: args.lr(), ..ParamsAdamW::default() })?;
    args.run("candle", |index, reads_loss| {
        let (x, y) = &batches[index % batches.len()];
        let step = || -> Result<Tensor> { loss::cross_entropy(&second.forward(&first.forward(x)?.relu()?)?, y) };
        let loss = step().unwrap();
        match &args.optimizer[..] {
            "sgd" => sgd.backward_step(&loss).unwrap(),
            _ => adamw.backward_step(&loss).unwrap(),
        }
        reads_loss.then(|| f64::from(loss.to_scalar::<f32>().unwrap()))
    });
    Ok(())
}

fn char_gpt(args: &Args) -> Result<()> {
    let (vars, device) = (VarMap::new(), Device::Cpu);
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &device);
    let small = Init::Randn { mean: 0.0, stdev: 0.02 };
    let characters = vb.get_with_hints((VOCAB, WIDTH), "characters", small)?;
    let positions = vb.get_with_hints((CONTEXT, WIDTH), "positions", small)?;
    let blocks = (0..BLOCKS).map(|index| Block::new(&vb, index)).collect::<Result<Vec<_>>>()?;
    let last = norm(&vb.pp("last"))?;
    let mask = (0..CONTEXT * CONTEXT).map(|at| if at % CONTEXT > at / CONTEXT { f32::NEG_INFINITY } else { 0.0 });
    let mask = Tensor::from_vec(mask.collect::<Vec<_>>(), (CONTEXT, CONTEXT), &device)?;
    let n = SEQUENCES * CONTEXT;
    let batches = char_batches().into_iter().map(|(x, y)| {
        Ok((Tensor::from_vec(x, n, &device)?, Tensor::from_vec(y, n, &device)?))
    });
    let batches = batches.collect::<Result<Vec<_>>>()?;
    let params = ParamsAdamW { lr: CHAR_GPT_LR, weight_decay: 0.0, ..ParamsAdamW::default() };
    let mut adamw = AdamW::new(vars.all_vars(), params)?;
    args.run("candle", |index, reads_loss| {
        let (codes, y) = &batches[index % batches.len()];
        let step = || -> Result<Tensor> {
            let rows = characters.index_select(codes, 0)?.reshape((SEQUENCES, CONTEXT, WIDTH))?;
            let mut x = rows.broadcast_add(&positions)?.reshape((n, WIDTH))?;
            for block in &blocks {
                x = block.forward(&x, &mask)?;
            }
            loss::cross_entropy(&normalized(&x, &last)?.matmul(&characters.t()?)?, y)
        };
        let loss = step().unwrap();
        adamw.backward_step(&loss).unwrap();
        reads_loss.then(|| f64::from(loss.to_scalar::<f32>().unwrap()))
    });
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::read();
    if args.case == "mlp" { mlp(&args) } else { char_gpt(&args) }
}
