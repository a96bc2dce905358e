//! A run that names a table and no config: it takes the settings that `data inspect` writes for these rows, below those of the command
//! line.

use std::fs;
use std::iter::zip;

use ddp::config::{Config, Decimal, EvalSource, Overrides, Split, Task};
use ddp::report::notes::warn_of_all_ranks;
use ddp_comm::World;
use tracing::info;

use super::data::suggested_data;
use crate::cli::RunConfigArgs;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::log::Terminal;

/// Evaluations without improvement after which a run with rows to evaluate on stops.
const PATIENCE: u64 = 10;
/// Lists of names that join the lists chosen for the rows, where the command line gives them.
const LISTS: [&str; 2] = ["data.drop", "data.categorical"];
/// Most names of a list in the line that reports the settings.
const MAX_NAMES: usize = 6;

/// Loads the config of `run` with `overrides`. If it names a table, rank 0 first reads all rows for what they suggest, unless `--plain` is
/// given. Collective, also for ranks whose arguments differ, which their configs then show.
///
/// # Errors
/// Errors of the config, on all ranks alike. Rows that cannot be read are reported where they are loaded.
pub(crate) fn load_config(
    world: &World,
    run: &RunConfigArgs,
    overrides: &Overrides,
    terminal: Option<&Terminal>,
) -> Result<Config, Stop> {
    let plain = Config::load_with(run.file(), overrides).map_err(Error::from);
    let plain = world.collective_result(plain)?;
    let is_bare = run.names_rows() && !run.plain && is_read_twice(&plain.data.train);
    let own = if world.rank().0 == 0 && is_bare && plain.data.task != Task::Heads {
        let reading = || format!("inspecting {}", plain.data.train);
        let _reading = terminal.and_then(|terminal| terminal.show_busy(reading()));
        suggested(&plain, overrides)
    } else {
        None
    };
    let shared = world.group().all_gather_bytes(own.unwrap_or_default().as_bytes()).map_err(Error::from)?;
    let text = String::from_utf8_lossy(&shared[0]);
    if !is_bare || text.is_empty() {
        return Ok(plain);
    }
    match Config::load_above(&text, &overrides.clone().without(&LISTS)) {
        Ok(config) => {
            report(world, &text);
            Ok(config)
        }
        // The settings of the command line can exclude those of the rows.
        Err(error) => {
            warn_of_all_ranks(
                world.rank().0,
                &format!(
                    "nothing is chosen for these rows, because it does not fit the settings given: {error}"
                ),
            );
            Ok(plain)
        }
    }
}

/// Whether rows can be read for their settings and again to train on them: a pipe cannot.
fn is_read_twice(path: &str) -> bool {
    path != "-" && fs::metadata(path).map_or(true, |of| of.is_file() || of.is_dir())
}

/// The settings for the rows that `plain` names, as TOML; `None` for what is no table, can't be read, or can't train a model.
fn suggested(plain: &Config, overrides: &Overrides) -> Option<String> {
    let text = suggested_data(&plain.data).ok().flatten()?;
    let mut table: toml::Table = text.parse().ok()?;
    let data = table.get_mut("data")?.as_table_mut()?;
    // The targets decide as they do in every run, and say why. Where two tasks are possible, the line names the other one.
    if !text.lines().any(|line| line.starts_with("task = ") && line.contains("  # or ")) {
        data.remove("task");
    }
    // Where numbers can be read by either mark, the reader asks for the key.
    if plain.data.decimal == Decimal::Auto {
        data.remove("decimal");
    }
    // The names of the command line join those of the rows.
    let names = |of: Option<&toml::Value>| -> Vec<String> {
        let names = of.and_then(toml::Value::as_array).into_iter().flatten();
        names.filter_map(toml::Value::as_str).map(str::to_owned).collect()
    };
    let mut categorical = plain.data.categorical.clone();
    let mut drop = names(data.get("drop"));
    let other_uses = [plain.data.weight.as_deref(), plain.data.split().map(Split::column)];
    let is_free = |name: &String| !other_uses.contains(&Some(name.as_str()));
    drop.retain(|name| !categorical.contains(name) && is_free(name));
    categorical.extend(
        names(data.get("categorical"))
            .into_iter()
            .filter(|name| !categorical.contains(name))
            .collect::<Vec<_>>(),
    );
    categorical.retain(|name| !drop.contains(name) && is_free(name));
    for (key, list) in [("drop", drop), ("categorical", categorical)] {
        data.remove(key);
        if !list.is_empty() {
            data.insert(key.to_owned(), list.into());
        }
    }
    if plain.data.eval != EvalSource::Unset
        || is_set(overrides, "data.split")
        || is_set(overrides, "data.eval")
    {
        data.remove("eval_fraction");
    }
    let evaluates = match plain.data.eval {
        EvalSource::None => false,
        EvalSource::Unset => data.contains_key("eval_fraction"),
        _ => true,
    };
    let decides =
        ["train.early_stop_patience", "checkpoint.keep_best"].iter().any(|key| is_set(overrides, key));
    if evaluates && !decides {
        let patience =
            toml::Table::from_iter([("early_stop_patience".to_owned(), toml::Value::from(PATIENCE as i64))]);
        table.insert("train".to_owned(), patience.into());
    }
    Some(table.to_string())
}

/// Whether the command line sets a key that begins with `prefix`.
fn is_set(overrides: &Overrides, prefix: &str) -> bool {
    overrides.sets.iter().any(|set| set.trim_start().starts_with(prefix))
        || overrides.shorts.iter().any(|short| short.key.starts_with(prefix))
}

/// Returns the settings of the command line to resume a run with the config `saved`. Lists of names that `saved` contains already are left
/// out: the first start has joined them with the lists chosen for the rows.
pub(super) fn to_resume(run: &RunConfigArgs, overrides: Overrides, saved: &Config) -> Overrides {
    let typed = Config::load_with(None, &overrides).ok().filter(|_| run.names_rows() && !run.plain);
    let lists = |config: &Config| [config.data.drop.clone(), config.data.categorical.clone()];
    let holds = |(saved, typed): (Vec<_>, Vec<_>)| typed.iter().all(|name| saved.contains(name));
    match typed {
        Some(typed) if zip(lists(saved), lists(&typed)).all(holds) => overrides.without(&LISTS),
        _ => overrides,
    }
}

/// Reports the settings in one line.
fn report(world: &World, text: &str) {
    let Some(table) = text.parse::<toml::Table>().ok().filter(|_| world.rank().0 == 0) else { return };
    let value = |section: &str, key: &str| table.get(section)?.as_table()?.get(key).cloned();
    let list = |key: &str| -> Option<String> {
        let names = value("data", key)?.as_array()?.clone();
        let first: Vec<_> = names.iter().take(MAX_NAMES).filter_map(toml::Value::as_str).collect();
        let more = names.len().saturating_sub(MAX_NAMES);
        Some(if more > 0 { format!("{} and {more} more", first.join(", ")) } else { first.join(", ") })
    };
    let text_of = |key: &str| Some(value("data", key)?.as_str()?.to_owned());
    let parts = [
        text_of("task").map(|task| format!("task {task} (--task for another)")),
        list("categorical").map(|names| format!("categories {names}")),
        text_of("missing").map(|by| format!("missing values filled by the {by}")),
        text_of("datetime").map(|_| "dates in parts".to_owned()),
        value("data", "missing_values").map(|marks| format!("missing_values = {marks}")),
        text_of("encode").map(|kind| format!("encode = \"{kind}\"")),
        list("drop").map(|names| format!("left out {names}")),
        text_of("missing_target").map(|_| "rows without a target left out".to_owned()),
        value("data", "eval_fraction")
            .and_then(|of| of.as_float())
            .map(|of| format!("{:.0}% of the rows held out", 100.0 * of)),
        value("train", "early_stop_patience").map(|_| "early stopping".to_owned()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if !parts.is_empty() {
        info!("chosen for these rows: {} (--plain: none of it)", parts.join("; "));
    }
}
