//! `ddp-train find-lr`: the learning-rate range test. The rate grows geometrically from step to step until the loss diverges.
//!
//! Source: Smith, "Cyclical Learning Rates for Training Neural Networks" (arXiv:1506.01186); suggestions as in fastai's `lr_find`.
//! The mean of neighboring losses takes the place of fastai's exponential average, which lags behind the rates.

use ddp::data::loader::DataLoader;
use ddp::optim::OptimError;
use ddp::report::metrics::json_line;
use ddp::storage::unfinished::Unfinished;
use ddp::train::TrainError;
use ddp::train::setup;
use ddp::train::trainer::{StepRequest, Trainer};
use ddp_comm::World;
use ddp_kernels::ops::WholeNeed;
use serde::Serialize;

use super::{next_command, refuse_folder};
use crate::cli::FindLrArgs;
use crate::commands::train::Run;
use crate::commands::watchdog::Watched;
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::stdout::{print_result, table};

/// Multiple of the lowest loss at which the test ends.
const DIVERGED: f64 = 4.0;
/// Rows of the table that are printed in addition to the suggested rates.
const N_ROWS: usize = 12;

/// Result; one JSON object.
#[derive(Debug, Serialize)]
struct Report {
    /// The proposed rate, the lower one of the two.
    suggested_lr: f64,
    /// Rate at which the loss falls fastest.
    steepest_lr: f64,
    /// A tenth of the rate at which the loss is lowest.
    tenth_of_minimum_lr: f64,
    steps: usize,
    /// Whether the loss diverged before the last rate.
    diverged: bool,
    curve: Vec<Point>,
    command: String,
}

/// Smoothed loss at a rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Point {
    lr: f64,
    loss: f64,
}

/// Tests the range of rates and prints the result on rank 0; every rank of the world calls it.
///
/// # Errors
/// The errors that would keep the run from training; [`CommandError::NoRate`].
pub fn find_lr(world: &World, log: &Log, args: &FindLrArgs) -> Result<(), Stop> {
    let FindLrArgs { train, from, to, steps } = args;
    refuse_folder(train)?;
    if from >= to {
        return Err(CommandError::EmptyRange { from: *from, to: *to }.into());
    }
    let (run, mut trainer, _) = Run::prepare(world, log, train, Watched::Other(Unfinished::default()))?;
    let Run { data, plan, device, .. } = &run;
    let loader = setup::loader(&plan.config, data, &plan.partition, world, *device, None);
    let (mut loader, _) = world.collective_result(loader)?;
    let n_group_schedules = plan.schedule.group_lrs(0).len();
    let mut curve = Curve::new(*steps);
    let rates = [vec![0.0; curve.width()], rates(*from, *to, *steps)].concat();
    let diverged = test(world, &mut trainer, &mut loader, &rates, n_group_schedules, &mut curve)?;
    let no_rate = CommandError::NoRate { from: *from, to: *to };
    let Some((steepest_lr, tenth_of_minimum_lr)) = curve.suggestions() else { return Err(no_rate.into()) };
    let suggested_lr = steepest_lr.min(tenth_of_minimum_lr);
    let optimizer = &plan.config.optimizer;
    let mut sets = vec![("optimizer.lr", format!("{suggested_lr:.1e}"))];
    if optimizer.kind.whole_need() == Some(WholeNeed::Directions) {
        // Both rates were tested in their ratio.
        let adamw_lr = optimizer.adamw_lr / optimizer.lr * suggested_lr;
        sets.push(("optimizer.adamw_lr", format!("{adamw_lr:.1e}")));
    }
    let command = next_command(world, train, &sets);
    let n_steps = curve.losses.len();
    let report = Report {
        suggested_lr,
        steepest_lr,
        tenth_of_minimum_lr,
        steps: n_steps,
        diverged,
        curve: curve.points,
        command,
    };
    let printed = match world.rank().0 {
        0 => print_result(&if train.json { json_line(&report) } else { report.to_text() }),
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}

/// Rates from `from` to `to` with the same ratio from step to step.
fn rates(from: f64, to: f64, steps: usize) -> Vec<f64> {
    let last = (steps.max(2) - 1) as f64;
    (0..steps).map(|step| from * (to / from).powf(step as f64 / last)).collect()
}

/// Trains one step at each rate until the loss diverges; returns whether it did. At rate 0 the weights do not change. All ranks
/// see the same losses.
fn test(
    world: &World,
    trainer: &mut Trainer<'_>,
    loader: &mut DataLoader,
    rates: &[f64],
    n_group_schedules: usize,
    curve: &mut Curve,
) -> Result<bool> {
    for (step, lr) in rates.iter().enumerate() {
        world.watchdog().step(step as u64 + 1);
        trainer.set_lr(*lr);
        trainer.set_group_lrs(&vec![*lr; n_group_schedules]);
        let mut rows = loader.next_step()?.expect("the plan of a run has no end");
        if !is_finite(trainer.step(&mut rows, StepRequest::default()))? {
            return Ok(true);
        }
        loop {
            // On a GPU it is that of the step before.
            let mut outcome = None;
            if !is_finite(trainer.outcome(step + 1 == rates.len()).map(|of_step| outcome = of_step))? {
                return Ok(true);
            }
            let Some((info, outcome)) = outcome else { break };
            if outcome.withheld.is_some() || !curve.add(info.lr, outcome.sums.mean()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether a step was finite; its error, if that is another one.
fn is_finite(result: Result<(), TrainError>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.is_failure() => Ok(false),
        Err(TrainError::Optim(OptimError::LossScaler(_))) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Losses by learning rate.
#[derive(Debug)]
struct Curve {
    /// Losses on each side of a point in its mean.
    reach: usize,
    /// Losses of the initial weights, at the rate 0.
    initial: Vec<f64>,
    losses: Vec<Point>,
    points: Vec<Point>,
    lowest: f64,
}

impl Curve {
    /// An empty curve of a test of so many steps.
    fn new(n_steps: usize) -> Self {
        let reach = (n_steps / 20).max(1);
        let (losses, points) = (Vec::with_capacity(n_steps), Vec::new());
        Curve { reach, initial: Vec::new(), losses, points, lowest: f64::INFINITY }
    }

    /// Number of losses of a mean.
    fn width(&self) -> usize {
        2 * self.reach + 1
    }

    /// Adds the loss of one step; returns whether the test goes on.
    fn add(&mut self, lr: f64, loss: f64) -> bool {
        if lr == 0.0 {
            self.initial.push(loss);
            return loss.is_finite();
        }
        self.losses.push(Point { lr, loss });
        let Some(first) = self.losses.len().checked_sub(self.width()) else { return loss.is_finite() };
        let window = &self.losses[first..];
        let mean = window.iter().map(|point| point.loss).sum::<f64>() / window.len() as f64;
        // Losses of densities may be negative.
        let limit = self.lowest + (DIVERGED - 1.0) * self.lowest.abs();
        if !mean.is_finite() || mean > limit {
            return false;
        }
        self.lowest = self.lowest.min(mean);
        self.points.push(Point { lr: window[self.reach].lr, loss: mean });
        true
    }

    /// The rate at which the loss falls fastest, and a tenth of that at which it is lowest; `None` if it does not fall below that of the
    /// initial weights.
    fn suggestions(&self) -> Option<(f64, f64)> {
        let lowest = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
        let losses = self.points.iter().map(|point| point.loss).enumerate();
        let initial = self.initial.iter().sum::<f64>() / self.initial.len() as f64;
        let (minimum, _) = losses.min_by(lowest).filter(|(_, loss)| *loss < initial)?;
        // Rates have the same ratio, so differences are slopes over the logarithm: between means that share no loss, or noise decides.
        let span = (2 * self.reach + 2).min(minimum + 1);
        let slopes =
            self.points[..=minimum].windows(span).map(|of| of[span - 1].loss - of[0].loss).enumerate();
        let (steepest, slope) = slopes.min_by(lowest)?;
        (slope < 0.0).then(|| (self.points[steepest + span / 2].lr, self.points[minimum].lr / 10.0))
    }
}

impl Report {
    fn to_text(&self) -> String {
        let every = self.curve.len().div_ceil(N_ROWS).max(1);
        let minimum = self.tenth_of_minimum_lr * 10.0;
        let is_near = |lr: f64, of: f64| (lr / of - 1.0).abs() < 1e-9;
        let mark = |lr: f64| match lr {
            _ if is_near(lr, self.steepest_lr) => "steepest",
            _ if is_near(lr, minimum) => "minimum",
            _ => "",
        };
        let rows =
            self.curve.iter().enumerate().filter(|(i, point)| i % every == 0 || !mark(point.lr).is_empty());
        let rows = rows.map(|(_, Point { lr, loss })| {
            vec![format!("{lr:.1e}"), format!("{loss:.4}"), mark(*lr).to_owned()]
        });
        let end = if self.diverged { "the loss diverged" } else { "the last rate" };
        let named = if self.suggested_lr < self.steepest_lr { "minimum / 10" } else { "steepest descent" };
        format!(
            "{}\n{} steps, up to {end}\nsteepest descent: {:.1e}; minimum / 10: {:.1e}\nsuggested: {:.1e}, {named}, the lower of the two\nnext: {}\n",
            table(&["lr", "loss", "<"], &rows.collect::<Vec<_>>()),
            self.steps,
            self.steepest_lr,
            self.tenth_of_minimum_lr,
            self.suggested_lr,
            self.command,
        )
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::{DType, Device, Tensor};

    use super::*;

    /// A curve that is flat, falls around `1e-3`, is lowest at about `1e-1` and then diverges.
    fn curve(scale: f64) -> (Curve, usize) {
        let mut curve = Curve::new(100);
        let loss = |lr: f64| {
            let x = lr.log10();
            (2.0 / (1.0 + (2.0 * (x + 3.0)).exp()) + 0.5 + (4.0 * (x - 0.0)).exp()) * scale
        };
        curve.initial = vec![loss(1e-9)];
        let rates = rates(1e-7, 10.0, 100);
        let n = rates.iter().take_while(|lr| curve.add(**lr, loss(**lr))).count();
        (curve, n)
    }

    #[test]
    fn the_steepest_descent_and_the_minimum_are_found() {
        let (of, n) = curve(1.0);
        assert!(n < 100 && n > 85, "diverged at step {n}");
        let (steepest, tenth) = of.suggestions().unwrap();
        assert!((steepest.log10() + 3.0).abs() < 0.15, "{steepest}");
        assert!((-2.3..-1.6).contains(&tenth.log10()), "{tenth}");
        assert_eq!(of.points.len(), n - 10, "each has five losses on either side");
    }

    /// Losses of small batches scatter as much as the curve falls.
    #[test]
    fn noise_does_not_decide_the_steepest_descent() {
        for seed in 0..50 {
            let noise =
                Tensor::randn(&[200], DType::F64, Device::Cpu, seed).unwrap().to_vec::<f64>().unwrap();
            let mut of = Curve::new(200);
            of.initial = vec![2.5];
            for (lr, noise) in rates(1e-7, 10.0, 200).iter().zip(noise) {
                let x = lr.log10();
                let loss = 2.0 / (1.0 + (2.0 * (x + 3.0)).exp()) + 0.5 + (4.0 * x).exp();
                if !of.add(*lr, loss + 0.5 * noise) {
                    break;
                }
            }
            let (steepest, _) = of.suggestions().unwrap();
            assert!((steepest.log10() + 3.0).abs() < 1.2, "seed {seed}: {steepest}");
        }
    }

    /// The rows of the first mini-batch happen to have a small loss.
    #[test]
    fn the_first_mini_batch_does_not_decide_whether_the_loss_falls() {
        let mut curve = Curve::new(20);
        assert!([0.2, 1.4, 1.1].iter().all(|loss| curve.add(0.0, *loss)));
        assert!([0.2, 1.4, 1.1, 0.9, 0.8, 0.6, 0.7, 0.5].iter().all(|loss| curve.add(1e-3, *loss)));
        assert!(curve.suggestions().is_some());
    }

    #[test]
    fn a_loss_that_explodes_at_once_falls_below_nothing() {
        let mut curve = Curve::new(20);
        assert!(curve.add(0.0, 2.3));
        let losses = [2.3, 4e5, 3e5, 2e5, 1e4, 3e3, 400.0, 60.0, 30.0, 28.0];
        assert!(losses.iter().all(|loss| curve.add(5.0, *loss)));
        assert_eq!(curve.suggestions(), None);
    }

    #[test]
    fn a_loss_that_only_grows_or_is_not_finite_gives_none() {
        let mut rising = Curve::new(20);
        rising.initial = vec![1.0];
        assert!((0..20).all(|i| rising.add(1e-3 * f64::from(i + 1), 1.0 + 0.01 * f64::from(i))));
        assert_eq!(rising.suggestions(), None);
        let mut nan = Curve::new(20);
        assert!(nan.add(1e-3, 1.0) && !nan.add(2e-3, f64::NAN));
        assert_eq!(nan.suggestions(), None);
    }

    #[test]
    fn negative_losses_diverge_upwards() {
        let mut curve = Curve::new(3);
        assert!([-1.0, -1.0, -1.0, 1.0, 1.0].iter().all(|loss| curve.add(1.0, *loss)));
        assert!(!curve.add(1.0, 7.0));
    }
}
