//! Config values from the command line: `--set` arguments, and the flags and arguments that are short forms of keys.

use toml::Value;

/// Settings of the command line, which override those of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// `--set` arguments, as typed; a later one replaces an earlier one.
    pub sets: Vec<String>,
    /// Short forms; each excludes a `--set` of the same key.
    pub shorts: Vec<ShortForm>,
    /// Name of the run's folder, which a run without a name has.
    pub folder: Option<String>,
}

/// A flag or argument that is the short form of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortForm {
    /// Key that it sets, with its section.
    pub key: &'static str,
    /// The flag, such as `--epochs`; "" for an argument without one.
    pub flag: &'static str,
    /// The value as typed.
    pub raw: String,
    /// The value that it stands for.
    pub value: Value,
}

impl Overrides {
    /// Makes overrides of `--set` arguments only.
    pub fn from_sets(sets: &[String]) -> Self {
        Overrides { sets: sets.to_vec(), ..Overrides::default() }
    }

    /// Returns the settings without `keys`.
    pub fn without(mut self, keys: &[&str]) -> Self {
        let stays = |key: &str| !keys.contains(&key.trim());
        self.sets.retain(|set| stays(set.split('=').next().unwrap_or_default()));
        self.shorts.retain(|short| stays(short.key));
        self
    }

    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty() && self.shorts.is_empty()
    }
}

impl ShortForm {
    /// The short form as messages show it.
    pub(super) fn shown(&self) -> String {
        format!("{} {}", self.flag, self.raw).trim().to_owned()
    }
}
