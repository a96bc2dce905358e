//! The structure of the crates: the `mod` lines of each folder are its floors, from the bottom to the top, and a module imports only
//! from modules that are declared above it. So no two of them import each other.
//!
//! Reads the imports of every source file (`use` items and paths that begin with `crate`, `self` or `super`), tests aside, and
//! follows re-exports to the file that defines a name. A name that a file neither defines nor re-exports in its source comes from the
//! child that defines it: a macro made the re-export. What a folder's `mod.rs` defines itself belongs to no floor: children may use it
//! unless it uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

/// The crates and the folders of their sources, from the folder of `ddp`.
const CRATES: [(&str, &str); 6] = [
    ("kernels", "../kernels/src"),
    ("comm", "../comm/src"),
    ("ddp", "src"),
    ("ddp-tables", "tables/src"),
    ("launch", "../launch/src"),
    ("ddp-train", "cli/src"),
];

/// Calls that open a file by its path, and follow links or wait for pipes.
const OPENING: [&str; 8] = [
    "File::open(",
    "File::create(",
    "File::create_new(",
    "fs::write(",
    "fs::read(",
    "fs::read_to_string(",
    "fs::copy(",
    "true).open(",
];

/// The files that may: the one that opens for all others, and those whose files are the system's or in a folder just created.
const OPENERS: [&str; 6] = [
    "src/storage/user_file.rs",
    "src/control_group.rs",
    "src/storage/probe.rs",
    "cli/src/commands/doctor/cpus.rs",
    "cli/src/commands/live.rs",
    "cli/src/report/kubeflow.rs",
];

/// The most files that lie beside the rooms in a crate's `src`.
const MAX_FILES: usize = 8;

type ModPath = Vec<String>;

/// A source file: the names that it refers to, those that it re-exports and those that it defines.
#[derive(Default)]
struct Source {
    paths: Vec<ModPath>,
    /// Exported name to its path; `*` for a glob.
    exports: BTreeMap<String, ModPath>,
    /// Items that other files may see.
    defined: BTreeSet<String>,
    /// Modules with files of their own, in the order of their `mod` lines.
    modules: Vec<String>,
}

/// All modules that have a file of their own.
struct House {
    files: BTreeMap<ModPath, Source>,
}

impl House {
    fn read(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        for path in source_files(root) {
            let relative = path.strip_prefix(root).unwrap().with_extension("");
            let mut module: ModPath = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            if is_test(&module) || module == ["main"] {
                continue;
            }
            if ["mod", "lib"].contains(&module.last().unwrap().as_str()) {
                module.pop();
            }
            let syntax = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let mut reader = Reader { module: module.clone(), inner: Vec::new(), source: Source::default() };
            reader.visit_file(&syntax);
            files.insert(module, reader.source);
        }
        House { files }
    }

    /// The module that defines what `path` names.
    fn home(&self, path: &[String]) -> Option<ModPath> {
        let mut path = path.to_vec();
        // Each round follows one re-export; a chain is never longer than the path is deep.
        for _ in 0..8 {
            let n = (0..=path.len()).rev().find(|n| self.files.contains_key(&path[..*n]))?;
            let (module, rest) = path.split_at(n);
            let Some(name) = rest.first() else { return Some(module.to_vec()) };
            let Some(target) = self.files[module].exports.get(name) else {
                return Some(self.definer(module, name));
            };
            path = [target.as_slice(), &rest[1..]].concat();
        }
        None
    }

    /// `module`, or its child that defines `name` if `module` does not.
    fn definer(&self, module: &[String], name: &str) -> ModPath {
        let defines = |source: &Source| source.defined.contains(name);
        let is_child = |other: &ModPath| other.len() == module.len() + 1 && other.starts_with(module);
        let mut children = self.files.iter().filter(|(other, source)| is_child(other) && defines(source));
        match children.next() {
            Some((child, _)) if !defines(&self.files[module]) => child.clone(),
            _ => module.to_vec(),
        }
    }

    /// Every import, from file to file.
    fn imports(&self) -> BTreeSet<(ModPath, ModPath)> {
        let mut imports = BTreeSet::new();
        for (module, source) in &self.files {
            for path in &source.paths {
                match self.home(path) {
                    Some(home) if home != *module => imports.insert((module.clone(), home)),
                    _ => false,
                };
            }
        }
        imports
    }
}

/// Collects the paths of one file.
struct Reader {
    module: ModPath,
    /// Modules within the file that the walk is in.
    inner: Vec<String>,
    source: Source,
}

impl Reader {
    /// `path` from the crate's root, if it begins there.
    fn absolute(&self, path: &[String]) -> Option<ModPath> {
        let here = [self.module.as_slice(), &self.inner].concat();
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([&here, &path[1..]].concat()),
            "super" => {
                let n = path.iter().take_while(|part| *part == "super").count();
                Some([&here[..here.len().checked_sub(n)?], &path[n..]].concat())
            }
            _ => None,
        }
    }

    fn walk_tree(&mut self, tree: &UseTree, mut prefix: ModPath, is_export: bool) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.walk_tree(&path.tree, prefix, is_export);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.walk_tree(tree, prefix.clone(), is_export));
            }
            UseTree::Name(name) => self.add(prefix, name.ident.to_string(), None, is_export),
            UseTree::Rename(rename) => {
                self.add(prefix, rename.ident.to_string(), Some(rename.rename.to_string()), is_export);
            }
            UseTree::Glob(_) => self.add(prefix, String::new(), None, is_export),
        }
    }

    fn add(&mut self, mut path: ModPath, name: String, alias: Option<String>, is_export: bool) {
        let exported = alias.unwrap_or_else(|| name.clone());
        if name != "self" && !name.is_empty() {
            path.push(name);
        }
        // A re-export may begin with a child's name.
        let absolute = self
            .absolute(&path)
            .or_else(|| is_export.then(|| [self.module.as_slice(), &self.inner, &path].concat()));
        match absolute {
            Some(absolute) if is_export && self.inner.is_empty() => {
                self.source.exports.insert(exported, absolute);
            }
            Some(absolute) => self.source.paths.push(absolute),
            None => {}
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if self.inner.is_empty() {
            self.source.defined.extend(visible_name(item));
        }
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        let is_test = attributes.iter().any(|attribute| match &attribute.meta {
            syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
            _ => false,
        });
        if is_test {
            return;
        }
        match item {
            Item::Mod(module) if module.content.is_none() => {
                self.source.modules.push(module.ident.to_string());
            }
            Item::Mod(module) => {
                self.inner.push(module.ident.to_string());
                visit::visit_item(self, item);
                self.inner.pop();
            }
            Item::Use(item) => {
                self.walk_tree(&item.tree, Vec::new(), !matches!(item.vis, Visibility::Inherited));
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: ModPath = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if parts.len() > 1 {
            self.source.paths.extend(self.absolute(&parts));
        }
        visit::visit_path(self, path);
    }
}

/// The name of an item other than a module that other files may see.
fn visible_name(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    (!matches!(visibility, Visibility::Inherited)).then(|| name.to_string())
}

/// The crates by name.
fn houses() -> impl Iterator<Item = (&'static str, House)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    CRATES.into_iter().map(move |(name, sources)| (name, House::read(&root.join(sources))))
}

fn source_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(source_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Whether a file holds tests only.
fn is_test(module: &[String]) -> bool {
    let is_name = |name: &String| name == "tests" || name.ends_with("_tests") || name == "testing";
    module.iter().any(is_name)
}

/// Imports between two modules of one folder: the folder, the importing and the imported module, and the files. The folder's own
/// `mod.rs` has no name.
fn imports_by_folder(
    imports: &BTreeSet<(ModPath, ModPath)>,
) -> BTreeMap<(&[String], &str, &str), Vec<String>> {
    let mut found: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (from, to) in imports {
        let n = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let key = (&from[..n], from.get(n).map_or("", String::as_str), to.get(n).map_or("", String::as_str));
        found.entry(key).or_default().push(format!("{} imports {}", text(from), text(to)));
    }
    found
}

fn text(module: &[String]) -> String {
    module.join("/")
}

#[test]
fn modules_import_only_from_those_declared_above_them() {
    let mut faults = Vec::new();
    for (name, house) in houses() {
        let imports = house.imports();
        let by_folder = imports_by_folder(&imports);
        for ((folder, from, to), files) in &by_folder {
            let modules = &house.files[*folder].modules;
            let floor = |module: &str| modules.iter().position(|other| other == module);
            let is_fault = match (*from, *to) {
                // The façade stands above its children.
                ("", _) => false,
                (_, "") => by_folder.contains_key(&(*folder, "", *from)),
                // A stand-in for a feature that is off has no `mod` line of its own name.
                (from, to) => floor(from).is_some_and(|from| floor(to) > Some(from)),
            };
            if is_fault {
                faults.push(format!("{name}, {}: {}", text(folder), files.join("; ")));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "imports that run up, by the order of the `mod` lines:\n  {}",
        faults.join("\n  ")
    );
}

#[test]
fn few_files_lie_beside_the_rooms() {
    for (name, house) in houses().filter(|(name, _)| name.starts_with("ddp")) {
        let is_file = |module: &&ModPath| {
            module.len() == 1 && !house.files.keys().any(|other| other.len() > 1 && other[0] == module[0])
        };
        let files: Vec<String> = house.files.keys().filter(is_file).map(|module| text(module)).collect();
        assert!(
            files.len() <= MAX_FILES,
            "{name}: {} files in src, at most {MAX_FILES} are wanted",
            files.join(", ")
        );
    }
}

/// A file of a run's folder may be a link to any file of the user, or a pipe that blocks.
#[test]
fn one_module_opens_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_system = ["proc/", "/sys/", "/dev/"];
    let mut faults = Vec::new();
    for folder in ["src", "tables/src", "../launch/src", "cli/src"] {
        for path in source_files(&root.join(folder)) {
            let relative = path.strip_prefix(root).unwrap();
            let module: ModPath =
                relative.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if is_test(&module) || OPENERS.iter().any(|opener| relative == Path::new(opener)) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let is_call = |line: &str| {
                let begins = OPENING.iter().flat_map(|call| line.match_indices(call)).map(|(at, _)| at);
                let is_longer = |at: usize| line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                begins.into_iter().any(|at| !is_longer(at)) && !of_system.iter().any(|of| line.contains(of))
            };
            let lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
            let found = lines.filter(|(_, line)| is_call(line));
            faults.extend(found.map(|(at, line)| format!("{}:{}: {}", path.display(), at + 1, line.trim())));
        }
    }
    assert!(
        faults.is_empty(),
        "use `open_regular`, `open_unlinked` or `create_new` of ddp::storage::user_file:\n  {}",
        faults.join("\n  ")
    );
}
