//! `[schedule]`: the learning rate of each step. The formulas are in the room `optim`, `schedule.rs`.

use super::error::Result;
use super::key::{Key, Kind, Range, count, key, number, one_of};
use super::limits::MAX_STEPS;
use super::raw::RawConfig;
use super::value::{ConfigEnum, config_enum};
use super::writer::Writer;

/// `[schedule]`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScheduleConfig {
    /// Warm-up over the first steps of the run.
    pub warmup: Warmup,
    /// Shape of the schedule after the warm-up.
    pub shape: ScheduleShape,
}

/// Rise of the learning rate to `optimizer.lr`: linear, or along a cosine for [`ScheduleShape::OneCycle`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warmup {
    /// Length of the warm-up; 0 for none.
    pub length: Span,
    /// Ratio of the first step's learning rate to `optimizer.lr`, in [0, 1]; `None` is `1 / (steps + 1)`, for equal increments
    /// without a step at 0.
    pub start: Option<f64>,
}

/// Course of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScheduleShape {
    /// Stays at `optimizer.lr` to the end.
    Constant,
    /// Linear decay to `final_fraction` of `optimizer.lr` at the end of the run.
    Linear {
        /// In [0, 1].
        final_fraction: f64,
    },
    /// Decay along half a cosine to `final_fraction` of `optimizer.lr` at the end of the run.
    Cosine {
        /// In [0, 1].
        final_fraction: f64,
    },
    /// Rises along a cosine in the warm-up, then decays along another one.
    OneCycle {
        /// In [0, 1].
        final_fraction: f64,
    },
    /// Multiplied by `factor` at regular intervals.
    Step {
        /// The interval, at least one step.
        every: Span,
        /// In (0, 1].
        factor: f64,
    },
    /// Multiplied by `factor` over each interval, a little at each step.
    Exponential {
        /// The interval, at least one step.
        every: Span,
        /// In (0, 1].
        factor: f64,
    },
    /// Half a cosine from `optimizer.lr` to `final_fraction` of it, again and again.
    CosineRestarts {
        /// Length of the first cosine, at least one step.
        every: Span,
        /// Ratio of the lengths of a cosine and the previous one, at least 1.
        growth: u64,
        /// In [0, 1].
        final_fraction: f64,
    },
    /// Multiplied by `factor` after every `patience` evaluations in a row that are not better than the best one, as early stopping
    /// judges them.
    Plateau {
        /// At least 1.
        patience: u64,
        /// In (0, 1].
        factor: f64,
        /// Least ratio to `optimizer.lr`, in [0, 1].
        final_fraction: f64,
    },
    /// Warm-up, stable, decay: linear decay to `final_fraction` of `optimizer.lr` over the last steps of the run.
    Wsd {
        /// Length of the decay.
        decay: Span,
        /// In [0, 1].
        final_fraction: f64,
    },
}

/// A number of steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Span {
    /// The number itself.
    Steps(u64),
    /// A fraction of the run's steps, in [0, 1].
    Fraction(f64),
}

/// The possible values of `schedule.kind`.
#[derive(Clone, Copy, PartialEq)]
enum ScheduleKind {
    Constant,
    Linear,
    Cosine,
    OneCycle,
    Step,
    Exponential,
    CosineRestarts,
    Plateau,
    Wsd,
}

config_enum!(impl ScheduleKind {
    Constant = "constant",
    Linear = "linear",
    Cosine = "cosine",
    OneCycle = "one_cycle",
    Step = "step",
    Exponential = "exponential",
    CosineRestarts = "cosine_restarts",
    Plateau = "plateau",
    Wsd = "wsd",
});

const FRACTION: Range = Range::from_to(0.0, 1.0, "a fraction from 0 to 1");
const FACTOR: Range = Range::above_to(0.0, 1.0, "a number above 0 and at most 1");
const MAX_GROWTH: u64 = 1000;
const STEPS_HINT: &str = "steps of the optimizer";
const FRACTION_HINT: &str = "0.1 is a tenth of the run's steps";
const STEPS_OR_FRACTION: &str = "one counts optimizer steps, the other is a fraction of the run's steps";

pub(super) const KEYS: &[Key] = &[
    one_of("schedule.kind", ScheduleKind::NAMES)
        .help("Course of the learning rate after the warm-up")
        .default(r#""constant""#)
        .example(r#""cosine""#)
        .synonyms(&["lr_scheduler", "lr_scheduler_type", "scheduler", "lr_schedule"]),
    count("schedule.warmup_steps", 0, MAX_STEPS)
        .help("Optimizer steps of the warm-up")
        .default_depends("0; not used with one_cycle or schedule.warmup_fraction")
        .example("100")
        .hint(STEPS_HINT)
        .synonyms(&["warmup", "num_warmup_steps"]),
    number("schedule.warmup_fraction", FRACTION)
        .help("Warm-up as a fraction of the run's steps")
        .default_depends("0.3 with one_cycle, else not used")
        .example("0.1")
        .hint(FRACTION_HINT)
        .synonyms(&["warmup_ratio", "pct_start"])
        .instead_of("schedule.warmup_steps", STEPS_OR_FRACTION),
    number("schedule.warmup_start", FRACTION)
        .help("Learning rate of the first step, as a fraction of optimizer.lr")
        .default_depends("0.04 with one_cycle, else 1 / (warm-up steps + 1)")
        .example("0.1")
        .hint("0.1 begins with a tenth of `optimizer.lr`")
        .synonyms(&["start_factor", "div_factor"]),
    number("schedule.final_fraction", FRACTION)
        .help(
            "Learning rate at the end of the run (linear, cosine, one_cycle, wsd), of each cosine (cosine_restarts), or the least one \
             (plateau), as a fraction of optimizer.lr",
        )
        .default_depends("4e-6 with one_cycle, else 0")
        .example("0.1")
        .hint("0.1 ends with a tenth of `optimizer.lr`")
        .synonyms(&["min_lr", "eta_min", "min_lr_ratio", "end_factor", "final_div_factor"]),
    count("schedule.decay_steps", 0, MAX_STEPS)
        .help("Optimizer steps of the decay at the end of the run (wsd)")
        .absent("schedule.decay_fraction applies")
        .example("100")
        .hint(STEPS_HINT),
    number("schedule.decay_fraction", FRACTION)
        .help("Decay at the end of the run as a fraction of its steps (wsd)")
        .default("0.2")
        .hint(FRACTION_HINT)
        .instead_of("schedule.decay_steps", STEPS_OR_FRACTION),
    count("schedule.step_every_steps", 1, MAX_STEPS)
        .help("Optimizer steps between two reductions by schedule.step_factor (step), of one such reduction (exponential), or up to the first restart (cosine_restarts)")
        .absent("schedule.step_every_fraction applies")
        .example("1000")
        .hint(STEPS_HINT),
    key(
        "schedule.step_every_fraction",
        Kind::Number(Range::above_to(0.0, 1.0, "a fraction above 0 and at most 1")),
    )
    .help("The same as a fraction of the run's steps (step, exponential, cosine_restarts)")
    .default("0.3333333333333333")
    .example("0.3")
    .hint(FRACTION_HINT)
    .instead_of("schedule.step_every_steps", STEPS_OR_FRACTION),
    number("schedule.step_factor", FACTOR)
        .help("Factor of each reduction of the learning rate (step, exponential, plateau)")
        .default("0.1")
        .hint("0.1 continues with a tenth of the learning rate")
        .synonyms(&["gamma"]),
    count("schedule.restart_growth", 1, MAX_GROWTH)
        .help("Ratio of the steps between two restarts to those before (cosine_restarts)")
        .default("1")
        .example("2")
        .hint("2 doubles each cosine")
        .synonyms(&["t_mult"]),
    count("schedule.plateau_patience", 1, MAX_STEPS)
        .help("Evaluations in a row that are not better than the best one, by train.early_stop_metric and train.early_stop_min_delta, after which the learning rate is reduced, and again after as many (plateau)")
        .default("5")
        .example("3")
        .hint("evaluations, of which each epoch has at least one"),
];

impl ScheduleConfig {
    /// `optimizer.lr` from the first step to the last.
    pub const CONSTANT: Self = ScheduleConfig {
        warmup: Warmup { length: Span::Steps(0), start: None },
        shape: ScheduleShape::Constant,
    };

    /// The first setting that no config may have: its key, what it takes, and its value.
    pub(crate) fn fault(&self) -> Option<(&'static str, &'static str, f64)> {
        use ScheduleShape as S;
        const GROWTH: Range = Range::from_to(1.0, MAX_GROWTH as f64, "an integer from 1 to 1000");
        let none = Span::Steps(0);
        let (span, factor, growth, end) = match self.shape {
            S::Constant => (none, 1.0, 1, 0.0),
            S::Linear { final_fraction: end }
            | S::Cosine { final_fraction: end }
            | S::OneCycle { final_fraction: end } => (none, 1.0, 1, end),
            S::Step { every, factor } | S::Exponential { every, factor } => (every, factor, 1, 0.0),
            S::CosineRestarts { every, growth, final_fraction } => (every, 1.0, growth, final_fraction),
            S::Plateau { factor, final_fraction, .. } => (none, factor, 1, final_fraction),
            S::Wsd { decay, final_fraction } => (decay, 1.0, 1, final_fraction),
        };
        let part = |span| match span {
            Span::Steps(_) => 0.0,
            Span::Fraction(part) => part,
        };
        let of_span = match self.shape {
            S::Wsd { .. } => "schedule.decay_fraction",
            _ => "schedule.step_every_fraction",
        };
        let all = [
            ("schedule.warmup_fraction", FRACTION, part(self.warmup.length)),
            ("schedule.warmup_start", FRACTION, self.warmup.start.unwrap_or(0.0)),
            (of_span, FRACTION, part(span)),
            ("schedule.step_factor", FACTOR, factor),
            ("schedule.restart_growth", GROWTH, growth as f64),
            ("schedule.final_fraction", FRACTION, end),
        ];
        let mut wrong = all.into_iter().filter(|(_, range, value)| !range.contains(*value));
        wrong.next().map(|(name, range, value)| (name, range.words, value))
    }

    /// Reads `[schedule]`, or the schedule of a group.
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let kind = raw.get("schedule.kind")?;
        // The defaults of torch.optim.lr_scheduler.OneCycleLR: pct_start, 1 / div_factor, and 1 / div_factor / final_div_factor.
        let (length, start, end) = match kind {
            ScheduleKind::OneCycle => (Span::Fraction(0.3), Some(1.0 / 25.0), 1.0 / 25.0 / 1e4),
            _ => (Span::Steps(0), None, 0.0),
        };
        let warmup = Warmup {
            length: Span::read(raw, "schedule.warmup")?.unwrap_or(length),
            start: raw.optional("schedule.warmup_start")?.or(start),
        };
        let span = |key| -> Result<Span> { Ok(Span::read(raw, key)?.expect("a fraction by default")) };
        let final_fraction = || raw.get_or("schedule.final_fraction", end);
        let shape = match kind {
            ScheduleKind::Constant => ScheduleShape::Constant,
            ScheduleKind::Linear => ScheduleShape::Linear { final_fraction: final_fraction()? },
            ScheduleKind::Cosine => ScheduleShape::Cosine { final_fraction: final_fraction()? },
            ScheduleKind::OneCycle => ScheduleShape::OneCycle { final_fraction: final_fraction()? },
            ScheduleKind::Step => ScheduleShape::Step {
                every: span("schedule.step_every")?,
                factor: raw.get("schedule.step_factor")?,
            },
            ScheduleKind::Exponential => ScheduleShape::Exponential {
                every: span("schedule.step_every")?,
                factor: raw.get("schedule.step_factor")?,
            },
            ScheduleKind::CosineRestarts => ScheduleShape::CosineRestarts {
                every: span("schedule.step_every")?,
                growth: raw.get("schedule.restart_growth")?,
                final_fraction: final_fraction()?,
            },
            ScheduleKind::Plateau => ScheduleShape::Plateau {
                patience: raw.get("schedule.plateau_patience")?,
                factor: raw.get("schedule.step_factor")?,
                final_fraction: final_fraction()?,
            },
            ScheduleKind::Wsd => {
                ScheduleShape::Wsd { decay: span("schedule.decay")?, final_fraction: final_fraction()? }
            }
        };
        let schedule = ScheduleConfig { warmup, shape };
        schedule.check_fractions(raw)?;
        Ok(schedule)
    }

    /// Checks that the warm-up and the decay of "wsd" fit into the run together.
    fn check_fractions(&self, raw: &RawConfig) -> Result<()> {
        if let (Span::Fraction(up), ScheduleShape::Wsd { decay: Span::Fraction(down), .. }) =
            (self.warmup.length, self.shape)
            && up + down > 1.0
            && let Some(setting) =
                raw.given("schedule.decay_fraction").or(raw.given("schedule.warmup_fraction"))
        {
            return Err(setting.bad(
                format!(
                    "a part of the run that the other one leaves: {up} for the warm-up and {down} for the decay"
                ),
                "together they may be 1 at most",
            ));
        }
        Ok(())
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let ScheduleConfig { warmup, shape } = self;
        writer.put("schedule.kind", &shape.name().to_owned());
        warmup.length.write(writer, "schedule.warmup");
        writer.put_optional("schedule.warmup_start", warmup.start.as_ref());
        let end = "schedule.final_fraction";
        match shape {
            ScheduleShape::Constant => {}
            ScheduleShape::Linear { final_fraction }
            | ScheduleShape::Cosine { final_fraction }
            | ScheduleShape::OneCycle { final_fraction } => writer.put(end, final_fraction),
            ScheduleShape::Step { every, factor } | ScheduleShape::Exponential { every, factor } => {
                every.write(writer, "schedule.step_every");
                writer.put("schedule.step_factor", factor);
            }
            ScheduleShape::CosineRestarts { every, growth, final_fraction } => {
                writer.put(end, final_fraction);
                every.write(writer, "schedule.step_every");
                writer.put("schedule.restart_growth", growth);
            }
            ScheduleShape::Plateau { patience, factor, final_fraction } => {
                writer.put(end, final_fraction);
                writer.put("schedule.step_factor", factor);
                writer.put("schedule.plateau_patience", patience);
            }
            ScheduleShape::Wsd { decay, final_fraction } => {
                writer.put(end, final_fraction);
                decay.write(writer, "schedule.decay");
            }
        }
    }
}

impl Span {
    /// Reads `{key}_steps` or `{key}_fraction`.
    fn read(raw: &RawConfig, key: &str) -> Result<Option<Self>> {
        Ok(match raw.optional(&format!("{key}_steps"))? {
            Some(steps) => Some(Span::Steps(steps)),
            None => raw.optional(&format!("{key}_fraction"))?.map(Span::Fraction),
        })
    }

    fn write(&self, writer: &mut Writer, key: &str) {
        match self {
            Span::Steps(steps) => writer.put(&format!("{key}_steps"), steps),
            Span::Fraction(fraction) => writer.put(&format!("{key}_fraction"), fraction),
        }
    }
}

impl ScheduleShape {
    /// The name in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Linear { .. } => "linear",
            Self::Cosine { .. } => "cosine",
            Self::OneCycle { .. } => "one_cycle",
            Self::Step { .. } => "step",
            Self::Exponential { .. } => "exponential",
            Self::CosineRestarts { .. } => "cosine_restarts",
            Self::Plateau { .. } => "plateau",
            Self::Wsd { .. } => "wsd",
        }
    }
}
