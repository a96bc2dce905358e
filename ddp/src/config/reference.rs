//! Reference of the keys, generated from their rows: as text for a terminal, Markdown for the manual, and JSON for programs.
//!
//! ```
//! use ddp::config::{keys_with_prefix, reference};
//!
//! let text = reference::text(&keys_with_prefix("optimizer.lr")?);
//! assert!(text.starts_with("optimizer.lr") && text.contains("Learning rate"), "{text}");
//! # Ok::<(), ddp::config::ConfigError>(())
//! ```

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::conflicts::{self, CONFLICTS, Conflict, Values};
use super::key::{Key, KeyDefault, Kind, OnResume};

/// The keys for a terminal, three lines per key.
pub fn text(keys: &[&Key]) -> String {
    let mut text = String::new();
    for key in keys {
        let _ = writeln!(text, "{}  {} ({})", key.name, key.kind.words(), default_words(key));
        let _ = writeln!(text, "    {}; for example `{} = {}`", meaning(key), key.short_name(), key.example);
        let _ = match key.on_resume {
            OnResume::Fixed => write!(text, "    fixed on resume"),
            OnResume::MayChange => write!(text, "    may change on resume"),
            OnResume::MayChangeIf(_, condition) => write!(text, "    may change on resume {condition}"),
        };
        if !key.synonyms.is_empty() {
            let _ = write!(text, "; in other programs: {}", key.synonyms.join(", "));
        }
        text.push('\n');
        conflicts::conflicts_with(key.name).for_each(|of| text += &format!("    {}\n", of.words()));
    }
    text
}

/// The keys as a Markdown page, one table per section.
pub fn markdown(keys: &[&Key]) -> String {
    let mut page = "# Keys of the config\n\n\
        Written by `ddp-train config keys --markdown`; do not edit. A key belongs to the section in its name: `optimizer.lr` is \
        `lr` under `[optimizer]`, or `--set optimizer.lr=0.01`. Editors complete and check configs with the output of \
        `ddp-train config schema`: a TOML language server reads it where the first line of a config is \
        `#:schema PATH_OF_THE_SCHEMA`.\n\n\
        A resumed run may change the keys that are marked under Resume; another value of the others makes another run. What other \
        programs call a key stands after its meaning: no config takes such a name, but the error about it says which key is \
        meant.\n"
        .to_owned();
    let mut open_section = None;
    for key in keys {
        if open_section != Some(key.section()) {
            open_section = Some(key.section());
            page += &match key.section() {
                "" => "\n## At the top\n".to_owned(),
                section => format!("\n## [{section}]\n"),
            };
            page += "\n| Key | Meaning | Type and range | Default | Example | Resume |\n|---|---|---|---|---|---|\n";
        }
        let may_change = match key.on_resume {
            OnResume::Fixed => "",
            OnResume::MayChange => "may change",
            OnResume::MayChangeIf(_, condition) => &format!("may change {condition}"),
        };
        let mut help = meaning(key);
        if !key.synonyms.is_empty() {
            help += &format!("; in other programs: `{}`", key.synonyms.join("`, `"));
        }
        let cells = [&format!("`{}`", key.short_name()), &help, &key.kind.words(), &default_cell(key)];
        for cell in cells {
            page += &format!("| {} ", cell.replace('|', "\\|"));
        }
        page += &format!("| `{}` | {may_change} |\n", key.example);
    }
    page + &conflict_table()
}

/// The table of conflicts.
fn conflict_table() -> String {
    let mut table = "\n## Conflicts\n\nSettings that are refused before the first step, where other settings, the rows or the layers \
                     exclude them. Heads, `schedule` of a group and `loss` of a head have the conflicts of the keys that they hold.\n\n\
                     | Key | Value | Not with | Because |\n|---|---|---|---|\n"
        .to_owned();
    let or_any = |values: &Values| match values {
        Values::Any => "any".to_owned(),
        _ => values.to_string(),
    };
    for Conflict { key, value, with, when, reason, .. } in CONFLICTS {
        table += &format!("| `{key}` | {} | `{with}`: {} | {reason} |\n", or_any(value), or_any(when));
    }
    table
}

/// The keys as JSON, one object per line.
pub fn json_lines(keys: &[&Key]) -> String {
    keys.iter().map(|key| format!("{}\n", object(key))).collect()
}

fn object(key: &Key) -> Value {
    let (default, rule) = match key.default {
        KeyDefault::Value(value) => (Some(value), None),
        KeyDefault::Depends(rule) => (None, Some(rule.to_string())),
        KeyDefault::Absent(meaning) => (None, Some(meaning.to_owned())),
    };
    let names = match key.kind {
        Kind::OneOf(names) | Kind::Metric(names) => Some(names),
        _ => None,
    };
    json!({
        "key": key.name,
        "help": key.help,
        "type": key.kind.words(),
        "names": names,
        "default": default,
        "default_rule": rule,
        "example": key.example,
        "synonyms": key.synonyms,
        "instead_of": key.alternative.map(|other| other.name),
        "may_change_on_resume": !matches!(key.on_resume, OnResume::Fixed),
        "conflicts": conflicts::conflicts_with(key.name).map(|of| of.to_json()).collect::<Vec<_>>(),
    })
}

/// The line of help, and the key that excludes this one.
fn meaning(key: &Key) -> String {
    match key.alternative {
        Some(other) => format!("{}; not together with {}", key.help, other.name),
        None => key.help.to_owned(),
    }
}

fn default_words(key: &Key) -> String {
    match key.default {
        KeyDefault::Value(value) => format!("default {value}"),
        KeyDefault::Depends(rule) => format!("default: {rule}"),
        KeyDefault::Absent(meaning) => format!("if absent: {meaning}"),
    }
}

fn default_cell(key: &Key) -> String {
    match key.default {
        KeyDefault::Value(value) => format!("`{value}`"),
        KeyDefault::Depends(rule) => rule.to_string(),
        KeyDefault::Absent(meaning) => format!("absent: {meaning}"),
    }
}
