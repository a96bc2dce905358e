//! `[run]`: the folder of a run.

use super::error::Result;
use super::key::{Key, Kind, key};
use super::raw::RawConfig;
use super::value::ConfigValue as _;
use super::writer::Writer;

/// `[run]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunConfig {
    /// Permissions of the files that the run creates; `None` for those of the process's umask.
    pub file_mode: Option<FileMode>,
}

/// Permissions of files: read and write of owner, group and others. Folders may be searched by whoever may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(u32);

pub(super) const KEYS: &[Key] = &[key("run.file_mode", Kind::Text)
    .help("Permissions of the files that a run creates (weights, configs, checkpoints, logs), as in chmod; folders get x where files have r")
    .absent("the umask of the process")
    .example(r#""640""#)
    .hint("\"600\" is for the owner alone, \"640\" lets the group read, \"644\" lets all read")
    .may_change()];

impl RunConfig {
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let Some(setting) = raw.given("run.file_mode") else { return Ok(RunConfig { file_mode: None }) };
        let mode = FileMode::parse(&String::read(setting)?);
        let bad = || setting.bad("three octal digits in quotes: 6, then twice 0, 4 or 6", setting.key.hint);
        Ok(RunConfig { file_mode: Some(mode.ok_or_else(bad)?) })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put_optional("run.file_mode", self.file_mode.map(|mode| format!("{:03o}", mode.0)).as_ref());
    }
}

impl FileMode {
    /// The owner reads and writes, else the run could not continue.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
        let is_mode = matches!(digits.as_bytes(), [b'6', group, others] if [group, others].iter().all(|digit| b"046".contains(digit)));
        u32::from_str_radix(digits, 8).ok().filter(|_| is_mode).map(FileMode)
    }

    /// The umask under which files get these permissions, and folders also x where files have r.
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
