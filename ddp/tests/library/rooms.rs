//! The structure of `ddp/src`: rooms import only from rooms below them, and no two files import each other; nor do those of
//! `comm/src`.
//!
//! Reads the imports of every source file (`use` items and paths that begin with `crate`, `self` or `super`), tests aside, and
//! follows re-exports to the file that defines a name. A name that a file neither defines nor re-exports in its source comes from the
//! child that defines it: a macro made the re-export.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Item, UseTree, Visibility};

/// The rooms from bottom to top.
const FLOORS: [&str; 14] = [
    "storage",
    "config",
    "run_folder",
    "report",
    "data",
    "model",
    "export",
    "optim",
    "data_parallel",
    "checkpoint",
    "predict",
    "train",
    "cli",
    "commands",
];

/// Files that only commands and the files above the rooms import.
const ABOVE: [&str; 3] = ["error", "error_hints", "exit"];

/// The most files that lie beside the rooms.
const MAX_FILES: usize = 6;

type ModPath = Vec<String>;

/// A source file: the names that it refers to, those that it re-exports and those that it defines.
#[derive(Default)]
struct Source {
    paths: Vec<ModPath>,
    /// Exported name to its path; `*` for a glob.
    exports: BTreeMap<String, ModPath>,
    /// Public items.
    defined: BTreeSet<String>,
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
            self.source.defined.extend(public_name(item));
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
            Item::Mod(module) if module.content.is_some() => {
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

/// The name of a public item other than a module.
fn public_name(item: &Item) -> Option<String> {
    let (visibility, name) = match item {
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    matches!(visibility, Visibility::Public(_)).then(|| name.to_string())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The source files of the crate below.
fn comm_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../comm/src")
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

/// Groups of files that reach each other.
fn circles(imports: &BTreeSet<(ModPath, ModPath)>) -> Vec<BTreeSet<ModPath>> {
    let nodes: BTreeSet<&ModPath> = imports.iter().flat_map(|(from, to)| [from, to]).collect();
    let nodes: Vec<&ModPath> = nodes.into_iter().collect();
    let index = |of: &ModPath| nodes.binary_search(&of).unwrap();
    let mut imported = vec![Vec::new(); nodes.len()];
    for (from, to) in imports {
        imported[index(from)].push(index(to));
    }
    let reach = |start: usize| {
        let (mut seen, mut open) = (vec![false; nodes.len()], vec![start]);
        while let Some(node) = open.pop() {
            for &to in &imported[node] {
                if !std::mem::replace(&mut seen[to], true) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: Vec<Vec<bool>> = (0..nodes.len()).map(reach).collect();
    let mut found: Vec<BTreeSet<ModPath>> = Vec::new();
    for node in 0..nodes.len() {
        if !reached[node][node] || found.iter().any(|circle| circle.contains(nodes[node])) {
            continue;
        }
        let circle = (0..nodes.len()).filter(|&other| reached[node][other] && reached[other][node]);
        found.push(circle.map(|other| nodes[other].clone()).collect());
    }
    found
}

fn text(module: &[String]) -> String {
    module.join("/")
}

#[test]
fn rooms_import_only_from_below() {
    let imports = House::read(&root()).imports();
    let floor = |room: &str| FLOORS.iter().position(|known| *known == room);
    let mut faults = Vec::new();
    for (from, to) in &imports {
        let (Some(room), Some(other)) = (from.first(), to.first()) else { continue };
        let fault = match (floor(room), floor(other)) {
            (Some(own), Some(theirs)) => theirs > own,
            (Some(_), None) => room != "commands" && ABOVE.contains(&other.as_str()),
            _ => false,
        };
        if fault {
            faults.push(format!("{} imports {}", text(from), text(to)));
        }
    }
    assert!(faults.is_empty(), "imports that run up:\n  {}", faults.join("\n  "));
}

#[test]
fn no_files_import_each_other() {
    let mut faults = Vec::new();
    for (name, root) in [("ddp", root()), ("comm", comm_root())] {
        let imports = House::read(&root).imports();
        let rooms = imports.iter().filter(|(from, to)| !from.is_empty() && !to.is_empty());
        for circle in circles(&rooms.cloned().collect()) {
            let files: Vec<String> = circle.iter().map(|module| text(module)).collect();
            faults.push(format!("{name}: {}", files.join(", ")));
        }
    }
    assert!(faults.is_empty(), "files that import each other:\n  {}", faults.join("\n  "));
}

#[test]
fn only_rooms_lie_in_src() {
    let entries = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    assert!(files.len() <= MAX_FILES, "{} files in ddp/src, at most {MAX_FILES} are wanted", files.len());
    for folder in folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert!(FLOORS.contains(&name), "the folder {name} has no floor in ddp/tests/library/rooms.rs");
    }
}
