//! The run folder as seen by the supervisor: whether the run is complete, how far it has come, and whether it reports a failure.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ddp::checkpoint::CheckpointStore;
use ddp::config::Config;
use ddp::exit_code;
use ddp::run_folder::done::{DONE_FILE, Done};
use ddp::run_folder::folder::{CONFIG_FILE, METRICS_FILE};
use ddp::run_folder::{UPLOADING_FILE, run_id};
use ddp::storage::user_file::{open_regular, read_regular};
use serde::Deserialize;

use crate::faulty_gpus::uuid_in;

/// Maximum size of a config when it is read.
const MAX_CONFIG_BYTES: u64 = 1 << 24;
/// Number of bytes at the end of the metrics file that always contain the last event.
const TAIL_BYTES: u64 = 1 << 16;
/// Time for which a sign of a rank holds.
const SIGN: Duration = Duration::from_secs(15);

/// The folder of a run.
#[derive(Debug, Default)]
pub(crate) struct RunWatch {
    out: PathBuf,
    /// Unique id of this job.
    job_id: String,
    /// The config file that was in the folder before the job.
    config_before: Option<Stamp>,
    /// The file of a complete run that was in the folder before the job: an earlier job may have had the same id.
    done_before: Option<Stamp>,
    /// The metrics file that was in the folder before this attempt.
    metrics_before: Option<Stamp>,
    /// Last line of that metrics file. A resumed run rewrites the lines of earlier steps, and appends its own after them.
    event_before: Option<String>,
    /// The checkpoints that were there before this attempt.
    checkpoints_before: Checkpoints,
}

/// Steps and folders of checkpoints, intact or not; `None` if they can't be listed.
type Checkpoints = Option<Vec<(u64, Option<Stamp>)>>;

/// The newest checkpoint of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Newest {
    /// Nothing was saved.
    Nothing,
    /// There are checkpoints, and none looks intact, or their folder can't be read.
    Unusable,
    /// It looks intact, and is of this step.
    Step(u64),
}

/// Identity of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let data = fs::metadata(path).ok()?;
        Some(Stamp { inode: data.ino(), len: data.len(), modified: (data.mtime(), data.mtime_nsec()) })
    }
}

/// The fields of the last event that are used here.
#[derive(Debug, Deserialize)]
struct LastEvent {
    event: String,
    exit_code: Option<u8>,
    error: Option<String>,
}

impl RunWatch {
    /// Watches `out` for a new job, with an id of its own unless the hosts of the job have one.
    pub(crate) fn new(out: &Path, job_id: Option<String>) -> Self {
        let config_before = Stamp::of(&out.join(CONFIG_FILE));
        let done_before = Stamp::of(&out.join(DONE_FILE));
        // If there is no random device, a process id, which is unique at this moment.
        let random = || run_id::random().unwrap_or_else(|_| std::process::id().to_string());
        let job_id = job_id.unwrap_or_else(random);
        RunWatch { out: out.to_owned(), job_id, config_before, done_before, ..RunWatch::default() }
    }

    /// Path of the folder.
    pub(crate) fn out(&self) -> &Path {
        &self.out
    }

    /// Id of the job in `done.json`.
    pub(crate) fn job_id(&self) -> &str {
        &self.job_id
    }

    /// Discards the reports of earlier attempts.
    pub(crate) fn begin_attempt(&mut self) {
        let path = self.out.join(METRICS_FILE);
        self.metrics_before = Stamp::of(&path);
        self.event_before = last_line(&path);
        self.checkpoints_before = self.checkpoints();
    }

    fn checkpoints(&self) -> Checkpoints {
        let store = CheckpointStore::for_run(&self.out);
        let steps = store.steps().ok()?.into_iter();
        Some(steps.map(|step| (step, Stamp::of(&store.step_folder(step)))).collect())
    }

    /// Whether this attempt has saved a checkpoint. The newest one may be older than before, since only the ranks find wrong bytes: they
    /// resume from one before it then, and replace it later.
    pub(crate) fn has_saved(&self) -> bool {
        let Some((before, now)) = self.checkpoints_before.as_ref().zip(self.checkpoints()) else {
            return false;
        };
        now.iter().any(|checkpoint| !before.contains(checkpoint))
    }

    /// Whether rank 0 of this job wrote that the run is complete.
    pub(crate) fn is_done(&self) -> bool {
        let is_of_job = |done: Done| done.job_id.as_ref() == Some(&self.job_id);
        Done::read(&self.out).is_some_and(is_of_job)
            && Stamp::of(&self.out.join(DONE_FILE)) != self.done_before
    }

    /// Whether this job's run has claimed the folder; until then, its contents belong to another run.
    pub(crate) fn is_claimed(&self) -> bool {
        let config = Stamp::of(&self.out.join(CONFIG_FILE));
        config.is_some() && config != self.config_before
    }

    /// The config of the run in the folder.
    pub(crate) fn config(&self) -> Option<Config> {
        let path = self.out.join(CONFIG_FILE);
        let text = read_regular(&path, MAX_CONFIG_BYTES).ok()?;
        Config::from_saved(&String::from_utf8(text).ok()?, &path).ok()
    }

    /// Time that the ranks may take for a save after one of them was lost.
    pub(crate) fn save_limit(&self) -> Duration {
        self.config().and_then(|config| config.watchdog.save_limit()).unwrap_or_default()
    }

    /// Time within which the ranks notice that one of them is frozen, and one of them has saved; 0 without a watchdog.
    pub(crate) fn loss_limit(&self) -> Duration {
        let watchdog = self.config().map(|config| config.watchdog).filter(|watchdog| watchdog.enabled);
        watchdog.map_or(Duration::ZERO, |watchdog| {
            watchdog.timeout() + 2 * watchdog.interval() + watchdog.save_limit().unwrap_or_default()
        })
    }

    /// Whether the end of the run is on its way to a bucket.
    pub(crate) fn is_uploading(&self) -> bool {
        let touched = fs::metadata(self.out.join(UPLOADING_FILE)).and_then(|data| data.modified());
        touched.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < SIGN))
    }

    /// The newest checkpoint that looks intact.
    pub(crate) fn newest(&self) -> Newest {
        let store = CheckpointStore::for_run(&self.out);
        // The job has ended. What can't be renamed is found by the next one.
        let _ = store.restore_names();
        let found = store.newest(u64::MAX, |_| Ok(())).map(|search| search.found);
        match (found, store.steps()) {
            (Ok(Some(checkpoint)), _) => Newest::Step(checkpoint.manifest().run.step),
            (Ok(None), Ok(steps)) if steps.is_empty() => Newest::Nothing,
            _ => Newest::Unusable,
        }
    }

    /// Whether this attempt has written events.
    pub(crate) fn has_events(&self) -> bool {
        let now = Stamp::of(&self.out.join(METRICS_FILE));
        now.is_some_and(|now| now.len > 0) && now != self.metrics_before
    }

    /// UUID of the GPU that the first report of a failure names.
    pub(crate) fn failed_gpu(&self) -> Option<String> {
        let failures = self.last_events().into_iter().rev().filter(|event| event.event == "failed");
        failures.filter_map(|event| uuid_in(&event.error?).map(str::to_owned)).next()
    }

    /// Exit status in the last report of a failure in this attempt, or of a stop after its checkpoint.
    pub(crate) fn reported(&self) -> Option<u8> {
        let events = self.last_events();
        let failed = events.iter().find(|event| event.event == "failed");
        match (failed, events.first()) {
            (Some(failed), _) => failed.exit_code,
            (None, Some(last)) if last.event == "stop" => {
                let is_new = last_line(&self.out.join(METRICS_FILE)) != self.event_before;
                is_new.then_some(exit_code::SAVED)
            }
            (None, _) => None,
        }
    }

    /// The newest events of this attempt, the last one first. The ranks write to one file: lines of others, which go on for a moment,
    /// may follow the report of a failure. A run that resumes keeps lines of steps, but no such reports.
    fn last_events(&self) -> Vec<LastEvent> {
        let path = self.out.join(METRICS_FILE);
        let tail = if self.has_events() { tail(&path).unwrap_or_default() } else { Vec::new() };
        let text = String::from_utf8_lossy(&tail);
        let is_of_before = |line: &str| self.event_before.as_deref() == Some(line);
        // A new run may fail as the one before, whose last line was the same.
        let lines = text.lines().rev().enumerate().take_while(|(n, line)| *n == 0 || !is_of_before(line));
        let events = lines.filter_map(|(_, line)| serde_json::from_str::<LastEvent>(line).ok());
        events.take_while(|event| event.event != "resume").collect()
    }
}

fn last_line(path: &Path) -> Option<String> {
    let tail = tail(path).ok()?;
    String::from_utf8_lossy(&tail).lines().next_back().map(str::to_owned)
}

fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run starts over only where it has saved nothing.
    #[test]
    fn checkpoints_that_cannot_be_used_are_not_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let watch = RunWatch::new(folder.path(), None);
        assert_eq!(watch.newest(), Newest::Nothing);
        let checkpoints = folder.path().join("checkpoints");
        fs::create_dir_all(checkpoints.join(".step-10-1.tmp")).unwrap();
        assert_eq!(watch.newest(), Newest::Nothing, "none was completed");
        fs::create_dir_all(checkpoints.join("step-10")).unwrap();
        assert_eq!(watch.newest(), Newest::Unusable, "it has lost its files");
        fs::remove_dir_all(&checkpoints).unwrap();
        fs::write(&checkpoints, "").unwrap();
        assert_eq!(watch.newest(), Newest::Unusable, "the folder can't be read");
    }

    #[test]
    fn a_checkpoint_that_was_not_there_is_progress() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = RunWatch::new(folder.path(), None);
        let store = CheckpointStore::for_run(folder.path());
        let save = |step: u64| {
            let temp = store.folder().join(format!(".step-{step}-9.tmp"));
            fs::create_dir_all(&temp).unwrap();
            let old = temp.with_extension("old");
            // The old one exists until the new one is complete.
            let _ = fs::rename(store.step_folder(step), &old);
            fs::rename(&temp, store.step_folder(step)).unwrap();
            let _ = fs::remove_dir(&old);
        };
        [4000, 4500].into_iter().for_each(save);
        watch.begin_attempt();
        assert!(!watch.has_saved());
        fs::remove_dir(store.step_folder(4000)).unwrap();
        assert!(!watch.has_saved(), "one was deleted");
        // The bytes of step 4500 were wrong.
        save(4300);
        assert!(watch.has_saved());
        watch.begin_attempt();
        assert!(!watch.has_saved());
        save(4500);
        assert!(watch.has_saved(), "another of the same step");
    }

    /// Hosts of a cluster take it from its address, so that a job that is applied again has it too.
    #[test]
    fn an_earlier_job_of_the_same_id_says_nothing_of_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let done = Done { run_id: None, job_id: Some("node0".to_owned()), step: 9 };
        done.write(folder.path()).unwrap();
        let watch = RunWatch::new(folder.path(), Some("node0".to_owned()));
        assert!(!watch.is_done());
        done.write(folder.path()).unwrap();
        assert!(watch.is_done(), "this job has found that there is nothing to do");
        fs::remove_file(folder.path().join(DONE_FILE)).unwrap();
        assert!(!watch.is_done());
    }

    /// A rank that goes on for a moment writes its line after that of the rank which failed.
    #[test]
    fn a_failure_is_seen_among_the_lines_of_other_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(METRICS_FILE);
        let failed = |gpu: u8, code: u8| {
            let error = format!("cuda:{gpu}: ECC on GPU-76697274-7561-6c20-4750-55202020303{gpu}, PCI 0");
            format!("{{\"event\":\"failed\",\"exit_code\":{code},\"rank\":{gpu},\"error\":\"{error}\"}}\n")
        };
        let (step, lost) =
            ("{\"event\":\"step\",\"step\":1}\n", "{\"event\":\"failed\",\"exit_code\":75,\"rank\":0}\n");
        let resume = "{\"event\":\"resume\",\"step\":1}\n";
        let watch = RunWatch::new(folder.path(), None);
        let uuid = |gpu: u8| Some(format!("GPU-76697274-7561-6c20-4750-55202020303{gpu}"));
        let cases = [
            (failed(1, 75) + step, Some(75), uuid(1)),
            (step.to_owned() + &failed(1, 1) + lost + step, Some(75), uuid(1)),
            // The first one to fail, not those that follow from it.
            (failed(1, 75) + &failed(0, 75), Some(75), uuid(1)),
            (failed(1, 75) + resume + step, None, None),
        ];
        for (lines, reported, gpu) in cases {
            fs::write(&path, &lines).unwrap();
            assert_eq!((watch.reported(), watch.failed_gpu()), (reported, gpu), "{lines}");
        }
        fs::write(&path, failed(1, 75)).unwrap();
        let mut watch = RunWatch::new(folder.path(), None);
        watch.begin_attempt();
        fs::write(&path, failed(1, 75) + step).unwrap();
        assert_eq!((watch.reported(), watch.failed_gpu()), (None, None), "it was the attempt before");
    }

    #[test]
    fn an_earlier_run_says_nothing_of_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path();
        let failed = "{\"event\":\"failed\",\"exit_code\":75,\"rank\":1}\n";
        fs::write(out.join(CONFIG_FILE), "old").unwrap();
        fs::write(out.join(METRICS_FILE), failed).unwrap();
        Done { run_id: None, job_id: Some("old".to_owned()), step: 9 }.write(out).unwrap();
        let mut watch = RunWatch::new(out, None);
        watch.begin_attempt();
        assert!(!watch.is_done() && !watch.is_claimed());
        assert_eq!((watch.reported(), watch.newest()), (None, Newest::Nothing));

        fs::remove_file(out.join(DONE_FILE)).unwrap();
        ddp::storage::atomic_write::write_atomic(&out.join(CONFIG_FILE), b"new").unwrap();
        assert!(watch.is_claimed());
        fs::write(out.join(METRICS_FILE), format!("{{\"event\":\"step\"}}\n{failed}")).unwrap();
        assert_eq!(watch.reported(), Some(75));
        watch.begin_attempt();
        assert_eq!(watch.reported(), None, "it was the attempt before");
        fs::write(out.join(METRICS_FILE), "{\"event\":\"step\",\"step\":1}\n").unwrap();
        assert_eq!(watch.reported(), None);
        fs::write(out.join(METRICS_FILE), "{\"event\":\"stop\",\"step\":1,\"reason\":\"SIGTERM\"}\n")
            .unwrap();
        assert_eq!(watch.reported(), Some(85));
        watch.begin_attempt();
        let stop = fs::read(out.join(METRICS_FILE)).unwrap();
        ddp::storage::atomic_write::write_atomic(&out.join(METRICS_FILE), &stop).unwrap();
        assert_eq!(watch.reported(), None, "the attempt has kept the line of the one before");
        Done { run_id: None, job_id: Some(watch.job_id().to_owned()), step: 9 }.write(out).unwrap();
        assert!(watch.is_done());
    }
}
