//! Findings about the course of the training loss and about clipped gradients.

use crate::checkpoint::Course;
use crate::config::{Config, Loss};

/// Least steps of a run whose course says something.
const MIN_STEPS: u64 = 30;
/// Share of clipped steps from which clipping decides every step.
const CLIPPED_SHARE: f64 = 0.95;
/// Least rise of the loss, as a share of its value.
const MIN_RISE: f64 = 0.05;
/// Standard errors by which a rise exceeds the noise of the steps.
const RISE_ERRORS: f64 = 3.0;

/// The findings, the most serious first.
pub(super) fn findings(config: &Config, course: &Course) -> Vec<String> {
    let mut findings = Vec::new();
    if course.n_steps() >= MIN_STEPS {
        findings.extend(above_start(config, course).or_else(|| rising(config, course)));
    }
    if course.n_norms >= MIN_STEPS {
        findings.extend(clipped(config.train.clip_grad_norm, course));
    }
    findings
}

/// A loss at the end above that of the first step.
fn above_start(config: &Config, course: &Course) -> Option<String> {
    let (first, end) = (course.first()?, course.span(0.9..1.0));
    // Outputs of untrained models are small, so the first loss of classes is that of a guess; of values it is one of the noisy steps.
    let margin = match config.loss {
        Loss::Element(_) | Loss::Heads(_) => (MIN_RISE * first.abs()).max(2.0 * end.deviation()),
        Loss::CrossEntropy { .. } | Loss::Ordinal => 2.0 * MIN_RISE * first,
    };
    let least = first + margin;
    let lr = config.optimizer.lr;
    (end.mean() > least).then(|| {
        format!(
            "the training loss is {:.4} in the last tenth of the steps, above {first:.4} in the first step: \
             optimizer.lr = {lr} may be too large\n\
             hint: try optimizer.lr={:.0e}, or train.clip_grad_norm=1.0",
            end.mean(),
            lr / 10.0
        )
    })
}

/// A loss that rises over the last third of the run.
fn rising(config: &Config, course: &Course) -> Option<String> {
    // Without shuffling, parts of an epoch have rows of their own.
    if !config.data.shuffle {
        return None;
    }
    let (before, after) = (course.span(2.0 / 3.0..5.0 / 6.0), course.span(5.0 / 6.0..1.0));
    let rise = after.mean() - before.mean();
    let noise = before.error().hypot(after.error());
    (rise > (RISE_ERRORS * noise).max(MIN_RISE * before.mean().abs())).then(|| {
        format!(
            "the training loss rose over the last third of the steps, from {:.4} to {:.4}\n\
             hint: try optimizer.lr={:.0e}, or schedule.kind=cosine",
            before.mean(),
            after.mean(),
            config.optimizer.lr / 3.0
        )
    })
}

/// Gradients of which nearly all are clipped, so that their lengths mean nothing.
fn clipped(limit: f64, course: &Course) -> Option<String> {
    let share = course.n_clipped as f64 / course.n_norms as f64;
    (share > CLIPPED_SHARE).then(|| {
        let mean = course.clipped_norms / course.n_clipped as f64;
        format!(
            "{:.1}% of the gradients were clipped: their norm is {mean:.3} on average, train.clip_grad_norm is {limit}\n\
             hint: try train.clip_grad_norm={}, or 0 for no clipping",
            100.0 * share,
            if mean < 1.0 { format!("{mean:.1e}") } else { format!("{mean:.1}") }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings about 300 steps with these losses, which have some noise.
    fn of(loss: impl Fn(f64) -> f64, norm: f64, sets: &[&str]) -> Vec<String> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(None, &sets).unwrap();
        let mut course = Course::default();
        for step in 0..300 {
            let noise = 0.1 * (f64::from(step) * 12.9898).sin();
            course.add(loss(f64::from(step) / 300.0) + noise, Some(norm), config.train.clip_grad_norm);
        }
        findings(&config, &course)
    }

    #[test]
    fn a_falling_loss_is_as_it_should_be() {
        assert_eq!(of(|t| 2.0 * (-4.0 * t).exp(), 9.0, &[]), Vec::<String>::new());
        // Nothing to learn.
        assert_eq!(of(|_| 0.7, 0.5, &["train.clip_grad_norm=1.0"]), Vec::<String>::new());
    }

    #[test]
    fn losses_that_rise_are_named() {
        let [found] = &of(|t| 2.0 + 6.0 * t, 1.0, &["optimizer.lr=0.5"])[..] else { panic!("one") };
        assert!(
            found.contains("above 2.0000 in the first step") && found.contains("optimizer.lr=5e-2"),
            "{found}"
        );
        let [found] = &of(|t| 3.0 - 2.0 * t + 2.0 * (t - 0.6).max(0.0) * 3.0, 1.0, &[])[..] else {
            panic!("one")
        };
        assert!(found.starts_with("the training loss rose over the last third"), "{found}");
        let unshuffled = of(|t| 3.0 - 2.0 * t + 2.0 * (t - 0.6).max(0.0) * 3.0, 1.0, &["data.shuffle=false"]);
        assert_eq!(unshuffled, Vec::<String>::new());
    }

    #[test]
    fn clipping_of_all_steps_is_named() {
        let [found] = &of(|t| 2.0 - t, 3.0, &["train.clip_grad_norm=0.5"])[..] else { panic!("one") };
        assert!(
            found.starts_with("100.0% of the gradients were clipped: their norm is 3.000 on average")
                && found.contains("try train.clip_grad_norm=3.0"),
            "{found}"
        );
    }
}
