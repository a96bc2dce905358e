//! Arguments of `ddp-train report`.

use std::path::PathBuf;

use clap::Args;

/// `ddp-train report`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The page is one HTML file that loads nothing: curves, findings, times, tables, settings. Every run writes its own when it ends.
For example: `ddp-train report runs/a runs/b` draws both and lists the settings that differ.")]
pub struct ReportArgs {
    /// Run folders; they may be running, stopped or failed
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,

    /// Output file; replaces an earlier page [default: report.html, in the folder of a single RUN]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}
