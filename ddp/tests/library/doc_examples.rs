//! Checks that the documentation of each public module has a runnable example: for modules at the root of a crate anywhere in the
//! module, one level deeper in the module's own files.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates of the library.
const CRATES: [&str; 4] = ["kernels", "comm", "ddp", "ddp/tables"];

/// Folders of modules whose public modules each have an example.
const ROOMS: [&str; 2] = ["kernels/src/cpu", "ddp/tables/src/formats/arrays"];

#[test]
fn every_public_module_at_a_root_has_a_runnable_example() {
    let (mut modules, mut missing) = (0, Vec::new());
    for name in CRATES {
        let sources = root().join(name).join("src");
        for (module, has_example) in examples_of(&sources, "lib.rs") {
            modules += 1;
            if !has_example {
                missing.push(format!("{name}::{module}"));
            }
        }
    }
    assert!(modules > 10, "{modules} public modules: their declarations have another form");
    assert!(missing.is_empty(), "no runnable example in {}", missing.join(", "));
}

#[test]
fn every_public_module_below_has_a_runnable_example() {
    let modules: Vec<_> = ROOMS.iter().flat_map(|room| examples_of(&root().join(room), "mod.rs")).collect();
    let missing: Vec<_> = modules.iter().filter(|(_, has_example)| !has_example).collect();
    assert!(modules.len() > 5, "{} public modules: their declarations have another form", modules.len());
    assert!(missing.is_empty(), "no runnable example in {missing:?}");
}

/// Hidden modules are for `ddp-train` alone, see `lib.rs`.
#[test]
fn programs_of_users_name_no_hidden_module() {
    let hidden_in = |file: &str, prefix: &str| -> Vec<String> {
        let text = fs::read_to_string(root().join(file)).unwrap();
        modules_of(&text)
            .filter(|(_, is_hidden)| *is_hidden)
            .map(|(name, _)| format!("{prefix}{name}::"))
            .collect()
    };
    let mut hidden = hidden_in("ddp/src/lib.rs", "ddp::");
    hidden.extend(hidden_in("ddp/tables/src/lib.rs", "ddp_tables::"));
    for room in ["data", "optim", "train"] {
        hidden.extend(hidden_in(&format!("ddp/src/{room}/mod.rs"), &format!("ddp::{room}::")));
    }
    assert!(hidden.len() > 40, "{} hidden modules: their declarations have another form", hidden.len());
    let mut files = vec![root().join("docs/library.md"), root().join("docs/from-pytorch.md")];
    for (folder, module) in [("examples", "src"), ("tests/outside", "src"), ("tests/outside", "tests")] {
        files.extend(files_of(&root().join(folder), module));
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let named: Vec<_> = hidden.iter().filter(|module| text.contains(module.as_str())).collect();
        assert!(named.is_empty(), "{} names {named:?}, which rustdoc does not show", file.display());
    }
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

/// The folder of the project.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The modules that `file` in the folder `sources` declares `pub`, and whether a file of each has an example.
fn examples_of(sources: &Path, file: &str) -> Vec<(String, bool)> {
    let text = fs::read_to_string(sources.join(file)).unwrap();
    let is_shown = |path: &PathBuf| has_example(&fs::read_to_string(path).unwrap());
    let modules = public_modules(&text);
    modules.map(|module| (module.to_owned(), files_of(sources, module).iter().any(is_shown))).collect()
}

/// The modules that a file declares `pub`, except those that are hidden from the documentation because only the program uses
/// them.
fn public_modules(text: &str) -> impl Iterator<Item = &str> {
    modules_of(text).filter(|(_, is_hidden)| !is_hidden).map(|(name, _)| name)
}

/// The modules that a file declares `pub`, and whether they are hidden from the documentation.
fn modules_of(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let lines = text.lines().zip(std::iter::once("").chain(text.lines()));
    lines.filter_map(|(line, above)| {
        let name = line.strip_prefix("pub mod ")?.strip_suffix(';')?;
        Some((name, above == "#[doc(hidden)]"))
    })
}

/// The file of a module, and all files in its folder.
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

/// Whether a doc comment contains an example that `cargo test --doc` runs.
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
