//! Progress of a run in the status of its Kubeflow TrainJob, posted by `curl` while the run continues.
//!
//! Kubeflow Trainer sets the variables where its feature `TrainJobStatus` is on.
//!
//! Source: Kubeflow Trainer, `docs/user-guides/trainjob-progress.md`, "Raw HTTP".

use std::fs;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};
use tracing::warn;

use super::live::{Live, TIME};

/// Least time between two posts.
const PERIOD: Duration = Duration::from_secs(5);
/// Time limit of a post, in seconds.
const LIMIT_S: u64 = 5;

/// Place and credentials of the status.
#[derive(Debug)]
struct Server {
    url: String,
    ca_cert: String,
    /// File of the token, which changes while the run continues.
    token: String,
}

/// A thread that posts the progress of a run until it is dropped.
#[derive(Debug)]
pub(crate) struct Posts {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Posts {
    /// Posts the progress of `run`, if there is a server for it.
    pub(super) fn start(run: &Arc<Live>) -> Option<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let server = Server {
            url: set("KUBEFLOW_TRAINER_SERVER_URL")?,
            ca_cert: set("KUBEFLOW_TRAINER_SERVER_CA_CERT")?,
            token: set("KUBEFLOW_TRAINER_SERVER_TOKEN")?,
        };
        let (end, ended) = mpsc::channel();
        let run = Arc::clone(run);
        let post = move || {
            let mut is_failing = false;
            loop {
                let is_last = ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                let posted = server.post(&status(&run));
                if let (Err(error), false) = (&posted, is_failing) {
                    warn!("the progress of the TrainJob can't be posted, and training continues: {error}");
                }
                is_failing = posted.is_err();
                if is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("trainjob status".to_owned()).spawn(post).ok()?;
        Some(Posts { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Posts {
    fn drop(&mut self) {
        // The thread posts once more.
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn status(run: &Live) -> Value {
    let metrics: Vec<_> = run
        .metrics()
        .into_iter()
        .filter(|(name, _)| !name.starts_with(TIME))
        .map(|(name, value)| json!({"name": name, "value": value.to_string()}))
        .collect();
    let now = DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Secs, true);
    let mut status = json!({
        "progressPercentage": (100.0 * run.done()) as u64,
        "metrics": metrics,
        "lastUpdatedTime": now,
    });
    if let Some(left_s) = run.left_s() {
        status["estimatedRemainingSeconds"] = json!(left_s.ceil() as u64);
    }
    json!({"trainerStatus": status})
}

impl Server {
    /// Posts `status`. The token is written to curl's stdin, since everybody may read arguments.
    fn post(&self, status: &Value) -> io::Result<()> {
        let token = fs::read_to_string(&self.token)?;
        let config = [
            ("url", self.url.clone()),
            ("cacert", self.ca_cert.clone()),
            ("header", format!("Authorization: Bearer {}", token.trim())),
            ("header", "Content-Type: application/json".to_owned()),
            ("data", status.to_string()),
            ("max-time", LIMIT_S.to_string()),
        ];
        let mut curl = Command::new("curl")
            .args(["--fail", "--silent", "--show-error", "--output", "/dev/null", "--config", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("curl: {error}")))?;
        if let Some(mut stdin) = curl.stdin.take() {
            for (name, value) in config {
                // curl's config quotes strings as JSON does, if they hold no control characters.
                writeln!(stdin, "{name} = {}", Value::String(value))?;
            }
        }
        let ended = curl.wait_with_output()?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        Err(io::Error::other(if said.is_empty() { format!("curl: {}", ended.status) } else { said }))
    }
}
