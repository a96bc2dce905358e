//! The rows of all sections, and the nearest key to a name that is none.

use super::error::ConfigError;
use super::key::Key;
use super::{checkpoint, comm, data, log, loss, model, name, optimizer, schedule, train};

/// The rows, a section each, in the order in which configs are written.
const SECTIONS: [&[Key]; 10] = [
    name::KEYS,
    data::KEYS,
    model::KEYS,
    loss::KEYS,
    optimizer::KEYS,
    schedule::KEYS,
    train::KEYS,
    comm::KEYS,
    checkpoint::KEYS,
    log::KEYS,
];

/// Flags of the command line that people write into configs.
const FLAGS: &[&str] = &[
    "device",
    "share_gpu",
    "cuda_graph",
    "threads",
    "out",
    "init_from",
    "resume",
    "progress",
    "json",
    "overwrite",
];

/// Every key, in the order in which configs are written.
pub fn keys() -> impl Iterator<Item = &'static Key> + Clone {
    SECTIONS.into_iter().flatten()
}

/// The key of this name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    keys().find(|key| key.name == name)
}

/// The key of this name, which is one of the rows.
pub(super) fn row(name: &str) -> &'static Key {
    find(name).unwrap_or_else(|| panic!("the config has no row `{name}`"))
}

/// The keys whose names begin with `prefix`, a section or part of a name; all keys for "".
///
/// # Errors
/// [`ConfigError::NoSuchPrefix`].
pub fn keys_with_prefix(prefix: &str) -> Result<Vec<&'static Key>, ConfigError> {
    let found: Vec<_> = keys().filter(|key| key.name.starts_with(prefix)).collect();
    if found.is_empty() {
        return Err(ConfigError::NoSuchPrefix { prefix: prefix.to_owned(), hint: hint(prefix) });
    }
    Ok(found)
}

/// The names of the sections, in order.
pub(super) fn sections() -> Vec<&'static str> {
    SECTIONS.iter().map(|keys| keys[0].section()).filter(|section| !section.is_empty()).collect()
}

/// Whether `name` is a section.
pub(super) fn is_section(name: &str) -> bool {
    sections().contains(&name)
}

/// Advice for the unknown key `name`: the nearest known one, or the list that it is missing from.
pub(super) fn hint(name: &str) -> String {
    let last = name.rsplit('.').next().unwrap_or(name);
    let (section, _) = name.split_once('.').unwrap_or((name, ""));
    // The right name in the wrong section is nearer than a similar name in the right one.
    let elsewhere = keys().find(|key| key.short_name() == last);
    if let Some(key) = elsewhere.or_else(|| keys().find(|key| key.synonyms.contains(&last))) {
        return format!("did you mean `{}`?", key.name);
    }
    if FLAGS.contains(&last) {
        return format!("it is a flag of the command line: --{}", last.replace('_', "-"));
    }
    let own_section = keys().filter(|key| key.section() == section);
    if let Some(name) = nearest(name, own_section.clone().map(|key| key.name))
        .or_else(|| nearest(name, keys().map(|key| key.name)))
    {
        return format!("did you mean `{name}`?");
    }
    if is_section(section) {
        let names: Vec<_> = own_section.map(Key::short_name).collect();
        return format!("the keys of [{section}] are {}", names.join(", "));
    }
    let sections = sections();
    match nearest(section, sections.iter().copied()) {
        Some(section) => format!("did you mean the section [{section}]?"),
        None => format!("the sections are {}", sections.join(", ")),
    }
}

/// The name among `names` that a user most likely meant: one that continues or ends with the word, else the one nearest in
/// spelling.
pub(super) fn similar<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let continues =
        |name: &str| word.len() > 1 && name.strip_prefix(word).is_some_and(|rest| rest.starts_with('_'));
    let ends = |name: &str| word.len() > 1 && name.strip_suffix(word).is_some_and(|rest| rest.ends_with('_'));
    let find = |fits: &dyn Fn(&str) -> bool| names.iter().copied().find(|name| fits(name));
    find(&continues).or_else(|| find(&ends)).or_else(|| nearest(word, names.iter().copied()))
}

/// The candidate nearest to `word`, at most a third of the word's length in edits away.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= (word.chars().count() / 3).clamp(1, 4))
        .map(|(_, candidate)| candidate)
}
