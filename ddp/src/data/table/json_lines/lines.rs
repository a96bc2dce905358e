//! Splits the lines of a file into keys and values.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use memchr::memchr;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::data::compression::Compression;
use crate::data::error::{DataError, Result};
use crate::data::table::csv::{Input, unreadable};
use crate::storage::user_file;

/// The lines of a file.
pub(super) struct Lines {
    path: PathBuf,
    input: Input,
    pub(super) n_bytes: Option<u64>,
}

/// Names of the columns of a file, by key.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    /// Keys in the order in which they first appear.
    keys: Vec<Key>,
    index: HashMap<String, usize>,
    pub(super) n_columns: usize,
}

#[derive(Debug, Clone)]
struct Key {
    name: String,
    /// Index of its first column.
    first: usize,
    /// Number of elements of a list; `None` for one value.
    len: Option<usize>,
    /// Whether some line has an object here.
    has_objects: bool,
}

/// The cells of one line, as text; empty where a value is missing.
#[derive(Debug, Default)]
pub(super) struct Cells {
    pub(super) text: Vec<u8>,
    /// Range of each cell in `text`.
    pub(super) ranges: Vec<(usize, usize)>,
    /// Whether each cell is a string.
    pub(super) strings: Vec<bool>,
}

impl Lines {
    /// The lines of `path`, each read within `memory_bytes`.
    pub(super) fn open(path: &Path, memory_bytes: u64) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let compression = Compression::of_file(path);
        let length = file.metadata().ok().filter(|data| data.is_file() && compression == Compression::None);
        let n_bytes = length.map(|data| data.len());
        let content = compression.reader(file, path)?;
        let input = Input::new(content).map_err(|error| unreadable(path, error))?;
        Ok(Lines { path: path.to_owned(), input: input.within(memory_bytes), n_bytes })
    }

    /// Bytes read so far.
    pub(super) fn n_read(&self) -> u64 {
        self.input.n_read()
    }

    /// Calls `take` with the number of the next line, from 1, and its object; returns `None` at the end.
    pub(super) fn next<T>(
        &mut self,
        mut take: impl FnMut(u64, Object<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        loop {
            if !self.input.next_line().map_err(|error| unreadable(&self.path, error))? {
                return Ok(None);
            }
            let (number, rest) = (self.input.line(), self.input.rest());
            let len = memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
            let line = rest[..len].trim_ascii();
            let taken = match line {
                b"" => None,
                line => Some(match serde_json::from_slice(line) {
                    Ok(object) => take(number, object)?,
                    Err(error) => {
                        let malformed = |error| malformed(&self.path, number, line, &error);
                        let Some(line) = without_nan(line) else { return Err(malformed(error)) };
                        take(number, serde_json::from_slice(&line).map_err(malformed)?)?
                    }
                }),
            };
            self.input.skip_line(len);
            if taken.is_some() {
                return Ok(taken);
            }
        }
    }
}

/// The line with null for each NaN, which Python's json.dumps writes although it is not JSON; `None` if there is none.
fn without_nan(line: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(line.len());
    let (mut at, mut has_nan, mut is_text) = (0, false, false);
    while at < line.len() {
        match line[at] {
            b'\\' if is_text => {
                out.push(line[at]);
                at += 1;
                out.extend(line.get(at));
            }
            b'N' if !is_text && line[at..].starts_with(b"NaN") => {
                out.extend_from_slice(b"null");
                has_nan = true;
                at += 2;
            }
            byte => {
                is_text ^= byte == b'"';
                out.push(byte);
            }
        }
        at += 1;
    }
    has_nan.then_some(out)
}

fn malformed(path: &Path, number: u64, line: &[u8], error: &serde_json::Error) -> DataError {
    let rest = line.get(error.column().saturating_sub(1)..).unwrap_or_default();
    let is_infinity = rest.starts_with(b"Infinity") || rest.starts_with(b"nfinity");
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    DataError::Malformed {
        path: path.to_owned(),
        format: "JSON lines",
        reason: format!("line {number}, character {}: {reason}", error.column()),
        hint: match is_infinity {
            true => "Infinity is not JSON: write null for a missing value",
            false => "each line is one object, such as {\"x\": 1.5, \"label\": 0}",
        },
    }
}

impl Keys {
    /// The keys of all lines of a file.
    pub(super) fn of_file(path: &Path, memory_bytes: u64) -> Result<Self> {
        let mut keys = Keys::default();
        let mut lines = Lines::open(path, memory_bytes)?;
        let mut add = |_: u64, object: Object<'_>| {
            keys.add(&object);
            Ok(())
        };
        while lines.next(&mut add)?.is_some() {}
        for key in &mut keys.keys {
            key.first = keys.n_columns;
            keys.n_columns += key.len.unwrap_or(1);
        }
        Ok(keys)
    }

    fn add(&mut self, object: &Object<'_>) {
        for (n, (name, value)) in object.0.iter().enumerate() {
            let at = match self.place(n, name) {
                Some(at) => at,
                None => {
                    self.index.insert(name.to_string(), self.keys.len());
                    self.keys.push(Key { name: name.to_string(), first: 0, len: None, has_objects: false });
                    self.keys.len() - 1
                }
            };
            self.keys[at].has_objects |= value.get().starts_with('{');
            if self.keys[at].len.is_none()
                && let Some(items) = items(value)
            {
                self.keys[at].len = Some(items.len()).filter(|&len| len > 0);
            }
        }
    }

    /// The index of a key, which is expected to be number `n`.
    fn place(&self, n: usize, name: &str) -> Option<usize> {
        match self.keys.get(n) {
            Some(key) if key.name == name => Some(n),
            _ => self.index.get(name).copied(),
        }
    }

    /// Columns of objects.
    pub(super) fn objects(&self) -> Vec<usize> {
        self.keys.iter().filter(|key| key.has_objects).map(|key| key.first).collect()
    }

    /// Names of the columns.
    pub(super) fn names(&self) -> Vec<String> {
        let of_key = |key: &Key| match key.len {
            None => vec![key.name.clone()],
            Some(len) => (0..len).map(|i| format!("{}[{i}]", key.name)).collect(),
        };
        self.keys.iter().flat_map(of_key).collect()
    }

    /// The cells of a line.
    ///
    /// # Errors
    /// The message of a list of another length, or of a key that was not there before.
    pub(super) fn cells(&self, object: &Object<'_>, cells: &mut Cells) -> Result<(), (String, Fault)> {
        cells.text.clear();
        cells.ranges.clear();
        cells.ranges.resize(self.n_columns, (0, 0));
        cells.strings.clear();
        cells.strings.resize(self.n_columns, false);
        let mut fault = None;
        for (n, (name, value)) in object.0.iter().enumerate() {
            let Some(at) = self.place(n, name) else { return Err((name.to_string(), Fault::NewKey)) };
            let key = &self.keys[at];
            match key.len {
                None => cells.put(key.first, value),
                Some(_) if value.get() == "null" => {}
                Some(len) => {
                    let items = items(value).unwrap_or_default();
                    if items.len() != len {
                        // The elements stay empty.
                        fault.get_or_insert_with(|| {
                            (name.to_string(), Fault::Length { expected: len, got: items.len() })
                        });
                        continue;
                    }
                    for (place, item) in items.into_iter().enumerate() {
                        cells.put(key.first + place, item);
                    }
                }
            }
        }
        fault.map_or(Ok(()), Err)
    }
}

/// Fault of a key of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    NewKey,
    Length { expected: usize, got: usize },
}

impl Cells {
    fn put(&mut self, column: usize, value: &RawValue) {
        let start = self.text.len();
        let raw = value.get();
        match raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            _ if raw == "null" => {}
            Some(text) if !text.contains('\\') => self.text.extend_from_slice(text.as_bytes()),
            // The value was parsed before, so its escapes are valid.
            Some(_) => {
                let text: String = serde_json::from_str(raw).unwrap_or_default();
                self.text.extend_from_slice(text.as_bytes());
            }
            None => self.text.extend_from_slice(raw.as_bytes()),
        }
        self.ranges[column] = (start, self.text.len());
        self.strings[column] = raw.starts_with('"');
    }

    pub(super) fn cell(&self, column: usize) -> &[u8] {
        let (start, end) = self.ranges[column];
        &self.text[start..end]
    }
}

/// The elements of a list of numbers, truth values or texts; `None` for another value.
fn items(value: &RawValue) -> Option<Vec<&RawValue>> {
    let items: Vec<&RawValue> =
        value.get().starts_with('[').then(|| serde_json::from_str(value.get()).ok())??;
    let is_single = |item: &&RawValue| !item.get().starts_with(['[', '{']);
    items.iter().all(is_single).then_some(items)
}

/// The keys and values of a line in their order.
pub(super) struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(map.size_hint().unwrap_or(0));
                while let Some((Name(name), value)) = map.next_entry()? {
                    entries.push((name, value));
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Entries).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_becomes_null_except_in_texts() {
        let without = |line: &str| without_nan(line.as_bytes()).map(|line| String::from_utf8(line).unwrap());
        assert_eq!(without(r#"{"a": NaN, "b": [1, NaN]}"#).unwrap(), r#"{"a": null, "b": [1, null]}"#);
        assert_eq!(without(r#"{"NaN": "\"NaN", "b": NaN}"#).unwrap(), r#"{"NaN": "\"NaN", "b": null}"#);
        assert_eq!(without(r#"{"a": "NaN"}"#), None);
    }
}
