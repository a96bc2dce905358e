//! Options for reading the text of a table: first line, delimiter, decimal mark and dates.

use toml::Value;

use super::error::Result;
use super::setting::Setting;
use super::value::{ConfigValue, config_enum};

/// Whether the first line of a text file names the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// It names the columns; a line that looks like a row of data is refused.
    Auto,
    /// It names the columns.
    Present,
    /// It is a row of data, and the columns are called `column_1`, `column_2` and so on.
    Absent,
}

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
    /// Delimiter of the cells of a text file.
    pub enum Delimiter {
        /// The delimiter that splits the first rows into the same number of cells.
        Auto = "auto",
        /// A comma.
        Comma = ",",
        /// A semicolon, used by spreadsheets if the comma is the decimal mark.
        Semicolon = ";",
        /// A tab.
        Tab = "tab",
        /// A vertical bar.
        Pipe = "|",
        /// Runs of spaces and tabs.
        Whitespace = "whitespace",
    }
}

config_enum! {
    /// Decimal mark of numbers; the other mark separates thousands.
    pub enum Decimal {
        /// A point in comma-separated files, else inferred from the numbers of the first rows.
        Auto = "auto",
        /// A point.
        Point = ".",
        /// A comma.
        Comma = ",",
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
