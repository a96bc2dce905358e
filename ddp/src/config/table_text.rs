//! How the text of a table is read: delimiter and dates.

use super::value::config_enum;

config_enum! {
    /// Delimiter of the cells of a text file.
    pub enum Delimiter {
        /// The one that splits the first rows into equally many cells.
        Auto = "auto",
        /// A comma.
        Comma = ",",
        /// A semicolon, as spreadsheets write where the comma is the decimal mark.
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
    /// Mark between the whole part of a number and its fraction; the other one separates thousands.
    pub enum Decimal {
        /// A point in comma-separated files, otherwise by the numbers of the first rows.
        Auto = "auto",
        /// A point.
        Point = ".",
        /// A comma.
        Comma = ",",
    }
}

config_enum! {
    /// Features that a column of dates becomes.
    pub enum Datetime {
        /// One: the seconds since 1970-01-01 00:00 UTC.
        Seconds = "seconds",
        /// Seven: year, month, day, weekday (Monday is 0), hour, minute, second.
        Parts = "parts",
    }
}
