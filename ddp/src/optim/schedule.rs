//! Learning-rate schedules: the rate is a pure function of the step, so a resumed run needs no state for it. That of `plateau` also
//! depends on the number of reductions so far, which is part of the run's state.
//!
//! `t` counts updates from 0, `T` is the number of updates in the run, `W` the number in the warm-up, `lr` is `optimizer.lr`. The
//! formulas are those of `torch.optim.lr_scheduler`, whose schedulers are stepped once after each update:
//!
//! | | in the warm-up, `t < W` | after it, with `u = t - W`, `U = T - W` | PyTorch |
//! |---|---|---|---|
//! | `constant` | `lr·(s + (1-s)·t/W)` | `lr` | `ConstantLR(1)` |
//! | `linear` | likewise | `lr·(1 + (f-1)·u/U)` | `LinearLR(1, f, U)` |
//! | `cosine` | likewise | `lr·(f + (1-f)·(1 + cos(π·u/U))/2)` | `CosineAnnealingLR(U, f·lr)` |
//! | `step` | likewise | `lr·factor^⌊u/every⌋` | `StepLR(every, factor)` |
//! | `exponential` | likewise | `lr·factor^(u/every)` | `ExponentialLR(factor^(1/every))` |
//! | `cosine_restarts` | likewise | as `cosine`, with `u` counted from the last restart and `U` up to the next one | `CosineAnnealingWarmRestarts(every, growth, f·lr)` |
//! | `plateau` | likewise, times `max(factor^n, f)` after `n` reductions | `lr·max(factor^n, f)` | `ReduceLROnPlateau(factor=factor, patience=patience - 1, min_lr=f·lr)` |
//! | `wsd` | likewise | `lr`, and over the last `D` steps `lr·(1 + (f-1)·(t-T+D)/D)` | `ConstantLR(1)`, `LinearLR(1, f, D)` |
//! | `one_cycle` | `lr·(1 + (s-1)·(1 + cos(π·t/(W-1)))/2)` | `lr·(f + (1-f)·(1 + cos(π·(u+1)/U))/2)` | `OneCycleLR(lr, T, W/T, "cos")` |
//!
//! `s` is `schedule.warmup_start`, by default `1/(W+1)`, so that the rise is even and no step has a learning rate of 0; `f` is
//! `schedule.final_fraction`. The warm-up is `LinearLR(s, 1, W)`, joined to the rest by `SequentialLR`. As in PyTorch, all
//! schedules except `one_cycle` would reach `f·lr` one step after the last one; `one_cycle` reaches it in the last step. A
//! fraction of `T` is rounded to whole steps, except for the warm-up of `one_cycle`, as in PyTorch.
//!
//! ```
//! use ddp::optim::{Schedule, ScheduleConfig, ScheduleShape, Span, Warmup};
//!
//! let warmup = Warmup { length: Span::Fraction(0.1), start: None };
//! let config = ScheduleConfig { warmup, shape: ScheduleShape::Cosine { final_fraction: 0.0 } };
//! let schedule = Schedule::new(&config, 1.0, Some(100))?;
//! assert!(schedule.lr(0) < schedule.lr(5) && schedule.lr(5) < schedule.lr(10));
//! assert_eq!(schedule.lr(10), 1.0);
//! assert!(schedule.lr(99) < 1e-3);
//! # Ok::<(), ddp::optim::OptimError>(())
//! ```

use std::f64::consts::PI;

use crate::config::{ScheduleConfig, ScheduleShape, Span};
use crate::optim::error::{OptimError, Result};

/// The learning rate of each step of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    base_lr: f64,
    /// `W`.
    warmup_steps: f64,
    /// `s`.
    warmup_start: f64,
    decay: Decay,
    /// `T`; infinity if it is unknown and nothing depends on it.
    total_steps: f64,
}

/// Decay after the warm-up, with its step counts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Decay {
    Constant,
    Linear { end: f64 },
    Cosine { end: f64 },
    OneCycle { end: f64 },
    Step { every: f64, factor: f64 },
    Exponential { every: f64, factor: f64 },
    CosineRestarts { every: f64, growth: f64, end: f64 },
    Plateau { factor: f64, end: f64 },
    Wsd { decay_steps: f64, end: f64 },
}

impl Schedule {
    /// Creates the schedule of `config` for a run of `total_steps` optimizer steps.
    ///
    /// - `total_steps`: `None` if it isn't known; then only schedules that don't span the run are possible, with intervals in steps
    ///
    /// # Errors
    /// [`OptimError::Setting`] for a setting that a config refuses too; [`OptimError::ScheduleNeedsLength`] if the schedule requires it and it isn't known; [`OptimError::ScheduleTooLong`] if
    /// warm-up and decay of `wsd` don't both fit into the run.
    pub fn new(config: &ScheduleConfig, base_lr: f64, total_steps: Option<u64>) -> Result<Self> {
        if let Some((name, expected, got)) = config.fault() {
            return Err(OptimError::Setting { name, expected, got });
        }
        let needs_length = || OptimError::ScheduleNeedsLength { kind: config.shape.name() };
        let total = || total_steps.map(|steps| steps as f64).ok_or_else(needs_length);
        let exact = |span: Span| match span {
            Span::Steps(steps) => Ok(steps as f64),
            Span::Fraction(fraction) => Ok::<_, OptimError>(fraction * total()?),
        };
        let whole = |span: Span| Ok::<_, OptimError>(exact(span)?.round());
        let warmup_steps = match config.shape {
            ScheduleShape::OneCycle { .. } => exact(config.warmup.length)?,
            _ => whole(config.warmup.length)?,
        };
        let decay = match config.shape {
            ScheduleShape::Constant => Decay::Constant,
            ScheduleShape::Linear { final_fraction } => Decay::Linear { end: final_fraction },
            ScheduleShape::Cosine { final_fraction } => Decay::Cosine { end: final_fraction },
            ScheduleShape::OneCycle { final_fraction } => Decay::OneCycle { end: final_fraction },
            ScheduleShape::Step { every, factor } => Decay::Step { every: whole(every)?.max(1.0), factor },
            ScheduleShape::Exponential { every, factor } => {
                Decay::Exponential { every: whole(every)?.max(1.0), factor }
            }
            ScheduleShape::CosineRestarts { every, growth, final_fraction } => Decay::CosineRestarts {
                every: whole(every)?.max(1.0),
                growth: growth as f64,
                end: final_fraction,
            },
            ScheduleShape::Plateau { factor, final_fraction, .. } => {
                Decay::Plateau { factor, end: final_fraction }
            }
            ScheduleShape::Wsd { decay, final_fraction } => {
                let (mut decay_steps, total) = (whole(decay)?, total()?);
                if let (Span::Fraction(_), Span::Fraction(_)) = (config.warmup.length, decay) {
                    // Both may be rounded up.
                    decay_steps = decay_steps.min((total - warmup_steps).max(decay_steps - 1.0));
                }
                if warmup_steps + decay_steps > total {
                    return Err(OptimError::ScheduleTooLong {
                        warmup_steps: warmup_steps as u64,
                        decay_steps: decay_steps as u64,
                        total_steps: total as u64,
                    });
                }
                Decay::Wsd { decay_steps, end: final_fraction }
            }
        };
        let total_steps = match decay {
            Decay::Constant
            | Decay::Step { .. }
            | Decay::Exponential { .. }
            | Decay::CosineRestarts { .. }
            | Decay::Plateau { .. } => total_steps.map_or(f64::INFINITY, |steps| steps as f64),
            _ => total()?,
        };
        let warmup_start = config.warmup.start.unwrap_or(1.0 / (warmup_steps + 1.0));
        Ok(Schedule { base_lr, warmup_steps, warmup_start, decay, total_steps })
    }

    /// Constant learning rate `lr`.
    pub fn constant(lr: f64) -> Self {
        Schedule {
            base_lr: lr,
            warmup_steps: 0.0,
            warmup_start: 1.0,
            decay: Decay::Constant,
            total_steps: f64::INFINITY,
        }
    }

    /// Cosine decay from `lr` to 0 over `n_steps` steps.
    ///
    /// ```
    /// use ddp::optim::Schedule;
    /// let schedule = Schedule::cosine(0.1, 100).warmup(10);
    /// assert!(schedule.lr(0) < 0.01 && schedule.lr(10) == 0.1 && schedule.lr(99) < 1e-4);
    /// ```
    pub fn cosine(lr: f64, n_steps: usize) -> Self {
        Schedule { decay: Decay::Cosine { end: 0.0 }, total_steps: n_steps as f64, ..Schedule::constant(lr) }
    }

    /// Linear decay from `lr` to 0 over `n_steps` steps.
    pub fn linear(lr: f64, n_steps: usize) -> Self {
        Schedule { decay: Decay::Linear { end: 0.0 }, ..Schedule::cosine(lr, n_steps) }
    }

    /// Adds a linear warm-up over the first `n_steps` steps, none of them with a rate of 0; the decay still ends at the same step.
    #[must_use]
    pub fn warmup(self, n_steps: usize) -> Self {
        let warmup_steps = n_steps as f64;
        Schedule { warmup_steps, warmup_start: 1.0 / (warmup_steps + 1.0), ..self }
    }

    /// Whether the run ends before its warm-up does.
    pub fn ends_in_warmup(&self) -> bool {
        self.warmup_steps > self.total_steps
    }

    /// Factor of [`Self::lr`] after `n_reductions`; 1 unless the schedule is `plateau`.
    pub fn plateau_factor(&self, n_reductions: u64) -> f64 {
        match self.decay {
            Decay::Plateau { factor, end } => factor.powf(n_reductions as f64).max(end),
            _ => 1.0,
        }
    }

    /// Learning rate of the update after `step` earlier ones. After the end of the run it stays constant.
    pub fn lr(&self, step: u64) -> f64 {
        let (total, warmup) = (self.total_steps, self.warmup_steps);
        let t = (step as f64).min(total);
        if let Decay::OneCycle { end } = self.decay {
            return self.base_lr * self.one_cycle(t.min(total - 1.0), end);
        }
        if t < warmup {
            return self.base_lr * (self.warmup_start + (1.0 - self.warmup_start) * t / warmup);
        }
        let u = t - warmup;
        // The value is not used if the run ends within the warm-up.
        let progress = if total > warmup { u / (total - warmup) } else { 1.0 };
        let factor = match self.decay {
            Decay::Constant | Decay::OneCycle { .. } | Decay::Plateau { .. } => 1.0,
            Decay::Linear { end } => 1.0 + (end - 1.0) * progress,
            Decay::Cosine { end } => cosine(1.0, end, progress),
            Decay::Step { every, factor } => factor.powf((u / every).floor()),
            Decay::Exponential { every, factor } => factor.powf(u / every),
            Decay::CosineRestarts { every, growth, end } => {
                let (into, length) = since_restart(u, every, growth);
                cosine(1.0, end, into / length)
            }
            Decay::Wsd { decay_steps, end } => {
                let into = t - (total - decay_steps);
                if into > 0.0 { 1.0 + (end - 1.0) * into / decay_steps } else { 1.0 }
            }
        };
        self.base_lr * factor
    }

    /// Two cosines that meet at step `W - 1`, which need not be an integer.
    fn one_cycle(&self, t: f64, end: f64) -> f64 {
        let (peak, last) = (self.warmup_steps - 1.0, self.total_steps - 1.0);
        if t <= peak {
            let progress = if peak > 0.0 { t / peak } else { 1.0 };
            return cosine(self.warmup_start, 1.0, progress);
        }
        cosine(1.0, end, (t - peak) / (last - peak))
    }
}

/// Steps since the last restart and up to the next one, after `u` steps of cosines that begin with `every` steps and grow by `growth`.
fn since_restart(u: f64, every: f64, growth: f64) -> (f64, f64) {
    if growth == 1.0 {
        return (u % every, every);
    }
    let (mut into, mut length) = (u, every);
    while into >= length {
        (into, length) = (into - length, length * growth);
    }
    (into, length)
}

/// Half a cosine from `start` to `end`, for `progress` from 0 to 1.
fn cosine(start: f64, end: f64, progress: f64) -> f64 {
    end + (start - end) / 2.0 * (1.0 + (PI * progress).cos())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Warmup;

    fn schedule(shape: ScheduleShape, warmup: Span, total_steps: u64) -> Schedule {
        let config = ScheduleConfig { warmup: Warmup { length: warmup, start: None }, shape };
        Schedule::new(&config, 2.0, Some(total_steps)).unwrap()
    }

    fn rates(schedule: Schedule, n: u64) -> Vec<f64> {
        (0..n).map(|step| schedule.lr(step)).collect()
    }

    #[track_caller]
    fn assert_rates(schedule: Schedule, want: &[f64]) {
        let got = rates(schedule, want.len() as u64);
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= 1e-12 * want.abs(), "{got} is not {want}");
        }
    }

    #[test]
    fn fractions_of_a_whole_fit_any_run() {
        for total in 1..50 {
            for (warmup, decay) in [(0.5, 0.5), (0.1, 0.9), (0.3, 0.7), (0.0, 1.0), (1.0, 0.0)] {
                let decay = Span::Fraction(decay);
                let shape = ScheduleShape::Wsd { decay, final_fraction: 0.0 };
                assert!(schedule(shape, Span::Fraction(warmup), total).lr(0).is_finite());
            }
        }
    }

    #[test]
    fn the_warm_up_rises_evenly_and_loses_no_step() {
        let schedule = schedule(ScheduleShape::Constant, Span::Steps(4), 9);
        assert_rates(schedule, &[0.4, 0.8, 1.2, 1.6, 2.0, 2.0, 2.0]);
        let warmup = Warmup { length: Span::Fraction(0.5), start: Some(0.0) };
        let config = ScheduleConfig { warmup, shape: ScheduleShape::Linear { final_fraction: 0.5 } };
        let schedule = Schedule::new(&config, 2.0, Some(8)).unwrap();
        assert_rates(schedule, &[0.0, 0.5, 1.0, 1.5, 2.0, 1.75, 1.5, 1.25, 1.0, 1.0]);
    }

    #[test]
    fn step_and_wsd_decay_where_they_should() {
        let shape = ScheduleShape::Step { every: Span::Steps(2), factor: 0.5 };
        assert_rates(schedule(shape, Span::Steps(0), 6), &[2.0, 2.0, 1.0, 1.0, 0.5, 0.5]);
        let shape = ScheduleShape::Wsd { decay: Span::Fraction(0.4), final_fraction: 0.0 };
        assert_rates(
            schedule(shape, Span::Steps(1), 10),
            &[1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0],
        );
    }

    #[test]
    fn exponential_and_restarts_repeat_by_their_interval() {
        let half = 0.5f64.sqrt();
        let shape = ScheduleShape::Exponential { every: Span::Steps(2), factor: 0.5 };
        assert_rates(schedule(shape, Span::Steps(1), 9), &[1.0, 2.0, 2.0 * half, 1.0, half, 0.5]);
        let shape = ScheduleShape::CosineRestarts { every: Span::Steps(2), growth: 2, final_fraction: 0.5 };
        // Cosines of 2, 4 and 8 steps from 2 to 1.
        let quarter = 1.5 + 0.5 * half;
        let last = 1.5 - 0.5 * half;
        assert_rates(schedule(shape, Span::Steps(0), 40), &[2.0, 1.5, 2.0, quarter, 1.5, last, 2.0]);
        let shape = ScheduleShape::CosineRestarts { every: Span::Steps(2), growth: 1, final_fraction: 0.0 };
        let even = schedule(shape, Span::Steps(0), 1 << 40);
        assert_eq!((even.lr(1 << 39), even.lr((1 << 39) + 1)), (2.0, 1.0));
    }

    #[test]
    fn a_plateau_multiplies_down_to_its_least_rate() {
        let shape = ScheduleShape::Plateau { patience: 3, factor: 0.1, final_fraction: 0.005 };
        let schedule = schedule(shape, Span::Steps(2), 9);
        assert_eq!((schedule.lr(2), schedule.lr(8)), (2.0, 2.0));
        let factors = [0, 1, 2, 3, 1 << 40].map(|n| schedule.plateau_factor(n));
        for (got, want) in factors.into_iter().zip([1.0, 0.1, 0.01, 0.005, 0.005]) {
            assert!((got - want).abs() < 1e-15, "{got} is not {want}");
        }
    }

    #[test]
    fn what_depends_on_the_length_must_know_it() {
        let config = |shape, length| ScheduleConfig { warmup: Warmup { length, start: None }, shape };
        let unknown = |shape, warmup| Schedule::new(&config(shape, warmup), 1.0, None);
        assert_eq!(unknown(ScheduleShape::Constant, Span::Steps(2)).unwrap().lr(1 << 60), 1.0);
        for (shape, warmup) in [
            (ScheduleShape::Constant, Span::Fraction(0.1)),
            (ScheduleShape::Cosine { final_fraction: 0.0 }, Span::Steps(0)),
            (ScheduleShape::Step { every: Span::Fraction(0.1), factor: 0.5 }, Span::Steps(0)),
            (ScheduleShape::Exponential { every: Span::Fraction(0.1), factor: 0.5 }, Span::Steps(0)),
        ] {
            let error = unknown(shape, warmup).unwrap_err();
            assert!(error.to_string().contains(shape.name()), "{error}");
        }
        let wsd = ScheduleShape::Wsd { decay: Span::Steps(6), final_fraction: 0.0 };
        let error = Schedule::new(&config(wsd, Span::Steps(5)), 1.0, Some(10)).unwrap_err().to_string();
        assert!(error.contains("5 + 6") && error.contains("10 steps"), "{error}");
    }

    fn any_shape() -> impl Strategy<Value = ScheduleShape> {
        let end = 0.0..=1.0f64;
        let span = || prop_oneof![(1u64..9).prop_map(Span::Steps), (0.01..0.4f64).prop_map(Span::Fraction)];
        (0usize..8, end, span()).prop_map(|(kind, final_fraction, span)| match kind {
            0 => ScheduleShape::Constant,
            1 => ScheduleShape::Linear { final_fraction },
            2 => ScheduleShape::Cosine { final_fraction },
            3 => ScheduleShape::OneCycle { final_fraction },
            4 => ScheduleShape::Step { every: span, factor: 0.5 },
            5 => ScheduleShape::Exponential { every: span, factor: 0.5 },
            6 => ScheduleShape::Plateau { patience: 1, factor: 0.5, final_fraction },
            _ => ScheduleShape::Wsd { decay: span, final_fraction },
        })
    }

    proptest! {
        /// Holds also if the run ends within the warm-up, and after the run has ended.
        #[test]
        fn rates_rise_to_the_base_and_then_fall(
            shape in any_shape(),
            warmup in prop_oneof![(0u64..30).prop_map(Span::Steps), (0.0..1.0f64).prop_map(Span::Fraction)],
            start in prop::option::of(0.0..=1.0f64),
            total in 1u64..40,
        ) {
            let config = ScheduleConfig { warmup: Warmup { length: warmup, start }, shape };
            if let Ok(schedule) = Schedule::new(&config, 2.0, Some(total)) {
                let rates = rates(schedule, total + 5);
                prop_assert!(rates.iter().all(|lr| (0.0..=2.0 + 1e-12).contains(lr)), "{:?}", rates);
                let rises = |t: &u64| match shape {
                    ScheduleShape::OneCycle { .. } => *t as f64 <= schedule.warmup_steps - 1.0,
                    _ => (*t as f64) < schedule.warmup_steps,
                };
                let turn = (0..total).filter(rises).count();
                let (up, down) = rates.split_at(turn);
                prop_assert!(up.windows(2).all(|w| w[0] <= w[1] + 1e-12), "{:?}", rates);
                prop_assert!(down.windows(2).all(|w| w[0] >= w[1] - 1e-12), "{:?}", rates);
                prop_assert!(rates[total as usize..].windows(2).all(|w| w[0] == w[1]), "{:?}", rates);
            }
        }
    }
}
