//! A real file system that is full.

use std::path::Path;
use std::process::Command;

use super::fixture::*;

/// A small file system in memory, until it is dropped.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        // Lazily, for the error that led here may hold a file open.
        let status = Command::new("umount").arg("-l").arg(self.0).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn the_old_one_stays_and_the_next_start_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=160k", "none"]).arg(dir.path()).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs the right to mount a tmpfs");
        return;
    }
    let _mount = Mount(dir.path());
    let (small, large) = (layout(&[3, 5, 2]), layout(&[100, 200, 10]));
    let store = saved(dir.path(), &small, 2, [1]);
    let results = save_on_ranks(dir.path(), &large, &run_state(2), &os_disk(), 2, |_| {});
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    assert!(
        errors.iter().any(|e| e.contains("No space left on device") && e.contains(" KiB needed, ")),
        "{errors:?}"
    );
    assert!(errors.iter().all(|e| e.contains("the newest good one is step-1")), "{errors:?}");
    store.prepare().unwrap();
    assert_eq!(names(&store), ["latest", "step-1"]);
    check_content(&store.newest_valid().unwrap().found.unwrap(), &small, 2);
    saved(dir.path(), &small, 2, [3]);
    assert_eq!(store.newest_valid().unwrap().found.unwrap().manifest().run.step, 3);
}
