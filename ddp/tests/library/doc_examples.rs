//! A runnable example in the documentation of each public module at the root of a crate, or of what is below it.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates of the library.
const CRATES: [&str; 3] = ["kernels", "comm", "ddp"];

#[test]
fn every_public_module_has_a_runnable_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut modules = 0;
    let mut missing = Vec::new();
    for name in CRATES {
        let sources = root.join(name).join("src");
        for module in public_modules(&fs::read_to_string(sources.join("lib.rs")).unwrap()) {
            modules += 1;
            if !files_of(&sources, module).iter().any(|file| has_example(&fs::read_to_string(file).unwrap()))
            {
                missing.push(format!("{name}::{module}"));
            }
        }
    }
    assert!(modules > 20, "{modules} public modules: their declarations have another form");
    assert!(missing.is_empty(), "no runnable example in {}", missing.join(", "));
}

#[test]
fn only_examples_that_run_count() {
    assert!(has_example("//! Text.\n//!\n//! ```\n//! let x = 1;\n//! ```\n"));
    assert!(has_example("    /// ```should_panic\n    /// panic!();\n    /// ```\n"));
    for fence in ["text", "toml", "no_run", "ignore", "compile_fail", "sh"] {
        let docs = format!("/// ```{fence}\n/// let x = 1;\n/// ```\nfn a() {{}}\n");
        assert!(!has_example(&docs), "{docs}");
    }
    assert!(!has_example("let text = \"```\";\n"));
}

/// The modules that a file declares `pub`.
fn public_modules(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
}

/// The file of a module, and all below its folder.
fn files_of(sources: &Path, module: &str) -> Vec<PathBuf> {
    let (file, folder) = (sources.join(module).with_extension("rs"), sources.join(module));
    let mut found = Vec::from_iter(file.is_file().then_some(file));
    let mut folders = Vec::from_iter(folder.is_dir().then_some(folder));
    assert!(!found.is_empty() || !folders.is_empty(), "{module} has no file in {}", sources.display());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}

/// Whether a doc comment holds an example that `cargo test --doc` runs.
fn has_example(text: &str) -> bool {
    let mut is_inside = false;
    let mut found = false;
    for line in text.lines().map(str::trim_start) {
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim);
        let Some(fence) = doc.and_then(|doc| doc.strip_prefix("```")) else { continue };
        found |= !is_inside && matches!(fence, "" | "rust" | "should_panic");
        is_inside = !is_inside;
    }
    found
}
