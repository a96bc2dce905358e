//! The budgets of CONTRIBUTING.md: files and characters of code of each capability.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with the sources of the crates.
const SOURCES: [&str; 6] =
    ["kernels/src", "comm/src", "ddp/src", "ddp/tables/src", "launch/src", "ddp/cli/src"];

/// A row of the table: what the capability may have, and what it has.
struct Budget {
    name: String,
    max_files: usize,
    max_thousands: usize,
    n_files: usize,
    n_characters: usize,
}

/// Characters of the lines of code without their indentation; comments, blank lines and tests do not count.
fn characters(text: &str) -> usize {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.map(|line| line.chars().count()).sum()
}

/// Whether a file of a crate holds tests.
fn is_test(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.ends_with("tests") || parts.iter().any(|part| ["tests", "testing", "testing.rs"].contains(&&**part))
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The rows below "## Budgets", and the row of each folder or file that they name.
fn table(text: &str) -> (Vec<Budget>, BTreeMap<PathBuf, usize>) {
    let table = text.split("\n## Budgets\n").nth(1).expect("CONTRIBUTING.md has budgets");
    let (mut budgets, mut places) = (Vec::new(), BTreeMap::new());
    for line in table.lines().skip_while(|line| !line.starts_with("|---")).skip(1) {
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else { break };
        let cells: Vec<_> = cells.split(" | ").collect();
        let [name, _, place, max_files, max_thousands] = cells[..] else { panic!("a row of five: {line}") };
        for place in place.split(", ") {
            places.insert(PathBuf::from(place.trim_matches('`')), budgets.len());
        }
        budgets.push(Budget {
            name: name.to_owned(),
            max_files: max_files.parse().unwrap(),
            max_thousands: max_thousands.parse().unwrap(),
            n_files: 0,
            n_characters: 0,
        });
    }
    (budgets, places)
}

#[test]
fn capabilities_stay_within_their_budgets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut budgets, places) = table(&fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap());
    assert!(budgets.len() > 20, "{} rows: the table has another form", budgets.len());
    for sources in SOURCES {
        let mut found = Vec::new();
        files(&root.join(sources), &mut found);
        for path in found.iter().filter(|path| !is_test(path.strip_prefix(root.join(sources)).unwrap())) {
            let relative = path.strip_prefix(root).unwrap();
            let row = relative.ancestors().find_map(|folder| places.get(folder));
            let row = *row.unwrap_or_else(|| panic!("{}: no row of the table has it", relative.display()));
            budgets[row].n_files += 1;
            budgets[row].n_characters += characters(&fs::read_to_string(path).unwrap());
        }
    }
    let mut faults = Vec::new();
    for Budget { name, max_files, max_thousands, n_files, n_characters } in &budgets {
        let thousands = n_characters.div_ceil(1000);
        if n_files > max_files || thousands > *max_thousands {
            faults.push(format!(
                "{name}: {n_files} files of {thousands} thousand characters, of {max_files} and {max_thousands}: give it more by taking as \
                 much from another row"
            ));
        }
        if (n_files + 1) * 8 < max_files * 7 || thousands * 8 < max_thousands * 7 {
            faults.push(format!(
                "{name}: {n_files} files of {thousands} thousand characters: lower its budget"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
