//! Findings about a model that predicts no better than a constant or a guess, or worse than the last weights of its run.

use crate::config::{Balance, DataConfig, ElementLoss, EvalMetric, Loss, Task};
use crate::report::visible::shell_word;
use crate::train::review::Judged;

/// Least rows of an evaluation that says whether a model guesses.
const MIN_ROWS: f64 = 20.0;
/// Least rows, and least share of the rows, of a class that a model is expected to predict.
const MIN_CLASS_ROWS: f64 = 20.0;
const MIN_CLASS_SHARE: f64 = 0.25;
/// Standard errors that an accuracy may be above a guess and still count as one.
const GUESS_ERRORS: f64 = 0.5;
/// Least difference of accuracies, or of R², that says that other weights are much better, and its least standard errors.
const MUCH_BETTER: f64 = 0.05;
const BETTER_ERRORS: f64 = 3.0;

/// Context of the hints.
pub(super) struct Judge<'a> {
    pub(super) data: &'a DataConfig,
    pub(super) is_normalized: bool,
    /// Source of the evaluation rows.
    pub(super) source: &'a str,
}

impl Judge<'_> {
    /// The most serious finding about the predictions of a model with this loss.
    pub(super) fn finding(&self, task: Task, loss: &Loss, judged: Judged<'_>) -> Option<String> {
        match task {
            // A quantile may lie far from the mean, by which R² judges.
            Task::Regression if !matches!(loss, Loss::Element(ElementLoss::Quantile { .. })) => {
                self.judge_targets(judged)
            }
            Task::Classification => self.judge_classes(loss, judged),
            Task::Regression | Task::Multilabel | Task::Heads => None,
        }
    }

    fn judge_targets(&self, judged: Judged<'_>) -> Option<String> {
        let r2 = judged.metrics.get(EvalMetric::R2).filter(|r2| *r2 < 0.0)?;
        let hint = self.hint();
        Some(format!(
            "eval_r2 {r2:.4} is below 0: the mean of the targets would predict the evaluation rows better\n{hint}"
        ))
    }

    fn judge_classes(&self, loss: &Loss, judged: Judged<'_>) -> Option<String> {
        let classes = judged.class_use.filter(|classes| classes.n_rows > 0.0)?;
        // Weights of classes give up accuracy for the rare ones.
        let is_weighted = matches!(loss, Loss::CrossEntropy { class_weights: Some(_), .. })
            || self.data.balance == Balance::Classes;
        let (value, chance, error) = (classes.balanced_accuracy, classes.chance(), classes.chance_error);
        let below = |name: &str, value: f64, baseline: f64, of: &str| {
            // The metrics are quotients of sums.
            let hint = self.hint();
            (value < baseline - 1e-9)
                .then(|| format!("{name} {value:.4} is below {baseline:.4}, {of}\n{hint}"))
        };
        let is_below = if is_weighted {
            below("eval_balanced_accuracy", value, chance, "that of predicting a single class")
        } else {
            let (accuracy, largest) = (classes.accuracy(), classes.largest / classes.n_rows);
            let of = "the share of the most frequent class of the evaluation rows";
            below("eval_accuracy", accuracy, largest, of)
        };
        if is_below.is_some() || classes.n_classes < 2 || classes.n_rows < MIN_ROWS {
            return is_below;
        }
        let weigh = if is_weighted { "" } else { "loss.class_weights=balanced, " };
        if value <= chance + GUESS_ERRORS * error {
            let (n, of) = (classes.n_predicted, classes.n_classes);
            let predicts =
                if n < of { format!("; {n} of {of} classes are predicted") } else { String::new() };
            return Some(format!(
                "eval_balanced_accuracy {value:.4} is that of guessing, {chance:.4} ± {error:.4}{predicts}\n\
                 hint: try {weigh}a lower optimizer.lr, or more epochs"
            ));
        }
        let least = MIN_CLASS_ROWS.max(MIN_CLASS_SHARE * classes.n_rows / classes.n_classes as f64);
        let never: Vec<String> = classes
            .never
            .iter()
            .filter(|(_, n_rows)| *n_rows >= least)
            .map(|(name, n_rows)| format!("\"{name}\" ({n_rows:.0} rows)"))
            .collect();
        (!never.is_empty()).then(|| {
            let (n, of) = (classes.n_never, classes.n_classes);
            let more = if n as usize > never.len() { " and others" } else { "" };
            format!(
                "{n} of {of} classes of the evaluation rows are never predicted: {}{more}\n\
                 hint: try {weigh}more epochs, or a wider model.hidden",
                never.join(", ")
            )
        })
    }

    /// Suggestions, without the settings that are in place.
    fn hint(&self) -> String {
        const SHOWN: usize = 5;
        let look = match &self.data.drop[..] {
            [] => format!(
                "look at labels and columns with `ddp-train data inspect {}`",
                shell_word(self.source)
            ),
            dropped => {
                let names: Vec<String> =
                    dropped.iter().take(SHOWN).map(|name| format!("\"{name}\"")).collect();
                let more = if dropped.len() > SHOWN { " and others" } else { "" };
                format!("check that data.drop has not removed useful columns: {}{more}", names.join(", "))
            }
        };
        let normalize = if self.is_normalized { "" } else { "data.normalize=standard, " };
        format!("hint: {look}; then try {normalize}a lower optimizer.lr, or more epochs")
    }
}

/// Finding about saved weights that predict much worse than the last ones; `chosen` are the setting that chose them and the key of
/// the metric that chooses.
pub(super) fn last_is_better(
    task: Task,
    saved: Judged<'_>,
    last: Judged<'_>,
    chosen: Option<(&str, &str)>,
) -> Option<String> {
    let (name, of_saved, of_last, error) = match task {
        Task::Regression => {
            let [saved, last] = [saved, last].map(|judged| judged.metrics.get(EvalMetric::R2));
            ("eval_r2", saved?, last?, 0.0)
        }
        Task::Classification => {
            let (saved, last) = (saved.class_use?, last.class_use?);
            let share = last.accuracy();
            ("eval_accuracy", saved.accuracy(), share, (share * (1.0 - share) / last.n_rows).sqrt())
        }
        Task::Multilabel | Task::Heads => return None,
    };
    let is_much = of_last - of_saved > MUCH_BETTER.max(BETTER_ERRORS * error);
    let (chosen_by, key) = chosen.filter(|_| is_much)?;
    Some(format!(
        "{name} of the saved model is {of_saved:.4}, and {of_last:.4} of the last weights: {chosen_by} chose it\n\
         hint: try {key}={name}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClassWeights, Config};
    use crate::report::{ClassUse, EvalMetrics};

    /// The finding about a model for 90 rows of one class and 10 of another, by its right rows of each.
    fn finding(right: [f64; 2], sets: &[&str]) -> Option<String> {
        finding_of([90.0, 10.0], right, sets)
    }

    fn finding_of(rows: [f64; 2], right: [f64; 2], sets: &[&str]) -> Option<String> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(None, &sets).unwrap();
        let class_use = class_use(rows, right);
        let metrics = EvalMetrics::default();
        let judge = Judge { data: &config.data, is_normalized: true, source: "rows.csv" };
        judge.finding(
            Task::Classification,
            &config.loss,
            Judged { metrics: &metrics, class_use: Some(&class_use) },
        )
    }

    fn class_use(rows: [f64; 2], right: [f64; 2]) -> ClassUse {
        let predicted = [right[0] + rows[1] - right[1], right[1] + rows[0] - right[0]];
        let never: Vec<_> = (0..2)
            .filter(|class| predicted[*class] == 0.0)
            .map(|class| (class.to_string(), rows[class]))
            .collect();
        ClassUse {
            n_rows: rows[0] + rows[1],
            n_right: right[0] + right[1],
            largest: rows[0].max(rows[1]),
            n_classes: 2,
            n_predicted: 2 - never.len() as u64,
            balanced_accuracy: (right[0] / rows[0] + right[1] / rows[1]) / 2.0,
            chance_error: (0.25 / rows[0] + 0.25 / rows[1]).sqrt() / 2.0,
            n_never: never.len() as u64,
            never,
        }
    }

    #[test]
    fn balanced_weights_are_judged_by_balanced_accuracy() {
        let balanced = "loss.class_weights=[1.0, 9.0, 1, 1, 1, 1, 1, 1, 1, 1]";
        assert!(matches!(
            Config::load(None, &[balanced.to_owned()]).unwrap().loss,
            Loss::CrossEntropy { class_weights: Some(ClassWeights::PerClass(_)), .. }
        ));
        assert_eq!(finding([72.0, 8.0], &[balanced]), None);
        let found = finding([45.0, 3.0], &[balanced]).unwrap();
        assert!(found.starts_with("eval_balanced_accuracy 0.4000 is below 0.5000, that of"), "{found}");
        assert!(finding([72.0, 8.0], &[]).unwrap().contains("eval_accuracy 0.8000 is below 0.9000"));
        assert_eq!(finding([85.0, 6.0], &[]), None);
    }

    #[test]
    fn a_guess_is_named_with_its_key() {
        let found = finding([90.0, 0.0], &[]).unwrap();
        assert!(
            found.starts_with("eval_balanced_accuracy 0.5000 is that of guessing, 0.5000 ± 0.0833; 1 of 2")
                && found.contains("class_weights=balanced"),
            "{found}"
        );
        // Above a guess by more than the noise of so few rows.
        assert_eq!(finding([88.0, 3.0], &[]), None);
        // Too few rows to say.
        assert_eq!(finding_of([9.0, 9.0], [9.0, 0.0], &[]), None);
    }

    #[test]
    fn hints_do_not_name_what_is_set() {
        let found = finding([50.0, 5.0], &[]).unwrap();
        assert!(found.contains("data inspect rows.csv") && !found.contains("data.normalize"), "{found}");
        let found = finding([50.0, 5.0], &["data.drop=b"]).unwrap();
        assert!(
            found.contains("useful columns: \"b\"; then try a lower") && !found.contains("data inspect"),
            "{found}"
        );
    }

    #[test]
    fn the_last_weights_must_be_much_better() {
        let metrics = EvalMetrics::default();
        let of = |saved, last| {
            let [saved, last] = [saved, last].map(|right| class_use([200.0, 200.0], right));
            let judged = |class_use| Judged { metrics: &metrics, class_use: Some(class_use) };
            last_is_better(
                Task::Classification,
                judged(&saved),
                judged(&last),
                Some(("train.ema_decay=0.999", "checkpoint.keep_best")),
            )
        };
        assert_eq!(of([180.0, 180.0], [190.0, 185.0]), None);
        let found = of([150.0, 150.0], [190.0, 190.0]).unwrap();
        assert!(
            found.contains("is 0.7500, and 0.9500") && found.contains("keep_best=eval_accuracy"),
            "{found}"
        );
    }
}
