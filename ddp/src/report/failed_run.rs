//! The last event of a failed run.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::report::EventStream;
use crate::report::metrics::{Event, FailedEvent, json_line};

/// Where a run that fails writes its last event, and how far it came.
#[derive(Debug, Clone, Default)]
pub struct FailedRun {
    /// Where events go as well, with `--json`.
    pub stdout: Option<EventStream>,
    /// The event file, once there is one; shared with the watchdog.
    pub metrics: Arc<OnceLock<PathBuf>>,
    /// The step that failed, or else the number of completed steps; `None` before training.
    pub step: Option<u64>,
}

impl FailedRun {
    /// Writes the event of `message`, whose last lines may be a hint. Best effort: the failure itself is reported on stderr.
    pub fn write(&self, exit_code: u8, rank: usize, message: &str) {
        let (error, hint) = match message.split_once("\nhint: ") {
            Some((error, hint)) => (error, Some(hint.to_owned())),
            None => (message, None),
        };
        let error = error.to_owned();
        let line = json_line(&Event::Failed(FailedEvent { exit_code, rank, step: self.step, error, hint }));
        // Not created: a rank of another host may not see the run's folder.
        if let Some(path) = self.metrics.get()
            && let Ok(mut file) = OpenOptions::new().append(true).open(path)
        {
            let _ = file.write_all(line.as_bytes());
        }
        // Last, since nobody may read it.
        if let Some(stdout) = &self.stdout {
            stdout.write(&line);
            stdout.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_is_the_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let run = FailedRun { stdout: None, metrics: Arc::new(path.clone().into()), step: Some(7) };
        run.write(1, 0, "not created");
        assert!(!path.exists());
        std::fs::write(&path, "{\"event\":\"step\"}\n").unwrap();
        run.write(1, 2, "loss is NaN at step 7\nhint: try a smaller `optimizer.lr`");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().last().unwrap(),
            r#"{"event":"failed","exit_code":1,"rank":2,"step":7,"error":"loss is NaN at step 7","hint":"try a smaller `optimizer.lr`"}"#
        );
        run.write(74, 0, "no hint");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.ends_with("\"error\":\"no hint\",\"hint\":null}\n") && text.lines().count() == 3,
            "{text}"
        );
    }
}
