//! Kinds of layers from a list: their variants of `LayerConfig`, and the reading and writing of their settings.
//!
//! The list is in `layers.rs`.

use toml::Value;

use super::error::{ConfigError, Result};
use super::key::{Key, KeyDefault};
use super::nested::Place;
use super::setting::Setting;
use super::value::{ConfigEnum, ConfigValue, parse};

/// Defines `LayerConfig`, the reading and writing of its settings, and `for_each_layer_kind!` from a list of kinds.
///
/// A row is `name: Variant { setting: type, .. }`, or `name: Variant(setting: type)` for a variant with an unnamed field. The
/// name is used in the config and for the file in `model/layers/`; each setting has the name of its key.
macro_rules! layer_kinds {
    ($(
        $(#[$doc:meta])*
        $name:ident: $variant:ident
            $({ $($(#[$setting_doc:meta])* $setting:ident: $type:ty),+ $(,)? })?
            $(( $only:ident: $only_type:ty ))?
    ),+ $(,)?) => {
        /// A layer of the list.
        #[derive(Debug, Clone, PartialEq)]
        pub enum LayerConfig {
            $($(#[$doc])* $variant $({ $($(#[$setting_doc])* $setting: $type),+ })? $(($only_type))?),+
        }

        /// Names of the kinds, in the order of the list.
        const NAMES: &[&str] = &[$(stringify!($name)),+];

        /// Each kind with its keys, besides `kind` and `repeat`.
        const KINDS: &[(&str, &[&str])] =
            &[$((stringify!($name), &[$($(stringify!($setting)),+)? $(stringify!($only))?])),+];

        impl LayerConfig {
            /// Reads the settings of a layer of this kind.
            fn read(kind: &str, table: &LayerTable<'_>) -> Result<Self> {
                Ok(match kind {
                    $(stringify!($name) => LayerConfig::$variant
                        $({ $($setting: LayerSetting::read(table, stringify!($setting))?),+ })?
                        $((LayerSetting::read(table, stringify!($only))?))?,)+
                    _ => unreachable!("`kind` is one of `NAMES`"),
                })
            }

            /// The kind, and its other keys with their values as TOML.
            fn settings(&self) -> (&'static str, Vec<(&'static str, Option<String>)>) {
                match self {
                    $(LayerConfig::$variant $({ $($setting),+ })? $(($only))? => (
                        stringify!($name),
                        vec![
                            $($((stringify!($setting), LayerSetting::write($setting))),+)?
                            $((stringify!($only), LayerSetting::write($only)))?
                        ],
                    )),+
                }
            }
        }

        /// Calls a macro with the name, the variant and the names of the settings of each kind.
        macro_rules! for_each_layer_kind {
            ($callback:ident) => { $callback! { $($name: $variant $({ $($setting),+ })? $(($only))?),+ } };
        }
        pub(crate) use for_each_layer_kind;
    };
}
pub(super) use layer_kinds;

/// The keys of one layer as they are given in the config.
pub(super) struct LayerTable<'a> {
    pub(super) values: &'a toml::Table,
    pub(super) keys: &'static [Key],
    pub(super) here: Place<'a>,
    /// `model.bias`.
    pub(super) bias: bool,
}

impl LayerTable<'_> {
    /// The value of this key, or the key's default.
    pub(super) fn setting(&self, name: &str) -> Option<Setting> {
        let key = self.keys.iter().find(|key| key.short_name() == name).expect("a key of layers");
        let default = || match key.default {
            KeyDefault::Value(text) => Some(parse(text)),
            // `bias` is the only key whose default depends on another key.
            KeyDefault::Depends(_) => Some(Value::Boolean(self.bias)),
            KeyDefault::Absent(_) => None,
        };
        let value = self.values.get(name).cloned().or_else(default)?;
        Some(Setting { key, value, raw: None, origin: self.here.setting.origin.clone() })
    }

    /// The value of a key that the layer must have unless the key has a default.
    pub(super) fn require(&self, name: &str) -> Result<Setting> {
        self.setting(name).ok_or_else(|| self.lacks(format!("{} with `{name}`", self.here.tables)))
    }

    /// The error for a layer that lacks a key, and so is not as `expected`.
    pub(super) fn lacks(&self, expected: String) -> ConfigError {
        self.here.wrong(expected, "none", self.here.setting.for_example())
    }

    /// Adds the place of the layer to the error of one of its keys.
    pub(super) fn within(&self, mut error: ConfigError) -> ConfigError {
        if let ConfigError::BadValue { got, .. } | ConfigError::WrongType { got, .. } = &mut error {
            *got += &format!(" in {}", self.here.table);
        }
        // `--set` can only set the whole list.
        if let ConfigError::WrongType { key, example, .. } = &mut error
            && let Some(row) = self.keys.iter().find(|row| row.name == key)
        {
            *example = format!("{} = {}", row.short_name(), row.example);
        }
        error
    }
}

/// A setting of a layer.
pub(super) trait LayerSetting: Sized {
    /// Reads the key `name`.
    fn read(table: &LayerTable<'_>, name: &str) -> Result<Self>;

    /// Writes the value as TOML; `None` if the key is left out.
    fn write(&self) -> Option<String>;
}

/// A key that the layer must have unless the key has a default.
impl<T: ConfigValue> LayerSetting for T {
    fn read(table: &LayerTable<'_>, name: &str) -> Result<Self> {
        ConfigValue::read(&table.require(name)?).map_err(|error| table.within(error))
    }

    fn write(&self) -> Option<String> {
        Some(ConfigValue::write(self))
    }
}

/// A name that the layer may omit.
impl<T: ConfigEnum> LayerSetting for Option<T> {
    fn read(table: &LayerTable<'_>, name: &str) -> Result<Self> {
        table.setting(name).as_ref().map(ConfigValue::read).transpose().map_err(|error| table.within(error))
    }

    fn write(&self) -> Option<String> {
        self.as_ref().map(ConfigValue::write)
    }
}
