//! Table of keys: its rows in order, and look-ups by name. The reader and the writer take the table as an argument.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::key::Key;
use super::nearest::nearest;

/// Flags of the command line that users may mistake for config keys.
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

/// The rows of all sections, in the order in which configs are written.
#[derive(Debug)]
pub(super) struct KeyTable {
    sections: &'static [&'static [Key]],
    /// Index in this order and row of each key, by name; built by the first look-up.
    by_name: OnceLock<BTreeMap<&'static str, (usize, &'static Key)>>,
}

impl KeyTable {
    /// Makes a table of these sections; no section may be empty.
    pub(super) const fn new(sections: &'static [&'static [Key]]) -> Self {
        KeyTable { sections, by_name: OnceLock::new() }
    }

    /// All keys, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static Key> + Clone + use<> {
        self.sections.iter().copied().flatten()
    }

    fn numbered(&self, name: &str) -> Option<(usize, &'static Key)> {
        let numbered = || self.keys().enumerate().map(|(place, key)| (key.name, (place, key))).collect();
        self.by_name.get_or_init(numbered).get(name).copied()
    }

    /// Finds the key of this name.
    pub(super) fn find(&self, name: &str) -> Option<&'static Key> {
        self.numbered(name).map(|(_, key)| key)
    }

    /// The index and the row of the key of this name, which must exist.
    pub(super) fn numbered_row(&self, name: &str) -> (usize, &'static Key) {
        self.numbered(name).unwrap_or_else(|| panic!("the config has no row `{name}`"))
    }

    /// The row of the key of this name, which must exist.
    pub(super) fn row(&self, name: &str) -> &'static Key {
        self.numbered_row(name).1
    }

    /// The names of the sections, in order.
    pub(super) fn sections(&self) -> Vec<&'static str> {
        self.sections.iter().map(|keys| keys[0].section()).filter(|section| !section.is_empty()).collect()
    }

    /// Whether `name` is a section.
    pub(super) fn is_section(&self, name: &str) -> bool {
        self.sections().contains(&name)
    }

    /// The keys that a flag may mean: by its full name, else by the key's name without its section or by its synonyms from other
    /// programs.
    pub(super) fn for_flag(&self, flag: &str) -> Vec<&'static Key> {
        let name = flag.replace('-', "_");
        if let Some(key) = self.find(&name) {
            return vec![key];
        }
        let means = |key: &&Key| key.short_name() == name || key.synonyms.contains(&name.as_str());
        self.keys().filter(means).collect()
    }

    /// Hint for the unknown key `name`: the nearest known key, or the list of valid keys.
    pub(super) fn hint(&self, name: &str) -> String {
        let last = name.rsplit('.').next().unwrap_or(name);
        let (section, _) = name.split_once('.').unwrap_or((name, ""));
        let is_inside = |key: &&Key| name.strip_prefix(key.name).is_some_and(|rest| rest.starts_with('.'));
        if let Some(key) = self.keys().find(is_inside) {
            return format!("did you mean `{0}`? for example {0} = {1}", key.name, key.example);
        }
        // A synonym that contains a section matches only as a whole.
        if let Some(key) = self.keys().find(|key| key.synonyms.contains(&name)) {
            return format!("did you mean `{}`?", key.name);
        }
        // The right name in the wrong section is a better match than a similar name in the right section.
        let elsewhere = self.keys().find(|key| key.short_name() == last);
        if let Some(key) = elsewhere.or_else(|| self.keys().find(|key| key.synonyms.contains(&last))) {
            return format!("did you mean `{}`?", key.name);
        }
        if FLAGS.contains(&last) {
            return format!("it is a flag of the command line: --{}", last.replace('_', "-"));
        }
        let own_section = self.keys().filter(|key| key.section() == section);
        if let Some(name) = nearest(name, own_section.clone().map(|key| key.name))
            .or_else(|| nearest(name, self.keys().map(|key| key.name)))
        {
            return format!("did you mean `{name}`?");
        }
        if self.is_section(section) {
            let names: Vec<_> = own_section.map(Key::short_name).collect();
            return format!("the keys of [{section}] are {}", names.join(", "));
        }
        let sections = self.sections();
        match nearest(section, sections.iter().copied()) {
            Some(section) => format!("did you mean the section [{section}]?"),
            None => format!("the sections are {}", sections.join(", ")),
        }
    }
}
