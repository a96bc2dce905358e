//! Result of `ddp-train eval` as tables or JSON.

use std::path::Path;

use ddp::report::metrics::json_line;
use ddp::report::{EvalMetrics, NamedFigures};
use serde::Serialize;

use crate::report::stdout::{count, table};

/// An evaluation with its model and its rows.
#[derive(Debug, Serialize)]
pub(super) struct EvalReport<'a> {
    /// Metrics and tables by name.
    #[serde(flatten)]
    pub(super) metrics: &'a EvalMetrics,
    /// Number of rows.
    pub(super) rows: usize,
    /// Number of rows that were skipped because the model does not know their labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) skipped_rows: Option<usize>,
    /// Source of the rows.
    pub(super) data: &'a str,
    /// Whether the run took the rows out of its training rows.
    #[serde(skip)]
    pub(super) is_held_out: bool,
    /// File of the evaluated weights.
    pub(super) model: &'a Path,
}

impl EvalReport<'_> {
    pub(super) fn to_json(&self) -> String {
        json_line(self)
    }

    /// Describes the rows and the model in one line.
    pub(super) fn headline(&self) -> String {
        let EvalReport { rows, skipped_rows, data, model, is_held_out, .. } = self;
        let held_out = if *is_held_out { " (held out from training)" } else { "" };
        let (rows, skipped) = (count(*rows, "row"), skipped(*skipped_rows));
        format!("{rows} of {data}{held_out}{skipped}, using {}", model.display())
    }

    pub(super) fn to_text(&self) -> String {
        let metrics = self.metrics;
        let mut text = self.headline() + "\n\n" + &metrics_text(metrics);
        for (name, metrics) in metrics.heads() {
            text += &format!("\nhead {name}\n\n{}", metrics_text(metrics));
        }
        text
    }
}

/// Names the rows that were skipped, in brackets; empty without any.
pub(super) fn skipped(rows: Option<usize>) -> String {
    rows.map_or(String::new(), |n| format!(" (left out {n} whose labels the model does not know)"))
}

/// Metrics and tables.
fn metrics_text(metrics: &EvalMetrics) -> String {
    let line = |title: &str, value: f64| vec![title.to_owned(), number(value)];
    let lines: Vec<_> = metrics.iter().map(|(metric, value)| line(metric.title(), value)).collect();
    let mut text = table(&["<metric", "value"], &lines);
    let Some(tables) = metrics.tables() else { return text };
    for (title, figures) in [("<class", &tables.per_class), ("<target", &tables.per_target)] {
        if !figures.is_empty() {
            text += &format!("\n{}", figures_table(title, figures));
        }
    }
    if let Some(matrix) = &tables.confusion_matrix {
        let classes: Vec<String> = matrix.classes.iter().map(|class| format!(">{class}")).collect();
        let titles: Vec<&str> =
            std::iter::once("<true \\ predicted").chain(classes.iter().map(String::as_str)).collect();
        let line = |(class, counts): (&String, &Vec<f64>)| {
            std::iter::once(class.clone()).chain(counts.iter().map(|count| number(*count))).collect()
        };
        let lines: Vec<Vec<String>> = matrix.classes.iter().zip(&matrix.counts).map(line).collect();
        text += &format!("\n{}", table(&titles, &lines));
    }
    if tables.is_approximate {
        text += "\nROC AUC and average precision are approximate: computed from bins of scores\n";
    }
    text
}

fn figures_table(title: &str, of: &[NamedFigures]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in of.iter().flat_map(|figures| &figures.figures) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let line = |figures: &NamedFigures| {
        let value = |name: &&str| figures.figures.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
        let cell = |name: &&str| value(name).map_or(String::new(), number);
        std::iter::once(figures.name.clone()).chain(names.iter().map(cell)).collect()
    };
    let titles: Vec<&str> = std::iter::once(title).chain(names.iter().copied()).collect();
    table(&titles, &of.iter().map(line).collect::<Vec<Vec<String>>>())
}

/// Formats with six significant decimals, fewer for integers and more for small numbers.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value:.0}"),
        size if (1e-3..1e6).contains(&size) => format!("{value:.6}"),
        size if size.is_finite() => format!("{value:.5e}"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use ddp::config::EvalMetric;
    use ddp::report::{ConfusionMatrix, EvalTables, ROWS};

    use super::*;

    #[test]
    fn tables_have_a_line_per_metric_and_class() {
        let named = |name: &str, figures: &[(&'static str, f64)]| NamedFigures {
            name: name.to_owned(),
            figures: figures.to_vec(),
        };
        let tables = EvalTables {
            per_class: vec![named("cat", &[("f1", 0.5), (ROWS, 3.0)]), named("dog", &[(ROWS, 0.25)])],
            confusion_matrix: Some(ConfusionMatrix {
                classes: vec!["cat".to_owned(), "dog".to_owned()],
                counts: vec![vec![2.0, 1.0], vec![0.0, 0.25]],
            }),
            is_approximate: true,
            ..EvalTables::default()
        };
        let metrics = EvalMetrics::default().with(EvalMetric::Loss, 0.125).with(EvalMetric::RocAuc, 1.0);
        let metrics = metrics.with_tables(tables);
        let report = EvalReport {
            metrics: &metrics,
            rows: 4,
            skipped_rows: None,
            data: "pets.csv",
            is_held_out: true,
            model: Path::new("m.safetensors"),
        };
        assert_eq!(
            report.to_text(),
            "4 rows of pets.csv (held out from training), using m.safetensors\n\
             \n\
             metric      value\n\
             loss     0.125000\n\
             ROC AUC         1\n\
             \n\
             class        f1      rows\n\
             cat    0.500000         3\n\
             dog              0.250000\n\
             \n\
             true \\ predicted  cat       dog\n\
             cat                 2         1\n\
             dog                 0  0.250000\n\
             \n\
             ROC AUC and average precision are approximate: computed from bins of scores\n"
        );
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!((json["rows"].as_u64(), json["model"].as_str()), (Some(4), Some("m.safetensors")));
        assert_eq!(json["eval_per_class"]["cat"]["rows"], 3);
    }

    #[test]
    fn numbers_stay_short() {
        assert_eq!(
            [number(3.0), number(-0.5), number(1e-7), number(f64::NAN)],
            ["3", "-0.500000", "1.00000e-7", "NaN"]
        );
    }
}
