//! The home of a run whose results go to a bucket: where it is, and how it becomes what the bucket has.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use ddp::checkpoint::CheckpointStore;
use ddp::config::ZeroStage;
use ddp::run_folder::file_system::check_file_system;
use ddp::run_folder::folder::{CHECKPOINTS, CONFIG_FILE, MODEL_FILE};
use ddp::run_folder::{FolderError, run_id};
use ddp::storage::atomic_write::write_atomic;
use ddp::storage::fingerprint::Fingerprint;
use ddp::storage::user_file::read_regular;
use ddp::train::resume::ResumeFrom;
use ddp_comm::World;
use ddp_tables::open::remote::{self, Bucket, Take, complete_checkpoints};

use super::mirror::Mirror;
use super::owner::{OWNER, Owner};
use crate::cli::TrainArgs;
use crate::error::Result;
use crate::error::command::CommandError;
use crate::exit::Stop;

/// The file in a home that holds the address.
const ADDRESS_FILE: &str = ".bucket";
const MAX_ADDRESS_BYTES: u64 = 1 << 16;

/// A run at an address.
#[derive(Debug, Clone)]
pub(crate) struct BucketRun {
    pub(super) address: String,
    /// The folder of this host in which it works.
    pub(super) home: PathBuf,
    /// Whether it continues what is there.
    resumes: bool,
    /// Whether there must be a run.
    is_there: bool,
}

/// The home of the run at `address`.
fn home(address: &str) -> PathBuf {
    let mut hash = Fingerprint::default();
    hash.text(address);
    let name = address.rsplit('/').next().unwrap_or_default();
    parent().join(format!("{:016x}", hash.finish())).join(name)
}

/// Whether the folder `--out` is one of a mounted bucket, in which files can be made but not renamed, appended to or synced, so that no
/// run can work in it.
///
/// # Errors
/// [`FolderError::Unsuited`] for a file system in which no files can be made.
pub(crate) fn is_mount(args: &TrainArgs) -> Result<bool, FolderError> {
    let Some(out) = args.out.as_ref().filter(|out| !out.to_str().is_some_and(remote::is_address)) else {
        return Ok(false);
    };
    match check_file_system(out) {
        Err(FolderError::Unsuited { call, .. }) if !MAKING.contains(&call) => Ok(true),
        checked => checked.map(|()| false),
    }
}

/// Calls without which a file system holds no run in any way.
const MAKING: [&str; 3] = ["make a folder", "make a file", "write a file"];

fn parent() -> PathBuf {
    std::env::temp_dir().join(format!("ddp-train-runs-{}", rustix::process::getuid().as_raw()))
}

/// Fails unless the folder of all homes is this user's own.
fn own_parent() -> std::io::Result<()> {
    let found = fs::symlink_metadata(parent())?;
    let is_own = found.is_dir() && found.uid() == rustix::process::getuid().as_raw();
    is_own
        .then_some(())
        .ok_or_else(|| std::io::Error::other("its folder belongs to another user, or is a link"))
}

impl BucketRun {
    /// The run of `args`, if its results go to a bucket, and the arguments with its home in place of the address.
    ///
    /// - `is_mount`: see [`is_mount`]
    pub(crate) fn of(args: &TrainArgs, is_mount: bool) -> (Option<Self>, TrainArgs) {
        let mut args = args.clone();
        let is_there = args.out.is_none();
        if let Some(ResumeFrom::Path(path)) = &args.resume
            && args.out.is_none()
            && (path.to_str().is_some_and(remote::takes_results) || address_of(path).is_some())
        {
            // It continues where it is.
            args.out = Some(path.clone());
            args.resume = Some(ResumeFrom::Auto);
        }
        let Some(out) = &args.out else { return (None, args) };
        let address = match out.to_str().filter(|text| remote::is_address(text)) {
            Some(address) => Some(address.trim_end_matches('/').to_owned()),
            None if is_mount => {
                Some(std::path::absolute(out).unwrap_or_else(|_| out.clone()).display().to_string())
            }
            // The home itself, which a restart names.
            None => address_of(out),
        };
        let resumes = matches!(args.resume, Some(ResumeFrom::Auto));
        let run = address.map(|address| BucketRun { home: home(&address), address, resumes, is_there });
        args.out = run.as_ref().map(|run| run.home.clone()).or(args.out);
        (run, args)
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

    /// Makes rank 0's process the writer, and the homes of all hosts what the run continues from, or empty. Collective.
    ///
    /// # Errors
    /// [`CommandError::BucketBusy`], [`CommandError::BucketHoldsRun`]; errors of the store.
    pub(crate) fn begin(&self, world: &World, args: &TrainArgs) -> Result<Option<Mirror>, Stop> {
        let begun = match world.rank().0 {
            0 => self.begin_first(world.hostname(), args).map(Some),
            _ => Ok(None),
        };
        let begun = world.collective_result(begun)?;
        let hosts = world.group().all_gather_bytes(world.hostname().as_bytes())?;
        let is_other_host = world.local_rank().0 == 0 && hosts[0] != world.hostname().as_bytes();
        let fetched = if is_other_host && self.resumes {
            // Rank 0 has decided already.
            self.empty().and_then(|()| self.bring(&Bucket::open(&self.address)?))
        } else {
            Ok(())
        };
        world.collective_result(fetched)?;
        Ok(begun)
    }

    fn begin_first(&self, host: &str, args: &TrainArgs) -> Result<Mirror> {
        let bucket = Bucket::open(&self.address)?;
        let (owner, before) = Owner::take(&bucket, &self.address, host, args.job_id.as_deref())?;
        let objects = bucket.list("")?;
        let is_of_run = |name: &str| {
            name == CONFIG_FILE
                || name == MODEL_FILE
                || name == run_id::RUN_ID_FILE
                || name.starts_with(CHECKPOINTS)
        };
        let has_run = objects.iter().any(|(name, _)| is_of_run(name));
        // A start of the same job that came to no checkpoint.
        let is_own = args.job_id.is_some() && before.is_some_and(|before| before.job_id == args.job_id);
        if self.is_there && !has_run {
            owner.end(&bucket);
            return Err(CommandError::BucketWithoutRun { address: self.address.clone() }.into());
        }
        if self.resumes {
            let ids = [bucket.get(run_id::RUN_ID_FILE)?.map(|object| object.bytes), read_id(&self.home)];
            if ids[0].is_none() || ids[0] != ids[1] {
                self.empty()?;
            }
            self.bring(&bucket)?;
        } else if has_run && !args.overwrite && !is_own {
            owner.end(&bucket);
            return Err(CommandError::BucketHoldsRun { address: self.address.clone() }.into());
        } else if !args.overwrite {
            self.empty()?;
        }
        self.make()?;
        write_atomic(&self.home.join(ADDRESS_FILE), self.address.as_bytes()).map_err(ddp::Error::from)?;
        // Only when config and data are checked.
        let replaces = has_run && !self.resumes;
        Ok(Mirror::new(self.address.clone(), self.home.clone(), bucket, owner, replaces))
    }

    /// Fetches what the bucket has of the run into the home, unless that has as new a checkpoint.
    fn bring(&self, bucket: &Bucket) -> Result<()> {
        let objects = bucket.list("")?;
        let newest = complete_checkpoints(objects.iter().map(|(name, _)| name.as_str())).pop();
        let own =
            CheckpointStore::of_run(&self.home).newest(u64::MAX, |_| Ok(())).map_err(ddp::Error::from)?;
        let own = own.found.map(|found| found.manifest().run.step);
        if objects.iter().all(|(name, _)| name == OWNER) || own >= newest.or(Some(0)) && own.is_some() {
            return Ok(());
        }
        self.empty()?;
        self.make()?;
        Ok(bucket.fetch(Take::Start, &self.home)?)
    }

    /// Removes the home.
    fn empty(&self) -> Result<()> {
        let empty = || match own_parent().and_then(|()| fs::remove_dir_all(&self.home)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        Ok(empty().map_err(|source| self.unwritable(source))?)
    }

    /// Makes the home, which only this user can enter.
    fn make(&self) -> Result<()> {
        let make = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent())?;
            own_parent()?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.home)
        };
        Ok(make().map_err(|source| self.unwritable(source))?)
    }

    fn unwritable(&self, source: std::io::Error) -> ddp::Error {
        FolderError::Unwritable { path: self.home.clone(), source }.into()
    }
}

/// The address whose home is this folder, if it is one.
pub(crate) fn address_of(home: &Path) -> Option<String> {
    String::from_utf8(read_regular(&home.join(ADDRESS_FILE), MAX_ADDRESS_BYTES).ok()?).ok()
}

/// The name of the folder of a run for users: the address, for a home.
pub(crate) fn shown(folder: &Path) -> PathBuf {
    address_of(folder).map_or_else(|| folder.to_owned(), PathBuf::from)
}

fn read_id(home: &Path) -> Option<Vec<u8>> {
    read_regular(&home.join(run_id::RUN_ID_FILE), MAX_ADDRESS_BYTES).ok()
}
