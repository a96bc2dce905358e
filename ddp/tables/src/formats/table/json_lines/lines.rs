//! Splits the lines of a file into keys and values.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use ddp::storage::user_file;
use memchr::memchr;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::formats::compression::Compression;
use crate::formats::error::{Result, RowsError};
use crate::formats::table::csv::{Input, unreadable};
use crate::formats::table::json_lines::array;
use crate::formats::table::json_lines::array::ArrayFault;
use crate::formats::table::source::Record;

/// The lines of a file.
pub(super) struct Lines {
    path: PathBuf,
    input: Input,
    pub(super) n_bytes: Option<u64>,
}

/// Objects within more objects than this stay text.
const MAX_DEPTH: usize = 32;

/// Cells of a table per value of its file, beyond those of a small table. One with more is no table: a cell takes about as much time
/// as a value, and a file of a few MB would take hours.
const CELLS_PER_VALUE: u64 = 1000;
const FREE_CELLS: u64 = 4_000_000;

/// Names of the columns of a file, by key.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    /// Keys in the order in which they first appear.
    keys: Vec<Key>,
    index: HashMap<String, usize>,
    pub(super) n_columns: usize,
    n_rows: u64,
    /// Keys of all lines.
    n_values: u64,
}

#[derive(Debug, Clone)]
struct Key {
    name: String,
    /// Index of its first column.
    first: usize,
    /// Number of elements of a list; `None` for one value.
    len: Option<usize>,
    /// Whether some line has another value than null.
    has_values: bool,
    /// Number of the last row that has it.
    row: u64,
}

/// The cells of one line, as text; empty where a value is missing.
#[derive(Debug, Default)]
pub(super) struct Cells {
    text: Vec<u8>,
    /// Range of each cell in `text`.
    ranges: Vec<(usize, usize)>,
    /// Whether each cell is a string.
    strings: Vec<bool>,
    /// The cells in the order of the columns, joined, and the end of each.
    joined: Vec<u8>,
    ends: Vec<usize>,
}

impl Lines {
    /// The lines of `path`, each read within `memory_bytes`.
    pub(super) fn open(path: &Path, memory_bytes: u64) -> Result<Self> {
        let file = user_file::open("data file", path)?;
        let compression = Compression::from_opened(&file, path);
        let length = file.metadata().ok().filter(|data| data.is_file() && compression == Compression::None);
        let n_bytes = length.map(|data| data.len());
        let content = compression.reader(file, path)?;
        let content = array::lines(content).map_err(|error| fault_of(path, error))?;
        let input = Input::new(content).map_err(|error| fault_of(path, error))?;
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
            if !self.input.next_line().map_err(|error| fault_of(&self.path, error))? {
                return Ok(None);
            }
            let (number, rest) = (self.input.line(), self.input.rest());
            let len = memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
            let line = rest[..len].trim_ascii();
            let taken = match line {
                b"" => None,
                line => Some(match serde_json::from_slice(line) {
                    Ok(object) => take(number, flattened(object, 0))?,
                    Err(error) => {
                        let malformed = |error| malformed(&self.path, number, line, &error);
                        let Some(line) = without_nan(line) else { return Err(malformed(error)) };
                        take(number, flattened(serde_json::from_slice(&line).map_err(malformed)?, 0))?
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

/// The error of a file whose lines can't be read.
fn fault_of(path: &Path, error: io::Error) -> RowsError {
    match error.get_ref().and_then(|error| error.downcast_ref::<ArrayFault>()) {
        Some(fault) => RowsError::Malformed {
            path: path.to_owned(),
            format: "JSON",
            reason: fault.to_string(),
            hint: "is the file cut off? a table is one array of objects, or one object per line",
        },
        None => unreadable(path, error),
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

fn malformed(path: &Path, number: u64, line: &[u8], error: &serde_json::Error) -> RowsError {
    let rest = line.get(error.column().saturating_sub(1)..).unwrap_or_default();
    let is_infinity = rest.starts_with(b"Infinity") || rest.starts_with(b"nfinity");
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or_default();
    RowsError::Malformed {
        path: path.to_owned(),
        format: "JSON lines",
        reason: format!("line {number}, character {}: {reason}", error.column()),
        hint: if is_infinity {
            "Infinity is not JSON: write null for a missing value"
        } else {
            "each line is one object, such as {\"x\": 1.5, \"label\": 0}"
        },
    }
}

/// The error of two columns of one name: a key of an object within an object has a path for its name.
fn two_of_one_name(path: &Path, line: Option<u64>, name: &str) -> RowsError {
    let place = line.map_or(String::new(), |line| format!("line {line}: "));
    RowsError::Malformed {
        path: path.to_owned(),
        format: "JSON lines",
        reason: format!("{place}two of its columns are named \"{name}\""),
        hint: "rename one of them",
    }
}

impl Key {
    fn new(name: &str) -> Self {
        Key { name: name.to_owned(), first: 0, len: None, has_values: false, row: 0 }
    }
}

impl Keys {
    /// The keys of all lines of a file; a list in a column of `dropped` is one cell.
    pub(super) fn from_file(path: &Path, dropped: &[String], memory_bytes: u64) -> Result<Self> {
        let mut keys = Keys::default();
        let mut lines = Lines::open(path, memory_bytes)?;
        let mut add = |line: u64, object: Object<'_>| {
            keys.add(&object, dropped).map_or(Ok(()), |name| Err(two_of_one_name(path, Some(line), &name)))
        };
        while lines.next(&mut add)?.is_some() {}
        if keys.n_cells() > CELLS_PER_VALUE * keys.n_values + FREE_CELLS {
            return Err(keys.too_many(path));
        }
        keys.drop_absent_objects();
        for key in &mut keys.keys {
            key.first = keys.n_columns;
            keys.n_columns += key.len.unwrap_or(1);
        }
        if keys.keys.iter().any(|key| key.len.is_some()) {
            let (names, mut seen) = (keys.names(), HashSet::new());
            if let Some(name) = names.iter().find(|name| !seen.insert(*name)) {
                return Err(two_of_one_name(path, None, name));
            }
        }
        Ok(keys)
    }

    /// Cells of a table with a column for each key.
    fn n_cells(&self) -> u64 {
        self.n_rows.saturating_mul(self.keys.len() as u64)
    }

    /// The error of a file most of whose lines lack most keys: the time of all that follows grows with its cells.
    fn too_many(&self, path: &Path) -> RowsError {
        let (n_rows, n_keys, n_values) = (self.n_rows, self.keys.len(), self.n_values);
        let example = |at: Option<&Key>| at.map_or(String::new(), |key| key.name.chars().take(60).collect());
        RowsError::Malformed {
            path: path.to_owned(),
            format: "JSON lines",
            reason: format!(
                "each row has other keys: {n_rows} rows have {n_keys} keys, from {:?} to {:?}, and {n_values} values in {} cells",
                example(self.keys.first()),
                example(self.keys.last()),
                self.n_cells()
            ),
            hint: "a key is a column: write what differs from row to row as a value, such as {\"id\": \"a7\", \"x\": 1.5}",
        }
    }

    /// Removes keys that are null in each line, but for lines that have an object there: `"a": null` next to `"a": {"b": 1}`.
    fn drop_absent_objects(&mut self) {
        let absent: HashSet<&str> =
            self.keys.iter().filter(|key| !key.has_values).map(|key| key.name.as_str()).collect();
        let lens: HashSet<usize> = absent.iter().map(|name| name.len()).collect();
        let mut objects = HashSet::new();
        for Key { name, .. } in &self.keys {
            let prefixes = name.match_indices('.').filter(|(at, _)| lens.contains(at));
            objects.extend(prefixes.map(|(at, _)| &name[..at]).filter(|prefix| absent.contains(prefix)));
        }
        if objects.is_empty() {
            return;
        }
        let objects: HashSet<String> = objects.into_iter().map(str::to_owned).collect();
        self.keys.retain(|key| !objects.contains(&key.name));
        self.index = self.keys.iter().enumerate().map(|(at, key)| (key.name.clone(), at)).collect();
    }

    /// Adds the keys of a row; returns the name of one that it has twice.
    fn add(&mut self, object: &Object<'_>, dropped: &[String]) -> Option<String> {
        self.n_rows += 1;
        self.n_values += object.0.len() as u64;
        for (n, (name, value)) in object.0.iter().enumerate() {
            let at = match self.place(n, name) {
                Some(at) => at,
                None => {
                    self.index.insert(name.to_string(), self.keys.len());
                    self.keys.push(Key::new(name));
                    self.keys.len() - 1
                }
            };
            let key = &mut self.keys[at];
            if std::mem::replace(&mut key.row, self.n_rows) == self.n_rows {
                return Some(key.name.clone());
            }
            key.has_values |= value.get() != "null";
            if let Some(items) = items(value).filter(|_| key.len.is_none() && !dropped.contains(&key.name)) {
                key.len = Some(items.len()).filter(|&len| len > 0);
            }
        }
        None
    }

    /// The index of a key, which is expected to be number `n`.
    fn place(&self, n: usize, name: &str) -> Option<usize> {
        match self.keys.get(n) {
            Some(key) if key.name == name => Some(n),
            _ => self.index.get(name).copied(),
        }
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
            let at = match self.place(n, name) {
                Some(at) => at,
                None if value.get() == "null" => continue,
                None => return Err((name.to_string(), Fault::NewKey)),
            };
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
            Some(_) => {
                let Unescaped(text) = serde_json::from_str(raw).expect("its line was parsed before");
                self.text.extend_from_slice(&text);
            }
            None => self.text.extend_from_slice(raw.as_bytes()),
        }
        self.ranges[column] = (start, self.text.len());
        self.strings[column] = raw.starts_with('"');
    }

    /// The cells as a record. Keys may come in any order, and cells come in that of the columns.
    pub(super) fn record(&mut self, line: u64, is_bad: bool) -> Record<'_> {
        self.joined.clear();
        self.ends.clear();
        for &(start, end) in &self.ranges {
            self.joined.extend_from_slice(&self.text[start..end]);
            self.ends.push(self.joined.len());
        }
        Record { line, cells: &self.joined, ends: &self.ends, gap: 0, strings: &self.strings, is_bad }
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

/// The object with the values of its objects in their place: `{"a": {"b": 1}}` becomes `{"a.b": 1}`.
fn flattened(object: Object<'_>, depth: usize) -> Object<'_> {
    let is_object = |value: &RawValue| value.get().starts_with('{');
    if depth == MAX_DEPTH || !object.0.iter().any(|(_, value)| is_object(value)) {
        return object;
    }
    let mut entries = Vec::with_capacity(object.0.len());
    for (name, value) in object.0 {
        // The value was parsed before as a part of its line.
        match is_object(value).then(|| serde_json::from_str(value.get())) {
            Some(Ok(inner)) => {
                let inner = flattened(inner, depth + 1).0.into_iter();
                entries.extend(inner.map(|(key, value)| (Cow::Owned(format!("{name}.{key}")), value)));
            }
            _ => entries.push((name, value)),
        }
    }
    Object(entries)
}

/// The bytes of a text. Half of a surrogate pair, as in a text that was cut within an emoji, is no character: its bytes are not UTF-8, as a
/// use of the cell reports.
struct Unescaped(Vec<u8>);

impl<'de> Deserialize<'de> for Unescaped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_bytes(Text).map(Unescaped)
    }
}

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
    fn objects_in_objects_become_values_of_their_own() {
        let flat = |line: &str| -> Vec<(String, String)> {
            let object = flattened(serde_json::from_str(line).unwrap(), 0);
            object.0.iter().map(|(name, value)| (name.to_string(), value.get().to_owned())).collect()
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let got = flat(r#"{"x": 1, "a": {"b": {"c": [1, 2]}, "d": "{", "e": {}}, "y": null}"#);
        assert_eq!(got, [pair("x", "1"), pair("a.b.c", "[1, 2]"), pair("a.d", "\"{\""), pair("y", "null")]);
        // Without end on the stack.
        let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        let got = flat(&deep);
        assert_eq!(got[0].0, ["a"; MAX_DEPTH + 1].join("."));
        assert!(got[0].1.starts_with("{\"a\":{"));
    }

    #[test]
    fn nan_becomes_null_except_in_texts() {
        let without = |line: &str| without_nan(line.as_bytes()).map(|line| String::from_utf8(line).unwrap());
        assert_eq!(without(r#"{"a": NaN, "b": [1, NaN]}"#).unwrap(), r#"{"a": null, "b": [1, null]}"#);
        assert_eq!(without(r#"{"NaN": "\"NaN", "b": NaN}"#).unwrap(), r#"{"NaN": "\"NaN", "b": null}"#);
        assert_eq!(without(r#"{"a": "NaN"}"#), None);
    }
}
