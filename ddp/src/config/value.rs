//! Rust types of config values: each is read from a setting and written as TOML.

use serde::Deserialize as _;
use toml::Value;
use toml::de::ValueDeserializer;

use super::error::Result;
use super::key::Kind;
use super::setting::Setting;

/// Type of a key's value in the checked config.
pub(super) trait ConfigValue: Sized {
    /// Reads and checks the value by the key's row.
    fn read(setting: &Setting) -> Result<Self>;

    /// Writes the value as TOML; [`ConfigValue::read`] reads it back.
    fn write(&self) -> String;
}

/// An enum whose values have names in the config.
pub(super) trait ConfigEnum: Copy + PartialEq + 'static {
    /// The names, in the order in which help lists them.
    const NAMES: &'static [&'static str];
    /// Every value, in the same order.
    const VALUES: &'static [Self];

    /// The name in the config.
    fn config_name(self) -> &'static str {
        let place = Self::VALUES.iter().position(|value| *value == self);
        Self::NAMES[place.expect("`VALUES` holds every value")]
    }
}

/// Defines an enum with its names in the config (`ALL`, `NAMES`, `name()`, `Display`), or implements only
/// [`ConfigEnum`] for an enum that is defined elsewhere: with `impl` by the names given, with `named` by its own.
macro_rules! config_enum {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident { $($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)? }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$doc])* $variant),+ }

        impl $type {
            /// Every value, in the order in which help lists them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in the config.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        $crate::config::value::config_enum!(impl $type { $($variant = $name),+ });
    };
    (impl $type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $crate::config::value::ConfigEnum for $type {
            const NAMES: &'static [&'static str] = &[$($name),+];
            const VALUES: &'static [Self] = &[$($type::$variant),+];
        }
    };
    (named $type:ident) => {
        impl $crate::config::value::ConfigEnum for $type {
            const NAMES: &'static [&'static str] = $type::NAMES;
            const VALUES: &'static [Self] = &$type::ALL;
        }
    };
}
pub(super) use config_enum;

impl ConfigValue for bool {
    fn read(setting: &Setting) -> Result<Self> {
        setting.bool()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for u64 {
    fn read(setting: &Setting) -> Result<Self> {
        setting.count()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for usize {
    fn read(setting: &Setting) -> Result<Self> {
        Ok(setting.count()? as usize)
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for f64 {
    fn read(setting: &Setting) -> Result<Self> {
        setting.number()
    }

    /// Writes the shortest string that reads back as the same number, with a point or exponent, as TOML requires.
    fn write(&self) -> String {
        format!("{self:?}")
    }
}

impl ConfigValue for String {
    fn read(setting: &Setting) -> Result<Self> {
        setting.text()
    }

    fn write(&self) -> String {
        Value::from(self.as_str()).to_string()
    }
}

impl ConfigValue for Vec<String> {
    fn read(setting: &Setting) -> Result<Self> {
        setting.texts()
    }

    fn write(&self) -> String {
        list(self, String::write)
    }
}

impl ConfigValue for Vec<usize> {
    fn read(setting: &Setting) -> Result<Self> {
        Ok(setting.counts()?.into_iter().map(|count| count as usize).collect())
    }

    fn write(&self) -> String {
        list(self, usize::write)
    }
}

impl ConfigValue for [f64; 2] {
    fn read(setting: &Setting) -> Result<Self> {
        debug_assert!(matches!(setting.key.kind, Kind::Numbers { len: Some(2), .. }));
        Ok(setting.numbers()?.try_into().expect("the row asks for two numbers"))
    }

    fn write(&self) -> String {
        list(self, f64::write)
    }
}

impl<T: ConfigEnum> ConfigValue for T {
    fn read(setting: &Setting) -> Result<Self> {
        let name = setting.name()?;
        let place = T::NAMES.iter().position(|other| *other == name);
        Ok(T::VALUES[place.expect("the row has the enum's names")])
    }

    fn write(&self) -> String {
        format!("\"{}\"", self.config_name())
    }
}

/// Parses a value as typed: TOML, or a word.
pub(super) fn typed(text: &str) -> Value {
    let parsed = ValueDeserializer::parse(text).and_then(Value::deserialize);
    parsed.unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Parses TOML text of a row, or text that this crate wrote.
pub(super) fn parse(text: &str) -> Value {
    ValueDeserializer::parse(text).and_then(Value::deserialize).expect("rows and saved values are TOML")
}

/// Writes a list in brackets.
pub(super) fn list<T>(items: &[T], write: impl Fn(&T) -> String) -> String {
    format!("[{}]", items.iter().map(write).collect::<Vec<_>>().join(", "))
}
