//! The training run of a job: the arguments of its first start and of its restarts.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use ddp::report::visible::shell_word;

/// Flags that determine where a run starts, and whether they take a value. A restart replaces them by the newest checkpoint.
const START_FLAGS: [(&str, bool); 6] = [
    ("--out", true),
    ("--resume", true),
    ("--init-from", true),
    ("--overwrite", false),
    ("--refit-preprocessing", false),
    ("--new-head", false),
];

/// Arguments of `ddp-train train`, and the facts about them that a job needs.
pub struct Training<'a> {
    /// Arguments without the word `train`, each flag by the name that it has here.
    pub words: &'a [OsString],
    /// The folder of a bucket to which the results go, in place of the run folder.
    pub address: Option<&'a str>,
    /// Whether the arguments name the run folder.
    pub names_folder: bool,
    /// Whether the arguments give the number of ranks.
    pub names_world: bool,
    /// Whether the ranks may compute on GPUs.
    pub may_use_gpus: bool,
    /// Whether the arguments choose the GPU of a rank, or let ranks share one.
    pub names_gpu: bool,
    /// Returns the run folder; creates it for a new run without a given name.
    pub open_folder: &'a dyn Fn() -> ddp::Result<PathBuf>,
}

impl fmt::Debug for Training<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Training").field("words", &self.words).finish_non_exhaustive()
    }
}

impl Training<'_> {
    /// Arguments of the program to start the run `id` in `out` for the first time, on `n_ranks` ranks.
    pub(crate) fn first(&self, out: &Path, id: &str, n_ranks: usize) -> Vec<OsString> {
        let mut line = self.head(id, n_ranks);
        if !self.names_folder {
            line.extend(["--out".into(), out.into()]);
        }
        line.extend(self.words.iter().cloned());
        line
    }

    /// Arguments to resume the run from its newest valid checkpoint, with `n_micro` micro-batches per rank if the number differs
    /// from the configured one.
    pub(crate) fn resumed(
        &self,
        out: &Path,
        id: &str,
        n_ranks: usize,
        n_micro: Option<usize>,
    ) -> Vec<OsString> {
        let mut line = self.head(id, n_ranks);
        let out = self.address.map_or(out.as_os_str(), OsStr::new);
        line.extend(["--out".into(), out.into(), "--resume".into(), "auto".into()]);
        let mut words = self.words.iter().peekable();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy();
            let (name, has_value) = text.split_once('=').map_or((&*text, false), |(name, _)| (name, true));
            match START_FLAGS.iter().find(|(flag, _)| *flag == name) {
                None => line.push(word.clone()),
                Some((_, true)) if !has_value => {
                    // A flag is no value.
                    let _ = words.next_if(|next| !next.as_encoded_bytes().starts_with(b"-"));
                }
                Some(_) => {}
            }
        }
        // If a flag is repeated, the last one counts.
        let set = n_micro.map(|n_micro| format!("train.grad_accum_steps={n_micro}"));
        line.extend(set.into_iter().flat_map(|set| ["--set".into(), set.into()]));
        line
    }

    /// Words that continue the run in `out`, after the user's words.
    pub(crate) fn resume_words(&self, out: &Path) -> String {
        let out = shell_word(self.address.map_or(out, Path::new));
        if self.names_folder { "--resume auto".to_owned() } else { format!("--out {out} --resume auto") }
    }

    /// Whether the arguments name the folder of a run, to be resumed if it is there.
    pub(crate) fn resumes_named_folder(&self) -> bool {
        self.names_folder && self.words.iter().any(|word| word.to_string_lossy().starts_with("--resume"))
    }

    fn head(&self, id: &str, n_ranks: usize) -> Vec<OsString> {
        let mut line: Vec<OsString> = ["train", "--job-id", id].map(OsString::from).into();
        if !self.names_world {
            line.extend(["--expect-world".into(), n_ranks.to_string().into()]);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn training(words: &[OsString]) -> Training<'_> {
        let has = |flag: &str| words.iter().any(|word| word == flag);
        Training {
            words,
            address: None,
            names_folder: has("--out"),
            names_world: has("--expect-world"),
            may_use_gpus: false,
            names_gpu: false,
            open_folder: &|| Ok(PathBuf::new()),
        }
    }

    fn text(words: &[OsString]) -> String {
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_first_start_is_what_was_typed() {
        let head = "train --job-id a --expect-world 2";
        let out = Path::new("o");
        let first = |line: &str| text(&training(&words(line)).first(out, "a", 2));
        assert_eq!(first("run.toml --overwrite"), format!("{head} --out o run.toml --overwrite"));
        assert_eq!(first("run.toml --out x"), format!("{head} run.toml --out x"));
        assert_eq!(first("--expect-world 4"), "train --job-id a --out o --expect-world 4");
    }

    #[test]
    fn the_user_continues_in_the_folder_of_the_run() {
        let resume = |line: &str| training(&words(line)).resume_words(Path::new("runs/a"));
        assert_eq!(resume("run.toml --out x"), "--resume auto");
        assert_eq!(resume("run.toml"), "--out runs/a --resume auto");
        let blank = training(&words("run.toml")).resume_words(Path::new("my runs/a"));
        assert_eq!(blank, "--out 'my runs/a' --resume auto");
    }

    #[test]
    fn a_restart_continues_from_the_newest_checkpoint() {
        let typed = "run.toml --out x --init-from=w --refit-preprocessing --set a=1 -v";
        let resumed = text(&training(&words(typed)).resumed(Path::new("x"), "a", 2, None));
        assert_eq!(resumed, "train --job-id a --expect-world 2 --out x --resume auto run.toml --set a=1 -v");
        let fewer = text(&training(&words("-q --set train.grad_accum_steps=2")).resumed(
            Path::new("x"),
            "a",
            1,
            Some(4),
        ));
        assert!(
            fewer.ends_with(" -q --set train.grad_accum_steps=2 --set train.grad_accum_steps=4"),
            "{fewer}"
        );
        for typed in [
            "--resume p --json",
            "--resume=p --json",
            "--json --overwrite --out=x",
            "--resume --json",
            "--json --out",
        ] {
            let resumed = text(&training(&words(typed)).resumed(Path::new("x"), "a", 1, None));
            assert!(resumed.ends_with(" --out x --resume auto --json"), "{typed}: {resumed}");
        }
    }
}
