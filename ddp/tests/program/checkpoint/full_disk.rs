//! A real file system that is full.

use std::path::Path;
use std::process::Command;

use super::fixture::*;

/// A small memory file system, unmounted when dropped.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // Unmounted lazily, because the error that led here may keep a file open.
        let status = Command::new("umount").arg("-l").arg(self.0).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

/// Mounts a memory file system with these options; returns `None` if mounting is not allowed.
fn mount<'a>(at: &'a Path, options: &str) -> Option<Mount<'a>> {
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(at).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs the right to mount a tmpfs");
        return None;
    }
    Some(Mount(at))
}

#[test]
fn a_disk_without_room_for_another_file_is_not_called_full() {
    let dir = tempfile::tempdir().unwrap();
    // Inodes for the root, the folder, a checkpoint of three files, and `latest`; the next checkpoint has none left for its
    // files.
    let Some(_mount) = mount(dir.path(), "size=100m,nr_inodes=9") else { return };
    let layout = layout(&[3, 5, 2]);
    let store = saved(dir.path(), &layout, 1, [1]);
    let results = save_on_ranks(dir.path(), &layout, &run_state(2), &os_disk(), 1, |_| {});
    let error = ddp_kernels::hint::with_hint(&results.into_iter().find_map(Result::err).unwrap());
    for part in [
        "No space left on device",
        " MiB free\n",
        "the newest good checkpoint is step-1\n",
        "hint: the disk has no free inodes (`df -i`): delete some files, or keep fewer checkpoints with `checkpoint.keep`",
    ] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    assert_eq!(names(&store), ["latest", "step-1"]);
}

#[test]
fn the_old_one_stays_and_the_next_start_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mount) = mount(dir.path(), "size=160k") else { return };
    let (small, large) = (layout(&[3, 5, 2]), layout(&[100, 200, 10]));
    let store = saved(dir.path(), &small, 2, [1]);
    let results = save_on_ranks(dir.path(), &large, &run_state(2), &os_disk(), 2, |_| {});
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    assert!(
        errors.iter().any(|e| e.contains("No space left on device") && e.contains(" KiB needed, ")),
        "{errors:?}"
    );
    assert!(errors.iter().all(|e| e.contains("the newest good checkpoint is step-1")), "{errors:?}");
    store.prepare().unwrap();
    assert_eq!(names(&store), ["latest", "step-1"]);
    check_content(&store.newest_valid().unwrap().found.unwrap(), &small, 2);
    saved(dir.path(), &small, 2, [3]);
    assert_eq!(store.newest_valid().unwrap().found.unwrap().manifest().run.step, 3);
}
