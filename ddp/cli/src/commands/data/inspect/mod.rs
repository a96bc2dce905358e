//! `ddp-train data inspect`: describes data files and warns of problems for training.
//!
//! Files -> chunks of rows (`scan`) -> properties of each column (`collector`) -> a profile (`profile`) with warnings
//! (`warnings`) -> text, JSON and a config section (`report`, `section`).

mod values;
mod collector;
mod column_profile;
mod warning;
mod section;
mod warnings;
mod profile;
mod report;
mod scan;
#[cfg(test)]
mod advice_tests;
#[cfg(test)]
mod suggestion_tests;
#[cfg(test)]
mod tests;

use ddp::config::{Config, DataConfig, DataFormat, Task};
use ddp::data::DataError;
use ddp::report::metrics::json_line;
use ddp::report::visible::shell_word;
use ddp::storage::atomic_write::write_atomic;
use ddp_tables::error::TableError;
use ddp_tables::source::{ClassLabels, SourceSpec};
use tracing::{info, warn};

use self::profile::Profile;
use crate::cli::InspectArgs;
use crate::cli::column_names::column_names;
use crate::error::Result;
use crate::report::log::ShownBar;
use crate::report::stdout::print_result;

/// Reads all rows, which `reading` shows, prints their profile, and writes the config that is suggested for them.
pub(super) fn inspect(args: &InspectArgs, reading: Option<ShownBar>) -> Result<()> {
    let out = args.write_config.as_deref();
    if let Some(path) = out.filter(|path| !args.overwrite && path.exists()) {
        return Err(DataError::from(TableError::OutExists { path: path.to_owned() }).into());
    }
    let profile = profile(args)?;
    drop(reading);
    let mut text = if args.json { json_line(&profile) } else { report::text(&profile, args.all) };
    match out {
        Some(path) => write_atomic(path, profile.data_section.as_bytes())?,
        None if args.json || profile.columns.iter().all(|column| !column.is_target) => {}
        None => text += "\n# --write-config run.toml saves these lines\n",
    }
    print_result(&text)?;
    if let Some(path) = out.filter(|_| profile.stops_training()) {
        warn!("config saved to `{}`, but it can't train a model: see the warnings", path.display());
    } else if let Some(path) = out {
        info!("config saved: `ddp-train {}` trains with it", shell_word(path));
    }
    Ok(())
}

/// Cells of a table that a run looks at before it trains: thousands of rows, in some hundredths of a second.
const MAX_CELLS: usize = 400_000;

/// The section `[data]` for the rows of `data`, if they are a table that can train a model; of a large one, for its first rows.
pub(super) fn suggested(data: &DataConfig) -> Result<Option<String>> {
    let data = DataConfig { auto_task: false, ..data.clone() };
    let spec = SourceSpec { classes: ClassLabels::AsStored, ..SourceSpec::train(&data) };
    let profile = scan::scan(&spec, &data.target, Some(MAX_CELLS))?;
    let is_table = profile.arrays.is_empty() && profile.columns.iter().any(|column| column.is_target);
    Ok((is_table && !profile.stops_training()).then_some(profile.data_section))
}

/// The profile of the files that `args` name.
fn profile(args: &InspectArgs) -> Result<Profile> {
    let (data, given) = config(args)?;
    let spec = SourceSpec { classes: ClassLabels::AsStored, ..SourceSpec::train(&data) };
    let names_target = !args.target.is_empty() || given.iter().any(|of| (of.0, of.1) == ("data", "target"));
    let targets = if names_target { &data.target[..] } else { &[] };
    let profile = scan::scan(&spec, targets, None)?;
    Ok(Profile { data_section: section::with_given(&profile.data_section, &given), ..profile })
}

/// Keys that were given: section, name and value as TOML.
type GivenKeys = Vec<(&'static str, &'static str, String)>;

/// The config that opens the files, with defaults for everything else, and the keys that `args` give.
fn config(args: &InspectArgs) -> Result<(DataConfig, GivenKeys)> {
    let delimiter =
        args.delimiter.iter().map(|delimiter| format!("data.delimiter={}", section::quoted(delimiter)));
    let decimal = args.decimal.iter().map(|decimal| format!("data.decimal={}", section::quoted(decimal)));
    let header = args.no_header.then(|| "data.header=false".to_owned());
    let sets = delimiter.chain(decimal).chain(header).chain(args.set.iter().cloned());
    let config = Config::load(None, &sets.collect::<Vec<_>>())?;
    let given = config.given_keys();
    let mut data = config.data;
    data.missing_values.extend(args.missing_value.iter().cloned());
    data.drop.extend(column_names(&args.drop));
    data.train.clone_from(&args.path);
    if args.labels.is_some() {
        data.labels.clone_from(&args.labels);
    }
    if let Some(format) = args.format {
        data.format = format;
    } else if !given.iter().any(|of| (of.0, of.1) == ("data", "format")) {
        data.format = DataFormat::Auto;
    }
    // Any values are shown; the profile decides on the task.
    data.auto_task = false;
    if args.target.len() > 1 {
        data.task = Task::Regression;
    }
    if !args.target.is_empty() {
        data.target.clone_from(&args.target);
    }
    Ok((data, given))
}
