//! Opens Parquet files that exceed the memory.

use std::path::PathBuf;
use std::sync::Arc;

use ddp::config::{ShuffleMode, Task};
use ddp::data::datasets::dataset::{Dataset, RowLayout, TargetLayout};
use ddp::data::datasets::subset::with_targets;
use ddp::data::error::{DataError, Result};
use ddp::data::vocabulary::{CategoryColumn, Vocabulary};
use ddp::report::visible::shell_word;

use crate::checks;
use crate::error::TableError;
use crate::formats::arrays::reader::SplitSide;
use crate::formats::error::RowsError;
use crate::formats::table::batch_source::BatchSource as _;
use crate::formats::table::parquet::ParquetFile;
use crate::labels::survey::LabelSurvey;
use crate::labels::task::decide_several;
use crate::source::{KnownFeatures, SourceSpec};
use crate::table::batches::{BatchRows, Columns, batch_rows, widened};
use crate::table::columns::{Role, naming_shards, same_names};
use crate::table::label_column::Fraction;
use crate::table::large::blocks::{ParquetRows, cast, decoded_row_bytes, groups_of};
use crate::table::rows::{
    TableRows, TargetCells, check_fractions, check_targets, huge_vocabulary, is_binary, meaning,
};

/// Bytes of a column's page, compressed and decompressed, and of its dictionary; writers keep them near 1 MiB each.
const PAGE_BYTES: usize = 3 << 20;
/// Bytes of a column's reader without its pages.
const COLUMN_BYTES: usize = 16 << 10;
/// Copies of a batch in memory while it is decoded: compressed, as columns, as rows.
const BATCH_COPIES: usize = 3;
/// Rows per chunk when labels and categories are scanned.
const SCAN_ROWS: usize = 4096;

/// Opens the rows of `files` if they exceed the memory; `None` if they fit.
///
/// # Errors
/// [`RowsError::Malformed`], [`RowsError::NoRows`], [`RowsError::ShardsDiffer`]; [`TableError::ShuffleDecodes`] and
/// [`TableError::TooLarge`] if row groups can't be decoded on demand.
pub(in crate::table) fn open(paths: &[PathBuf], spec: &SourceSpec<'_>) -> Result<Option<Arc<dyn Dataset>>> {
    let mut files: Vec<(ParquetFile, Columns)> = Vec::with_capacity(paths.len());
    for path in paths {
        // The columns of further files may have another order.
        let names = files.first().map(|(_, columns)| columns.plan.features.clone());
        let known = names.as_deref().map(|names| KnownFeatures::from_shards(names, spec.source));
        let of_file = SourceSpec { features: spec.features.or(known), ..*spec };
        let file = ParquetFile::open(path, &spec.read_options())?.closed();
        if file.n_rows() == 0 {
            return Err(DataError::from(RowsError::NoRows { path: path.clone() }));
        }
        let columns = Columns::new(path, &*widened(path, Box::new(file.clone()), spec.types), &of_file);
        let columns = match known {
            Some(_) => columns.map_err(|error| naming_shards(error, &paths[0], path))?,
            None => columns?,
        };
        files.push((file, columns));
    }
    let (first, columns) = &files[0];
    for (file, other) in &files[1..] {
        same_names(&first.path, &columns.plan.all_names(), &file.path, &other.plan.all_names())?;
    }
    let layout = layout(columns, spec);
    if let Some(known) = spec.features {
        checks::kinds(&layout.features, known.kinds, &layout.kinds, &first.path, known.of)?;
    }
    let n_rows = files.iter().map(|(file, _)| file.n_rows() as u64).sum::<u64>();
    let needed = n_rows.saturating_mul(layout.row_bytes() as u64);
    if needed <= spec.table_bytes() {
        return Ok(None);
    }
    let limit_mib = spec.table_bytes() >> 20;
    if spec.side == SplitSide::Train && spec.data.shuffle && spec.data.shuffle_mode == ShuffleMode::Full {
        let source_name = spec.source.to_owned();
        return Err(DataError::from(TableError::ShuffleDecodes {
            source_name,
            needed_mib: (needed >> 20) + 1,
            limit_mib,
        }));
    }
    let scratch = scratch_bytes(&files);
    let row_bytes = decoded_row_bytes(&files, &layout);
    let largest = groups_of(&files).iter().map(|group| group.n_rows).max().unwrap_or(0);
    let needed = (2 * largest as u64).saturating_mul(row_bytes as u64).saturating_add(scratch as u64);
    if needed > spec.memory_bytes {
        return Err(DataError::from(TableError::TooLarge {
            source_name: spec.source.to_owned(),
            what: "to hold its largest row group and decode the next",
            needed_mib: (needed >> 20) + 1,
            limit_mib: spec.memory_bytes >> 20,
            hint: format!(
                "write it with smaller row groups (in pandas and pyarrow `row_group_size`), convert it once: `ddp-train data convert {} rows.parquet`, or raise the limit",
                shell_word(spec.source)
            ),
        }));
    }
    let (layout, without_target) = complete(layout, &files, spec)?;
    let rows = Arc::new(ParquetRows::new(files, layout, scratch, spec));
    Ok(Some(with_targets(rows, &without_target)))
}

/// The layout of a row, without vocabularies and, unless they are known, the classes.
pub(super) fn layout(columns: &Columns, spec: &SourceSpec<'_>) -> RowLayout {
    let targets = match spec.data.task {
        Task::Classification if spec.data.target.len() == 1 => {
            TargetLayout::Classes { n_classes: spec.vocabulary().map_or(0, |vocabulary| vocabulary.len()) }
        }
        _ => TargetLayout::Values { names: spec.data.target.clone() },
    };
    let mut layout = RowLayout::new(columns.plan.features.clone(), targets);
    layout.labels = spec.vocabulary().filter(|_| matches!(layout.targets, TargetLayout::Classes { .. }));
    layout.has_missing = spec.may_miss();
    layout.has_weights = spec.data.weight.is_some();
    layout.kinds = columns.kinds();
    layout.dates = columns.plan.dates();
    layout.left_out.clone_from(&columns.plan.left_out);
    layout
}

/// Bytes that a decode needs in addition to its rows.
pub(super) fn scratch_bytes(files: &[(ParquetFile, Columns)]) -> usize {
    let of_file = |(file, columns): &(ParquetFile, Columns)| {
        let mut roots: Vec<usize> = columns.needed.iter().map(|column| column.root).collect();
        // Elements of a list follow each other.
        roots.dedup();
        let largest = file.group_rows.iter().copied().max().unwrap_or(0);
        let batch = batch_rows(columns).min(largest) * columns.plan.names.len().max(1) * size_of::<f32>();
        file.decode_bytes(&roots, PAGE_BYTES, COLUMN_BYTES) + BATCH_COPIES * batch
    };
    files.iter().map(of_file).max().unwrap_or(0)
}

/// Adds the classes, the decision on the task, and the vocabularies; reads only the columns that they need. Returns, too, the
/// numbers of the rows without a target, if they are left out.
pub(super) fn complete(
    mut layout: RowLayout,
    files: &[(ParquetFile, Columns)],
    spec: &SourceSpec<'_>,
) -> Result<(RowLayout, Vec<usize>)> {
    let plan = &files[0].1.plan;
    let finds_classes = layout.targets == (TargetLayout::Classes { n_classes: 0 });
    let reads_targets = finds_classes || spec.data.auto_task || spec.skips_missing_targets();
    let (mut without_target, mut n_rows) = (Vec::new(), 0);
    let collects = spec.features.is_none() && !plan.categorical.is_empty();
    let mut vocabularies: Vec<Vocabulary> = TableRows::new(plan, spec).vocabularies;
    if reads_targets || collects {
        let is_looked_at = |role: &Role| match role {
            Role::Target(_) => reads_targets,
            Role::Category { .. } => collects,
            _ => false,
        };
        let mut rows = TableRows::new(plan, spec);
        let (mut survey, mut are_binary) = (LabelSurvey::default(), true);
        let mut first_fraction: Option<Fraction> = None;
        for (file, columns) in files {
            let mut columns = columns.clone();
            columns.needed.retain(|column| is_looked_at(&column.roles[0]));
            let selection = columns.selection(batch_rows(&columns));
            let batches = cast(file, spec.types, file.read(&selection)?, &selection.roots);
            let mut reader = BatchRows::new(&file.path, columns, batches, 0);
            while reader.read(&mut rows, SCAN_ROWS)? > 0 {
                let without = rows.take_without_target();
                match &rows.targets {
                    TargetCells::Classes(labels) => {
                        labels.survey(&mut survey, &without);
                        first_fraction = first_fraction.or_else(|| labels.fraction().cloned());
                    }
                    TargetCells::Values { values, .. } => {
                        are_binary &= values.iter().all(|value| is_binary(*value));
                    }
                }
                if let Some(vocabulary) = rows.huge_vocabulary() {
                    return Err(huge_vocabulary(&file.path, vocabulary.name()));
                }
                without_target.extend(without.into_iter().map(|row| n_rows + row));
                n_rows += rows.n_rows;
                rows.clear();
            }
        }
        check_targets(n_rows, &without_target, spec)?;
        if finds_classes {
            check_fractions(first_fraction.as_ref(), &survey, &files[0].0.path, spec)?;
            meaning(&survey, spec)?.complete(&mut layout, &spec.data.target);
        } else if spec.data.auto_task {
            layout.task_choice = Some(decide_several(&spec.data.target, are_binary));
        }
        if collects {
            vocabularies = rows.vocabularies;
            vocabularies.iter_mut().for_each(|vocabulary| drop(vocabulary.sort()));
        }
    }
    let category = |vocabulary: Vocabulary| {
        let column = plan.features.iter().position(|name| name == vocabulary.name());
        CategoryColumn { column: column.expect("a categorical column is a feature"), vocabulary }
    };
    layout.categories = vocabularies.into_iter().map(category).collect();
    Ok((layout, without_target))
}
