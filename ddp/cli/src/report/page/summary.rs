//! The top of the page: state and figures of the runs, what was found about them, and their settings.

use std::collections::BTreeMap;

use ddp::report::units::rate;
use ddp::report::visible::shell_word;
use ddp_kernels::hint::joined;
use maud::{Markup, html};

use super::chart::{figure, legend_entry};
use super::parts::{config, duration, name, plain, table, titles, with_hint};
use super::record::{Record, Status, folder_name, metric_title};

/// Number of findings that are shown per run, and of settings that are compared, which suffices for all but damaged files.
const MAX_FINDINGS: usize = 50;
const MAX_SETTINGS: usize = 100;

/// Distinct names of several runs: of their folders, or their paths.
pub(super) fn labels(runs: &[Record]) -> Vec<String> {
    let folders: Vec<String> = runs.iter().map(|run| folder_name(&run.path)).collect();
    let is_same = (1..folders.len()).any(|i| folders[..i].contains(&folders[i]));
    let mut labels: Vec<String> = Vec::with_capacity(runs.len());
    for (run, folder) in runs.iter().zip(folders) {
        let label = in_short(&if is_same { run.path.display().to_string() } else { folder });
        let numbered = (2..).map(|n| format!("{label} ({n})"));
        let label = std::iter::once(label.clone()).chain(numbered).find(|label| !labels.contains(label));
        labels.push(label.expect("a number that is free"));
    }
    labels
}

/// A name of at most 80 characters: the end of a longer one stays, since folders of a sweep differ there.
fn in_short(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= 80 {
        return name(text);
    }
    let parts = [&characters[..38], &['…'], &characters[characters.len() - 41..]];
    name(&parts.concat().into_iter().collect::<String>())
}

/// The state of a run in a word or two.
fn badge(status: &Status) -> Markup {
    let (class, text) = match status {
        Status::Complete => ("good", "complete"),
        Status::Stopped { .. } => ("warn", "stopped, can be resumed"),
        Status::Failed { .. } => ("bad", "failed"),
        Status::Running => ("good", "running"),
        Status::Unfinished => ("warn", "not complete: killed, or a copy"),
    };
    html! { span class=(format!("badge {class}")) { (text) } }
}

/// The head of the page of one run.
pub(super) fn head(run: &Record) -> Markup {
    let figures = figures(run);
    html! {
        header { h1 { (name(&run.name)) } (badge(&run.status)) }
        p { code { (plain(&run.path.display().to_string())) } @if let Some(program) = &run.program { ", by " (name(program)) } }
        @if let Some(start) = &run.start { p { (plain(start)) } }
        dl.tiles {
            @for (title, value, note) in figures.iter().filter(|(_, value, _)| !value.is_empty()) {
                div { dt { (title) } dd { (value) @if !note.is_empty() { small { (note) } } } }
            }
        }
    }
}

/// Title, value and remark of a run's figures; the value is empty where it is not known.
fn figures(run: &Record) -> [(&'static str, String, String); 6] {
    let best = run
        .best()
        .map(|(key, step, value)| (figure(value), format!("{}, after step {step}", metric_title(key).1)));
    let (best, best_note) = best.unwrap_or_default();
    let rows_per_s = run.end_number("samples_per_s").or_else(|| run.steps[3].last());
    let number = |value: Option<u64>| value.map_or_else(String::new, |value| rate(value as f64));
    let of_process = if !run.restarts.is_empty() { "since the last start" } else { "" };
    let training = run.end_number("train_s").map(|s| format!("{} of it training", duration(s)));
    let training = training.into_iter().chain(Some(of_process.to_owned()).filter(|text| !text.is_empty()));
    let training = training.collect::<Vec<_>>().join(", ");
    // Of a run without an end its steps are known.
    let of_steps = Some(run.times().1).filter(|s| *s > 0.0).map(|s| format!("{} of steps", duration(s)));
    let elapsed = run.end_number("elapsed_s").map(duration).or(of_steps).unwrap_or_default();
    [
        ("Best evaluation", best, best_note),
        ("Steps", number(Some(run.step)), String::new()),
        ("Epochs", number(run.epoch), String::new()),
        ("Rows per second", rows_per_s.map_or_else(String::new, rate), of_process.to_owned()),
        ("Time", elapsed, training),
        ("Ranks", number(run.world_size), String::new()),
    ]
}

/// The head of the page of several runs: a table whose names are the legend of all charts.
pub(super) fn compared(runs: &[Record], labels: &[String]) -> Markup {
    let columns = titles([
        "<Run",
        "<State",
        "Best evaluation",
        "Steps",
        "Epochs",
        "Rows/s",
        "Time",
        "Ranks",
        "Findings",
    ]);
    let rows = runs.iter().zip(labels).enumerate().map(|(i, (run, label))| {
        let [(_, best, of), (_, steps, _), (_, epochs, _), (_, rows, _), (_, time, _), (_, ranks, _)] =
            figures(run);
        let best = html! { (best) @if !of.is_empty() { div.note { (of) } } };
        let cells = [steps, epochs, rows, time, ranks, run.findings().len().to_string()];
        let cells = cells.into_iter().map(|cell| html! { (cell) });
        [legend_entry(i, label), badge(&run.status), best].into_iter().chain(cells).collect()
    });
    html! {
        header { h1 { (runs.len()) " runs of ddp-train" } }
        (table("Runs", &columns, rows))
    }
}

/// The reason why a run ended early, and the findings about it.
pub(super) fn findings(run: &Record, is_one_of_several: bool) -> Markup {
    let found = run.findings();
    html! {
        @match &run.status {
            Status::Failed { error, hint } => div class="finding failed" role="alert" {
                b.bad { "Failed: " } (with_hint(&joined(error.clone(), hint.as_deref())))
            },
            Status::Stopped { reason } => div.finding {
                b { "Stopped by " (plain(reason)) } " after step " (run.step) ".\n"
                b { "Hint: " } code { "ddp-train train --resume " (plain(&shell_word(&run.path))) } " continues the run."
            },
            Status::Complete if found.is_empty() && !is_one_of_several => p.good { "✓ The review at the end of the run found nothing to warn of." },
            _ => {},
        }
        @for finding in found.iter().take(MAX_FINDINGS) {
            div.finding { (with_hint(finding)) }
        }
        @if run.n_damaged > 0 {
            p.note { (run.n_damaged) (if run.n_damaged == 1 { " line" } else { " lines" })
                " of metrics.jsonl left out: damaged or half-written." }
        }
    }
}

/// The settings of a run that are not defaults, and all of them on demand.
pub(super) fn settings(run: &Record) -> Option<Markup> {
    let chosen = run.chosen_settings();
    let is_marked = run.config.contains("# default");
    (!run.config.is_empty()).then(|| {
        html! {
            @if is_marked { pre tabindex="0" { code { (plain(chosen.trim())) } } }
            details open[!is_marked] {
                summary { "All settings" }
                pre tabindex="0" { code { (config(&run.config)) } }
            }
        }
    })
}

/// The settings that differ between runs.
pub(super) fn differing_settings(runs: &[Record], labels: &[String]) -> Markup {
    let settings: Vec<_> = runs.iter().map(Record::settings).collect();
    let keys: std::collections::BTreeSet<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    let differs = |key: &&&String| settings.iter().any(|of_run| of_run.get(**key) != settings[0].get(**key));
    let keys: Vec<&String> = keys.iter().filter(|key| **key != "name").filter(differs).copied().collect();
    // A row per run, because a sweep has more runs than keys.
    let titles: Vec<String> = std::iter::once("<Run".to_owned())
        .chain(keys.iter().take(MAX_SETTINGS).map(|key| format!("<{}", name(key))))
        .collect();
    let rows = settings.iter().zip(labels).enumerate().map(|(i, (of_run, label))| {
        let value =
            |key: &String| of_run.get(key).map_or_else(|| "–".to_owned(), |value| name(&value.to_string()));
        let values = keys.iter().take(MAX_SETTINGS).map(|key| html! { code { (value(key)) } });
        std::iter::once(legend_entry(i, label)).chain(values).collect()
    });
    html! {
        @if keys.is_empty() { p { "The runs have the same settings." } } @else { (table("Settings that differ", &titles, rows)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_the_end_that_tells_them_apart() {
        let [a, b] = [0, 1].map(|seed| format!("{},seed={seed}", "lr=8.800e-3,".repeat(9)));
        assert_ne!(in_short(&a), in_short(&b));
        assert_eq!((in_short(&a).chars().count(), in_short("short")), (80, "short".to_owned()));
        assert!(in_short(&b).starts_with("lr=8.8") && in_short(&b).ends_with(",seed=1"));
    }
}
