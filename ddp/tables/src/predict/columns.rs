//! Columns of the output, and the conversion of a model's outputs to their values.

use std::ops::Range;
use std::sync::Arc;

use ddp::config::Task;
use ddp::data::{HeadOutputs, HeadTargets, OutputUnits, label_applies};

use crate::predict::error::{PredictError, Result};
use crate::predict::output::block::{ColumnKind, Labels, OutputColumn, Values};
use crate::predict::predictions::{class_of, probabilities, sigmoid};

/// Predicted columns: the values that are written for each row.
#[derive(Debug, Clone)]
pub(crate) struct PredictedColumns {
    task: Task,
    labels: Arc<Labels>,
    /// Number of columns of the model's outputs.
    pub(crate) n_outputs: usize,
    /// Whether probabilities are written.
    with_probabilities: bool,
    /// Probability at which a label applies, or at which the second of two classes is predicted.
    threshold: Option<f64>,
    units: OutputUnits,
    /// The heads of [`Task::Heads`], with the columns of their outputs.
    heads: Vec<(Range<usize>, PredictedColumns)>,
    /// The columns, not including those copied from the input.
    pub(crate) columns: Vec<OutputColumn>,
}

impl PredictedColumns {
    /// - `names`: the classes' labels in classification, else the names of the targets
    ///
    /// # Errors
    /// [`PredictError::Usage`] if probabilities or a threshold are requested but the task has none.
    pub(crate) fn new(
        task: Task,
        names: &[String],
        with_probabilities: bool,
        threshold: Option<f64>,
        units: OutputUnits,
    ) -> Result<Self> {
        let usage = |reason: &str, hint: &str| {
            Err(PredictError::Usage { reason: reason.to_owned(), hint: hint.to_owned() })
        };
        match task {
            Task::Regression if with_probabilities => {
                return usage("--proba: a regression has no probabilities", "remove --proba");
            }
            Task::Regression if threshold.is_some() => {
                return usage("--threshold: a regression has no probabilities", "remove --threshold");
            }
            Task::Classification if threshold.is_some() && names.len() != 2 => {
                let reason = format!("--threshold: the model has {} classes", names.len());
                return usage(
                    &reason,
                    "it applies to two classes or to labels; use --proba and choose a class yourself",
                );
            }
            _ => {}
        }
        let labels = Arc::new(Labels::new(names.to_vec()));
        let column = |name: String, kind| OutputColumn { name, kind };
        let prediction = |name: &String| match names.len() {
            1 => "prediction".to_owned(),
            _ => format!("prediction_{name}"),
        };
        let mut columns: Vec<OutputColumn> = match task {
            Task::Classification => {
                vec![column("prediction".to_owned(), ColumnKind::Label(labels.clone()))]
            }
            Task::Multilabel => {
                names.iter().map(|name| column(prediction(name), ColumnKind::Binary)).collect()
            }
            Task::Regression => {
                names.iter().map(|name| column(prediction(name), ColumnKind::Value)).collect()
            }
            Task::Heads => Vec::new(),
        };
        if with_probabilities {
            columns.extend(names.iter().map(|name| column(format!("proba_{name}"), ColumnKind::Probability)));
        }
        Ok(PredictedColumns {
            task,
            labels,
            n_outputs: names.len() - usize::from(units == OutputUnits::Cumulative),
            with_probabilities,
            threshold,
            units,
            heads: Vec::new(),
            columns,
        })
    }

    /// The columns of several heads, which are named after their targets.
    ///
    /// # Errors
    /// [`PredictError::Usage`] for a threshold, and for probabilities if no head has any.
    pub(crate) fn for_heads(
        heads: &[HeadOutputs],
        with_probabilities: bool,
        threshold: Option<f64>,
    ) -> Result<Self> {
        let usage = |reason: &str, hint: &str| {
            Err(PredictError::Usage { reason: reason.to_owned(), hint: hint.to_owned() })
        };
        if threshold.is_some() {
            let hint = "use --proba and choose a class yourself";
            return usage("--threshold: the model has several heads", hint);
        }
        let has_probabilities = |head: &HeadOutputs| head.targets.task != Task::Regression;
        if with_probabilities && !heads.iter().any(has_probabilities) {
            return usage("--proba: no head has probabilities", "remove --proba");
        }
        let mut all = Self::new(Task::Heads, &[], false, None, OutputUnits::Targets)?;
        for head in heads {
            let HeadTargets { task, columns, .. } = &head.targets;
            let with_probabilities = with_probabilities && has_probabilities(head);
            let mut of_head =
                Self::new(*task, &head.targets.names(), with_probabilities, None, head.units.clone())?;
            for column in &mut of_head.columns {
                if column.name == "prediction" {
                    column.name = format!("prediction_{}", columns[0]);
                } else if let (Task::Classification, Some(class)) = (task, column.name.strip_prefix("proba_"))
                {
                    column.name = format!("proba_{}_{class}", columns[0]);
                }
            }
            all.columns.extend(of_head.columns.iter().cloned());
            all.n_outputs = head.outputs.end;
            all.heads.push((head.outputs.clone(), of_head));
        }
        Ok(all)
    }

    /// The values of the columns for outputs `[n_rows, n_outputs]`.
    pub(crate) fn values(&self, outputs: &[f32]) -> Vec<Values> {
        if !self.heads.is_empty() {
            let of_head = |(columns, head): &(Range<usize>, PredictedColumns)| {
                head.values(&HeadOutputs::select(columns, outputs, self.n_outputs))
            };
            return self.heads.iter().flat_map(of_head).collect();
        }
        let rows = || outputs.chunks_exact(self.n_outputs);
        let column = |k: usize| outputs.iter().skip(k).step_by(self.n_outputs).copied();
        let mut values: Vec<Values> = match self.task {
            Task::Classification => vec![Values::Labels(rows().map(|row| self.class(row)).collect())],
            Task::Multilabel => {
                let applies = |logit: f32| match self.threshold {
                    None => u8::from(label_applies(logit)),
                    Some(threshold) => u8::from(f64::from(sigmoid(logit)) >= threshold),
                };
                (0..self.n_outputs).map(|k| Values::Binary(column(k).map(applies).collect())).collect()
            }
            Task::Regression => {
                let all = self.units.values(outputs, self.n_outputs);
                let column = |k: usize| all.iter().skip(k).step_by(self.n_outputs).copied().collect();
                (0..self.n_outputs).map(|k| Values::Numbers(column(k))).collect()
            }
            Task::Heads => Vec::new(),
        };
        if !self.with_probabilities {
            return values;
        }
        let n_rows = outputs.len() / self.n_outputs;
        let mut columns = vec![Vec::with_capacity(n_rows); self.labels.names.len()];
        for row in rows() {
            match self.task {
                Task::Classification => {
                    let of_row = probabilities(row, &self.units);
                    of_row.into_iter().zip(&mut columns).for_each(|(p, column)| column.push(p));
                }
                _ => row.iter().zip(&mut columns).for_each(|(&logit, column)| column.push(sigmoid(logit))),
            }
        }
        values.extend(columns.into_iter().map(Values::Probabilities));
        values
    }

    fn class(&self, logits: &[f32]) -> u32 {
        match self.threshold {
            None => class_of(logits, &self.units) as u32,
            Some(threshold) => {
                let second = probabilities(logits, &self.units).get(1).map_or(0.0, |p| f64::from(*p));
                u32::from(second >= threshold)
            }
        }
    }

    /// Names that an npy array of these predictions needs in a second file: one per column of probabilities, or the class labels,
    /// unless they are integers, which the array itself holds.
    pub(crate) fn labels_of_array(&self) -> Option<Arc<Labels>> {
        let is_text = self.task == Task::Classification && self.labels.integers.is_none();
        (self.with_probabilities || is_text).then(|| self.labels.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(task: Task, names: &[&str], proba: bool, threshold: Option<f64>) -> Result<PredictedColumns> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        PredictedColumns::new(task, &names, proba, threshold, OutputUnits::Targets)
    }

    fn names(columns: &PredictedColumns) -> Vec<&str> {
        columns.columns.iter().map(|column| column.name.as_str()).collect()
    }

    #[test]
    fn columns_are_named_by_task() {
        let of = |task, labels: &[&str], proba| columns(task, labels, proba, None).unwrap();
        let classes = of(Task::Classification, &["no", "yes"], true);
        assert_eq!(names(&classes), ["prediction", "proba_no", "proba_yes"]);
        assert_eq!(names(&of(Task::Regression, &["price"], false)), ["prediction"]);
        assert_eq!(names(&of(Task::Regression, &["a", "b"], false)), ["prediction_a", "prediction_b"]);
        let labels = of(Task::Multilabel, &["a", "b"], true);
        assert_eq!(names(&labels), ["prediction_a", "prediction_b", "proba_a", "proba_b"]);
    }

    #[test]
    fn arrays_need_the_names_of_texts_and_of_probabilities() {
        let names = |task, names: &[&str], proba| {
            let columns = columns(task, names, proba, None).unwrap();
            columns.labels_of_array().map(|labels| labels.names.clone())
        };
        let of = |names: [&str; 2]| Some(names.map(str::to_owned).to_vec());
        for proba in [false, true] {
            assert_eq!(names(Task::Classification, &["no", "yes"], proba), of(["no", "yes"]));
        }
        assert_eq!(names(Task::Classification, &["-1", "1"], false), None);
        assert_eq!(names(Task::Classification, &["-1", "1"], true), of(["-1", "1"]));
        assert_eq!(names(Task::Multilabel, &["red", "blue"], true), of(["red", "blue"]));
        assert_eq!(names(Task::Multilabel, &["red", "blue"], false), None);
        assert_eq!(names(Task::Regression, &["price"], false), None);
    }

    #[test]
    fn thresholds_move_the_decision() {
        let class = |threshold| {
            let columns = columns(Task::Classification, &["no", "yes"], false, threshold).unwrap();
            match columns.values(&[0.0, 0.0, 0.0, -1.0]).remove(0) {
                Values::Labels(classes) => classes,
                _ => unreachable!(),
            }
        };
        // The probabilities of "yes" are 0.5 and 0.27.
        assert_eq!((class(None), class(Some(0.5)), class(Some(0.2))), (vec![0, 0], vec![1, 0], vec![1, 1]));
        let labels = |threshold| {
            let columns = columns(Task::Multilabel, &["a", "b"], false, threshold).unwrap();
            let values = columns.values(&[0.0, -1.0]).into_iter();
            let bits = values.map(|values| if let Values::Binary(bits) = values { bits[0] } else { 9 });
            bits.collect::<Vec<u8>>()
        };
        assert_eq!(
            (labels(None), labels(Some(0.2)), labels(Some(0.9))),
            (vec![1, 0], vec![1, 1], vec![0, 0])
        );
    }

    #[test]
    fn flags_that_do_not_apply_are_refused() {
        assert!(columns(Task::Regression, &["y"], true, None).is_err());
        assert!(columns(Task::Regression, &["y"], false, Some(0.5)).is_err());
        assert!(columns(Task::Classification, &["a", "b", "c"], false, Some(0.5)).is_err());
    }
}
