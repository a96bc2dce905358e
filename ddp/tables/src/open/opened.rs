//! Opens the rows that a [`SourceSpec`] names: finds files and format, then reads or maps them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ddp::config::{DEFAULT_FEATURES_KEY, DEFAULT_LABELS_KEY};
use ddp::data::datasets::dataset::Dataset;
use ddp::data::datasets::subset::{first_rows, with_targets};
use ddp::data::error::{DataError, Result};

use crate::error::TableError;
use crate::error::target_error::TargetError;
use crate::formats::arrays::reader::SplitSide;
use crate::formats::{Format, Reader};
use crate::labels::head_rows;
use crate::labels::survey::LabelSurvey;
use crate::open::files::{all_files_and_format, files_of_format, identity};
use crate::open::{builtin, open_arrays};
use crate::source::SourceSpec;
use crate::table::{Fetched, SharedRows};
use crate::{arrays, formats, table};

impl SourceSpec<'_> {
    /// Opens the rows. Files of arrays are not read, except targets that decide on classes or task; tables are.
    ///
    /// # Errors
    /// A [`DataError`] that names the file or the setting.
    pub fn open(&self) -> Result<Arc<dyn Dataset>> {
        let opened = open(self)?;
        let survey = opened.survey(self, |n_rows| 0..n_rows)?;
        opened.with_survey(self, survey.as_ref())
    }
}

/// Rows whose classes or task may still be unknown.
#[derive(Debug)]
pub(crate) enum Opened {
    /// Rows in files whose targets were not read yet.
    Raw(Box<arrays::RawRows>),
    Ready(Arc<dyn Dataset>),
}

impl Opened {
    /// The labels of the rows `shard(n_rows)`; `None` if nothing depends on them.
    pub(crate) fn survey(
        &self,
        spec: &SourceSpec<'_>,
        shard: impl Fn(usize) -> Range<usize>,
    ) -> Result<Option<LabelSurvey>> {
        match self {
            Opened::Raw(rows) if rows.is_open(spec) => {
                Ok(Some(rows.survey(shard(rows.len().min(spec.max_rows())), spec)?))
            }
            _ => Ok(None),
        }
    }

    /// Whether the rows of `spec` come from a table, rather than from arrays or a built-in set.
    pub(crate) fn is_table(&self, spec: &SourceSpec<'_>) -> bool {
        matches!(self, Opened::Ready(_)) && !spec.source.starts_with("builtin:")
    }

    /// The rows, with the classes or the task that the survey of all rows gives.
    pub(crate) fn with_survey(
        self,
        spec: &SourceSpec<'_>,
        survey: Option<&LabelSurvey>,
    ) -> Result<Arc<dyn Dataset>> {
        let rows = match (self, survey) {
            (Opened::Ready(rows), _) => rows,
            (Opened::Raw(rows), None) => {
                let rows: Arc<arrays::RawRows> = Arc::from(rows);
                rows
            }
            (Opened::Raw(mut rows), Some(survey)) => {
                rows.resolve(survey, spec)?;
                let rows: Arc<arrays::RawRows> = Arc::from(rows);
                rows
            }
        };
        Ok(first_rows(rows, spec.max_rows()))
    }
}

/// Opens the rows of `spec`. Files of arrays are not read, tables are: by the first rank of `spec.host` alone, whose rows in memory the
/// other ranks map.
///
/// # Errors
/// A [`DataError`] that names the file or the setting.
pub(crate) fn open(spec: &SourceSpec<'_>) -> Result<Opened> {
    let spec = &SourceSpec { slots: spec.host, ..*spec };
    let alone = SourceSpec { host: None, ..*spec };
    let Some(host) = spec.host.filter(|host| host.takes_part()) else { return open_files(&alone, None) };
    let failed = |source| DataError::from(TableError::HostMemory { source });
    if host.leads() {
        // The files are looked at once per host.
        let is_builtin = spec.source.starts_with("builtin:");
        let format =
            if is_builtin { None } else { all_files_and_format(spec).ok().map(|(_, format)| format) };
        host.write(&identity(spec)).map_err(failed)?;
        host.write(format.map_or("", |format| format.id.name()).as_bytes()).map_err(failed)?;
        let opened = open_files(spec, format)?;
        if !opened.is_table(spec) {
            table::publish_elsewhere(host, None)?;
        }
        return Ok(opened);
    }
    if host.read().map_err(failed)? != identity(spec) {
        // A difference of the rows is reported when the ranks compare them.
        host.leave();
        return open_files(&alone, None);
    }
    let format = host.read().map_err(failed)?;
    let format = formats::all().find(|known| known.id.name().as_bytes() == format);
    let fetched = table::fetch(host, spec)?;
    if matches!(fetched, Fetched::Nothing) {
        return open_files(&alone, format);
    }
    let open = |spec: &SourceSpec<'_>| match fetched {
        Fetched::Rows(rows, without_target) => {
            let rows: Arc<SharedRows> = Arc::from(rows);
            Ok(with_targets(rows, &without_target))
        }
        Fetched::File(path) => table::open_fetched(&path, spec),
        Fetched::Nothing => unreachable!("each rank opens the rows"),
    };
    let has_heads = !spec.data.heads.is_empty() && spec.to_predict.is_none();
    Ok(Opened::Ready(if has_heads { head_rows::open(spec, open)? } else { open(spec)? }))
}

/// - `format`: the files' format, if another rank has looked at them
fn open_files(spec: &SourceSpec<'_>, format: Option<&'static Format>) -> Result<Opened> {
    let not_for_arrays = |key, why, hint: &str| {
        let (source_name, hint) = (spec.source.to_owned(), hint.to_owned());
        DataError::from(TableError::NotForFormat { key, source_name, why, hint })
    };
    let filters = spec.data.filter.is_some() && spec.to_predict.is_none();
    let no_filter = || {
        not_for_arrays(
            "data.filter",
            "holds arrays, which have no columns with names",
            "remove it, or write the rows to a table",
        )
    };
    if filters && spec.source.starts_with("builtin:") {
        return Err(no_filter());
    }
    let has_heads = !spec.data.heads.is_empty() && spec.to_predict.is_none();
    if has_heads && spec.source.starts_with("builtin:") {
        return Err(DataError::from(TargetError::HeadsWithoutTable { source_name: spec.source.to_owned() }));
    }
    if let Some(name) = spec.source.strip_prefix("builtin:") {
        return Ok(Opened::Ready(Arc::new(builtin::read(name, spec)?)));
    }
    if builtin::NAMES.contains(&spec.source) && !Path::new(spec.source).exists() {
        return Err(DataError::from(TableError::BuiltinWithoutPrefix { name: spec.source.to_owned() }));
    }
    let (files, format) = files_of_format(spec, format)?;
    if spec.eval_weight().is_some() && !format.is_single_array() {
        return Err(DataError::from(TableError::NotForFormat {
            key: "data.eval_weight",
            source_name: spec.source.to_owned(),
            why: "holds its weights in a column or an array",
            hint: "remove it: `data.weight` names the column or array".to_owned(),
        }));
    }
    refuse_array_keys(spec, &format.reader)?;
    let is_table = matches!(format.reader, Reader::Table(_));
    if filters && !is_table {
        return Err(no_filter());
    }
    if spec.skips_missing_targets() && spec.side == SplitSide::Train && !is_table {
        let why = "holds arrays, whose rows all have a target";
        return Err(not_for_arrays("data.missing_target", why, "remove it, or write the rows to a table"));
    }
    match &format.reader {
        Reader::Table(readers) if has_heads => {
            let rows = head_rows::open(spec, |table| table::open(&files, readers, table))?;
            Ok(Opened::Ready(rows))
        }
        Reader::Table(readers) => Ok(Opened::Ready(table::open(&files, readers, spec)?)),
        Reader::Arrays(_) if has_heads => {
            Err(DataError::from(TargetError::HeadsWithoutTable { source_name: spec.source.to_owned() }))
        }
        Reader::Arrays(reader) => {
            let rows = open_arrays::open(&files, reader, spec)?;
            if let Some(known) = spec.features {
                arrays::same_columns(&rows, known)?;
            }
            Ok(Opened::Raw(Box::new(rows)))
        }
    }
}

/// Fails for settings that name arrays, which tables don't have.
fn refuse_array_keys(spec: &SourceSpec<'_>, reader: &Reader) -> Result<()> {
    if !matches!(reader, Reader::Table(_)) {
        return Ok(());
    }
    let is_train = spec.side == SplitSide::Train;
    let keys = [
        (if is_train { "data.labels" } else { "data.eval_labels" }, spec.labels.is_some()),
        // Rows for evaluation may be in another format than those the keys are for.
        ("data.features_key", is_train && spec.data.features_key != DEFAULT_FEATURES_KEY),
        ("data.labels_key", is_train && spec.data.labels_key != DEFAULT_LABELS_KEY),
    ];
    match keys.into_iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) => Err(DataError::from(TableError::NotForFormat {
            key,
            source_name: spec.source.to_owned(),
            why: "is a table, which holds its labels in a column",
            hint: "remove it: `data.target` names the column of the labels".to_owned(),
        })),
        None => Ok(()),
    }
}
