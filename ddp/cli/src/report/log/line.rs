//! An event as a line: for people, for programs, and for the log file.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use ddp::report::visible::visible_lines;
use ddp::run_folder::time::date_of_days;
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::Level;

use super::fields::Fields;

/// The rank that events come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) rank: usize,
    pub(super) host: String,
    /// Prefix of this rank's messages on the terminal; empty for rank 0.
    pub(super) prefix: String,
}

/// The keys of a JSON line, in their order.
#[derive(Serialize)]
struct JsonLine<'a> {
    timestamp: String,
    level: String,
    rank: usize,
    host: &'a str,
    target: &'a str,
    message: &'a str,
    fields: Map<String, Value>,
    spans: Vec<Map<String, Value>>,
}

/// An event, with the spans that it is in.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) time: SystemTime,
    pub(super) level: Level,
    pub(super) target: String,
    pub(super) fields: Fields,
    /// Name and fields of each span, from the outermost.
    pub(super) spans: Vec<(&'static str, Fields)>,
}

impl Record {
    /// A message without fields and spans.
    pub(super) fn of_message(level: Level, message: &str) -> Self {
        let fields = Fields::of_message(message.to_owned());
        Record { time: SystemTime::now(), level, target: "ddp".to_owned(), fields, spans: Vec::new() }
    }

    /// The line on the terminal: only the message, where it is for users; the rest for those who asked for more.
    pub(super) fn to_terminal(&self, origin: &Origin, colours: bool) -> String {
        let paint = |codes: &str, word: &str| {
            if colours { format!("\x1b[{codes}m{word}\x1b[0m") } else { word.to_owned() }
        };
        let label = match self.level {
            Level::ERROR => paint("1;31", "error:") + " ",
            Level::WARN => paint("1;33", "warning:") + " ",
            Level::INFO => String::new(),
            Level::DEBUG => paint("2", "debug:") + " ",
            Level::TRACE => paint("2", "trace:") + " ",
        };
        let text = visible_lines(&self.to_text()).into_owned();
        let text = match text.rsplit_once("\nhint:") {
            Some((text, hint)) => format!("{text}\n{}{hint}", paint("1;32", "hint:")),
            None => text,
        };
        format!("{}{label}{text}", origin.prefix)
    }

    /// The line in the log file; later lines of a message are indented.
    pub(super) fn to_file(&self, origin: &Origin) -> String {
        let Origin { rank, host, .. } = origin;
        let text = visible_lines(&self.to_text()).replace('\n', "\n    ");
        format!("{} {:<5} rank={rank} host={host} {text}\n", timestamp(self.time), self.level)
    }

    /// The line as one JSON object.
    pub(super) fn to_json(&self, origin: &Origin) -> String {
        let span = |(name, fields): &(&'static str, Fields)| {
            let mut span = fields.to_map();
            span.insert("name".to_owned(), (*name).into());
            span
        };
        let line = JsonLine {
            timestamp: timestamp(self.time),
            level: self.level.as_str().to_lowercase(),
            rank: origin.rank,
            host: &origin.host,
            target: &self.target,
            message: &self.fields.message,
            fields: self.fields.to_map(),
            spans: self.spans.iter().map(span).collect(),
        };
        serde_json::to_string(&line).expect("names, texts and numbers are plain JSON")
    }

    /// The message; spans and fields too below info.
    fn to_text(&self) -> String {
        let Record { level, fields, spans, .. } = self;
        if *level <= Level::INFO {
            return fields.message.clone();
        }
        let mut text = String::new();
        // Everything is in the span of the run.
        for (name, fields) in spans.iter().filter(|(name, _)| *name != "run") {
            let _ = if fields.is_empty() {
                write!(text, "{name}: ")
            } else {
                write!(text, "{name}{{{}}}: ", fields.to_text())
            };
        }
        text += &fields.message;
        if !fields.is_empty() {
            let _ = write!(text, " {}", fields.to_text());
        }
        text
    }
}

/// Formats a time in UTC, as `2026-11-21T08:30:00.123456Z`.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = date_of_days(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn origin(rank: usize) -> Origin {
        let prefix = if rank == 0 { String::new() } else { format!("[rank {rank} node7] ") };
        Origin { rank, host: "node7".to_owned(), prefix }
    }

    fn record(level: Level, message: &str) -> Record {
        let time = UNIX_EPOCH + Duration::from_micros(951_782_399_000_042);
        let spans = vec![("run", Fields::default()), ("load", Fields::default())];
        Record { time, spans, ..Record::of_message(level, message) }
    }

    #[test]
    fn people_see_the_message() {
        let shown = |level, rank, colours| {
            record(level, "the disk is full\nhint: free some space").to_terminal(&origin(rank), colours)
        };
        assert_eq!(shown(Level::INFO, 0, false), "the disk is full\nhint: free some space");
        assert_eq!(
            shown(Level::WARN, 1, false),
            "[rank 1 node7] warning: the disk is full\nhint: free some space"
        );
        assert_eq!(shown(Level::DEBUG, 0, false), "debug: load: the disk is full\nhint: free some space");
        assert_eq!(
            shown(Level::ERROR, 0, true),
            "\x1b[1;31merror:\x1b[0m the disk is full\n\x1b[1;32mhint:\x1b[0m free some space"
        );
    }

    #[test]
    fn the_file_has_time_level_rank_and_host() {
        assert_eq!(
            record(Level::WARN, "a\nb").to_file(&origin(3)),
            "2000-02-28T23:59:59.000042Z WARN  rank=3 host=node7 a\n    b\n"
        );
    }

    #[test]
    fn json_is_one_object() {
        let text = record(Level::INFO, "a \"b\"\nc").to_json(&origin(1));
        let line: Value = serde_json::from_str(&text).unwrap();
        assert!(!text.contains('\n') && text.starts_with("{\"timestamp\":"), "{text}");
        assert_eq!(
            line,
            json!({
                "timestamp": "2000-02-28T23:59:59.000042Z", "level": "info", "rank": 1, "host": "node7", "target": "ddp",
                "message": "a \"b\"\nc", "fields": {}, "spans": [{"name": "run"}, {"name": "load"}],
            })
        );
    }
}
