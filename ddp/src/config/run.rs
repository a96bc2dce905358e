//! `[run]`: the folder of a run.

use super::error::Result;
use super::key::{Kind, key};
use super::raw::RawConfig;
use super::section::section;
use super::setting::Setting;
use super::value::ConfigValue;

section! {
    /// `[run]`
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RunConfig in "run", read(raw: &RawConfig), write {
        /// Permissions of the files that the run creates; `None` uses the umask of the process.
        file_mode: Option<FileMode> [optional] = key(Kind::Text)
            .help("Permissions of the files that a run creates (weights, configs, checkpoints, logs), as in chmod; folders get x where files have r")
            .absent("the umask of the process")
            .example(r#""640""#)
            .hint("\"600\" is for the owner alone, \"640\" lets the group read, \"644\" lets all read")
            .may_change();
    }
}

/// Permissions of files: read and write for owner, group and others. Everyone who may read may also search folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(u32);

impl ConfigValue for FileMode {
    fn read(setting: &Setting) -> Result<Self> {
        let bad = || setting.bad("three octal digits in quotes: 6, then twice 0, 4 or 6", setting.key.hint);
        FileMode::parse(&String::read(setting)?).ok_or_else(bad)
    }

    fn write(&self) -> String {
        format!("{:03o}", self.0).write()
    }
}

impl FileMode {
    /// The owner must be able to read and write, else the run could not continue.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
        let is_mode = matches!(digits.as_bytes(), [b'6', group, others] if [group, others].iter().all(|digit| b"046".contains(digit)));
        u32::from_str_radix(digits, 8).ok().filter(|_| is_mode).map(FileMode)
    }

    /// The umask that gives files these permissions, and folders also x wherever files have r.
    pub fn umask(self) -> u32 {
        0o777 & !(self.0 | (self.0 & 0o444) >> 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_a_umask() {
        for (text, files, folders) in [
            ("600", 0o600, 0o700),
            ("640", 0o640, 0o750),
            ("0644", 0o644, 0o755),
            ("660", 0o660, 0o770),
            ("666", 0o666, 0o777),
        ] {
            let mask = FileMode::parse(text).unwrap().umask();
            assert_eq!((0o666 & !mask, 0o777 & !mask), (files, folders), "{text}");
        }
        for text in ["", "6", "64", "6400", "00640", "755", "400", "060", "670", "620", "rw-", "-40", "+40"] {
            assert_eq!(FileMode::parse(text), None, "{text}");
        }
    }
}
