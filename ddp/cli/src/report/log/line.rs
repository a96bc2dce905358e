//! Formats an event as a line: for people, for programs, and for the log file.

use std::fmt::{self, Write as _};

use ddp::report::visible::{shortened, visible_lines};
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::format::{self, JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Only the message of events for users; all fields of events that were requested with -v.
    Terminal { colors: bool },
    /// With time, level, rank and host; later lines of a message are indented.
    File,
    /// One JSON object.
    Json,
}

/// Lines of one rank.
#[derive(Debug, Clone)]
pub(super) struct LineFormat {
    pub(super) form: Form,
    pub(super) rank: usize,
    pub(super) host: String,
    /// Prefix of this rank's messages on the terminal; empty for rank 0.
    pub(super) prefix: String,
}

/// The keys of a JSON line, in their order.
#[derive(Default, Serialize)]
struct JsonLine<'a> {
    timestamp: String,
    level: String,
    rank: usize,
    host: &'a str,
    target: &'a str,
    message: Value,
    fields: Map<String, Value>,
    spans: Vec<Map<String, Value>>,
}

impl LineFormat {
    /// The line of a message that is not an event.
    pub(super) fn write_message(&self, level: Level, message: &str) -> String {
        match self.form {
            Form::Json => {
                let line = JsonLine { target: "ddp", message: message.into(), ..JsonLine::default() };
                self.json(level, line)
            }
            _ => self.text(level, message),
        }
    }

    fn text(&self, level: Level, text: &str) -> String {
        let text = &*shortened(text);
        let text = visible_lines(text);
        let Form::Terminal { colors } = self.form else {
            let LineFormat { rank, host, .. } = self;
            return format!(
                "{} {level:<5} rank={rank} host={host} {}\n",
                now(),
                text.replace('\n', "\n    ")
            );
        };
        let paint = |codes: &str, word: &str| {
            if colors { format!("\x1b[{codes}m{word}\x1b[0m") } else { word.to_owned() }
        };
        let label = match level {
            Level::ERROR => paint("1;31", "error:") + " ",
            Level::WARN => paint("1;33", "warning:") + " ",
            Level::INFO => String::new(),
            Level::DEBUG => paint("2", "debug:") + " ",
            Level::TRACE => paint("2", "trace:") + " ",
        };
        let text = text.replace("\nhint:", &format!("\n{}", paint("1;32", "hint:")));
        format!("{}{label}{text}\n", self.prefix)
    }

    fn json(&self, level: Level, line: JsonLine<'_>) -> String {
        let level = level.as_str().to_lowercase();
        let line = JsonLine { timestamp: now(), level, rank: self.rank, host: &self.host, ..line };
        serde_json::to_string(&line).expect("names, texts and numbers are plain JSON") + "\n"
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let level = *metadata.level();
        // The end of a span: spans below info are requested to see how long they take.
        if metadata.is_span() && level <= Level::INFO {
            return Ok(());
        }
        let spans = context.event_scope().into_iter().flat_map(|scope| scope.from_root());
        let spans = spans.map(|span| {
            let fields = span.extensions().get::<FormattedFields<N>>().map(|of| of.fields.clone());
            (span.name(), fields.unwrap_or_default())
        });
        if self.form == Form::Json {
            let mut fields = json_map(&formatted(JsonFields::new(), event));
            let message = fields.remove("message").unwrap_or_default();
            let spans = spans.map(|(name, fields)| {
                let mut span = json_map(&fields);
                span.insert("name".to_owned(), name.into());
                span
            });
            let line = JsonLine {
                target: metadata.target(),
                message,
                fields,
                spans: spans.collect(),
                ..JsonLine::default()
            };
            return writer.write_str(&self.json(level, line));
        }
        if level <= Level::INFO {
            return writer.write_str(&self.text(level, &formatted(only("message"), event)));
        }
        let mut text = String::new();
        // Everything is inside the span of the run.
        for (name, fields) in spans.filter(|(name, _)| *name != "run") {
            let _ = if fields.is_empty() {
                write!(text, "{name}: ")
            } else {
                write!(text, "{name}{{{fields}}}: ")
            };
        }
        if metadata.is_span() {
            let _ = write!(text, "took {}", formatted(only("time.busy"), event));
        } else {
            context.format_fields(Writer::new(&mut text), event)?;
        }
        writer.write_str(&self.text(level, &text))
    }
}

/// Writes `message a=1 b=text`.
pub(super) fn text_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name => write!(writer, "{name}={value:?}"),
    }
}

/// The value of one field.
fn only(name: &'static str) -> impl for<'a> FormatFields<'a> {
    format::debug_fn(
        move |writer, field, value| {
            if field.name() == name { write!(writer, "{value:?}") } else { Ok(()) }
        },
    )
}

fn formatted(format: impl for<'a> FormatFields<'a>, fields: impl RecordFields) -> String {
    let mut text = String::new();
    format.format_fields(Writer::new(&mut text), fields).expect("a string takes any text");
    text
}

fn json_map(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

/// The time in UTC, as `2026-11-21T08:30:00.123456Z`.
fn now() -> String {
    let mut text = String::new();
    SystemTime.format_time(&mut Writer::new(&mut text)).expect("a string takes any text");
    text
}

/// Form of the lines on the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Verbosity that the user requested.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    /// Number of `-v`: 1 for debug, 2 for trace.
    pub verbosity: u8,
    /// Whether the terminal shows errors only.
    pub quiet: bool,
    /// Form of the lines on the terminal.
    pub format: LogFormat,
    /// Directives of `RUST_LOG`, added to the level of `verbosity`.
    pub directives: Option<String>,
}

impl LogOptions {
    /// Events that the terminal shows: for rank 0 all from level info, for other ranks warnings.
    ///
    /// # Errors
    /// The reason if the directives are invalid.
    pub(super) fn terminal_filter(&self, rank: usize) -> Result<Targets, String> {
        match (self.quiet, rank) {
            (true, _) => Ok(Targets::new().with_default(LevelFilter::ERROR)),
            (false, 0) => self.filter("info"),
            (false, _) => Ok(Targets::new().with_default(LevelFilter::WARN)),
        }
    }

    /// Events that the rank's log file contains: for rank 0 all from level info, for other ranks warnings, unless more are
    /// requested.
    ///
    /// # Errors
    /// The reason if the directives are invalid.
    pub(super) fn file_filter(&self, rank: usize) -> Result<Targets, String> {
        self.filter(if rank == 0 { "info" } else { "warn" })
    }

    fn filter(&self, usual: &str) -> Result<Targets, String> {
        let level = match self.verbosity {
            0 => usual,
            1 => "debug",
            _ => "trace",
        };
        let directives = self.directives.as_deref().unwrap_or_default();
        if directives.contains('[') {
            return Err("spans and fields can't be chosen, only modules and levels".to_owned());
        }
        let directives = directives.split(',').map(str::trim);
        // A later directive overrides an earlier one for the same target.
        // Each try of a request to a store is a line of its library.
        let level = [level, "object_store=warn"].into_iter().take(if self.verbosity == 0 { 2 } else { 1 });
        let all = level.chain(directives.filter(|directive| !directive.is_empty()));
        all.collect::<Vec<_>>().join(",").parse().map_err(|error: ParseError| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::Filter;

    use super::*;

    fn lines(form: Form, rank: usize) -> LineFormat {
        let prefix = if rank == 0 { String::new() } else { format!("[rank {rank} node7] ") };
        LineFormat { form, rank, host: "node7".to_owned(), prefix }
    }

    #[test]
    fn people_see_the_message() {
        let shown = |level, rank, colors| {
            lines(Form::Terminal { colors }, rank)
                .write_message(level, "the disk is full\nhint: free some space")
        };
        assert_eq!(shown(Level::INFO, 0, false), "the disk is full\nhint: free some space\n");
        assert_eq!(
            shown(Level::WARN, 1, false),
            "[rank 1 node7] warning: the disk is full\nhint: free some space\n"
        );
        assert_eq!(
            shown(Level::ERROR, 0, true),
            "\x1b[1;31merror:\x1b[0m the disk is full\n\x1b[1;32mhint:\x1b[0m free some space\n"
        );
    }

    #[test]
    fn the_file_has_time_level_rank_and_host() {
        let line = lines(Form::File, 3).write_message(Level::WARN, "a\nb");
        let (time, rest) = line.split_once(' ').unwrap();
        assert_eq!(rest, "WARN  rank=3 host=node7 a\n    b\n");
        assert!(time.len() == "2000-02-28T23:59:59.000042Z".len() && time.ends_with('Z'), "{time}");
    }

    #[test]
    fn json_is_one_object() {
        let text = lines(Form::Json, 1).write_message(Level::INFO, "a \"b\"\nc");
        let mut line: Value = serde_json::from_str(&text).unwrap();
        assert!(text.find('\n') == Some(text.len() - 1) && text.starts_with("{\"timestamp\":"), "{text}");
        assert!(line.as_object_mut().unwrap().remove("timestamp").is_some_and(|time| time.is_string()));
        assert_eq!(
            line,
            json!({
                "level": "info", "rank": 1, "host": "node7", "target": "ddp", "message": "a \"b\"\nc", "fields": {}, "spans": [],
            })
        );
    }

    fn levels(options: &LogOptions, rank: usize) -> [Option<LevelFilter>; 2] {
        let (terminal, file) = (options.terminal_filter(rank).unwrap(), options.file_filter(rank).unwrap());
        [terminal, file].map(|filter| Filter::<Registry>::max_level_hint(&filter))
    }

    #[test]
    fn rank_0_shows_more_than_the_others() {
        let of = |verbosity, quiet, directives: Option<&str>| LogOptions {
            verbosity,
            quiet,
            directives: directives.map(str::to_owned),
            ..LogOptions::default()
        };
        use LevelFilter as L;
        for (options, rank, terminal, file) in [
            (of(0, false, None), 0, L::INFO, L::INFO),
            (of(0, false, None), 1, L::WARN, L::WARN),
            (of(1, false, None), 0, L::DEBUG, L::DEBUG),
            (of(1, false, None), 1, L::WARN, L::DEBUG),
            (of(2, false, None), 0, L::TRACE, L::TRACE),
            (of(0, true, None), 0, L::ERROR, L::INFO),
            (of(0, false, Some("")), 0, L::INFO, L::INFO),
            (of(0, false, Some("debug")), 0, L::DEBUG, L::DEBUG),
            (of(0, false, Some(" ddp=trace , warn,")), 0, L::TRACE, L::TRACE),
            (of(0, false, Some("ddp::train=trace")), 1, L::WARN, L::TRACE),
            (of(0, true, Some("trace")), 0, L::ERROR, L::TRACE),
        ] {
            assert_eq!(levels(&options, rank), [Some(terminal), Some(file)], "{options:?}, rank {rank}");
        }
        assert!(of(0, false, Some("ddp=loud")).terminal_filter(0).is_err());
        // Read as the name of a module, it would select nothing.
        let error = of(0, false, Some("ddp[step]=trace")).file_filter(1).unwrap_err();
        assert!(error.contains("only modules and levels"), "{error}");
    }
}
