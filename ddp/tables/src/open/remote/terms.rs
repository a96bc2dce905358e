//! Terms of runs in buckets: parts of a run that are fetched, small objects, and conditions under which they are written.

use std::collections::BTreeSet;

use ddp::checkpoint::{MANIFEST_FILE, step_name, step_of};
use ddp::run_folder::done::DONE_FILE;
use ddp::run_folder::folder::{CHECKPOINTS, MODEL_FILE, REPORT_FILE};

/// The reason why a source cannot be read, and what to do.
pub(super) type Fault = (String, String);

/// Object that names the writer of a run.
pub const OWNER: &str = ".owner";

/// Part of the objects below an address that is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Take {
    /// Objects that an address of rows or of one file names.
    Rows,
    /// All of one run or of several, weights only by their sizes.
    Lists,
    /// A run's model, or its newest checkpoint where it has none yet.
    Model,
    /// The files of a run and its newest checkpoint, from which it continues.
    Start,
    /// All of a run.
    Run,
}

impl Take {
    /// A name of its own.
    #[cfg(feature = "stores")]
    pub(super) fn name(self) -> &'static str {
        match self {
            Take::Rows => "rows",
            Take::Lists => "lists",
            Take::Model => "model",
            Take::Start => "start",
            Take::Run => "run",
        }
    }

    /// Whether one checkpoint is fetched, which must be intact.
    pub(super) fn is_of_newest(self) -> bool {
        matches!(self, Take::Model | Take::Start)
    }

    /// The objects to fetch of those `objects` below the key `home`, where the newest checkpoint is the one before step `end`. Checkpoints
    /// without a manifest are not complete.
    pub(super) fn chosen<T>(self, objects: Vec<(String, T)>, home: &str, end: u64) -> Vec<(String, T)> {
        if self == Take::Rows {
            return objects;
        }
        let below =
            |name: &str| name.strip_prefix(home).map_or(name, |rest| rest.trim_start_matches('/')).to_owned();
        let names: BTreeSet<String> = objects.iter().map(|(name, _)| below(name)).collect();
        let complete = complete_checkpoints(names.iter().map(String::as_str));
        let newest = complete.into_iter().rfind(|step| *step < end);
        // A run that has not ended again may have gone on since it wrote its model, whose file says so: see `has_gone_on`.
        let has_ended = names.contains(MODEL_FILE) && names.contains(DONE_FILE);
        let is_chosen =
            |name: &str| match (name.split_once(CHECKPOINTS).filter(|(before, _)| before.is_empty()), self) {
                (None, Take::Start) => !name.contains('/') && ![REPORT_FILE, OWNER].contains(&name),
                (Some(_), Take::Model) if has_ended => false,
                (Some(_), Take::Model | Take::Start) => {
                    newest.is_some_and(|step| name.starts_with(&checkpoint(step)))
                }
                (None, _) => true,
                (Some((_, rest)), _) => match rest[1..].split_once('/') {
                    Some((step, _)) => names.contains(&format!("{CHECKPOINTS}/{step}/{MANIFEST_FILE}")),
                    None => true,
                },
            };
        objects.into_iter().filter(|(name, _)| is_chosen(&below(name))).collect()
    }

    /// Whether only the size of an object is asked for.
    #[cfg(any(feature = "stores", test))]
    pub(super) fn is_by_size(self, name: &str) -> bool {
        self == Take::Lists && name.ends_with(".safetensors")
    }
}

/// Steps of the complete checkpoints among the objects of a run, in order.
pub fn complete_checkpoints<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u64> {
    let step = |name: &str| {
        let folder = name.strip_prefix(CHECKPOINTS)?.strip_prefix('/')?.strip_suffix(MANIFEST_FILE)?;
        step_of(folder.strip_suffix('/')?)
    };
    let mut steps: Vec<u64> = names.filter_map(step).collect();
    steps.sort_unstable();
    steps
}

/// Begin of the names of the objects of a checkpoint.
pub fn checkpoint(step: u64) -> String {
    format!("{CHECKPOINTS}/{}/", step_name(step))
}

/// Condition under which an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum If<'a> {
    Always,
    /// If there is no object of this name.
    Absent,
    /// If the object has this entity tag.
    Unchanged(&'a str),
}

/// A small object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    pub bytes: Vec<u8>,
    /// The entity tag, which changes with each write.
    pub tag: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_of_a_run() {
        let run = ["config.toml", "report.html", "logs/rank-0.log", "checkpoints/best"];
        let steps = [5, 10, 15].map(|step| format!("checkpoints/step-{step}/model.safetensors"));
        let manifests = [5, 10].map(|step| format!("checkpoints/step-{step}/manifest.json"));
        let names = |model: &[&str]| {
            let names = run.iter().copied().chain(model.iter().copied()).map(str::to_owned);
            names
                .chain(steps.clone())
                .chain(manifests.clone())
                .map(|name| (format!("a/b/{name}"), ()))
                .collect::<Vec<_>>()
        };
        let chosen = |take: Take, model: &[&str]| {
            let chosen = take.chosen(names(model), "a/b", u64::MAX).into_iter();
            chosen.map(|(name, ())| name.strip_prefix("a/b/").unwrap().to_owned()).collect::<Vec<_>>()
        };
        let newest = ["checkpoints/step-10/model.safetensors", "checkpoints/step-10/manifest.json"];
        let start = chosen(Take::Start, &[MODEL_FILE]);
        assert_eq!(start, [&["config.toml", MODEL_FILE], &newest[..]].concat());
        let ended = chosen(Take::Model, &[MODEL_FILE, DONE_FILE]);
        assert!(
            !ended.iter().any(|name| name.starts_with(CHECKPOINTS)) && ended.contains(&MODEL_FILE.to_owned())
        );
        let gone_on = chosen(Take::Model, &[MODEL_FILE]);
        assert!(newest.iter().all(|name| gone_on.iter().any(|of| of == name)), "{gone_on:?}");
        assert!(gone_on.contains(&MODEL_FILE.to_owned()), "{gone_on:?}");
        assert!(newest.iter().all(|name| chosen(Take::Model, &[]).iter().any(|of| of == name)));
        assert!(!chosen(Take::Run, &[]).contains(&steps[2]), "it is not complete");
        assert_eq!(chosen(Take::Lists, &[]).len(), run.len() + 4);
        assert_eq!(chosen(Take::Rows, &[]).len(), names(&[]).len());
        let older = Take::Start.chosen(names(&[]), "a/b", 10);
        assert!(older.iter().any(|(name, ())| name == "a/b/checkpoints/step-5/manifest.json"), "{older:?}");
        assert!(!older.iter().any(|(name, ())| name.contains("step-10")), "{older:?}");
        assert!(Take::Lists.is_by_size(&steps[0]) && !Take::Lists.is_by_size(&manifests[0]));
    }
}
