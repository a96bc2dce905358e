//! Selection and format of the events that are shown and written.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{ParseError, Targets};

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
        let all = std::iter::once(level).chain(directives.filter(|directive| !directive.is_empty()));
        all.collect::<Vec<_>>().join(",").parse().map_err(|error: ParseError| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::Filter;

    use super::*;

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
