//! The lines of `metrics.jsonl` that a resumed run keeps.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;

use serde::Deserialize;
use tracing::warn;

use crate::exit_code::RESTARTABLE;
use crate::storage::atomic_write::write_atomic_with;
use crate::storage::user_file::{open_regular, open_unlinked};
use crate::storage::write_error::WriteError;

/// Longest line; a longer one is damaged.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Ending of the name of the file to which damaged lines go.
const DAMAGED: &str = "damaged";

/// End of the lines before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Before {
    /// The last step.
    pub(super) step: u64,
    /// Exit status and rank of the last line that reports a failure. Lines of other ranks may follow it.
    pub(super) failed: Option<(u8, usize)>,
}

/// Removes the lines of steps after `step` from the events in `path`, line by line. Damaged lines go to a file next to it, with a
/// warning; half a line at the end is what a killed process leaves. Afterwards the file has each line of `last`, the events of the step
/// `step` that its checkpoint holds, or another rank's line of that event, once; but for its evaluations if they are made again.
///
/// # Errors
/// [`WriteError`] if a file can't be read or written.
pub(super) fn keep_until(
    path: &Path,
    step: u64,
    last: &[String],
    evaluates_again: bool,
) -> Result<Before, WriteError> {
    let failed = |source| WriteError { path: path.to_owned(), source };
    let mut old = match open_regular(path) {
        Ok(old) => Some(BufReader::with_capacity(1 << 18, old)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let (mut aside, mut n_damaged) = (None::<File>, 0_u64);
    let aside_path = path.with_extension(format!("jsonl.{DAMAGED}"));
    let mut before = Before::default();
    write_atomic_with(path, |out| {
        let (mut line, mut missing) =
            (Vec::new(), last.iter().map(|line| (event(line), line)).collect::<Vec<_>>());
        let mut there = Vec::new();
        while let Some(old) = &mut old {
            line.clear();
            if io::Read::take(old, MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            match kind(&line, step, &mut before) {
                Kind::Kept => out.write_all(&line)?,
                Kind::OfStep(event) if there.contains(&event) => {}
                Kind::OfStep(event) if evaluates_again && ["epoch", "eval"].contains(&event.as_str()) => {}
                Kind::OfStep(event) => {
                    out.write_all(&line)?;
                    let n_missing = missing.len();
                    missing.retain(|(of, _)| *of != event);
                    there.extend((missing.len() < n_missing).then_some(event));
                }
                Kind::Later => {}
                Kind::Damaged => {
                    n_damaged += 1;
                    let mut create = OpenOptions::new();
                    let file = match &mut aside {
                        Some(file) => file,
                        none => none.insert(open_unlinked(create.append(true).create(true), &aside_path)?),
                    };
                    file.write_all(&line)?;
                }
            }
        }
        missing.iter().try_for_each(|(_, line)| writeln!(out, "{line}"))
    })?;
    if n_damaged > 0 {
        let lines = if n_damaged == 1 { "1 damaged line" } else { &format!("{n_damaged} damaged lines") };
        warn!(
            "{lines} of {} left out\nhint: kept in {}; the checkpoints do not depend on them",
            path.display(),
            aside_path.display()
        );
    }
    Ok(before)
}

/// A line of `metrics.jsonl`.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    event: Option<Cow<'a, str>>,
    step: Option<u64>,
    exit_code: Option<u8>,
    rank: Option<usize>,
}

/// The event of a line that this program wrote.
fn event(line: &str) -> String {
    serde_json::from_str::<Line<'_>>(line).ok().and_then(|line| line.event).unwrap_or_default().into_owned()
}

enum Kind {
    Kept,
    /// Kept too, an event of the last step.
    OfStep(String),
    /// Of a later step or without a step, or half a line at the end.
    Later,
    Damaged,
}

fn kind(line: &[u8], step: u64, before: &mut Before) -> Kind {
    let text = std::str::from_utf8(line).map_err(|_| ());
    match text.and_then(|text| serde_json::from_str::<Line<'_>>(text).map_err(|_| ())) {
        _ if line.last() != Some(&b'\n') && (line.len() as u64) < MAX_LINE_BYTES => Kind::Later,
        Ok(line) => {
            let failed = line.exit_code.zip(line.rank);
            before.failed = failed.or(before.failed);
            // The step that a failure names may not have been completed, but after a loss.
            let is_completed = failed.is_none_or(|(code, _)| code == RESTARTABLE);
            before.step = before.step.max(line.step.filter(|_| is_completed).unwrap_or_default());
            match line.step.filter(|_| failed.is_none()) {
                Some(of) if of == step => Kind::OfStep(line.event.unwrap_or_default().into_owned()),
                Some(of) if of < step => Kind::Kept,
                _ => Kind::Later,
            }
        }
        Err(_) => Kind::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn damaged_lines_cost_themselves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let lines: [&[u8]; 7] = [
            b"{\"event\":\"step\",\"step\":1}\n",
            b"{\"event\":\"st\xffp\",\"step\":2}\n",
            b"\0\0\0\n",
            b"{\"event\":\"step\",\"step\":2}\n",
            b"{\"event\":\"end\",\"steps\":9}\n",
            b"{\"event\":\"step\",\"step\":3}\n",
            b"{\"event\":\"step\",\"st",
        ];
        fs::write(&path, lines.concat()).unwrap();
        keep_until(&path, 2, &[], false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [lines[0], lines[3]].concat());
        let aside = folder.path().join("metrics.jsonl.damaged");
        assert_eq!(fs::read(&aside).unwrap(), [lines[1], lines[2]].concat());
        fs::remove_file(&path).unwrap();
        keep_until(&path, 2, &[], false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_failure_is_known_though_other_ranks_wrote_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let step = |step: u64| format!("{{\"event\":\"step\",\"step\":{step}}}\n");
        let failed = "{\"event\":\"failed\",\"exit_code\":75,\"rank\":1,\"step\":9}\n";
        fs::write(&path, step(1) + failed + &step(2)).unwrap();
        assert_eq!(keep_until(&path, 1, &[], false).unwrap(), Before { step: 9, failed: Some((75, 1)) });
        assert_eq!(fs::read_to_string(&path).unwrap(), step(1), "no failure is kept");
        assert_eq!(keep_until(&path, 1, &[], false).unwrap(), Before { step: 1, failed: None });
    }

    /// A rank that saved alone knows what the writer of the events may not have written.
    #[test]
    fn events_of_the_last_step_are_there_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let line = |event: &str, step: u64, loss: u64| {
            format!("{{\"event\":\"{event}\",\"step\":{step},\"loss\":{loss}}}")
        };
        let last = [line("step", 2, 8), line("epoch", 2, 8)];
        let others = [line("step", 1, 3), line("checkpoint", 2, 3), line("step", 3, 3)];
        let text = |lines: &[&String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let kept = |lines: &[&String]| {
            fs::write(&path, text(lines)).unwrap();
            keep_until(&path, 2, &last, false).unwrap();
            fs::read_to_string(&path).unwrap()
        };
        assert_eq!(
            kept(&[&others[0], &others[1], &others[2]]),
            text(&[&others[0], &others[1], &last[0], &last[1]])
        );
        let evaluated = [&others[0], &others[1], &last[1], &others[2]];
        fs::write(&path, text(&evaluated)).unwrap();
        keep_until(&path, 2, &last[..1], true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text(&[&others[0], &others[1], &last[0]]));
        let own = line("step", 2, 7);
        assert_eq!(
            kept(&[&others[0], &own, &others[1], &own]),
            text(&[&others[0], &own, &others[1], &last[1]])
        );
        assert_eq!(kept(&[&own, &last[1], &last[1]]), text(&[&own, &last[1]]));
    }
}
