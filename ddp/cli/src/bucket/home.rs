//! The home of a run whose results go to a bucket: where it is, and how it becomes what the bucket has.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use ddp::checkpoint::{CheckpointStore, MANIFEST_FILE, step_of};
use ddp::config::ZeroStage;
use ddp::run_folder::done::DONE_FILE;
use ddp::run_folder::file_system::check_file_system;
use ddp::run_folder::folder::METRICS_FILE;
use ddp::run_folder::{FolderError, run_id};
use ddp::storage::atomic_write::write_atomic;
use ddp::storage::fingerprint::Fingerprint;
use ddp::storage::user_file::read_regular;
use ddp::train::resume::ResumeFrom;
use ddp_comm::World;
use ddp_tables::open::remote::{self, Bucket, complete_checkpoints};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::mirror::{FETCHED, Mirror, is_of_run};
use super::owner::{Beat, Owner};
use crate::cli::TrainArgs;
use crate::error::command::CommandError;
use crate::error::{Error, Result};
use crate::exit::Stop;

/// The file in a home that holds the address.
const ADDRESS_FILE: &str = ".bucket";
/// The file by which other hosts see whether the home is theirs too.
const MARK_FILE: &str = ".home";
const MAX_ADDRESS_BYTES: u64 = 1 << 16;

/// Calls without which a file system holds no run in any way.
const MAKING: [&str; 3] = ["make a folder", "make a file", "write a file"];

/// A run at an address.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BucketRun {
    /// An address, or the path of a mounted bucket.
    pub(crate) address: String,
    /// Whether it continues what is there.
    resumes: bool,
    /// Whether there must be a run.
    is_there: bool,
}

/// The home of the run at `address`.
fn home(address: &str) -> PathBuf {
    let mut hash = Fingerprint::default();
    hash.text(address);
    let name = address.rsplit('/').next().filter(|name| !["", ".", ".."].contains(name)).unwrap_or("run");
    parent().join(format!("{:016x}", hash.finish())).join(name)
}

fn parent() -> PathBuf {
    std::env::temp_dir().join(format!("ddp-train-runs-{}", rustix::process::getuid().as_raw()))
}

/// Fails unless the folder of all homes is this user's own.
fn own_parent() -> std::io::Result<()> {
    let found = fs::symlink_metadata(parent())?;
    let is_own = found.is_dir() && found.uid() == rustix::process::getuid().as_raw();
    let foreign = || std::io::Error::other("its folder belongs to another user, or is a link");
    is_own.then_some(()).ok_or_else(foreign)
}

/// Whether a folder is one of a mounted bucket, in which files can be made but not renamed, appended to or synced, so that no run can
/// work in it.
fn is_mount(folder: &Path) -> Result<bool, FolderError> {
    match check_file_system(folder) {
        Err(FolderError::Unsuited { call, .. }) if !MAKING.contains(&call) => Ok(true),
        checked => checked.map(|()| false),
    }
}

impl BucketRun {
    /// The run of `args`, if its results go to a bucket. Looks at folders of this host.
    ///
    /// # Errors
    /// [`FolderError::Unsuited`] for a file system in which no files can be made.
    pub(crate) fn named_by(args: &TrainArgs) -> Result<Option<Self>, FolderError> {
        let is_there = args.out.is_none();
        let folder = match (&args.out, &args.resume) {
            (Some(out), _) => out,
            (None, Some(ResumeFrom::Path(path))) => path,
            _ => return Ok(None),
        };
        let address = match folder.to_str().filter(|text| remote::is_address(text)) {
            // Others are only read.
            Some(address) if is_there && !remote::takes_results(address) => None,
            Some(address) => Some(address.trim_end_matches('/').to_owned()),
            None => match address_of(folder) {
                Some(address) => Some(address),
                None if !args.dry_run && (!is_there || folder.is_dir()) && is_mount(folder)? => {
                    Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()).display().to_string())
                }
                None => None,
            },
        };
        let resumes = is_there || matches!(args.resume, Some(ResumeFrom::Auto));
        Ok(address.map(|address| BucketRun { address, resumes, is_there }))
    }

    /// Same as [`BucketRun::named_by`] on all ranks by the folders of rank 0, and puts the home in place of the address. Collective.
    ///
    /// # Errors
    /// See [`BucketRun::named_by`].
    pub(crate) fn find(world: &World, args: &mut TrainArgs) -> Result<Option<Self>, Stop> {
        let named = if world.rank().0 == 0 { Self::named_by(args) } else { Ok(None) };
        let named = world.collective_result(named)?;
        let text = serde_json::to_vec(&named).unwrap_or_default();
        let run: Option<Self> =
            serde_json::from_slice(&world.group().all_gather_bytes(&text)?[0]).unwrap_or_default();
        if let Some(run) = &run {
            run.name_home(args);
        }
        Ok(run)
    }

    /// Puts the home in place of the address.
    pub(crate) fn name_home(&self, args: &mut TrainArgs) {
        args.out = Some(self.home());
        if self.resumes {
            args.resume = Some(ResumeFrom::Auto);
            args.overwrite = false;
        }
    }

    /// The folder of this host in which the run works.
    pub(crate) fn home(&self) -> PathBuf {
        home(&self.address)
    }

    /// Refuses shards of the optimizer state in homes of several hosts. Collective.
    ///
    /// # Errors
    /// [`CommandError::BucketShards`]
    pub(crate) fn check_shards(&self, world: &World, stage: ZeroStage) -> Result<(), Stop> {
        let hosts: BTreeSet<_> =
            world.group().all_gather_bytes(world.hostname().as_bytes())?.into_iter().collect();
        if stage != ZeroStage::Off && hosts.len() > 1 {
            return Err(CommandError::BucketShards { address: self.address.clone() }.into());
        }
        Ok(())
    }

    /// Makes rank 0's process the writer, and fetches what the run continues from into the homes of all hosts. Collective.
    ///
    /// # Errors
    /// [`CommandError::BucketBusy`], [`CommandError::BucketHoldsRun`], [`CommandError::BucketWithoutRun`]; errors of the store.
    pub(crate) fn begin(&mut self, world: &World, args: &mut TrainArgs) -> Result<Option<Mirror>, Stop> {
        let begun = match world.rank().0 {
            0 => self.begin_first(world.hostname(), args).map(Some),
            _ => Ok(None),
        };
        let mut begun = world.collective_result(begun)?;
        self.resumes = world.group().all_gather_bytes(&[u8::from(self.resumes)])?[0] == [1];
        self.name_home(args);
        let hosts = world.group().all_gather_bytes(world.hostname().as_bytes())?;
        let is_other_host = world.local_rank().0 == 0 && hosts[0] != world.hostname().as_bytes();
        let uploaded = match &mut begun {
            // The others fetch the newest checkpoint.
            Some(mirror) if hosts.iter().any(|host| *host != hosts[0]) => mirror.upload_newest(),
            _ => Ok(()),
        };
        world.collective_result(uploaded)?;
        // Hosts may share the folder for temporary files.
        let mark = self.home().join(MARK_FILE);
        let id = if begun.is_some() { run_id::random().unwrap_or_default() } else { String::new() };
        if begun.is_some() {
            write_atomic(&mark, id.as_bytes()).map_err(ddp::Error::from)?;
        }
        let id = world.group().all_gather_bytes(id.as_bytes())?.swap_remove(0);
        let is_seen = read_regular(&mark, MAX_ADDRESS_BYTES).is_ok_and(|found| found == id);
        let fetched = if is_other_host && self.resumes && !is_seen {
            // Rank 0 has decided already, and has the events.
            let fetch = || {
                self.empty()?;
                let bucket = Bucket::open(&self.address)?;
                self.bring(&bucket, &bucket.list("")?)?;
                let _ = [FETCHED, DONE_FILE].map(|name| fs::remove_file(self.home().join(name)));
                Ok(())
            };
            fetch()
        } else {
            Ok(())
        };
        world.collective_result::<(), Error>(fetched)?;
        Ok(begun)
    }

    fn begin_first(&mut self, host: &str, args: &TrainArgs) -> Result<Mirror> {
        let bucket = Bucket::open(&self.address)?;
        let objects = bucket.list("")?;
        // Before anything is written into it.
        let is_manifest = |name: &str| match name.split_once('/') {
            Some((step, name)) => name == MANIFEST_FILE && step_of(step).is_some(),
            None => name == MANIFEST_FILE,
        };
        if objects.iter().any(|(name, _)| is_manifest(name)) {
            return Err(CommandError::BucketCheckpoint { address: self.address.clone() }.into());
        }
        let has_run = objects.iter().any(|(name, _)| is_of_run(name));
        if self.is_there && !has_run {
            return Err(CommandError::BucketWithoutRun { address: self.address.clone() }.into());
        }
        let is_own = args.job_id.is_some() && Owner::job(&bucket)? == args.job_id;
        if !self.resumes && has_run && !args.overwrite && !is_own {
            return Err(CommandError::BucketHoldsRun { address: self.address.clone() }.into());
        }
        let owner = Owner::take(
            &bucket,
            &self.address,
            host,
            args.job_id.as_deref(),
            has_run && !self.resumes && !is_own,
        )?;
        // From now on: rows may take minutes to load.
        let beat = Beat::start(owner, Bucket::open(&self.address)?);
        let beat = beat.map_err(|source| CommandError::BucketThread { source })?;
        match self.prepare(&bucket, args, is_own) {
            Ok(replaces) => Ok(Mirror::new(self.address.clone(), self.home(), bucket, beat, replaces)),
            Err(error) => {
                beat.end();
                Err(error)
            }
        }
    }

    /// Makes the home what the run continues from, or empty. Returns whether the bucket has another run, to be deleted.
    ///
    /// - `is_own`: whether this job has written what is there
    fn prepare(&mut self, bucket: &Bucket, args: &TrainArgs, is_own: bool) -> Result<bool> {
        let objects = bucket.list("")?;
        let has_run = objects.iter().any(|(name, _)| is_of_run(name));
        // A restart may repeat the words of the first start.
        self.resumes |= is_own && newest(&objects).is_some();
        if self.resumes {
            let id = bucket.get(run_id::RUN_ID_FILE)?.map(|object| object.bytes);
            if id.is_none()
                || id != read_regular(&self.home().join(run_id::RUN_ID_FILE), MAX_ADDRESS_BYTES).ok()
            {
                self.set_aside()?;
            }
            self.bring(bucket, &objects)?;
            if args.job_id.is_some() {
                // A supervisor would take it for this job's.
                let _ = fs::remove_file(self.home().join(DONE_FILE));
            }
        } else {
            self.set_aside()?;
        }
        self.make(&self.home())?;
        write_atomic(&self.home().join(ADDRESS_FILE), self.address.as_bytes()).map_err(ddp::Error::from)?;
        // Only when config and data are checked.
        Ok(has_run && !self.resumes)
    }

    /// Fetches what the bucket has of the run into the home, unless that has as new a checkpoint that is intact.
    fn bring(&self, bucket: &Bucket, objects: &[(String, u64)]) -> Result<()> {
        let search = CheckpointStore::for_run(&self.home()).newest_valid().map_err(ddp::Error::from)?;
        let own = search.found.map(|found| found.manifest().run.step);
        if !objects.iter().any(|(name, _)| is_of_run(name)) || (own.is_some() && own >= newest(objects)) {
            return Ok(());
        }
        // The home goes when the new one is complete.
        let new = self.beside("new");
        if own.is_none() {
            self.empty()?;
        }
        self.remove(&new)?;
        self.make(&new)?;
        if !bucket.fetch_start(own, &new)? {
            return self.remove(&new);
        }
        self.empty()?;
        fs::rename(&new, self.home()).map_err(|source| self.unwritable(source))?;
        let events = self.home().join(METRICS_FILE);
        if events.exists() {
            fs::rename(&events, self.home().join(FETCHED)).map_err(|source| self.unwritable(source))?;
        }
        Ok(())
    }

    fn newest_at_home(&self) -> Option<u64> {
        let search = CheckpointStore::for_run(&self.home()).newest(u64::MAX, |_| Ok(())).ok()?;
        search.found.map(|found| found.manifest().run.step)
    }

    /// Removes the home of another run, or gives it another name if it has a checkpoint. The one before it goes, so that the disk does not fill.
    fn set_aside(&self) -> Result<()> {
        let home = self.home();
        if self.newest_at_home().is_none() {
            return self.empty();
        }
        let aside = self.beside("replaced");
        self.remove(&aside)?;
        let renamed = own_parent().and_then(|()| fs::rename(&home, &aside));
        renamed.map_err(|source| self.unwritable(source))?;
        warn!(
            "{} held another run than {}: it is {} now, until the next such one",
            home.display(),
            self.address,
            aside.display()
        );
        Ok(())
    }

    /// A folder next to the home.
    fn beside(&self, what: &str) -> PathBuf {
        let home = self.home();
        home.with_file_name(format!("{}.{what}", file_name(&home)))
    }

    /// Removes the home.
    fn empty(&self) -> Result<()> {
        self.remove(&self.home())
    }

    fn remove(&self, folder: &Path) -> Result<()> {
        match own_parent().and_then(|()| fs::remove_dir_all(folder)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(self.unwritable(error).into()),
            _ => Ok(()),
        }
    }

    /// Makes a folder like the home, which only this user can enter.
    fn make(&self, folder: &Path) -> Result<()> {
        let make = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent())?;
            own_parent()?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
        };
        Ok(make().map_err(|source| self.unwritable(source))?)
    }

    fn unwritable(&self, source: std::io::Error) -> ddp::Error {
        FolderError::Unwritable { path: self.home(), source }.into()
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Step of the newest complete checkpoint among objects.
fn newest(objects: &[(String, u64)]) -> Option<u64> {
    complete_checkpoints(objects.iter().map(|(name, _)| name.as_str())).pop()
}

/// The address whose home is this folder, if it is one. A copy of a home is a folder of its own.
pub(crate) fn address_of(folder: &Path) -> Option<String> {
    let address =
        String::from_utf8(read_regular(&folder.join(ADDRESS_FILE), MAX_ADDRESS_BYTES).ok()?).ok()?;
    let is_home = std::path::absolute(folder).is_ok_and(|folder| folder == home(&address));
    is_home.then_some(address)
}

/// The name of the folder of a run for users: the address, for a home.
pub(crate) fn shown(folder: &Path) -> PathBuf {
    address_of(folder).map_or_else(|| folder.to_owned(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::super::mirror::tests::{copy_step, damage};
    use super::*;

    /// A run at a folder in the place of a mounted bucket, which has the checkpoints of these steps.
    struct There {
        folder: tempfile::TempDir,
        run: BucketRun,
        bucket: Bucket,
    }

    impl There {
        fn new(steps: &[u64]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let address = folder.path().display().to_string();
            steps.iter().for_each(|step| copy_step(*step, folder.path()));
            let bucket = Bucket::open(&address).unwrap();
            There { folder, run: BucketRun { address, resumes: true, is_there: true }, bucket }
        }

        fn bring(&self) -> Result<Vec<u64>> {
            self.run.bring(&self.bucket, &self.bucket.list("")?)?;
            Ok(CheckpointStore::for_run(&self.run.home()).steps().map_err(ddp::Error::from)?)
        }
    }

    impl Drop for There {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.run.home().parent().unwrap());
        }
    }

    #[test]
    fn a_damaged_checkpoint_gives_way_to_the_one_before_it() {
        let there = There::new(&[28, 35, 38]);
        damage(38, there.folder.path());
        assert_eq!(there.bring().unwrap(), [35]);
        damage(35, there.folder.path());
        assert_eq!(there.bring().unwrap(), [35], "that of the home is intact");
        let fresh = There::new(&[35, 38]);
        [35, 38].iter().for_each(|step| damage(*step, fresh.folder.path()));
        let error = fresh.bring().unwrap_err().to_string();
        assert!(
            error.contains("none of its checkpoints can be used") && error.contains("step-35"),
            "{error}"
        );
    }

    #[test]
    fn a_home_gives_way_to_an_intact_checkpoint_alone() {
        let there = There::new(&[28, 38]);
        there.run.make(&there.run.home()).unwrap();
        copy_step(28, &there.run.home());
        let notes = there.run.home().join("notes");
        fs::write(&notes, "").unwrap();
        damage(38, there.folder.path());
        assert_eq!(there.bring().unwrap(), [28]);
        assert!(notes.exists() && !there.run.beside("new").exists());
        copy_step(38, there.folder.path());
        copy_step(38, &there.run.home());
        damage(38, &there.run.home());
        assert_eq!(there.bring().unwrap(), [38]);
        assert!(CheckpointStore::for_run(&there.run.home()).newest_valid().unwrap().skipped.is_empty());
        assert!(!notes.exists(), "it is a new home");
    }

    #[test]
    fn homes_are_set_aside_one_after_another() {
        let there = There::new(&[]);
        for step in [28, 35, 38] {
            there.run.make(&there.run.home()).unwrap();
            copy_step(step, &there.run.home());
            there.run.set_aside().unwrap();
            let aside = there.run.beside("replaced");
            assert_eq!(CheckpointStore::for_run(&aside).steps().unwrap(), [step]);
        }
    }
}
