//! The words of the project: a paragraph of doc comments begins with a verb or a noun phrase, and each promise names its test.

use std::fs;
use std::path::{Path, PathBuf};

/// Words that must not begin a paragraph, because they introduce a clause instead of naming the thing.
const CLAUSES: [&str; 7] = ["What", "Who", "Whose", "Which", "How", "Those", "As"];

/// Folders of sources, from the root of the project.
const FOLDERS: [&str; 6] = ["ddp", "comm", "kernels", "examples", "tests", "fuzz"];

#[test]
fn doc_paragraphs_begin_with_a_verb_or_a_noun() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let files: Vec<PathBuf> = FOLDERS.iter().flat_map(|folder| sources(&root.join(folder))).collect();
    assert!(files.len() > 300, "{} source files: the folders have moved", files.len());

    let mut found = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in clauses(&text) {
            found.push(format!("{}:{number}: {line}", path.strip_prefix(root).unwrap().display()));
        }
    }
    assert!(found.is_empty(), "doc paragraphs that begin with a clause:\n{}", found.join("\n"));
}

#[test]
fn clauses_are_found_at_the_begin_of_paragraphs_alone() {
    let text = "//! What a file is.\n\n/// Rows.\n///\n/// How they are read.\nfn a() {}\n/// A line that continues\n/// As it likes.\n///\n/// # Errors\n/// Those of `b`.\n";
    assert_eq!(clauses(text), [(1, "What a file is."), (5, "How they are read."), (11, "Those of `b`.")]);
}

/// A row of docs/promises.md ends with files and names in backticks: each name is a test of the file before it.
#[test]
fn promises_name_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let promises = fs::read_to_string(root.join("docs/promises.md")).unwrap();
    let files: Vec<PathBuf> = FOLDERS.iter().flat_map(|folder| sources(&root.join(folder))).collect();
    let (mut n_named, mut missing) = (0, Vec::new());
    for cell in promises.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit_once(" | ")) {
        let mut in_files: Vec<String> = Vec::new();
        for name in cell.1.split('`').skip(1).step_by(2) {
            if name.contains('/') {
                let named = files.iter().filter(|path| path.ends_with(name));
                in_files = named.map(|path| fs::read_to_string(path).unwrap()).collect();
                let is_there = !in_files.is_empty() || root.join(name).exists();
                missing.extend((!is_there).then(|| name.to_owned()));
            } else {
                n_named += 1;
                let is_test = in_files.iter().any(|text| text.contains(&format!("fn {name}()")));
                missing.extend((!is_test).then(|| name.to_owned()));
            }
        }
    }
    assert!(n_named > 30, "{n_named} names: the page has another form");
    assert!(missing.is_empty(), "docs/promises.md names tests or files that do not exist: {missing:?}");
}

/// Number and text of each line that begins a doc paragraph with one of [`CLAUSES`].
fn clauses(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim);
        if let Some(doc) = doc
            && !inside
            && doc.split(' ').next().is_some_and(|word| CLAUSES.contains(&word))
        {
            found.push((index + 1, doc));
        }
        // A heading ends a paragraph too.
        inside = doc.is_some_and(|doc| !doc.is_empty() && !doc.starts_with('#'));
    }
    found
}

/// Rust files in a folder, except build outputs.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
