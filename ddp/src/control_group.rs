//! The control groups of this process, by which containers are limited.
//!
//! ```
//! use std::path::Path;
//!
//! use ddp::control_group::{ControlGroup, read_entry};
//!
//! let group = ControlGroup::find(Path::new("/"), "cpu", "cpu.max");
//! if let Some(folder) = group.folders.first() {
//!     println!("{}: throttled {:?} times", folder.display(), read_entry(&folder.join("cpu.stat"), "nr_throttled"));
//! }
//! ```
//!
//! Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1.

use std::fs;
use std::path::{Path, PathBuf};

/// The control groups of a process that have a controller, such as `memory` or `cpu`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlGroup {
    /// Folders of the groups, from that of the process up.
    pub folders: Vec<PathBuf>,
    /// Whether they are groups of version 2, whose files have other names.
    pub is_v2: bool,
}

impl ControlGroup {
    /// The groups of this process, below the file system `root`.
    ///
    /// - `v2_file`: a file by which groups of version 2 with this controller are known, such as `memory.max`
    pub fn find(root: &Path, controller: &str, v2_file: &str) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
        // A controller belongs to one version only, also where both are mounted.
        [false, true]
            .into_iter()
            .map(|is_v2| ControlGroup {
                folders: folders(root, (&groups, &mounts), controller, v2_file, is_v2),
                is_v2,
            })
            .find(|group| !group.folders.is_empty())
            .unwrap_or_default()
    }
}

/// Folders of the groups of one version with this controller, from that of the process up to the one that is mounted.
///
/// - `groups`: `/proc/self/cgroup`, lines such as `4:memory:/a/b`; version 2 has the number 0 and no name
/// - `mounts`: `/proc/self/mountinfo`
fn folders(
    root: &Path,
    (groups, mounts): (&str, &str),
    controller: &str,
    v2_file: &str,
    is_v2: bool,
) -> Vec<PathBuf> {
    let group = groups.lines().find_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        let is_one = if is_v2 {
            id == "0" && names.is_empty()
        } else {
            names.split(',').any(|name| name == controller)
        };
        is_one.then_some(path)
    });
    let mount = mounts.lines().find_map(|line| {
        let (own, of_type) = line.split_once(" - ")?;
        let mut own = own.split(' ').skip(3);
        let (from, at) = (own.next()?, own.next()?);
        let mut of_type = of_type.split(' ');
        let is_type = of_type.next()? == if is_v2 { "cgroup2" } else { "cgroup" };
        let has_it = is_v2 || of_type.nth(1)?.split(',').any(|option| option == controller);
        (is_type && has_it).then_some((from, at))
    });
    let (Some(group), Some((from, at))) = (group, mount) else { return Vec::new() };
    let top = root.join(at.trim_start_matches('/'));
    // A container may see a mount of its own group only, and a path from the host's root.
    let below = Path::new(group).strip_prefix(from).unwrap_or(Path::new(""));
    let below = if below.components().all(is_name) { below } else { Path::new("") };
    let is_group = |folder: &Path| folder.join("cgroup.procs").exists();
    let own = Some(top.join(below)).filter(|folder| is_group(folder)).unwrap_or_else(|| top.clone());
    let folders = own.ancestors().take_while(|folder| folder.starts_with(&top));
    // The root group of version 2 has no files of its own.
    folders.filter(|folder| !is_v2 || folder.join(v2_file).exists()).map(Path::to_owned).collect()
}

fn is_name(component: std::path::Component<'_>) -> bool {
    matches!(component, std::path::Component::Normal(_))
}

/// The number that a file consists of.
pub fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after the word `name` in a file with one entry per line.
pub fn read_entry(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
