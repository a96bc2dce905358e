//! `ddp-train data cache ls` and `clear`: the tables that `data.cache` keeps.

use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use ddp::host_memory::size;
use ddp::report::metrics::json_line;
use ddp::storage::user_file::FileError;
use ddp::storage::write_error::WriteError;
use ddp_tables::kept_tables::{Entry, entries};
use serde::Serialize;

use crate::cli::{CacheArgs, CacheCommand};
use crate::error::Result;
use crate::report::page::parts::duration;
use crate::report::stdout::{print_result, table};

/// Report of one kept table.
#[derive(Debug, Serialize)]
struct Line<'a> {
    path: &'a Path,
    size_bytes: u64,
    age_s: f64,
}

pub(super) fn cache(command: &CacheCommand) -> Result<()> {
    let failed = |path: &Path, source| ddp::Error::from(WriteError { path: path.to_owned(), source });
    let (CacheCommand::Ls(args) | CacheCommand::Clear(args)) = command;
    let CacheArgs { folder, json } = args;
    let entries = entries(folder).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => FileError::Missing { what: "folder", path: folder.clone() },
        _ => FileError::Unreadable { what: "folder", path: folder.clone(), source },
    })?;
    if matches!(command, CacheCommand::Clear(_)) {
        for path in entries.iter().flat_map(|entry| &entry.paths) {
            fs::remove_file(path).map_err(|source| failed(path, source))?;
        }
    }
    let lines: Vec<Line<'_>> = entries.iter().map(line).collect();
    if *json {
        return Ok(print_result(&lines.iter().map(json_line).collect::<String>())?);
    }
    let total = size(lines.iter().map(|line| line.size_bytes).sum());
    if matches!(command, CacheCommand::Clear(_)) {
        let tables = if lines.len() == 1 { "table" } else { "tables" };
        return Ok(print_result(&format!("removed {} {tables}, {total}\n", lines.len()))?);
    }
    let rows = lines
        .iter()
        .map(|line| vec![line.path.display().to_string(), size(line.size_bytes), duration(line.age_s)]);
    Ok(print_result(&table(&["<table", "size", "age"], &rows.collect::<Vec<_>>()))?)
}

fn line(entry: &Entry) -> Line<'_> {
    let age = SystemTime::now().duration_since(entry.made).unwrap_or(Duration::ZERO);
    Line { path: &entry.paths[0], size_bytes: entry.n_bytes, age_s: age.as_secs_f64().round() }
}
