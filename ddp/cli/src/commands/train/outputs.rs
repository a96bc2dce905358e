//! Files of a run: claims its folder, opens the logs of its ranks, opens its events, writes its model file, and names the command that resumes it.

use std::fs;
use std::path::{Path, PathBuf};

use ddp::checkpoint::CheckpointStore;
use ddp::config::Config;
use ddp::data::Loaded;
use ddp::model::file;
use ddp::model::file::ModelInfo;
use ddp::report::EventStream;
use ddp::report::metrics::{Event, MetricsSink, ResumeEvent};
use ddp::report::visible::shell_word;
use ddp::run_folder::done::{DONE_FILE, Done};
use ddp::run_folder::error::FolderError;
use ddp::run_folder::folder::{Existing, RunDir};
use ddp::run_folder::logs::Probe;
use ddp::run_folder::{file_system, folder, logs};
use ddp::storage::atomic_write::write_atomic;
use ddp::train::TrainError;
use ddp::train::claimed_folder::{claim_folder, claim_folder_again};
use ddp::train::early_stopping::EarlyStopping;
use ddp::train::resume::Resumed;
use ddp::train::resume::rates::RateChange;
use ddp::train::statistics::StatisticsRows;
use ddp::train::trainer::Trainer;
use ddp::train::training_loop::is_long_enough;
use ddp_comm::{Launcher, World};
use tracing::{info, warn};

use crate::bucket::shown;
use crate::cli::TrainArgs;
use crate::error::Result;
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::page::calibration_note;
use crate::report::tensorboard::EventFile;

pub(super) fn check_out(world: &World, args: &TrainArgs) -> Result<()> {
    match &args.out {
        Some(out) if world.rank().0 == 0 && args.resume.is_none() => Ok(folder::check(out, existing(args))?),
        _ => Ok(()),
    }
}

/// Checks on rank 0 that the file system of the run's folder suits a run, unless nothing is written.
pub(super) fn check_file_system(world: &World, args: &TrainArgs, resumed: Option<&Resumed>) -> Result<()> {
    if world.rank().0 > 0 || args.dry_run {
        return Ok(());
    }
    let out = match (&args.out, resumed) {
        // It was checked before.
        (Some(_), _) => return Ok(()),
        (None, Some(resumed)) => resumed.run_folder()?,
        (None, None) => PathBuf::from(folder::RUNS),
    };
    Ok(file_system::check_file_system(&out)?)
}

/// Decides what happens to a run that `--out` already holds, unless it is resumed.
fn existing(args: &TrainArgs) -> Existing {
    if args.overwrite { Existing::Overwrite } else { Existing::Refuse }
}

/// Whether the run that would be resumed is complete and has its model; then reports it and writes nothing. Under a supervisor
/// `done.json` names the new job. Collective.
pub(super) fn is_complete(
    world: &World,
    args: &TrainArgs,
    config: &Config,
    resumed: Option<&Resumed>,
) -> Result<bool, Stop> {
    let Some(resumed) = resumed.filter(|_| !args.dry_run) else { return Ok(false) };
    let state = resumed.state();
    let is_over =
        is_long_enough(config, state, state.step) || EarlyStopping::of(config).is_over(&state.early_stopping);
    let run = &args.out.clone().or_else(|| resumed.run_folder().ok()).unwrap_or_default();
    let done = Done::read(run).filter(|done| {
        is_over && world.rank().0 == 0 && done.step == state.step && run.join(folder::MODEL_FILE).exists()
    });
    let report = done.map(|done| -> Result<()> {
        // Removes what a process that was killed has left.
        let _held = claim_folder(Some(run), &config.name, Existing::Continue)?;
        CheckpointStore::for_run(run).prepare().map_err(TrainError::from)?;
        if args.job_id.is_some() {
            Done { job_id: args.job_id.clone(), ..done }.write(run)?;
        }
        let run = shown(run);
        let continues = if is_long_enough(config, state, state.step) {
            "more `--epochs` continue it"
        } else {
            "it stopped early: a larger `--patience` (0 turns early stopping off) and more `--epochs` continue it"
        };
        info!(
            "{} is complete after {} steps: nothing to do\nhint: `ddp-train eval --checkpoint {}` evaluates it; {continues}, \
             and `--out` or `--overwrite` without --resume starts anew",
            run.display(),
            state.step,
            shell_word(&run),
        );
        Ok(())
    });
    let report = world.collective_result(report.transpose())?;
    let flags = world.group().all_gather_bytes(&[u8::from(report.is_some())])?;
    Ok(flags[0] == [1])
}

/// Claims the run folder on rank 0 and writes the resolved config into it.
pub(super) fn open_folder(
    world: &World,
    args: &TrainArgs,
    config: &Config,
    resumed: Option<&Resumed>,
) -> Result<Option<RunDir>> {
    if world.rank().0 > 0 {
        return Ok(None);
    }
    let (folder, existing) = match resumed {
        Some(resumed) => {
            let folder = resumed.folder(args.out.as_deref());
            if let Err(TrainError::Folder(error)) = &folder
                && let FolderError::Behind { run, .. } | FolderError::Continued { path: run } = &**error
            {
                // That another run is active in the folder matters more than how far it has come.
                folder::check_free(run)?;
            }
            let (out, existing) = folder?;
            let claimed = claim_folder(Some(&out), &config.name, existing)?;
            // Its owner before may have saved until the claim.
            resumed.folder(args.out.as_deref())?;
            (claimed, existing)
        }
        // A run that was killed before its first checkpoint starts over.
        None if args.resume.is_some() => {
            (claim_folder_again(args.out.as_deref(), &config.name)?, Existing::Overwrite)
        }
        None => (claim_folder(args.out.as_deref(), &config.name, existing(args))?, existing(args)),
    };
    folder.remove(DONE_FILE)?;
    // It shows the run up to its last end. A run does without it.
    let _ = folder.remove(folder::REPORT_FILE);
    write_atomic(&folder.file(folder::CONFIG_FILE), config.to_saved_toml().as_bytes())?;
    folder.identify(existing, resumed.and_then(|resumed| resumed.manifest().run_id.as_deref()))?;
    Ok(Some(folder))
}

/// Opens the events of a run.
pub(super) fn open_metrics(
    world: &World,
    config: &Config,
    folder: Option<&RunDir>,
    stdout: Option<EventStream>,
    resumed: Option<&Resumed>,
    change: Option<&RateChange>,
) -> Result<MetricsSink> {
    let Some(folder) = folder else { return Ok(MetricsSink::none()) };
    let path = folder.file(folder::METRICS_FILE);
    let observed = |sink: MetricsSink, resumed: Option<u64>| {
        let event_file = || Box::new(EventFile::begin(folder.path(), world.hostname(), resumed));
        if config.log.tensorboard { sink.with_observer(event_file()) } else { sink }
    };
    let Some(manifest) = resumed.map(Resumed::manifest) else {
        return Ok(observed(MetricsSink::create(&path, stdout)?, None));
    };
    let step = manifest.run.step;
    let (last_events, evaluates_again) = (&manifest.run.last_events, manifest.run.evaluation_is_due);
    let (sink, loss) = MetricsSink::resume(&path, stdout, step, last_events, evaluates_again)?;
    let mut metrics = observed(sink, Some(step));
    let (world_size, world_size_before) = (world.world_size(), manifest.world_size);
    metrics.write(&Event::Resume(ResumeEvent { step, world_size, world_size_before, lost: loss }))?;
    if let Some(change) = change {
        metrics.write(&Event::Schedule(change.event()))?;
    }
    Ok(metrics)
}

/// Writes the model file, on the rank that has the folder: the weights of the best evaluation where there is one, and then the
/// last weights next to it if they differ. Collective.
pub(super) fn save(
    folder: Option<&RunDir>,
    trainer: &mut Trainer<'_>,
    statistics: Option<&StatisticsRows>,
    best: Option<&[f32]>,
    config: &Config,
    data: &Loaded,
) -> Result<()> {
    let layout = trainer.model().layout().clone();
    // The averaged ones, where they are kept.
    let last = trainer.with_averaged_over(statistics, None, |model, _| {
        Ok(folder.map(|_| model.weights_and_statistics()).transpose()?)
    })?;
    let (Some(folder), Some(last)) = (folder, last) else { return Ok(()) };
    let (config, preprocessor) = (config.to_model_toml(), data.preprocessor.clone());
    let n_steps = Some(trainer.n_steps());
    let info = ModelInfo { config, preprocessor, n_steps, held_out: data.held_out };
    let write = |name: &str, weights: &[f32]| -> Result<()> {
        Ok(file::write(&folder.file(name), &layout, weights, &info)?)
    };
    let is_last = |best: &[f32]| {
        best.len() == last.len() && std::iter::zip(best, &last).all(|(a, b)| a.to_bits() == b.to_bits())
    };
    let note = calibration_note::path(&folder.file(folder::MODEL_FILE));
    if note.exists() {
        warn!(
            "removed the calibration of the previous model\nhint: run `ddp-train eval {} --calibrate` to calibrate the new one",
            shell_word(folder.path())
        );
        fs::remove_file(&note).map_err(|source| FolderError::Unwritable { path: note, source })?;
    }
    // The model comes last: it marks the run as finished.
    match best.filter(|best| !is_last(best)) {
        Some(best) => {
            write(folder::LAST_FILE, &last)?;
            write(folder::MODEL_FILE, best)
        }
        None => {
            folder.remove(folder::LAST_FILE)?;
            write(folder::MODEL_FILE, &last)
        }
    }
}

/// The command that resumes the run in `folder`, started as this one was.
pub(super) fn resume_command(world: &World, args: &TrainArgs, folder: &RunDir) -> String {
    let run = shown(folder.path()).display().to_string();
    train_command(world, args, &["--resume".to_owned(), run])
}

/// A command that trains with these `words`, started as this one was, on as many ranks and with the flags that a config does not hold.
pub(crate) fn train_command(world: &World, args: &TrainArgs, words: &[String]) -> String {
    let n = world.world_size();
    let start = match (&args.job_id, world.launcher()) {
        (_, Some(Launcher::Environment)) => format!("ddp-train launch -n {n} --launcher env --"),
        (Some(_), _) => format!("ddp-train launch -n {n} --"),
        _ if n == 1 => "ddp-train train".to_owned(),
        (None, Some(Launcher::Slurm)) => {
            let plugin = if Launcher::joins_by_mpi() { "pmix" } else { "none" };
            format!("srun --mpi={plugin} -n {n} ddp-train train")
        }
        (None, Some(Launcher::Pmi)) => format!("mpiexec -n {n} ddp-train train"),
        (None, _) => format!("mpirun -n {n} ddp-train train"),
    };
    let words = words.iter().map(shell_word);
    std::iter::once(start).chain(words).chain(args.start_words()).collect::<Vec<_>>().join(" ")
}

/// Opens the log files of all ranks in the folder `run`, which is the same path on all of them. Collective. A rank without a
/// file continues without a log, and rank 0 says so.
///
/// # Errors
/// [`Error::Comm`](crate::Error::Comm).
pub(super) fn open(world: &World, log: &Log, run: &Path) -> Result<()> {
    let rank = world.rank().0;
    let probe = match rank {
        0 => Probe::leave(run)
            .inspect_err(|error| {
                let folder = run.join(logs::LOGS);
                warn!("can't write logs in `{}`: {error}; the run continues without them", folder.display());
            })
            .ok(),
        _ => None,
    };
    let is_seen = sees(world, probe.as_ref(), run)?;
    // The host of each rank that does not see the folder.
    let blind = if is_seen { "" } else { world.hostname() };
    let hosts = world.group().all_gather_bytes(blind.as_bytes())?;
    if is_seen {
        log.open_file(&logs::file(run, rank));
    } else {
        log.close_file();
    }
    if probe.is_some()
        && let Some(message) = blind_ranks(&hosts, world.hostname(), run)
    {
        warn!("{message}");
    }
    Ok(())
}

/// Whether this rank sees the folder `run` of rank 0, which has left `probe` there and keeps it until all have looked. Collective.
///
/// # Errors
/// [`Error::Comm`](crate::Error::Comm).
pub(crate) fn sees(world: &World, probe: Option<&Probe>, run: &Path) -> Result<bool> {
    let name = probe.map(Probe::name).unwrap_or_default();
    let name = world.group().all_gather_bytes(name.as_bytes())?.swap_remove(0);
    Ok(Probe::is_seen(run, &String::from_utf8_lossy(&name)))
}

/// The message about ranks that do not see the folder; `hosts` has the name of each one's host.
fn blind_ranks(hosts: &[Vec<u8>], host_of_rank_0: &str, run: &Path) -> Option<String> {
    let blind = || hosts.iter().enumerate().filter(|(_, host)| !host.is_empty());
    let (first, host) = blind().next()?;
    let (n_ranks, host) = (blind().count(), String::from_utf8_lossy(host));
    let (ranks, these) = if n_ranks == 1 { ("rank", "it writes") } else { ("ranks", "they write") };
    Some(format!(
        "{n_ranks} {ranks} of {} (first rank {first} on {host}) can't see `{}` of {host_of_rank_0}, so {these} no log file\n\
         hint: put the run's folder on a file system that all hosts share",
        hosts.len(),
        run.display(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blind_ranks_are_named_together() {
        let hosts = |hosts: &[&str]| hosts.iter().map(|host| host.as_bytes().to_vec()).collect::<Vec<_>>();
        let message = |all: &[&str]| blind_ranks(&hosts(all), "a", Path::new("/runs/x"));
        assert_eq!(message(&["", "", ""]), None);
        let one = message(&["", "", "b"]).unwrap();
        assert!(
            one.starts_with("1 rank of 3 (first rank 2 on b) can't see `/runs/x` of a, so it writes"),
            "{one}"
        );
        let two = message(&["", "b", "c"]).unwrap();
        assert!(two.starts_with("2 ranks of 3 (first rank 1 on b)") && two.contains("\nhint: "), "{two}");
    }
}
