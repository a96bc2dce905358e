//! `name`: the run's name.

use std::path::Path;

use super::data::DataConfig;
use super::error::Result;
use super::key::{Key, text};
use super::raw::RawConfig;

pub(super) const KEYS: &[Key] = &[text("name")
    .help("Name of the run, used in the name of its folder")
    .default_depends("stem of the config file, else of the data")
    .example(r#""digits""#)
    .may_change()
    .not_compared()];

/// Reads the run's name; `file` is the config file.
pub(super) fn read(raw: &RawConfig, file: Option<&Path>, data: &DataConfig) -> Result<String> {
    let Some(setting) = raw.given("name") else { return Ok(default(file, data)) };
    let name = setting.text()?;
    let fits = name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c)) && !name.starts_with('.');
    if fits && name.len() <= 100 {
        Ok(name)
    } else {
        Err(setting.bad(
            "letters, digits, `.`, `_` and `-`, at most 100 bytes, no `.` in front",
            "the name becomes part of the run's folder",
        ))
    }
}

fn default(file: Option<&Path>, data: &DataConfig) -> String {
    let source = data.train.strip_prefix("builtin:").unwrap_or(&data.train);
    let stem = file.unwrap_or(Path::new(source)).file_stem().unwrap_or_default();
    let clean: String = stem
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_alphanumeric() || "_-".contains(c) { c } else { '-' })
        .take(25)
        .collect();
    if clean.is_empty() { "run".to_owned() } else { clean }
}
