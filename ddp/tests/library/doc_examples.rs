//! Checks that the documentation of each public module has a runnable example: for modules at the root of a crate anywhere in the
//! module, one level deeper in the module's own files.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates of the library.
const CRATES: [&str; 4] = ["kernels", "comm", "ddp/rows", "ddp"];

/// Folders of modules whose public modules each have an example.
const ROOMS: [&str; 13] = [
    "kernels/src/cpu",
    "ddp/src/checkpoint",
    "ddp/src/config",
    "ddp/src/data",
    "ddp/src/data/order",
    "ddp/rows/src/arrays",
    "ddp/src/exchange",
    "ddp/src/model",
    "ddp/src/optim",
    "ddp/src/report",
    "ddp/src/run_folder",
    "ddp/src/storage",
    "ddp/src/train",
];

/// Modules in [`ROOMS`] without an example, with the reason. Modules named `error` need none either, because others show their
/// errors.
const WITHOUT: [(&str, &str); 8] = [
    ("ddp/src/storage/stream", "public for one option of loading a checkpoint"),
    ("ddp/src/storage/unfinished", "only the crate adds files, which end with the process"),
    ("ddp/src/train/autosave", "a part of the loop of `ddp-train`"),
    ("ddp/src/train/eval_votes", "public for an argument of evaluations that signals stop"),
    ("ddp/src/train/evaluations", "a part of the loop of `ddp-train`"),
    ("ddp/src/train/loop_plan", "a part of the loop of `ddp-train`"),
    ("ddp/src/train/stop_signals", "takes over the signals of the process"),
    ("ddp/src/train/training_loop", "the loop of `ddp-train`, whose parts only the binary makes"),
];

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
    assert!(modules > 20, "{modules} public modules: their declarations have another form");
    assert!(missing.is_empty(), "no runnable example in {}", missing.join(", "));
}

#[test]
fn every_public_module_below_has_a_runnable_example() {
    let (mut modules, mut missing, mut without) = (0, Vec::new(), Vec::new());
    for room in ROOMS {
        for (module, has_example) in examples_of(&root().join(room), "mod.rs") {
            modules += 1;
            let path = format!("{room}/{module}");
            if WITHOUT.iter().any(|(exempt, _)| *exempt == path) {
                assert!(!has_example, "{path} has an example by now: remove it from WITHOUT");
                without.push(path);
            } else if !has_example && module != "error" {
                missing.push(path);
            }
        }
    }
    assert!(modules > 60, "{modules} public modules: their declarations have another form");
    assert!(missing.is_empty(), "no runnable example in {}", missing.join(", "));
    assert_eq!(
        without.len(),
        WITHOUT.len(),
        "WITHOUT names modules that are gone; found {}",
        without.join(", ")
    );
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
    let lines = text.lines().zip(std::iter::once("").chain(text.lines()));
    let shown = lines.filter(|(_, above)| *above != "#[doc(hidden)]");
    shown.filter_map(|(line, _)| line.strip_prefix("pub mod ")?.strip_suffix(';'))
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
