//! First guesses of a PyTorch programmer who had not seen a signature, as they were typed. Those of 17 of 24 examples compile, and
//! docs/from-pytorch.md answers the others.

#![expect(unused_variables, reason = "as they were typed")]

use std::sync::Arc;

use ddp::data::{BatchPlan, DataLoader, LoaderOptions, TensorDataset};
use ddp::nn::{GradientSums, LossHead, Sequential, Sizes};
use ddp::optim::{Optimizer, OptimizerConfig, OptimizerKind};
use ddp::prelude::*;

type R = Result<(), KernelError>;

fn names_of_gpus() {
    println!("{} {}", Device::cuda_is_available(), Device::device_count());
    for i in 0..Device::count() {
        println!("{i} {}", Device::cuda(i).name());
    }
}

fn a_gpu(x: Tensor) -> R {
    let x = x.to("cuda")?;
    Ok(())
}

fn there_and_back(x: Tensor) -> R {
    let x_cuda = x.cuda()?;
    let x_cpu = x_cuda.cpu()?;
    Ok(())
}

fn the_host(x: Tensor) -> R {
    let x_cpu = x.to("cpu")?;
    Ok(())
}

fn a_mask(x: Tensor) -> R {
    let mask = Tensor::ones(&[x.shape()[0], x.shape()[1]], x.dtype(), x.device())?;
    let y = x * mask;
    Ok(())
}

fn a_triangle(n: usize) -> R {
    let m = Tensor::ones(&[n, n], DType::Bool, Device::Cpu)?.triu(1)?;
    Ok(())
}

fn a_value(x: &Tensor) -> R {
    let v: f32 = x.item()?;
    Ok(())
}

fn values(x: &Tensor) -> R {
    let v: Vec<f32> = x.detach().cpu()?.to_vec()?;
    Ok(())
}

fn waiting(x: &Tensor, w: &Tensor) -> R {
    let y = x.matmul(w)?;
    Device::cuda(0).synchronize()?;
    Ok(())
}

fn no_cache() -> R {
    memory::empty_cache()?;
    Ok(())
}

fn properties(x: &Tensor) {
    println!("{:?} {:?} {:?}", x.shape(), x.dtype(), x.device());
}

fn activations(x: &Tensor) -> R {
    let y = x.relu()?;
    let z = x.sigmoid()?;
    let t = x.tanh()?;
    let s = x.transpose(0, 1)?;
    let u = x.unsqueeze(0)?;
    let g = x.gelu()?;
    Ok(())
}

fn reductions(x: &Tensor) -> R {
    let y = x.var(0)?;
    let y = x.std(0)?;
    let m = x.argmin(0)?;
    let c = x.cumsum(0)?;
    let s = x.sort(0)?;
    let t = x.topk(3)?;
    let p = x.prod(0)?;
    Ok(())
}

fn shapes(x: &Tensor) -> R {
    let y = x.flatten()?;
    let v = x.squeeze(0)?;
    let e = x.expand(&[3, 3])?;
    let g = x.gather(0, x)?;
    let h = x.sin()?;
    let i = x.cos()?;
    let j = x.ge(0.0)?;
    let k = x.le(0.0)?;
    let l = x.ne(0.0)?;
    Ok(())
}

fn others(x: &Tensor) -> R {
    let c = x.clone();
    let y = x.any()?;
    let z = x.all()?;
    let s = x.chunk(2, 0)?;
    let p = x.split(2, 0)?;
    let n = x.isnan()?;
    let f = x.floor()?;
    let r = x.round()?;
    let q = x.powf(2.0)?;
    Ok(())
}

/// Answers of the page to guesses that do not compile.
fn answers(x: &Tensor) -> ddp::Result<()> {
    x.randn_like(1)?.to("cpu")?.to_dtype(DType::F64)?;
    x.add(x)?.slice((0..2, 0..2))?.norm(keepdim(-1))?;
    let (values, indices) = (x.max(1)?, x.argmax(1)?);
    let (any, all) = (x.flatten_range(1..)?.any_along(1)?, x.all_along(1)?);
    let (sorted, best) = (x.sort_descending(0)?, x.topk_along(3, 0)?);
    println!("{}", memory::allocated(x.device())?);
    let mut model = Sequential::new(3).linear(1).build(Sizes::new(3, x.device()), 0)?;
    let mut optimizer = Optimizer::for_model(&OptimizerConfig::new(OptimizerKind::Sgd, 0.01), &model)?;
    let mut grads = GradientSums::for_model(&model)?;
    let dataset = Arc::new(TensorDataset::new(x, &x.sum(1)?)?);
    let options = LoaderOptions::new(x.device());
    for batch in DataLoader::new(&World::single(), dataset, &BatchPlan::new(3), options)?.iter()? {
        let (x, y) = batch?;
        model.loss_and_gradients((&x, &y), &LossHead::mse(), &mut grads)?;
        optimizer.step(&mut model, &mut grads)?;
    }
    Ok(())
}

#[test]
fn guesses_that_compile_do_what_they_say() {
    let x = || Tensor::ones(&[3, 3], DType::F32, "cpu").unwrap();
    names_of_gpus();
    properties(&x());
    for run in [the_host, a_mask] {
        run(x()).unwrap();
    }
    for run in [values, activations, reductions, others] {
        run(&x()).unwrap();
    }
    answers(&x()).unwrap();
    a_triangle(3).unwrap();
    a_value(&x().sum(None).unwrap()).unwrap();
    no_cache().unwrap();
    // Indices are integers, a scalar has one element, and a GPU has to be there.
    assert!(shapes(&x()).unwrap_err().to_string().contains("i64"));
    assert!(a_value(&x()).unwrap_err().to_string().contains("item"));
    if !Device::cuda_is_available() {
        let errors = [a_gpu(x()), there_and_back(x()), waiting(&x(), &x())]
            .map(|result| result.unwrap_err().to_string());
        assert!(errors.iter().all(|error| error.contains("cuda:0")), "{errors:?}");
    }
}
