//! Each row is complete and is the only source of its key's default, example and documentation.

use super::super::conflicts::{CONFLICTS, Conflict, Values};
use super::super::document::entries;
use super::super::key::{Key, KeyDefault, Kind, OnResume};
use super::super::table::TABLE;
use super::super::value;
use super::*;

#[test]
fn rows_are_complete_and_sections_together() {
    let mut sections: Vec<&str> = Vec::new();
    let mut synonyms: Vec<&str> = Vec::new();
    let names: Vec<_> = keys().map(|key| key.name).collect();
    for key in keys() {
        let Key { name, help, example, .. } = *key;
        assert_eq!(names.iter().filter(|other| **other == name).count(), 1, "{name}");
        assert!(!help.is_empty() && !help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
        assert!(!example.is_empty(), "{name}");
        value::parse(example);
        if matches!(
            key.kind,
            Kind::Count { .. } | Kind::Counts { .. } | Kind::Number(_) | Kind::Numbers { .. }
        ) {
            assert!(!key.hint.is_empty(), "{name}");
        }
        if sections.last() != Some(&key.section()) {
            assert!(!sections.contains(&key.section()), "{name}");
            sections.push(key.section());
        }
        if let Some(other) = key.alternative {
            assert_eq!(
                TABLE.row(other.name).section(),
                key.section(),
                "{name}: the schema excludes pairs of a section"
            );
        }
        for synonym in key.synonyms {
            assert!(!synonyms.contains(synonym), "{synonym}");
            synonyms.push(synonym);
        }
    }
}

/// Defaults are written in the same form as saved configs, so that they can be compared as strings.
#[test]
fn defaults_are_valid_and_in_the_form_of_saved_configs() {
    let config = Config::load(None, &[]).unwrap();
    let entries = entries(&config);
    for key in keys() {
        let KeyDefault::Value(default) = key.default else { continue };
        match entries.iter().find(|entry| entry.key.name == key.name) {
            Some(entry) => assert_eq!(entry.value, default, "{}", key.name),
            // Keys of other schedules and losses.
            None if matches!(key.kind, Kind::Count { .. }) => {
                assert_eq!(default.parse::<u64>().unwrap().to_string(), default, "{}", key.name);
            }
            None => {
                let number: f64 = default.parse().unwrap();
                assert_eq!(value::ConfigValue::write(&number), default, "{}", key.name);
            }
        }
    }
    assert_eq!(config.optimizer, OptimizerConfig::new(OptimizerKind::AdamW, 1e-3));
}

#[test]
fn every_key_is_read_and_written() {
    for key in keys() {
        let example = format!("{}={}", key.name, key.example);
        let config = from_sets(&[beside(key.name), &[&example]].concat()).unwrap();
        let entries = entries(&config);
        let entry = entries.iter().find(|entry| entry.key.name == key.name);
        let written = &entry.unwrap_or_else(|| panic!("{} is not written", key.name)).value;
        if key.name != "loss.kind" {
            assert_eq!(value::parse(written), value::parse(key.example), "{}", key.name);
        }
    }
}

#[test]
fn saved_configs_hold_every_key() {
    let config = from_sets(&["optimizer.lr=0.5", "train.steps=7", "data.classes=10"]).unwrap();
    let toml = config.to_toml();
    for line in [
        "lr = 0.5",
        "steps = 7",
        "# epochs: not used",
        "weight_decay = 0.01  # default",
        "kind = \"cross_entropy\"  # default",
        "eval = \"builtin:digits\"  # default",
        "# eval_fraction: data.eval applies",
        "classes = 10",
        "warmup_steps = 0  # default",
        "# delta: not used",
        "shuffle_window_mib = 64  # default",
    ] {
        assert!(toml.lines().any(|other| other == line), "no {line:?} in\n{toml}");
    }
    for key in keys() {
        let name = key.short_name();
        let is_there =
            |line: &str| line.starts_with(&format!("{name} = ")) || line.starts_with(&format!("# {name}: "));
        assert!(toml.lines().any(is_there), "no {name} in\n{toml}");
    }
    let not_default =
        from_sets(&["optimizer.kind=sgd", "optimizer.weight_decay=0.01", "data.eval=none"]).unwrap();
    let toml = not_default.to_toml();
    assert!(toml.contains("weight_decay = 0.01\n") && toml.contains("eval = \"none\"\n"), "{toml}");
}

#[test]
fn ranks_compare_every_value_but_the_name() {
    let config = Config::load(None, &[]).unwrap();
    let compared = config.agreement_entries();
    let all = entries(&config);
    assert_eq!(compared.len() + 1, all.len());
    assert!(compared.iter().all(|(key, _)| key != "name"));
}

#[test]
fn the_reference_is_that_of_the_rows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/config.md");
    let page = fs::read_to_string(&path).unwrap();
    let rows: Vec<_> = keys().collect();
    assert!(
        page == reference::markdown(&rows),
        "docs/config.md is out of date: run `ddp-train config keys --markdown > docs/config.md`"
    );
    assert_eq!(reference::json_lines(&rows).lines().count(), rows.len());
    for key in rows {
        assert!(page.contains(&format!("| `{}` |", key.short_name())), "{}", key.name);
        assert!(page.contains("may change") || matches!(key.on_resume, OnResume::Fixed));
        assert!(key.synonyms.iter().all(|name| page.contains(&format!("`{name}`"))), "{}", key.name);
    }
    let text = |name: &str| reference::text(&[TABLE.row(name)]);
    let (lr, every_steps) = (text("optimizer.lr"), text("log.every_steps"));
    assert!(lr.ends_with("\n    fixed on resume; in other programs: learning_rate\n"), "{lr}");
    assert!(
        every_steps.contains("\n    may change on resume; in other programs: log_every, "),
        "{every_steps}"
    );
    assert_eq!(keys_with_prefix("optimizer.w").unwrap()[0].name, "optimizer.weight_decay");
    let error = ddp_kernels::hint::with_hint(&keys_with_prefix("optimiser").unwrap_err());
    assert!(
        error.contains("no key begins with `optimiser`\nhint: did you mean the section [optimizer]?"),
        "{error}"
    );
}

#[test]
fn declared_conflicts_are_refused_and_name_both_keys() {
    for Conflict { key, value, with, when, example, .. } in CONFLICTS {
        assert!(TABLE.find(key).is_some() && TABLE.find(with).is_some(), "{key}, {with}");
        let is_decided = ![value, when].into_iter().any(|values| matches!(values, Values::Words(_)));
        if example.is_empty() {
            assert!(!is_decided, "{key}, {with}: no example");
            continue;
        }
        let sets: Vec<&str> = ["data.train=rows.csv"].iter().chain(example.iter()).copied().collect();
        let error = from_sets(&sets).err().unwrap_or_else(|| panic!("{sets:?} is no conflict"));
        let message = ddp_kernels::hint::with_hint(&error);
        let names = [key, with].map(|name| message.contains(&format!("`{name}`")));
        assert!(names == [true; 2] || (names[0] && !is_decided), "{sets:?}: {message}");
        assert!(message.contains("hint: "), "{message}");
        // Nothing is wrong without one of the two keys.
        let without = |name: &str| {
            let rest: Vec<&str> =
                sets.iter().copied().filter(|set| !set.starts_with(&format!("{name}="))).collect();
            from_sets(&rest)
        };
        assert!(without(key).is_ok() || without(with).is_ok(), "{sets:?} is wrong by itself");
    }
}
