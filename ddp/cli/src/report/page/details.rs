//! The lower sections of the page: time, ranks, classes and targets, calibration, restarts and checkpoints.

use std::collections::BTreeSet;

use ddp::report::units::mib;
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::calibration_note;
use super::chart::{figure, legend_entry};
use super::parts::{duration, name, table, title_case, titles, with_hint};
use super::record::{Record, Restart, metric_title};

/// Kinds of time by their keys, in the order of a step, with their names.
const KINDS: [(&str, &str); 9] = [
    ("forward", "forward"),
    ("backward", "backward"),
    ("exchange", "waiting for the exchange of gradients"),
    ("update", "clipping and update"),
    ("data", "waiting for rows"),
    ("h2d", "waiting for rows to be copied to the GPU"),
    ("evaluation", "evaluation"),
    ("checkpoint", "pauses for checkpoints"),
    ("other", "other"),
];
/// Number of rows of a table of classes, ranks or pairs of classes.
const MAX_ROWS: usize = 64;
/// Number of heads whose tables are shown.
const MAX_HEADS: usize = 12;
/// Number of classes up to which a confusion matrix is shown as a whole.
const MAX_CLASSES: usize = 24;

/// A bar per run of what its time was spent on, with a table; nothing for runs that did not record it.
pub(super) fn time(runs: &[Record], labels: &[String]) -> Option<Markup> {
    let times: Vec<_> = runs.iter().map(Record::times).collect();
    if times.iter().all(|(kinds, _)| kinds.is_empty()) {
        return None;
    }
    let seconds = |of: &[(String, f64)], key: &str| of.iter().find(|(kind, _)| kind == key).map(|(_, s)| *s);
    let known = KINDS
        .iter()
        .enumerate()
        .filter(|(_, (key, _))| times.iter().any(|(of, _)| seconds(of, key).is_some()));
    let known: Vec<_> = known.collect();
    let title = |i: usize, title: &str| html! { span class=(format!("swatch s{}", color(i))) {} (title) };
    let share = |s: f64, total: f64| format!("{:.1}%", 100.0 * s / total);
    let table = if let [(of, total)] = &times[..] {
        let rows = known.iter().map(|(i, (key, name))| {
            let s = seconds(of, key).unwrap_or(0.0);
            vec![title(*i, name), html! { (duration(s)) }, html! { (share(s, *total)) }]
        });
        table("Time by what it was spent on", &titles(["<Part", "Time", "Share"]), rows)
    } else {
        // A row per run, because there may be many.
        let names = known.iter().map(|(_, (_, name))| (*name).to_owned());
        let columns: Vec<String> = std::iter::once("<Run".to_owned()).chain(names).collect();
        let rows = times.iter().zip(labels).enumerate().map(|(i, ((of, total), label))| {
            let cells = known.iter().map(|(_, (key, _))| match seconds(of, key) {
                Some(s) => html! { (share(s, *total)) div.note { (duration(s)) } },
                None => html! { "–" },
            });
            std::iter::once(legend_entry(i, label)).chain(cells).collect()
        });
        table("Time by what it was spent on", &columns, rows)
    };
    Some(html! {
        @for ((run, label), (of, total)) in runs.iter().zip(labels).zip(&times) {
            @if !of.is_empty() {
                @if runs.len() > 1 { h3 { (label) } }
                @if let Some(bound) = time_of_end(run, "bound").and_then(Value::as_str) { p { (with_hint(bound)) } }
                (bar(of, *total))
            }
        }
        (table)
    })
}

fn bar(of: &[(String, f64)], total: f64) -> Markup {
    let mut from = 0.0;
    let share = |(i, (key, title)): (usize, &(&str, &'static str))| {
        let (_, s) = of.iter().find(|(kind, _)| kind == key)?;
        let percent = 100.0 * s / total;
        from += percent;
        Some((color(i), *title, from - percent, percent))
    };
    let shares: Vec<_> = KINDS.iter().enumerate().filter_map(share).collect();
    let text: Vec<String> =
        shares.iter().map(|(_, title, _, percent)| format!("{title} {percent:.0}%")).collect();
    html! {
        svg.bar role="img" aria-label=(text.join(", ")) {
            @for (color, title, from, percent) in &shares {
                rect class=(format!("share s{color}")) x=(format!("{from:.2}%")) width=(format!("{percent:.2}%")) y="0" height="26" {
                    title { (title) " " (format!("{percent:.1}%")) }
                }
            }
        }
    }
}

/// Color of a kind of time; the rest is gray.
fn color(kind: usize) -> usize {
    [0, 5, 1, 2, 4, 3, 7, 3, 6][kind]
}

/// A value of the times in the event `end`.
fn time_of_end<'a>(run: &'a Record, key: &str) -> Option<&'a Value> {
    run.end.get("time")?.get(key)
}

/// Lateness of each rank at the exchange of gradients; nothing for a single rank.
pub(super) fn ranks(run: &Record) -> Option<Markup> {
    let mut ranks: Vec<&Value> = time_of_end(run, "ranks")?.as_array()?.iter().collect();
    let number = |rank: &Value, key: &str| rank[key].as_f64();
    let n_ranks = ranks.len();
    ranks.sort_by(|a, b| {
        number(b, "late_ms").partial_cmp(&number(a, "late_ms")).unwrap_or(std::cmp::Ordering::Equal)
    });
    let columns = titles(["Rank", "<Host", "Late per step", "Busy per step", "<Cause"]);
    let ms = |value: Option<f64>| html! { (value.map_or_else(|| "–".to_owned(), |ms| format!("{} ms", figure(ms)))) };
    let rows = ranks.iter().take(MAX_ROWS).map(|rank| {
        let text = |key: &str| html! { (name(rank[key].as_str().unwrap_or_default())) };
        let number_of = html! { (rank["rank"].as_u64().map_or_else(String::new, |rank| rank.to_string())) };
        vec![number_of, text("host"), ms(number(rank, "late_ms")), ms(number(rank, "busy_ms")), text("cause")]
    });
    (n_ranks > 1).then(|| html! {
        h3 { "Ranks, the latest first" }
        (table("Ranks", &columns, rows))
        @if n_ranks > MAX_ROWS { p.note { (n_ranks - MAX_ROWS) " ranks that were less late are left out." } }
    })
}

/// Metrics and tables of the last evaluation, of all rows and of each head.
pub(super) fn evaluated(run: &Record) -> Option<Markup> {
    let heads = run.evaluated.get("eval_heads").and_then(Value::as_object).into_iter().flatten();
    let all = std::iter::once((None, &run.evaluated));
    let n_heads = heads.clone().count();
    let of = all.chain(heads.filter_map(|(head, fields)| Some((Some(head), fields.as_object()?))));
    let tables = |(head, fields): (Option<&String>, &Map<String, Value>)| {
        let matrix = fields.get("eval_confusion_matrix");
        let classes = matrix.map(class_names).unwrap_or_default();
        let of_class = fields.get("eval_per_class").and_then(|table| figures(table, "Class", &classes));
        let of_target = fields.get("eval_per_target").and_then(|table| figures(table, "Target", &[]));
        let parts = [metrics(fields), of_class, of_target, matrix.and_then(confusion)];
        html! {
            @if let Some(head) = head { h3 { (name(head)) } }
            div.columns { @for part in parts.into_iter().flatten() { div { (part) } } }
        }
    };
    (!run.evaluated.is_empty()).then(|| html! { @for part in of.take(1 + MAX_HEADS).map(tables) { (part) }
        @if n_heads > MAX_HEADS { p.note { "Tables of " (n_heads - MAX_HEADS) " more heads are in metrics.jsonl." } }
    })
}

/// A table of all metrics that are numbers.
fn metrics(fields: &Map<String, Value>) -> Option<Markup> {
    let numbers = fields.iter().filter(|(key, _)| key.starts_with("eval_"));
    let last = |key: &str| fields.get(&key.replacen("eval_", "last_", 1)).and_then(Value::as_f64);
    let numbers = numbers.filter_map(|(key, value)| Some((metric_title(key), value.as_f64()?, last(key))));
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let has_last = numbers.iter().any(|(_, _, last)| last.is_some());
    let rows = numbers.iter().take(MAX_ROWS).map(|((_, title), value, last)| {
        let mut cells = vec![html! { (title_case(title)) }, html! { (figure(*value)) }];
        cells.extend(has_last.then(|| html! { (last.map_or_else(|| "–".to_owned(), figure)) }));
        cells
    });
    let columns: &[&str] =
        if has_last { &["<Metric", "Model", "Last weights"] } else { &["<Metric", "Value"] };
    let columns: Vec<String> = columns.iter().map(|&title| title.to_owned()).collect();
    (!numbers.is_empty()).then(|| table("Metrics", &columns, rows))
}

/// A table of figures by class or target, in the order of `order` or of their numbers; of many, those with the lowest F1 or R².
fn figures(of: &Value, title: &str, order: &[String]) -> Option<Markup> {
    let of: Vec<(&String, &Map<String, Value>)> =
        of.as_object()?.iter().filter_map(|(name, figures)| Some((name, figures.as_object()?))).collect();
    let keys: BTreeSet<&str> =
        of.iter().flat_map(|(_, figures)| figures.keys()).map(String::as_str).collect();
    let mut keys: Vec<&str> = keys.into_iter().collect();
    let place = |key: &str| ["precision", "recall", "f1", "rows"].iter().position(|known| *known == key);
    keys.sort_by_key(|key| (place(key).map_or(1, |_| 0), place(key), *key));
    let mut sorted = of;
    let number = |name: &str| name.parse::<f64>().unwrap_or(f64::INFINITY);
    sorted.sort_by(|(a, _), (b, _)| {
        let index = |name: &String| order.iter().position(|other| other == name);
        index(a).cmp(&index(b)).then(number(a).total_cmp(&number(b)))
    });
    let n = sorted.len();
    if n > MAX_ROWS {
        let score =
            |figures: &Map<String, Value>| ["f1", "r2"].iter().find_map(|key| figures.get(*key)?.as_f64());
        sorted.sort_by(|(_, a), (_, b)| score(a).unwrap_or(0.0).total_cmp(&score(b).unwrap_or(0.0)));
    }
    let titles: Vec<String> = std::iter::once(format!("<{title}"))
        .chain(keys.iter().map(|key| title_case(&metric_title(key).1)))
        .collect();
    let rows = sorted.iter().take(MAX_ROWS).map(|(of, figures)| {
        let cell =
            |key: &&str| figures.get(*key).and_then(Value::as_f64).map_or_else(|| "–".to_owned(), figure);
        std::iter::once(html! { (name(of)) }).chain(keys.iter().map(|key| html! { (cell(key)) })).collect()
    });
    Some(html! {
        (table(title, &titles, rows))
        @if n > MAX_ROWS { p.note { "The " (MAX_ROWS) " worst of " (n) "." } }
    })
}

fn class_names(matrix: &Value) -> Vec<String> {
    matrix["classes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|class| class.as_str().map(str::to_owned))
        .collect()
}

/// A confusion matrix, shaded by the shares of each row; of many classes only the pairs that are confused most.
fn confusion(matrix: &Value) -> Option<Markup> {
    let classes = class_names(matrix);
    let row =
        |row: &Value| row.as_array().map(|row| row.iter().filter_map(Value::as_f64).collect::<Vec<f64>>());
    let counts: Vec<Vec<f64>> = matrix["counts"].as_array()?.iter().filter_map(row).collect();
    if classes.is_empty()
        || counts.len() != classes.len()
        || counts.iter().any(|row| row.len() != classes.len())
    {
        return None;
    }
    if classes.len() > MAX_CLASSES {
        let pairs = |(i, row): (usize, &Vec<f64>)| {
            row.iter()
                .enumerate()
                .filter(|(j, n)| *j != i && **n > 0.0)
                .map(|(j, n)| (i, j, *n))
                .collect::<Vec<_>>()
        };
        let mut pairs: Vec<(usize, usize, f64)> = counts.iter().enumerate().flat_map(pairs).collect();
        pairs.sort_by(|a, b| b.2.total_cmp(&a.2));
        let rows = pairs.iter().take(MAX_CLASSES).map(|(i, j, n)| {
            vec![html! { (name(&classes[*i])) }, html! { (name(&classes[*j])) }, html! { (figure(*n)) }]
        });
        return Some(table("Pairs confused most", &titles(["<True class", "<Predicted as", "Rows"]), rows));
    }
    Some(html! {
        div.scroll tabindex="0" role="region" aria-label="Confusion matrix" {
            table.matrix {
                thead { tr { th.left { "true ╲ predicted" } @for class in &classes { th scope="col" { (name(class)) } } } }
                tbody {
                    @for (i, (class, row)) in classes.iter().zip(&counts).enumerate() {
                        @let sum = row.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                        tr {
                            th.left scope="row" { (name(class)) }
                            @for (j, n) in row.iter().enumerate() {
                                td.right[i == j] style=(format!("--s:{:.2}", 0.75 * n / sum)) title=(format!("{:.1}% of the row", 100.0 * n / sum)) {
                                    (figure(*n))
                                }
                            }
                        }
                    }
                }
            }
        }
    })
}

/// The fit of `eval --calibrate`, if the model is still the one that it has written.
pub(super) fn calibration(run: &Record) -> Option<Markup> {
    let note = run.calibration.as_ref().filter(|note| calibration_note::is_of_model(note, &run.path))?;
    let temperature = note["temperature"].as_f64()?;
    let value = |side: &str, key: &str| note[side][key].as_f64().map_or_else(|| "–".to_owned(), figure);
    let keys = ["eval_log_loss", "eval_ece", "eval_accuracy"];
    let rows = keys.iter().map(|key| {
        vec![
            html! { (metric_title(key).1) },
            html! { (value("before", key)) },
            html! { (value("after", key)) },
        ]
    });
    let rows_of = note["rows"].as_u64().map_or_else(String::new, |rows| format!(" of {rows} rows"));
    Some(html! {
        p { "Temperature " (figure(temperature)) (rows_of) @if let Some(data) = note["data"].as_str() { " in " (name(data)) } }
        (table("Calibration", &titles(["<Metric", "Before", "After"]), rows))
    })
}

/// Restarts and checkpoints of a run, the newest of many.
pub(super) fn history(run: &Record) -> Option<Markup> {
    let (restarts, checkpoints) = (&run.restarts, &run.checkpoints);
    let columns = titles(["After step", "Size", "Pause of training", "Written in"]);
    let rows = checkpoints.iter().rev().take(MAX_CLASSES).map(|checkpoint| {
        let size = mib(checkpoint.bytes.max(0.0) as u64);
        let (pause, write) = (duration(checkpoint.pause_ms / 1e3), duration(checkpoint.write_s));
        vec![html! { (checkpoint.step) }, html! { (size) }, html! { (pause) }, html! { (write) }]
    });
    (restarts.len() + checkpoints.len() > 0).then(|| html! {
        p { "Restarts: " (restarts.len()) ", checkpoints: " (checkpoints.len()) }
        ul { @for Restart { step, world_size, world_size_before, lost } in restarts.iter().rev().take(MAX_CLASSES) {
            li { "resumed after step " (step) ", ranks: " (world_size)
                @if world_size != world_size_before { " (before: " (world_size_before) ")" }
                @if let Some(loss) = lost { "; " (loss) } }
        } }
        @if !checkpoints.is_empty() { (table("Checkpoints", &columns, rows)) }
    })
}
