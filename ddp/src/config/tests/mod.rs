//! Errors name the place of each invalid key and the expected value; every valid config survives writing.

mod files;
mod keys;
mod layers;
mod resume;
mod round_trip;
mod rows;
mod sections;

use std::fs;

use super::*;

/// Loads a file of this text, on the bundled digits if it names no data.
fn from_text(text: &str) -> Result<Config> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    fs::write(&path, text).unwrap();
    let names_data = text.lines().any(|line| line.starts_with("train ") || line.starts_with("train="));
    let digits = ["data.train=builtin:digits".to_owned()];
    Config::load(Some(&path), if names_data { &[] } else { &digits })
}

fn from_sets(sets: &[&str]) -> Result<Config> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Config::load(None, &sets)
}

/// Asserts that the message contains each part, ends with a hint, and has exit status 2.
#[track_caller]
fn assert_refused(result: Result<Config>, parts: &[&str]) {
    let error = crate::Error::from(result.expect_err("refused"));
    let message = ddp_kernels::hint::with_hint(&error);
    assert_eq!(error.exit_code(), 2, "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    let last = message.lines().last().unwrap_or_default();
    assert!(last.starts_with("hint: ") && last.len() > "hint: ".len(), "{message}");
}

/// Settings that must be given with a key for the key to have a value.
fn beside(key: &str) -> &'static [&'static str] {
    match key {
        "data.eval_labels" | "data.eval_weight" => &["data.eval=x.npy"],
        "data.class_order" => &["data.train=x.csv"],
        "loss.gamma" => &["data.task=multilabel", "data.target=a,b", "loss.kind=focal"],
        "loss.delta" => &["data.task=regression", "loss.kind=huber"],
        "loss.quantile" => &["data.task=regression", "loss.kind=quantile"],
        "optimizer.nesterov" => &["optimizer.kind=sgd", "optimizer.momentum=0.5"],
        "schedule.final_fraction" => &["schedule.kind=linear"],
        "schedule.decay_steps" | "schedule.decay_fraction" => &["schedule.kind=wsd"],
        "schedule.step_every_steps" | "schedule.step_every_fraction" | "schedule.step_factor" => {
            &["schedule.kind=step"]
        }
        "schedule.restart_growth" => &["schedule.kind=cosine_restarts"],
        "schedule.plateau_patience" => &["schedule.kind=plateau"],
        _ => &[],
    }
}

#[test]
fn errors_stay_small() {
    // clippy::result_large_err starts at 128 bytes.
    assert!(size_of::<crate::Error>() <= 120, "{}", size_of::<crate::Error>());
    assert!(size_of::<ConfigError>() <= 120, "{}", size_of::<ConfigError>());
}
