//! Collects the events of this process: installed once, by the binary.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ddp::report::notes::{LOG_FILE, PROGRESS, STOPPING};
use ddp_comm::World;
use tracing::span::{Attributes, Id, Record as SpanRecord};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use super::fields::Fields;
use super::line::Record;
use super::options::LogOptions;
use super::rank_log::RankLog;
use super::terminal::Terminal;

/// Shows the events of this rank.
#[derive(Debug, Clone)]
pub struct Log {
    terminal: Arc<Terminal>,
    file: Arc<RankLog>,
}

impl Log {
    /// Shows events of this process from now on, on stderr; `has_file` if a run's folder will hold a log file too.
    ///
    /// Only for the program itself: the events of a process have one destination.
    pub fn install(world: &World, options: &LogOptions, has_file: bool) -> Self {
        let terminal = Arc::new(Terminal::stderr(world, options));
        let log = Log { terminal, file: Arc::new(RankLog::new(has_file)) };
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

    /// Shows nothing: for programs with a subscriber of their own.
    pub fn none(world: &World) -> Self {
        let terminal = Arc::new(Terminal::silent(world));
        Log { terminal, file: Arc::new(RankLog::new(false)) }
    }

    fn start(&self, options: &LogOptions, rank: usize, has_file: bool) -> Result<(), String> {
        let to_file = has_file.then(|| options.file_filter(rank)).transpose()?;
        let subscriber = self.subscriber(options.terminal_filter(rank)?, to_file);
        // Fails only if the process has a subscriber, which then gets the events.
        let _ = tracing::subscriber::set_global_default(subscriber);
        Ok(())
    }

    fn subscriber(
        &self,
        to_terminal: Targets,
        to_file: Option<Targets>,
    ) -> impl Subscriber + Send + Sync + use<> {
        let terminal = Lines { log: self.clone(), to: Destination::Terminal };
        let file =
            to_file.map(|filter| Lines { log: self.clone(), to: Destination::File }.with_filter(filter));
        Registry::default().with(terminal.with_filter(to_terminal)).with(file)
    }

    /// Opens the rank's log file, or says that the run continues without it.
    pub fn open_file(&self, path: &Path) {
        if let Err((path, error)) = self.file.open(path) {
            tracing::warn!("can't write the log `{}`: {error}; the run continues without it", path.display());
        }
    }

    /// Drops the lines that wait for a log file.
    pub fn close_file(&self) {
        self.file.close();
    }

    /// Stderr.
    pub fn terminal(&self) -> &Arc<Terminal> {
        &self.terminal
    }

    fn write_file(&self, record: &Record) {
        if let Err((path, error)) = self.file.write(&record.to_file(self.terminal.origin())) {
            let path = path.display();
            self.terminal
                .warn(&format!("stopped writing the log `{path}`: {error}; the run continues without it"));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    Terminal,
    File,
}

/// Turns events into lines.
struct Lines {
    log: Log,
    to: Destination,
}

/// Time at which a span began.
struct Began(Instant);

impl Lines {
    fn write(&self, record: &Record) {
        match self.to {
            Destination::Terminal => self.log.terminal.print(record),
            Destination::File => self.log.write_file(record),
        }
    }

    fn record<'a, S>(&self, metadata: &Metadata<'_>, fields: Fields, within: Option<SpanRef<'a, S>>) -> Record
    where
        S: LookupSpan<'a>,
    {
        let fields_of =
            |span: &SpanRef<'a, S>| span.extensions().get::<Fields>().cloned().unwrap_or_default();
        let spans = within.into_iter().flat_map(|span| span.scope().from_root());
        Record {
            time: SystemTime::now(),
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            fields,
            spans: spans.map(|span| (span.name(), fields_of(&span))).collect(),
        }
    }

    fn takes(&self, target: &str) -> bool {
        match (self.to, target) {
            (Destination::Terminal, LOG_FILE) => false,
            (Destination::Terminal, PROGRESS) => self.log.terminal.prints_progress(),
            _ => true,
        }
    }
}

impl<S> Layer<S> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::always()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        if extensions.get_mut::<Fields>().is_none() {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            extensions.insert(fields);
            extensions.insert(Began(Instant::now()));
        }
    }

    fn on_record(&self, id: &Id, values: &SpanRecord<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        if !self.takes(metadata.target()) {
            return;
        }
        if metadata.target() == STOPPING && self.to == Destination::Terminal {
            self.log.terminal.end_bar();
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.write(&self.record(metadata, fields, context.event_span(event)));
    }

    /// Spans below info are asked for to see how long they take.
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        if *span.metadata().level() <= Level::INFO {
            return;
        }
        let began = span.extensions().get::<Began>().map(|began| began.0.elapsed());
        let Some(took) = began else { return };
        let fields = Fields::of_message(format!("took {:.3} ms", took.as_secs_f64() * 1e3));
        self.write(&self.record(span.metadata(), fields, Some(span)));
    }
}

#[cfg(test)]
mod tests {
    use tracing::{debug, debug_span, error, field, info, info_span, warn};

    use super::*;

    fn log(is_terminal: bool) -> (Log, impl Fn() -> String) {
        let (terminal, text) = Terminal::in_memory(is_terminal);
        (Log { terminal, file: Arc::new(RankLog::new(true)) }, text)
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
            let _load = info_span!("load", path = "a.csv").entered();
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
        assert!(text().starts_with("debug: step{step=7}: took 0."), "{}", text());
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
        assert!(text().starts_with("epoch 1\n\r") && !text().contains("epoch 2"), "{}", text());
        assert!(text().ends_with("starting\r\r\x1b[Jstopping\nsaved\n"), "{:?}", text());
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

    /// The subscriber itself is asked: whether spans are made is also up to other subscribers of the process, which other tests have.
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
            log.open_file(Path::new("/dev/full"));
            info!("a");
            info!("b");
        });
        assert_eq!(
            text().matches("stopped writing the log `/dev/full`: No space left").count(),
            1,
            "{}",
            text()
        );
        assert_eq!(text().lines().count(), 1);
    }
}
