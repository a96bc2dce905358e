//! Layers, rows, loops and checkpoints.

use std::path::Path;
use std::sync::Arc;

use ddp::data::{
    BatchMut, BatchPlan, DataError, DataLoader, Dataset, GroupSampler, LoaderOptions, RowLayout, Sampler,
    Shuffle, TensorBatch, TensorDataset,
};
use ddp::nn::{
    Activation, BackwardPass, ForwardPass, Gate, GradcheckOptions, Layer, LossHead, Network, Precision,
    RegisteredBuffer, Sequential, Sizes, gradcheck,
};
use ddp::ops;
use ddp::ops::MapOp;
use ddp::optim::{OptimizerConfig, OptimizerKind};
use ddp::prelude::*;
use ddp::train::{Checkpoints, Trainer, TrainerOptions, ZeroStage};

/// `y = x - shift`, whose shift every training pass raises by 1.
#[derive(Debug)]
struct Shift;

impl Layer for Shift {
    fn describe(&self) -> String {
        "shift".to_owned()
    }

    fn out_features(&self) -> usize {
        4
    }

    fn registered_buffers(&self) -> Result<Vec<RegisteredBuffer>, KernelError> {
        let zeros = Tensor::zeros(&[4], DType::F32, Device::cpu())?;
        let one = RegisteredBuffer::new("one", zeros.ones_like()?).not_saved();
        assert_eq!((one.name(), one.is_saved(), one.values().dims()), ("one", false, &[4][..]));
        Ok(vec![RegisteredBuffer::new("shift", zeros).averaged(), one])
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn forward(
        &mut self,
        x: TensorRef<'_>,
        y: TensorMut<'_>,
        pass: ForwardPass<'_>,
    ) -> Result<(), KernelError> {
        let is_training = pass.is_training();
        let [shift, one] = pass.registered else { unreachable!("as declared") };
        if is_training {
            ops::add_assign(shift.view_mut(), one.view())?;
        }
        ops::map(MapOp::Sub, Input::Tensor(x), Input::Tensor(shift.view()), y)
    }

    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<(), KernelError> {
        Ok(())
    }
}

fn layers() -> Sequential {
    let block =
        |layers: Sequential| layers.residual(|body| body.layer_norm().linear(4).dropout(0.0).layer(Shift));
    let layers = Sequential::new(3).linear_without_bias(4).activation(Activation::Tanh).then(block);
    assert_eq!((layers.n_features(), layers.width()), (3, 4));
    layers.linear(1)
}

fn sizes(device: Device) -> Sizes {
    Sizes { max_rows: 8, device, precision: Precision::F32 }
}

fn rows() -> Result<Arc<dyn Dataset>, ddp::Error> {
    let x = Tensor::randn(&[24, 3], DType::F32, Device::cpu(), 1)?;
    Ok(Arc::new(TensorDataset::new(&x, &x.sum(1)?)?))
}

pub fn all(device: Device) -> Result<(), ddp::Error> {
    model(device)?;
    every_kind(device)?;
    // One GPU is one rank.
    let n_ranks = if device == Device::Cpu { 2 } else { 1 };
    for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
        trainer(device, n_ranks, zero)?;
    }
    batches(device, n_ranks)
}

fn model(device: Device) -> Result<(), ddp::Error> {
    let mut model = layers().build(sizes(Device::cpu()), 1)?.to(device)?;
    assert_eq!((model.n_features(), model.n_outputs(), model.device()), (3, 1, device));
    assert_eq!(model.named_buffers().len(), 2);
    assert_eq!(model.saved_buffers()[0].0, "shift");
    let x = Tensor::randn(&[8, 3], DType::F32, device, 2)?;
    gradcheck(&mut model, x.view(), &GradcheckOptions::default())?;
    let state = model.state_dict(Device::cpu())?;
    assert_eq!(state.len(), model.named_parameters()?.len() + 1);
    let report = model.load_state_dict(&state, true)?;
    assert!(report.missing.is_empty() && report.unexpected.is_empty());
    let (mut other, removed) = (state, state_name(&model)?);
    other.remove(&removed);
    other.insert("stray".to_owned(), Tensor::zeros(&[1], DType::F32, Device::Cpu)?);
    let report = model.load_state_dict(&other, false)?;
    assert_eq!((report.missing, report.unexpected), (vec![removed.clone()], vec!["stray".to_owned()]));
    let message = model.load_state_dict(&other, true).unwrap_err().to_string();
    assert!(message.contains(&format!("{removed}: missing")) && message.contains("stray"), "{message}");
    Ok(())
}

fn state_name(model: &Network) -> Result<String, ddp::Error> {
    Ok(model.named_parameters()?.into_iter().next().expect("a parameter").0.to_owned())
}

/// A model of every kind of layer computes a number per row.
fn every_kind(device: Device) -> Result<(), ddp::Error> {
    let layers = Sequential::new(3).numeric_embedding(4, 3, 0.1).scale().linear(6).glu(Gate::SwiGlu, 6);
    let layers = layers.glu(Gate::GeGlu, 6).glu(Gate::ReGlu, 6).layer_norm().rms_norm().batch_norm();
    let layers = layers.dropout(0.1).residual(|body| body.rms_norm().linear(6));
    let mut model = layers.activation(Activation::Silu).linear_without_bias(1).build(sizes(device), 1)?;
    model.forward(Tensor::randn(&[8, 3], DType::F32, device, 2)?)?;
    let outputs = model.outputs()?.to_tensor()?;
    assert_eq!(outputs.dims(), [8, 1]);
    assert!(outputs.abs()?.max(None)?.item::<f32>()?.is_finite());
    Ok(())
}

fn trainer(device: Device, n_ranks: usize, zero: ZeroStage) -> Result<(), ddp::Error> {
    let folder = std::env::temp_dir().join(format!("ddp_outside_run_{}", std::process::id()));
    let train = |world: &World, n_epochs: u64, folder: &Path| -> Result<(u64, Vec<f32>), ddp::Error> {
        world.connect_device(device, DeviceOptions::default())?;
        let adamw = OptimizerConfig { ema_decay: 0.9, ..OptimizerConfig::new(OptimizerKind::AdamW, 1e-2) };
        let options = TrainerOptions { zero, ..TrainerOptions::default() };
        let mut trainer =
            Trainer::for_layers(world, layers(), sizes(device), LossHead::mse(), &adamw, options)?;
        let mut checkpoints = Checkpoints::keeping(world, &trainer, folder, 1)?;
        let cursor = checkpoints.resume(&mut trainer)?.unwrap_or(0);
        let plan = BatchPlan { n_epochs: Some(n_epochs), cursor, ..BatchPlan::new(8) };
        let mut loader = DataLoader::new(world, rows()?, &plan, LoaderOptions::new(device))?;
        while let Some(mut batch) = loader.next_step()? {
            trainer.step_and_wait(&mut batch, false)?;
        }
        checkpoints.save(&trainer, 24 * n_epochs)?;
        let shift = trainer.model().saved_buffers()[0].1.to_vec::<f32>()?;
        Ok((trainer.n_steps(), shift))
    };
    for n_epochs in [1, 2] {
        for (n_steps, shift) in ddp::launch(n_ranks, |world| train(world, n_epochs, &folder))? {
            assert_eq!((n_steps, shift), (3 * n_epochs, vec![3.0 * n_epochs as f32; 4]));
        }
    }
    std::fs::remove_dir_all(&folder).expect("the run's own folder");
    Ok(())
}

/// Every other row.
#[derive(Debug)]
struct EveryOther;

impl Sampler for EveryOther {
    fn rows(&self, _epoch: u64) -> Vec<usize> {
        (0..24).step_by(2).collect()
    }
}

/// Rows with their features doubled.
#[derive(Debug)]
struct Doubled(Arc<dyn Dataset>);

impl Dataset for Doubled {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn layout(&self) -> &RowLayout {
        self.0.layout()
    }

    fn gather(&self, rows: &[usize], mut out: BatchMut<'_>) -> Result<(), DataError> {
        self.0.gather(rows, out.reborrow())?;
        out.x.into_slice::<f32>("doubled", "x")?.iter_mut().for_each(|x| *x *= 2.0);
        Ok(())
    }

    fn fingerprint(&self) -> Result<u64, DataError> {
        Ok(self.0.fingerprint()? ^ 2)
    }

    fn source(&self) -> &str {
        "doubled"
    }
}

fn batches(device: Device, n_ranks: usize) -> Result<(), ddp::Error> {
    for row in 0..3 {
        let sum = |rows: Arc<dyn Dataset>| -> Result<f32, ddp::Error> {
            let plan = BatchPlan::new(8);
            let mut loader = DataLoader::new(&World::single(), rows, &plan, LoaderOptions::new(device))?;
            let (x, _) = loader.iter()?.next().expect("a batch")?;
            Ok(x.row(row)?.to_tensor()?.sum(None)?.item::<f32>()?)
        };
        assert_eq!(sum(Arc::new(Doubled(rows()?)))?, 2.0 * sum(rows()?)?);
    }
    let samplers: [Arc<dyn Sampler>; 2] = [Arc::new(EveryOther), Arc::new(GroupSampler::new(24, 4, 1))];
    for sampler in samplers {
        let n_rows = sampler.rows(0).len();
        let of_ranks = ddp::launch(n_ranks, |world| -> Result<usize, ddp::Error> {
            let plan = BatchPlan {
                shuffle: Shuffle::Sampler(sampler.clone()),
                n_epochs: Some(2),
                ..BatchPlan::new(8)
            };
            let mut loader = DataLoader::new(world, rows()?, &plan, LoaderOptions::new(device))?;
            let mut n = 0;
            for batch in loader.iter()? {
                let (x, y) = batch?;
                assert_eq!((x.device(), y.device()), (device, device));
                n += x.dims()[0];
            }
            for batch in loader.batches()? {
                let TensorBatch { x, weights, epoch, global_rows, .. } = batch?;
                assert!(weights.is_none() && epoch == 2 && global_rows <= 8);
                n += x.dims()[0];
            }
            Ok(n)
        })?;
        assert_eq!(of_ranks.iter().sum::<usize>(), 2 * n_rows);
    }
    Ok(())
}
