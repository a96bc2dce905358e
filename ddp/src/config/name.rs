//! `name`: the run's name.

use std::path::Path;

use super::data::DataConfig;
use super::error::Result;
use super::key::{Key, text};
use super::raw::RawConfig;

pub(super) const KEYS: &[Key] = &[text("name")
    .help("Name of the run, used in the name of its folder")
    .default_depends("name of the folder, else stem of the config file, else of the data")
    .example(r#""digits""#)
    .may_change()
    .not_compared()];

/// Reads the run's name; `named` is that of its folder or config file.
pub(super) fn read(raw: &RawConfig, named: Option<&str>, data: &DataConfig) -> Result<String> {
    let Some(setting) = raw.given("name") else { return Ok(default(named, data)) };
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

fn default(named: Option<&str>, data: &DataConfig) -> String {
    let source = data.train.strip_prefix("builtin:").unwrap_or(&data.train);
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // The folder's, where a pattern names all files of it.
    let folder = Path::new(source).parent().map(stem);
    let stems = [named.map(str::to_owned), Some(stem(Path::new(source))), folder].into_iter().flatten();
    let clean = |stem: String| -> String {
        stem.chars().map(|c| if c.is_alphanumeric() || "_-".contains(c) { c } else { '-' }).take(25).collect()
    };
    stems.map(clean).find(|name| name.contains(char::is_alphanumeric)).unwrap_or_else(|| "run".to_owned())
}
