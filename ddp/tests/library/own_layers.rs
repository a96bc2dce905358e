//! Custom layers with every feature of a trainer: ZeRO, moving averages, registered buffers, checkpoints, graphs.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{Activation, OptimizerConfig, OptimizerKind, ZeroStage};
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions};
use ddp::data::{Dataset, TensorDataset};
use ddp::model::layer::{BufferSpec, RegisteredBuffer, Result, Sizes};
use ddp::model::param::{Init, ParamKind, ParamSpec};
use ddp::model::pass::{BackwardPass, ForwardPass, InputGradientPass};
use ddp::model::{GradcheckOptions, Layer, LossHead, Sequential, gradcheck};
use ddp::train::TrainError;
use ddp::train::checkpoints::Checkpoints;
use ddp::train::trainer::{GraphMode, Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::ops::{self, Input, MapOp};
use ddp_kernels::{DType, Device, Tensor, TensorMut, TensorRef};

use crate::made_up::gpus::{cpu_and_gpu, gpus};

const N_ROWS: usize = 60;
const N_FEATURES: usize = 5;
const WIDTH: usize = 6;
const GLOBAL_ROWS: usize = 12;
const MOMENTUM: f64 = 0.9;

/// `y = (x - mean) · gain` with a trained gain and a running mean of the rows, `[features]` each; it uses tensor operations, so
/// it runs on any device.
#[derive(Debug)]
struct Center {
    params: [ParamSpec; 1],
    /// Initial value of the mean; it differs between ranks to show whose value is used.
    start: f64,
    max_rows: usize,
    device: Device,
    is_capturable: bool,
}

impl Center {
    fn new(max_rows: usize, start: f64, device: Device) -> Self {
        let gain = ParamSpec::new("center.gain", ParamKind::NormWeight, &[WIDTH], Init::Constant(1.5));
        Center { params: [gain], start, max_rows, device, is_capturable: true }
    }
}

impl Layer for Center {
    fn describe(&self) -> String {
        "center".to_owned()
    }

    fn out_features(&self) -> usize {
        WIDTH
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    fn registered_buffers(&self) -> Result<Vec<RegisteredBuffer>> {
        let mean = Tensor::full(&[1, WIDTH], self.start, DType::F32, Device::Cpu)?;
        let ones = Tensor::ones(&[1, self.max_rows], DType::F32, self.device)?;
        Ok(vec![
            RegisteredBuffer::new("center.mean", mean).averaged(),
            RegisteredBuffer::new("center.ones", ones).not_saved(),
        ])
    }

    fn is_capturable(&self) -> bool {
        self.is_capturable
    }

    /// The centered rows, and scratch memory.
    fn buffers(&self, sizes: Sizes) -> Vec<BufferSpec> {
        let rows = BufferSpec::activations(&[sizes.max_rows, WIDTH], DType::F32);
        vec![rows.clone(), rows]
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let (n, is_training) = (x.shape().rows_cols().0, pass.is_training());
        if n == 0 {
            return Ok(());
        }
        let ForwardPass { params, buffers, registered: [mean, ones], .. } = pass else { unreachable!() };
        ops::map(
            MapOp::Sub,
            Input::Tensor(x),
            Input::Tensor(mean.view()),
            buffers[0].view_mut().rows(0, n)?,
        )?;
        // The rows of this step affect the mean only from the next step on, so that ranks need each other's rows only then.
        if is_training {
            let ones = ones.view().range(0, n)?.reshape(&[1, n])?;
            ops::addmm((1.0 - MOMENTUM) / n as f64, ones, false, x, false, MOMENTUM, mean.view_mut())?;
        }
        let centered = Input::Tensor(buffers[0].view().rows(0, n)?);
        ops::map(MapOp::Mul, centered, Input::Tensor(params.master(0)?), y)
    }

    fn backward(&mut self, mut d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let n = pass.x.shape().rows_cols().0;
        let gain = pass.grads.take()?;
        let ones = pass.registered[1].view().range(0, n)?.reshape(&[1, n])?;
        let [centered, scratch] = pass.buffers else { unreachable!() };
        let mut product = scratch.view_mut().rows(0, n)?;
        let centered = Input::Tensor(centered.view().rows(0, n)?);
        if n > 0 {
            ops::map(MapOp::Mul, Input::Tensor(d.as_ref()), centered, product.reborrow())?;
        }
        let beta = if gain.accumulate { 1.0 } else { 0.0 };
        ops::addmm(1.0, ones, false, product.as_ref(), false, beta, gain.d.reshape(&[1, WIDTH])?)?;
        if n > 0 {
            let factor = Input::Tensor(pass.params.master(0)?);
            ops::map(MapOp::Mul, Input::Tensor(d.as_ref()), factor, product.reborrow())?;
            ops::copy(product.as_ref(), d.reborrow())?;
        }
        Ok(())
    }
}

/// `y = u · v` of the halves of each row, `[B, 2 n]` to `[B, n]`, on the CPU. The gradient of the input needs a separate buffer,
/// and its computation needs the input.
#[derive(Debug)]
struct ProductOfHalves;

impl Layer for ProductOfHalves {
    fn describe(&self) -> String {
        "product of halves".to_owned()
    }

    fn out_features(&self) -> usize {
        WIDTH / 2
    }

    fn backward_is_in_place(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
        let (x, y) = (x.as_slice::<f32>("halves", "x")?, y.into_slice::<f32>("halves", "y")?);
        for (x, y) in x.chunks_exact(WIDTH).zip(y.chunks_exact_mut(WIDTH / 2)) {
            let (u, v) = x.split_at(WIDTH / 2);
            y.iter_mut().zip(u.iter().zip(v)).for_each(|(y, (u, v))| *y = u * v);
        }
        Ok(())
    }

    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<()> {
        Ok(())
    }

    fn backward_input(
        &mut self,
        d: TensorRef<'_>,
        d_x: TensorMut<'_>,
        pass: InputGradientPass<'_>,
    ) -> Result<()> {
        let (x, d) = (pass.x.as_slice::<f32>("halves", "x")?, d.as_slice::<f32>("halves", "d")?);
        let d_x = d_x.into_slice::<f32>("halves", "d_x")?;
        for ((x, d), d_x) in
            x.chunks_exact(WIDTH).zip(d.chunks_exact(WIDTH / 2)).zip(d_x.chunks_exact_mut(WIDTH))
        {
            for i in 0..WIDTH / 2 {
                (d_x[i], d_x[i + WIDTH / 2]) = (d[i] * x[i + WIDTH / 2], d[i] * x[i]);
            }
        }
        Ok(())
    }
}

fn sizes(max_rows: usize, device: Device) -> Sizes {
    Sizes { max_rows, device, precision: Precision::F32 }
}

fn layers(center: Center) -> Sequential {
    Sequential::new(N_FEATURES).linear(WIDTH).layer(center).activation(Activation::Tanh).linear(1)
}

/// A run, and the folder where it is saved.
#[derive(Clone, Copy)]
struct Run<'a> {
    zero: ZeroStage,
    graph: GraphMode,
    is_capturable: bool,
    on_gpus: bool,
    n_epochs: u64,
    folder: Option<&'a Path>,
}

impl Run<'_> {
    fn usual() -> Self {
        Run {
            zero: ZeroStage::Off,
            graph: GraphMode::Auto,
            is_capturable: true,
            on_gpus: false,
            n_epochs: 3,
            folder: None,
        }
    }

    fn trainer<'w>(&self, world: &'w World) -> ddp::Result<Trainer<'w>> {
        let device = if self.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
        world.connect_device(device, DeviceOptions::default()).unwrap();
        let max_rows = GLOBAL_ROWS.div_ceil(world.world_size());
        let mut center = Center::new(max_rows, world.rank().0 as f64, device);
        center.is_capturable = self.is_capturable;
        let adamw = OptimizerConfig { ema_decay: 0.8, ..OptimizerConfig::new(OptimizerKind::AdamW, 1e-2) };
        let options = TrainerOptions {
            zero: self.zero,
            graph: self.graph,
            seed: 5,
            bucket_bytes: 100,
            ..TrainerOptions::default()
        };
        Ok(Trainer::for_layers(
            world,
            layers(center),
            sizes(max_rows, device),
            LossHead::mse(),
            &adamw,
            options,
        )?)
    }

    /// Trains on this rank, from the newest checkpoint if there is one; saves at the end if there is a folder.
    fn train(&self, world: &World) -> ddp::Result<Trained> {
        let mut trainer = self.trainer(world)?;
        let mut checkpoints =
            self.folder.map(|folder| Checkpoints::new(world, &trainer, folder)).transpose()?;
        let cursor = match &checkpoints {
            Some(checkpoints) => checkpoints.resume(&mut trainer)?.unwrap_or(0),
            None => 0,
        };
        let x = Tensor::randn(&[N_ROWS, N_FEATURES], DType::F32, Device::Cpu, 1)?;
        let rows: Arc<dyn Dataset> = Arc::new(TensorDataset::new(&x, &(&x * &x).sum(1)?)?);
        let plan = BatchPlan { seed: 3, ..BatchPlan::new(GLOBAL_ROWS) };
        let plan = BatchPlan { n_epochs: Some(self.n_epochs), cursor, ..plan };
        let mut loader = DataLoader::new(world, rows, &plan, LoaderOptions::new(trainer.model().device()))?;
        let (mut losses, mut used) = (Vec::new(), cursor);
        while let Some(mut batch) = loader.next_step()? {
            losses.push(trainer.step_and_wait(&mut batch, false)?.sums.mean());
            used += GLOBAL_ROWS as u64;
        }
        if let Some(checkpoints) = &mut checkpoints {
            checkpoints.save(&trainer, used)?;
        }
        let averaged = trainer.averaged_weights()?.map(|weights| weights.to_vec::<f32>()).transpose()?;
        let buffer = |(_, values): (&str, &Tensor)| values.to_vec::<f32>().unwrap();
        Ok(Trained {
            weights: trainer
                .model()
                .state_dict(Device::Cpu)?
                .values()
                .flat_map(|t| t.to_vec().unwrap())
                .collect(),
            averaged: averaged.unwrap().into_iter().filter(|v| *v != 0.0).collect(),
            mean: trainer.model().named_buffers().into_iter().map(buffer).next().unwrap(),
            losses,
            n_graphs: trainer.n_graphs(),
        })
    }

    fn on(&self, n_ranks: usize) -> Vec<Trained> {
        threads::run(n_ranks, |world| self.train(&world).unwrap())
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Trained {
    weights: Vec<f32>,
    averaged: Vec<f32>,
    mean: Vec<f32>,
    losses: Vec<f64>,
    n_graphs: usize,
}

#[track_caller]
fn assert_near(what: &str, got: &Trained, want: &Trained) {
    let close = |name: &str, got: &[f32], want: &[f32]| {
        assert_eq!(got.len(), want.len(), "{what}: {name}");
        for (got, want) in got.iter().zip(want) {
            // 15 steps of AdamW; the first ones turn rounding errors of gradients near 0 into a fraction of the rate.
            assert!((got - want).abs() <= 2e-5 * (1.0 + want.abs()), "{what}: {name}: {got} against {want}");
        }
    };
    close("weights", &got.weights, &want.weights);
    close("averaged", &got.averaged, &want.averaged);
    close("mean", &got.mean, &want.mean);
}

#[test]
fn zero_and_averages_hold_for_any_number_of_ranks() {
    let alone = Run::usual().on(1).remove(0);
    let epoch = |epoch: usize| alone.losses[5 * epoch..5 * epoch + 5].iter().sum::<f64>();
    assert!(epoch(2) < epoch(1) && epoch(1) < epoch(0), "{:?}", alone.losses);
    for n_ranks in [2, 3] {
        let plain = Run::usual().on(n_ranks);
        for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
            let trained = Run { zero, ..Run::usual() }.on(n_ranks);
            for of_rank in &trained {
                assert_near(&format!("{zero:?}, {n_ranks} ranks"), of_rank, &alone);
                // The mean of a batch is the mean of the means of its equal parts, and every rank starts with rank 0's values.
                assert_eq!(of_rank.mean, trained[0].mean, "the same bits on all ranks");
            }
            let bits = |trained: &[Trained]| trained.iter().map(|t| t.weights.clone()).collect::<Vec<_>>();
            if zero == ZeroStage::Optimizer {
                assert!(bits(&trained) == bits(&plain), "{n_ranks} ranks: stage 1 changes no bit");
            }
        }
    }
}

#[test]
fn a_run_resumes_to_the_bit_with_its_buffers() {
    for n_ranks in [1, 3] {
        for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
            let folder = tempfile::tempdir().unwrap();
            let run = Run { zero, ..Run::usual() };
            let whole = run.on(n_ranks);
            Run { n_epochs: 1, folder: Some(folder.path()), ..run }.on(n_ranks);
            let resumed = Run { folder: Some(folder.path()), ..run }.on(n_ranks);
            for (resumed, whole) in resumed.iter().zip(&whole) {
                assert_eq!(resumed.losses, whole.losses[5..], "{zero:?}, {n_ranks} ranks");
                assert_eq!(resumed.weights, whole.weights);
                assert_eq!(resumed.averaged, whole.averaged);
                assert_eq!(resumed.mean, whole.mean);
            }
        }
    }
}

#[test]
fn a_run_resumes_on_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run { zero: ZeroStage::Optimizer, folder: Some(folder.path()), ..Run::usual() };
    let whole = Run::usual().on(1).remove(0);
    Run { n_epochs: 1, ..run }.on(3);
    Run { n_epochs: 2, ..run }.on(2);
    assert_near("3, 2 and 1 ranks", &run.on(1)[0], &whole);
}

#[test]
fn a_checkpoint_of_other_buffers_is_refused_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run { n_epochs: 1, folder: Some(folder.path()), ..Run::usual() };
    run.on(2);
    let errors = threads::run(2, |world| {
        // The same parameters without the buffer: a different layer of this name.
        let plain =
            Sequential::new(N_FEATURES).linear(WIDTH).layer(Gain(Center::new(6, 0.0, Device::Cpu).params));
        let layers = plain.activation(Activation::Tanh).linear(1);
        let adamw = OptimizerConfig { ema_decay: 0.8, ..OptimizerConfig::new(OptimizerKind::AdamW, 1e-2) };
        let options = TrainerOptions { seed: 5, ..TrainerOptions::default() };
        let sizes = sizes(6, Device::Cpu);
        let mut trainer =
            Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &adamw, options).unwrap();
        let checkpoints = Checkpoints::new(&world, &trainer, folder.path()).unwrap();
        checkpoints.resume(&mut trainer).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("buffer center.mean [1, 6] is not in the model"), "{error}");
    }
}

/// Only the parameter of [`Center`].
#[derive(Debug)]
struct Gain([ParamSpec; 1]);

impl Layer for Gain {
    fn describe(&self) -> String {
        "gain".to_owned()
    }

    fn out_features(&self) -> usize {
        WIDTH
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.0
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
        ops::copy(x, y)
    }

    fn backward(&mut self, _d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        pass.grads.take()?.d.into_slice::<f32>("gain", "d")?.fill(0.0);
        Ok(())
    }
}

#[test]
fn buffers_move_to_a_gpu_and_are_part_of_the_state_dict() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let model = || layers(Center::new(4, 2.5, Device::Cpu)).build(sizes(4, Device::Cpu), 3).unwrap();
        let mut moved = model();
        let (x, weights) = (
            Tensor::randn(&[4, N_FEATURES], DType::F32, Device::Cpu, 2).unwrap(),
            moved.weights().to_vec::<f32>().unwrap(),
        );
        moved.forward(&x).unwrap();
        let want = moved.outputs().unwrap().to_vec::<f32>().unwrap();
        let mut moved = moved.to(device).unwrap();
        assert!(moved.named_buffers().iter().all(|(_, values)| values.device() == device));
        assert_eq!(moved.weights().to_vec::<f32>().unwrap(), weights);
        moved.forward(x.to(device).unwrap()).unwrap();
        let got = moved.outputs().unwrap().to_vec::<f32>().unwrap();
        // Sums of six products in different orders.
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{device}: {got:?} {want:?}");

        let names = |buffers: Vec<(&str, &Tensor)>| {
            buffers.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(moved.named_buffers()), ["center.mean", "center.ones"]);
        assert_eq!(names(moved.saved_buffers()), ["center.mean"]);
        let mut state = moved.state_dict(device).unwrap();
        let mean = state.get_mut("center.mean").unwrap();
        assert_eq!(mean.to_vec::<f32>().unwrap(), vec![2.5; WIDTH]);
        *mean = mean.full_like(7.0).unwrap();
        let mut other = model();
        other.load_state_dict(&state, true).unwrap();
        assert_eq!(other.saved_buffers()[0].1.to_vec::<f32>().unwrap(), vec![7.0; WIDTH]);
        state.remove("center.mean");
        let error = other.load_state_dict(&state, true).unwrap_err().to_string();
        assert!(error.contains("center.mean: missing"), "{error}");
    }
}

#[test]
fn a_trainer_begins_with_the_buffers_of_rank_0() {
    let means = threads::run(3, |world| {
        let trainer = Run::usual().trainer(&world).unwrap();
        trainer.model().named_buffers()[0].1.to_vec::<f32>().unwrap()
    });
    assert!(means.iter().all(|mean| *mean == vec![0.0; WIDTH]), "{means:?}");
}

#[test]
fn evaluation_leaves_statistics_alone_and_gradients_are_right_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let mut model = layers(Center::new(8, 0.5, device)).build(sizes(8, device), 2).unwrap();
        let x = Tensor::randn(&[8, N_FEATURES], DType::F32, device, 4).unwrap();
        gradcheck(&mut model, x.view(), &GradcheckOptions::default()).unwrap();
        assert_eq!(model.named_buffers()[0].1.to_vec::<f32>().unwrap(), vec![0.5; WIDTH]);
    }
    let halves = Sequential::new(N_FEATURES).linear(WIDTH).layer(ProductOfHalves).linear(2);
    let mut model = halves.build(sizes(8, Device::Cpu), 2).unwrap();
    let x = Tensor::randn(&[8, N_FEATURES], DType::F32, Device::Cpu, 4).unwrap();
    gradcheck(&mut model, x.view(), &GradcheckOptions::default()).unwrap();
}

#[test]
fn a_gpu_captures_steps_if_all_layers_can_be() {
    let Some(_lock) = gpus(2) else { return };
    for n_ranks in [1, 2] {
        let run = Run { on_gpus: true, ..Run::usual() };
        let on_cpu = Run::usual().on(n_ranks).remove(0);
        let captured = run.on(n_ranks);
        let eager = Run { graph: GraphMode::Off, ..run }.on(n_ranks);
        let opaque = Run { is_capturable: false, ..run }.on(n_ranks);
        for rank in 0..n_ranks {
            assert!(captured[rank].n_graphs > 0, "a capturable layer is part of a graph");
            assert_eq!((eager[rank].n_graphs, opaque[rank].n_graphs), (0, 0));
            for other in [&eager[rank], &opaque[rank]] {
                assert_eq!(captured[rank], Trained { n_graphs: captured[rank].n_graphs, ..other.clone() });
            }
            assert_near("GPU and CPU", &captured[rank], &on_cpu);
        }
    }
    let error = threads::run(1, |world| {
        let run = Run { on_gpus: true, is_capturable: false, graph: GraphMode::On, ..Run::usual() };
        run.trainer(&world).unwrap_err()
    });
    let ddp::Error::Train(error) = &error[0] else { panic!("{error:?}") };
    assert!(matches!(&**error, TrainError::NoGraph { reason } if reason.contains("center")), "{error}");
}
