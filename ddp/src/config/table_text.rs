//! Options for reading a table: first line, delimiter, decimal mark and dates.

use toml::Value;

use super::error::Result;
use super::setting::Setting;
use super::value::{ConfigValue, config_enum};
use crate::config::table_options::{DataFormat, Decimal, Delimiter, Header};

config_enum!(named DataFormat);
config_enum!(named Delimiter);
config_enum!(named Decimal);

impl ConfigValue for Header {
    fn read(setting: &Setting) -> Result<Self> {
        match &setting.value {
            Value::Boolean(true) => Ok(Header::Present),
            Value::Boolean(false) => Ok(Header::Absent),
            Value::String(text) if text == "auto" => Ok(Header::Auto),
            _ => Err(setting.bad("true, false or \"auto\"", setting.key.hint)),
        }
    }

    fn write(&self) -> String {
        match self {
            Header::Auto => "\"auto\"",
            Header::Present => "true",
            Header::Absent => "false",
        }
        .to_owned()
    }
}

config_enum! {
    /// Features that a column of dates is converted to.
    pub enum Datetime {
        /// One feature: the seconds since 1970-01-01 00:00 UTC.
        Seconds = "seconds",
        /// Seven features: year, month, day, weekday (Monday is 0), hour, minute, second.
        Parts = "parts",
    }
}
