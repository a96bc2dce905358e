//! The charts of one run, or of several over each other.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::chart::{Chart, Curve, legend_entry};
use super::parts::title_case;
use super::record::{Record, STEP_KEYS, metric_title};
use super::series::Series;

/// Number of charts on a page.
const MAX_CHARTS: usize = 24;
/// Metrics that may be drawn on a logarithmic scale.
const LOG_METRICS: [&str; 5] = ["loss", "log_loss", "mae", "rmse", "grad_norm"];

/// All charts of the page, without those that would be a single point.
pub(super) fn charts(runs: &[Record], labels: &[String]) -> Markup {
    let mut charts = if let [run] = runs { charts_of_one(run) } else { charts_of_several(runs, labels) };
    let n_more = charts.len().saturating_sub(MAX_CHARTS);
    // Metrics, because the last three are of steps.
    charts.drain((MAX_CHARTS - 3).min(charts.len())..charts.len().min(MAX_CHARTS - 3 + n_more));
    html! {
        @if runs.len() > 1 {
            div.legends { @for (i, label) in labels.iter().enumerate() { (legend_entry(i, label)) } }
        }
        div.charts { @for chart in &charts { (chart.markup()) } }
        @if n_more > 0 { p.note { "and " (n_more) " more metrics in metrics.jsonl" } }
        @if charts.is_empty() { p { "There are too few steps and evaluations to draw." } }
        @else {
            p.note { "A line is the mean of neighboring points where there are many, and the area around it reaches from the smallest to \
                the largest. Dotted vertical lines are restarts." }
        }
    }
}

/// Keys of evaluation metrics, in the order of their charts, and their titles.
fn eval_metrics(runs: &[Record]) -> Vec<(String, String)> {
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.metrics.keys()).collect();
    let is_eval = |key: &&&String| key.rsplit('.').next().is_some_and(|name| name.starts_with("eval_"));
    let mut metrics: Vec<_> =
        keys.iter().filter(is_eval).map(|key| (metric_title(key), (*key).clone())).collect();
    // Those of all rows come before those of heads.
    metrics.sort_by_key(|((place, _), key)| (key.contains('.'), *place, key.clone()));
    metrics.into_iter().map(|((_, title), key)| (key, title)).collect()
}

/// The mean loss of steps, or of epochs where steps were not logged.
fn training_loss(run: &Record) -> Option<&Series> {
    let of_steps = Some(&run.steps[0]).filter(|steps| steps.buckets().len() > 1);
    of_steps.or_else(|| run.metrics.get("train_loss")).or(Some(&run.steps[0]))
}

fn charts_of_one(run: &Record) -> Vec<Chart<'_>> {
    let curve = |name, style, series: Option<&'static str>, key: &str| {
        let key = series.map_or_else(|| key.to_owned(), |prefix| swapped(key, prefix));
        run.metrics.get(&key).map(|series| Curve { name, style, series })
    };
    let mut metrics = eval_metrics(std::slice::from_ref(run));
    if !metrics.iter().any(|(key, _)| key == "eval_loss") {
        metrics.insert(0, ("eval_loss".to_owned(), "loss".to_owned()));
    }
    let of_metric = metrics.into_iter().map(|(key, title)| {
        let training = match key.as_str() {
            "eval_loss" => training_loss(run).map(|series| Curve { name: "training", style: 0, series }),
            _ => curve("training", 0, Some("train_"), &key),
        };
        let last = curve("last weights", 2, Some("last_"), &key);
        let curves = [training, curve("evaluation", 1, None, &key), last].into_iter().flatten().collect();
        let best = run.best().filter(|(metric, ..)| *metric == key).map(|(_, step, value)| (step, value));
        Chart { best, ..chart(title, &key, curves, run.step, &[run]) }
    });
    let of_steps = STEP_KEYS.iter().zip(&run.steps).skip(1).map(|(key, series)| {
        let curves = vec![Curve { name: step_title(key), style: 0, series }];
        chart(step_title(key).to_owned(), key, curves, run.step, &[run])
    });
    of_metric.chain(of_steps).filter(is_curve).collect()
}

fn charts_of_several<'a>(runs: &'a [Record], labels: &'a [String]) -> Vec<Chart<'a>> {
    let last_step = runs.iter().map(|run| run.step).max().unwrap_or(0);
    let of_all = |title: String, key: &str, series: &dyn Fn(&'a Record) -> Option<&'a Series>| {
        let curve = |(style, (run, name)): (usize, (&'a Record, &'a String))| {
            Some(Curve { name, style, series: series(run)? })
        };
        let curves = runs.iter().zip(labels).enumerate().filter_map(curve).collect();
        Chart { has_legend: false, ..chart(title, key, curves, last_step, &[]) }
    };
    let training = of_all("training loss".to_owned(), "loss", &training_loss);
    let metrics = eval_metrics(runs).into_iter().map(|(key, title)| {
        let title = if key == "eval_loss" { "evaluation loss".to_owned() } else { title };
        of_all(title, &key, &|run| run.metrics.get(&key))
    });
    let steps = STEP_KEYS.iter().enumerate().skip(1);
    let steps = steps.map(|(i, key)| of_all(step_title(key).to_owned(), key, &|run| Some(&run.steps[i])));
    std::iter::once(training).chain(metrics).chain(steps).filter(is_curve).collect()
}

fn chart<'a>(
    title: String,
    key: &str,
    curves: Vec<Curve<'a>>,
    last_step: u64,
    runs: &[&Record],
) -> Chart<'a> {
    let name = key.rsplit('.').next().unwrap_or(key).trim_start_matches("eval_");
    let restarts =
        runs.iter().flat_map(|run| run.restarts.iter().rev().take(100)).map(|restart| restart.step).collect();
    let title = title_case(&title);
    let may_be_log = LOG_METRICS.contains(&name);
    Chart { title, curves, last_step, may_be_log, best: None, restarts, has_legend: true }
}

fn is_curve(chart: &Chart<'_>) -> bool {
    chart.curves.iter().any(|curve| curve.series.buckets().len() > 1)
}

/// The key of the same metric of other rows or weights: `HEAD.train_x` for `HEAD.eval_x`.
fn swapped(key: &str, prefix: &str) -> String {
    match key.rsplit_once('.') {
        Some((head, name)) => format!("{head}.{}", name.replacen("eval_", prefix, 1)),
        None => key.replacen("eval_", prefix, 1),
    }
}

fn step_title(key: &str) -> &'static str {
    match key {
        "lr" => "learning rate",
        "grad_norm" => "gradient norm before clipping",
        "samples_per_s" => "rows per second",
        _ => "loss",
    }
}
