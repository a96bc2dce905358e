//! Collects the events of this process; installed once by the binary.

use std::path::Path;
use std::sync::Arc;

use ddp::report::notes::LOG_FILE;
use ddp_comm::World;
use tracing::Subscriber;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::Layer as Lines;
use tracing_subscriber::fmt::format::{FmtSpan, JsonFields, debug_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::Registry;

use super::line::{Form, LineFormat, LogOptions, text_field};
use super::rank_log::RankLog;
use super::terminal::{Shown, Terminal};

/// Shows the events of this rank.
#[derive(Debug, Clone)]
pub struct Log {
    terminal: Arc<Terminal>,
    file: RankLog,
}

impl Log {
    /// Shows events of this process on stderr from now on; `has_file` if they will also go to a log file in a run folder.
    ///
    /// Only for the program itself, because the events of a process have one destination.
    pub fn install(world: &World, options: &LogOptions, has_file: bool) -> Self {
        let log = Log::new(Terminal::stderr(world, options), has_file);
        let rank = world.rank().0;
        let invalid = log.start(options, rank, has_file).err();
        if let Some(error) = invalid {
            let usual = LogOptions { directives: None, ..options.clone() };
            log.start(&usual, rank, has_file).expect("the usual levels are valid");
            if rank == 0 {
                let directives = options.directives.as_deref().unwrap_or_default();
                tracing::warn!(
                    "RUST_LOG is ignored: `{directives}` is invalid: {error}\nhint: for example RUST_LOG=debug, or RUST_LOG=ddp::train=trace"
                );
            }
        }
        log
    }

    /// Shows nothing: for programs that install their own subscriber.
    pub fn none(world: &World) -> Self {
        Log::new(Terminal::silent(world), false)
    }

    fn new(terminal: Terminal, has_file: bool) -> Self {
        let terminal = Arc::new(terminal);
        Log { file: RankLog::new(&terminal, has_file), terminal }
    }

    fn start(&self, options: &LogOptions, rank: usize, has_file: bool) -> Result<(), String> {
        let to_file = has_file.then(|| options.file_filter(rank)).transpose()?;
        let subscriber = self.subscriber(options.terminal_filter(rank)?, to_file);
        // Fails only if the process already has a subscriber, which then receives the events.
        let _ = tracing::subscriber::set_global_default(subscriber);
        Ok(())
    }

    fn subscriber(
        &self,
        to_terminal: Targets,
        to_file: Option<Targets>,
    ) -> impl Subscriber + Send + Sync + use<> {
        let lines = |format: &LineFormat| {
            let fields = debug_fn(text_field).delimited(" ");
            let lines = Lines::default().with_span_events(FmtSpan::CLOSE).log_internal_errors(false);
            lines.event_format(format.clone()).fmt_fields(fields)
        };
        let terminal = lines(self.terminal.format()).with_writer(Shown(self.terminal.clone()));
        let terminal = match self.terminal.format().form {
            Form::Json => terminal.fmt_fields(JsonFields::new()).boxed(),
            _ => terminal.boxed(),
        };
        let mut all = vec![terminal.with_filter(to_terminal.with_target(LOG_FILE, LevelFilter::OFF))];
        if let Some(to_file) = to_file {
            let format = LineFormat { form: Form::File, ..self.terminal.format().clone() };
            let file = self.file.clone();
            all.push(lines(&format).with_writer(move || file.clone()).boxed().with_filter(to_file));
        }
        Registry::default().with(all)
    }

    /// Opens the rank's log file, or reports that the run continues without it.
    pub fn open_file(&self, path: &Path) {
        self.file.open(path);
    }

    /// Drops the lines that are waiting for a log file.
    pub fn close_file(&self) {
        self.file.close();
    }

    /// Stderr.
    pub fn terminal(&self) -> &Arc<Terminal> {
        &self.terminal
    }
}

#[cfg(test)]
mod tests {
    use ddp::report::notes::{PROGRESS, STOPPING};
    use tracing::{debug, debug_span, error, field, info, info_span, warn};

    use super::*;

    fn log(is_terminal: bool) -> (Log, impl Fn() -> String) {
        let (terminal, text) = Terminal::in_memory(is_terminal);
        (Log { file: RankLog::new(&terminal, true), terminal }, text)
    }

    fn filter(directives: &str) -> Targets {
        directives.parse().unwrap()
    }

    #[test]
    fn each_destination_has_its_level() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.log");
        let (log, text) = log(false);
        let subscriber = log.subscriber(filter("warn"), Some(filter("debug")));
        tracing::subscriber::with_default(subscriber, || {
            let run = info_span!("run", rank = 0, name = field::Empty).entered();
            run.record("name", "digits");
            info!("early");
            log.open_file(&path);
            let _load = info_span!("load", path = %"a.csv").entered();
            debug!(n_rows = 3, "read");
            warn!("odd");
            error!(target: LOG_FILE, "shown in another way");
        });
        assert_eq!(text(), "warning: odd\n");
        let written = std::fs::read_to_string(path).unwrap();
        let parts =
            ["INFO  rank=0 host=here early\n", "DEBUG rank=0 host=here load{path=a.csv}: read n_rows=3\n"];
        for part in
            parts.into_iter().chain(["WARN  rank=0 host=here odd\n", "ERROR rank=0 host=here shown in"])
        {
            assert!(written.contains(part), "no {part:?} in {written}");
        }
        assert_eq!(written.lines().count(), 4, "{written}");
    }

    #[test]
    fn spans_that_were_asked_for_say_how_long_they_took() {
        let (log, text) = log(false);
        tracing::subscriber::with_default(log.subscriber(filter("debug"), None), || {
            drop(info_span!("epoch", epoch = 1).entered());
            let _step = debug_span!("step", step = 7).entered();
        });
        assert!(text().starts_with("debug: step{step=7}: took "), "{}", text());
        assert_eq!(text().lines().count(), 1);
    }

    #[test]
    fn progress_and_stopping_know_the_bar() {
        let (log, text) = log(true);
        tracing::subscriber::with_default(log.subscriber(filter("info"), None), || {
            info!(target: PROGRESS, "epoch 1");
            log.terminal().set_prints_progress(false);
            info!(target: PROGRESS, "epoch 2");
            let _bar = log.terminal().show_bar(10, 0, true, "starting");
            info!(target: STOPPING, "stopping");
            info!("saved");
        });
        assert_eq!(text(), "epoch 1\nstopping\nsaved\n");
    }

    #[test]
    fn a_directive_wins_over_the_usual_level() {
        let (log, text) = log(false);
        let filter = LogOptions { directives: Some("error".to_owned()), ..LogOptions::default() };
        tracing::subscriber::with_default(log.subscriber(filter.terminal_filter(0).unwrap(), None), || {
            warn!("hidden");
            error!("shown");
        });
        assert_eq!(text(), "error: shown\n");
    }

    /// Queries the subscriber itself, because whether spans are created also depends on other subscribers of the process, which
    /// other tests have.
    #[test]
    fn disabled_spans_are_nothing() {
        let spans = || [debug_span!("step", step = 1), info_span!("epoch")];
        let [step, epoch] = tracing::subscriber::with_default(Registry::default(), spans);
        let (log, _) = log(false);
        let subscriber = log.subscriber(filter("info"), Some(filter("warn")));
        assert!(subscriber.register_callsite(step.metadata().unwrap()).is_never());
        assert!(!subscriber.register_callsite(epoch.metadata().unwrap()).is_never());
    }

    #[test]
    fn a_log_that_fails_is_reported_on_the_terminal_once() {
        let (log, text) = log(false);
        tracing::subscriber::with_default(log.subscriber(filter("error"), Some(filter("info"))), || {
            log.open_file(Path::new("/nowhere/rank-0.log"));
            info!("a");
            info!("b");
        });
        assert_eq!(
            text().matches("can't write the log `/nowhere/rank-0.log`: No such file").count(),
            1,
            "{}",
            text()
        );
        assert_eq!(text().lines().count(), 1);
    }
}
