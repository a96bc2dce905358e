//! The metrics of an evaluation, as a map by name.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::config::{EvalMetric, JudgeMetric, MetricTable};
use crate::report::class_use::ClassUse;

/// Name of the figure for the number of rows of a class.
pub const ROWS: &str = "rows";
/// Key of the metrics of heads.
const HEADS: &str = "eval_heads";

/// Exact values over all evaluation rows, in the order of [`EvalMetric::ALL`], and tables. A metric that was not measured or is
/// not defined for these rows is absent.
///
/// Serialized as a map from names such as `eval_loss`; a value that is not finite becomes `null`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EvalMetrics {
    values: [Option<f64>; EvalMetric::ALL.len()],
    tables: Option<Box<EvalTables>>,
    /// Not part of a report.
    class_use: Option<Box<ClassUse>>,
}

/// Results that are more than a single value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EvalTables {
    /// Figures of each class that occurs, or of each label.
    pub per_class: Vec<NamedFigures>,
    /// Figures of each target.
    pub per_target: Vec<NamedFigures>,
    /// Rows by true and predicted class.
    pub confusion_matrix: Option<ConfusionMatrix>,
    /// Metrics of each head, by its name.
    pub heads: Vec<(String, EvalMetrics)>,
    /// Whether areas were computed from bins of scores.
    pub is_approximate: bool,
}

/// Figures of one class or target.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedFigures {
    /// Label of the class, or name of the target.
    pub name: String,
    /// Name and value of each figure that is defined.
    pub figures: Vec<(&'static str, f64)>,
}

/// Number of rows, or sum of their weights, by true class (outer) and predicted class (inner).
#[derive(Debug, Clone, PartialEq)]
pub struct ConfusionMatrix {
    /// Names of the classes, in order.
    pub classes: Vec<String>,
    /// One row per true class, one entry per predicted class.
    pub counts: Vec<Vec<f64>>,
}

impl EvalMetrics {
    /// Returns the value of a metric, if it was measured.
    pub fn get(&self, metric: EvalMetric) -> Option<f64> {
        self.values[metric as usize]
    }

    /// Returns the value of a metric of all rows or of a head, if it was measured.
    pub fn judged_by(&self, JudgeMetric { head, metric }: &JudgeMetric) -> Option<f64> {
        let Some(name) = head else { return self.get(*metric) };
        self.heads().iter().find(|(head, _)| head == name)?.1.get(*metric)
    }

    /// Sets or removes the value of a metric.
    #[must_use]
    pub fn with(mut self, metric: EvalMetric, value: impl Into<Option<f64>>) -> Self {
        self.values[metric as usize] = value.into();
        self
    }

    /// Sets the tables, unless they are empty.
    #[must_use]
    pub fn with_tables(mut self, tables: EvalTables) -> Self {
        self.tables = (tables != EvalTables::default()).then(|| Box::new(tables));
        self
    }

    /// Sets the use that the model makes of its classes.
    #[must_use]
    pub fn with_class_use(mut self, class_use: Option<ClassUse>) -> Self {
        self.class_use = class_use.map(Box::new);
        self
    }

    /// The use that the model makes of its classes, where it was counted.
    pub fn class_use(&self) -> Option<&ClassUse> {
        self.class_use.as_deref()
    }

    /// Records that areas were computed from bins of scores.
    #[must_use]
    pub fn approximate(mut self, is_approximate: bool) -> Self {
        let mut of_classes =
            self.tables().into_iter().flat_map(|of| &of.per_class).flat_map(|of| &of.figures);
        // A class without rows leaves no mean.
        let has_areas =
            [EvalMetric::RocAuc, EvalMetric::AveragePrecision].iter().any(|area| self.get(*area).is_some())
                || of_classes.any(|(name, _)| ["roc_auc", "average_precision"].contains(name));
        if is_approximate && has_areas {
            self.tables.get_or_insert_default().is_approximate = true;
        }
        self
    }

    /// The tables, if any were requested.
    pub fn tables(&self) -> Option<&EvalTables> {
        self.tables.as_deref()
    }

    /// The metrics of each head, by its name; empty for a model of one head.
    pub fn heads(&self) -> &[(String, EvalMetrics)] {
        self.tables().map_or(&[], |tables| &tables.heads)
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Iterates over the metrics that were measured.
    pub fn iter(&self) -> impl Iterator<Item = (EvalMetric, f64)> {
        EvalMetric::ALL.iter().copied().zip(self.values).filter_map(|(metric, value)| Some((metric, value?)))
    }

    /// The first metric that is NaN or infinite, with its value.
    pub fn not_finite(&self) -> Option<(EvalMetric, f64)> {
        self.iter().find(|(_, value)| !value.is_finite())
    }
}

impl FromIterator<(EvalMetric, f64)> for EvalMetrics {
    fn from_iter<I: IntoIterator<Item = (EvalMetric, f64)>>(metrics: I) -> Self {
        metrics.into_iter().fold(EvalMetrics::default(), |all, (metric, value)| all.with(metric, value))
    }
}

impl Serialize for EvalMetrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (metric, value) in self.iter() {
            map.serialize_entry(metric.name(), &value)?;
        }
        if let Some(tables) = self.tables() {
            for (table, figures) in
                [(MetricTable::PerClass, &tables.per_class), (MetricTable::PerTarget, &tables.per_target)]
            {
                if !figures.is_empty() {
                    map.serialize_entry(table.name(), &ByName(figures))?;
                }
            }
            if let Some(matrix) = &tables.confusion_matrix {
                map.serialize_entry(MetricTable::ConfusionMatrix.name(), matrix)?;
            }
            if !tables.heads.is_empty() {
                map.serialize_entry(HEADS, &Heads(&tables.heads))?;
            }
            if tables.is_approximate {
                map.serialize_entry("approximate", &true)?;
            }
        }
        map.end()
    }
}

/// Metrics of heads as a map from names to maps.
struct Heads<'a>(&'a [(String, EvalMetrics)]);

impl Serialize for Heads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, metrics)| (name, metrics)))
    }
}

/// Figures as a map from names to maps.
struct ByName<'a>(&'a [NamedFigures]);

impl Serialize for ByName<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|figures| (&figures.name, Figures(&figures.figures))))
    }
}

struct Figures<'a>(&'a [(&'static str, f64)]);

impl Serialize for Figures<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            match *name {
                ROWS => map.serialize_entry(name, &Count(*value))?,
                _ => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

impl Serialize for ConfusionMatrix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let counts: Vec<Vec<Count>> =
            self.counts.iter().map(|row| row.iter().copied().map(Count).collect()).collect();
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("classes", &self.classes)?;
        map.serialize_entry("counts", &counts)?;
        map.end()
    }
}

/// A number of rows, which is an integer unless row weights make it a fraction.
#[derive(Debug, Clone, Copy)]
struct Count(f64);

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() < (1u64 << 53) as f64 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_nested_maps_by_name() {
        let figures = vec![("precision", 1.0), ("rows", 12.0)];
        let tables = EvalTables {
            per_class: vec![NamedFigures { name: "b".to_owned(), figures: figures.clone() }],
            confusion_matrix: Some(ConfusionMatrix {
                classes: vec!["b".to_owned(), "a".to_owned()],
                counts: vec![vec![12.0, 0.5], vec![0.0, 3.0]],
            }),
            is_approximate: true,
            ..EvalTables::default()
        };
        let metrics = EvalMetrics::default().with(EvalMetric::Loss, 0.5).with_tables(tables);
        assert_eq!(
            serde_json::to_string(&metrics).unwrap(),
            r#"{"eval_loss":0.5,"eval_per_class":{"b":{"precision":1.0,"rows":12}},"#.to_owned()
                + r#""eval_confusion_matrix":{"classes":["b","a"],"counts":[[12,0.5],[0,3]]},"approximate":true}"#
        );
        let areas = vec![NamedFigures { name: "b".to_owned(), figures: vec![("roc_auc", 0.5)] }];
        let of = |per_class| EvalTables { per_class, ..EvalTables::default() };
        let is_marked = |tables: EvalTables| {
            let metrics = EvalMetrics::default().with_tables(tables).approximate(true);
            metrics.tables().is_some_and(|tables| tables.is_approximate)
        };
        assert_eq!((is_marked(of(areas)), is_marked(of(Vec::new()))), (true, false), "a class without rows");
        let empty = EvalMetrics::default().with_tables(EvalTables::default());
        assert_eq!((empty.tables(), serde_json::to_string(&empty).unwrap()), (None, "{}".to_owned()));
    }
}
