//! Times of the parts of steps: a rank that is slow in one part is slow in that one, and the others wait for it in the exchange.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp::config::precision::Precision;
use ddp::config::{OptimizerConfig, OptimizerKind};
use ddp::data::TensorDataset;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions};
use ddp::model::layer::{Result, Sizes};
use ddp::model::pass::{BackwardPass, ForwardPass};
use ddp::model::{Layer, LossHead, Sequential};
use ddp::train::step_times::{StepPart, StepTimes};
use ddp::train::trainer::{GraphMode, StepRequest, Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::ops;
use ddp_kernels::{DType, Device, Tensor, TensorMut, TensorRef};

use crate::made_up::gpus::gpus;

const N_STEPS: u64 = 5;
/// Longer than a thread usually waits for a core.
const PAUSE: Duration = Duration::from_millis(20);

/// `y = x`, with a pause in forward or backward.
#[derive(Debug)]
struct Slow {
    part: Option<StepPart>,
}

impl Slow {
    fn pause_in(&self, part: StepPart) {
        if self.part == Some(part) {
            std::thread::sleep(PAUSE);
        }
    }
}

impl Layer for Slow {
    fn describe(&self) -> String {
        "slow".to_owned()
    }

    fn out_features(&self) -> usize {
        3
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, _: ForwardPass<'_>) -> Result<()> {
        self.pause_in(StepPart::Forward);
        ops::copy(x, y)
    }

    fn backward(&mut self, _: TensorMut<'_>, _: BackwardPass<'_>) -> Result<()> {
        self.pause_in(StepPart::Backward);
        Ok(())
    }
}

/// Trains on this rank; returns the times of the steps, and the time in all of them, in s.
fn train(world: &World, part: Option<StepPart>, device: Device, graph: GraphMode) -> (StepTimes, f64) {
    let layers = Sequential::new(3).linear(3).layer(Slow { part }).linear(1);
    let sizes = Sizes { max_rows: 16, device, precision: Precision::F32 };
    let sgd = OptimizerConfig::new(OptimizerKind::Sgd, 0.01);
    let options = TrainerOptions { graph, ..TrainerOptions::default() };
    let mut trainer = Trainer::for_layers(world, layers, sizes, LossHead::mse(), &sgd, options).unwrap();
    let x = Tensor::randn(&[64, 3], DType::F32, Device::Cpu, 1).unwrap();
    let rows = Arc::new(TensorDataset::new(&x, &x.sum(1).unwrap()).unwrap());
    let mut loader = DataLoader::new(world, rows, &BatchPlan::new(16), LoaderOptions::new(device)).unwrap();
    let mut seconds = 0.0;
    for step in 0..2 * N_STEPS {
        let mut batch = loader.next_step().unwrap().unwrap();
        let started = Instant::now();
        // On a GPU every other step is timed.
        let request = StepRequest { is_timed: step % 2 == 0, ..StepRequest::default() };
        trainer.step(&mut batch, request).unwrap();
        while trainer.outcome(true).unwrap().is_some() {}
        seconds += started.elapsed().as_secs_f64();
    }
    (trainer.times(), seconds)
}

fn mean(times: &StepTimes, part: StepPart) -> f64 {
    times.mean(part).unwrap()
}

#[test]
fn the_parts_add_up_to_the_step() {
    let (times, seconds) = train(&World::single(), Some(StepPart::Backward), Device::Cpu, GraphMode::Off);
    assert_eq!(times.n_steps, 2 * N_STEPS);
    let sum: f64 = StepPart::ALL.iter().map(|part| mean(&times, *part)).sum::<f64>() * times.n_steps as f64;
    // A thread that is not scheduled may lose time between two readings, but not most of it.
    assert!(sum <= seconds && sum >= 0.5 * seconds, "{sum} of {seconds} s");
    assert!(mean(&times, StepPart::Backward) >= PAUSE.as_secs_f64(), "{times:?}");
    assert_eq!((mean(&times, StepPart::Exchange), mean(&times, StepPart::CopyToGpu)), (0.0, 0.0));
}

#[test]
fn the_others_wait_for_a_slow_rank_in_the_exchange() {
    for part in [StepPart::Forward, StepPart::Backward] {
        let times = threads::run(2, |world| {
            let slow = (world.rank().0 == 1).then_some(part);
            train(&world, slow, Device::Cpu, GraphMode::Off).0
        });
        let pause = PAUSE.as_secs_f64();
        assert!(mean(&times[1], part) >= pause, "{part:?}: {times:?}");
        // Rank 0 has nothing else to do; what its thread loses otherwise makes rank 1 wait.
        let waited = mean(&times[0], StepPart::Exchange);
        assert!(
            waited >= 0.5 * pause && mean(&times[0], part) < mean(&times[1], part),
            "{part:?}: {times:?}"
        );
    }
}

#[test]
fn a_gpu_times_the_steps_that_are_requested() {
    let Some(_alone) = gpus(2) else { return };
    for (n, graph) in [(1, GraphMode::On), (2, GraphMode::Off), (2, GraphMode::On)] {
        let times = threads::run(n, |world| {
            let device = Device::Cuda(world.rank().0 as u32);
            world.connect_device(device, DeviceOptions::default()).unwrap();
            train(&world, None, device, graph).0
        });
        for of_rank in times {
            assert_eq!(of_rank.n_steps, N_STEPS, "{graph:?}");
            for part in [StepPart::CopyToGpu, StepPart::Forward, StepPart::Backward, StepPart::Update] {
                assert!(mean(&of_rank, part) > 0.0, "{graph:?}: {part:?}: {of_rank:?}");
            }
            assert_eq!(mean(&of_rank, StepPart::Exchange) > 0.0, n > 1, "{graph:?}: {of_rank:?}");
        }
    }
}
