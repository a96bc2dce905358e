//! Reads rows of any format in order, in chunks.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use ddp::data::labels::MAX_CLASSES;
use ddp::data::vocabulary::{CategoryColumn, MAX_VALUES, Vocabulary};
use ddp::data::{DataError, Label};
use ddp_tables::formats::Reader;
use ddp_tables::formats::error::{ColumnError, RowsError};
use ddp_tables::formats::write::{Block, Chunk, Codes, Kind, Purpose, Schema};
use ddp_tables::open::files::files_and_format;

use super::array_source::ArraySource;
use super::input::Input;
use super::table_source::TableSource;
use crate::error::Result;

/// Number of bytes of rows per chunk.
pub(super) const CHUNK_BYTES: usize = 2 << 20;

/// Source of rows.
pub(super) enum Source {
    Table(Box<TableSource>),
    Arrays(Box<ArraySource>),
}

/// Codes of strings, for arrays.
#[derive(Debug, Default)]
pub(super) struct ArrayTexts {
    /// Labels of the class indices.
    pub(super) labels: Option<Vec<String>>,
    pub(super) categories: Vec<CategoryColumn>,
    /// Code of each string, per group of the schema.
    pub(super) codes: Vec<Codes>,
}

impl Source {
    /// Opens the rows.
    ///
    /// # Errors
    /// A [`DataError`] that names the file.
    pub(super) fn open(input: &Input<'_>) -> Result<Self> {
        let spec = input.spec();
        if spec.source.starts_with("builtin:") {
            return Ok(Source::Arrays(Box::new(ArraySource::builtin(&spec)?)));
        }
        let (files, format) = files_and_format(&spec)?;
        match &format.reader {
            Reader::Table(format) => Ok(Source::Table(Box::new(TableSource::new(files, format, input)?))),
            Reader::Arrays(reader) => Ok(Source::Arrays(Box::new(ArraySource::open(&files, reader, input)?))),
        }
    }

    pub(super) fn schema(&self) -> &Schema {
        match self {
            Source::Table(table) => table.schema(),
            Source::Arrays(arrays) => arrays.schema(),
        }
    }

    /// Reads up to `max_rows` rows; `None` at the end.
    pub(super) fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>> {
        let max_rows = max_rows.min((CHUNK_BYTES / self.schema().row_bytes()).clamp(1, 1 << 16));
        match self {
            Source::Table(table) => table.next(max_rows),
            Source::Arrays(arrays) => arrays.next(max_rows),
        }
    }

    /// Fraction of the rows that has been read, from 0 to 1, if known.
    pub(super) fn fraction(&self) -> Option<f64> {
        match self {
            Source::Table(table) => table.fraction(),
            Source::Arrays(arrays) => Some(arrays.fraction()),
        }
    }

    /// Number of values that are rounded to the types of their columns.
    pub(super) fn n_rounded(&self) -> u64 {
        match self {
            Source::Table(table) => table.n_rounded(),
            Source::Arrays(_) => 0,
        }
    }

    /// Assigns codes to the strings of all rows, for arrays: categories in alphabetical order from 1, labels in the order of
    /// classes from 0. Also finds the columns that lack values. If there are any such columns, the rows are read once, and then
    /// restarted.
    ///
    /// # Errors
    /// [`ColumnError::VocabularyHuge`], [`RowsError::OutFormat`] for too many labels.
    pub(super) fn number_texts(mut self, input: &Input<'_>) -> Result<(Self, ArrayTexts)> {
        let mut texts =
            ArrayTexts { codes: vec![Codes::new(); self.schema().groups.len()], ..ArrayTexts::default() };
        texts.categories = self.schema().groups.iter().flat_map(|group| group.categories.clone()).collect();
        let groups = self.schema().groups.clone();
        let has_texts = groups.iter().any(|group| group.kind == Kind::Text);
        let finds_missing = matches!(&self, Source::Table(table) if table.may_lack_values());
        if !has_texts && !finds_missing {
            return Ok((self, texts));
        }
        let mut values: Vec<HashSet<String>> = vec![HashSet::new(); groups.len()];
        let mut lacks_values = vec![false; groups.len()];
        while let Some(chunk) = self.next(usize::MAX)? {
            for (index, block) in chunk.blocks.iter().enumerate() {
                match block {
                    Block::Texts { texts, nulls } => {
                        for row in (0..texts.n_rows()).filter(|row| !nulls.is_null(*row)) {
                            let text = texts.get(row);
                            if !values[index].contains(text) {
                                values[index].insert(text.to_owned());
                            }
                        }
                        let is_label = groups[index].purpose == Purpose::Target;
                        if is_label && values[index].len() > MAX_CLASSES {
                            return Err(too_many_labels(self.schema(), &groups[index].names[0]));
                        }
                        if values[index].len() > MAX_VALUES {
                            let path = PathBuf::from(&self.schema().source);
                            let column = groups[index].names[0].clone();
                            return Err(DataError::from(ColumnError::VocabularyHuge {
                                path,
                                column,
                                limit: MAX_VALUES,
                            })
                            .into());
                        }
                    }
                    Block::Numbers(numbers) => lacks_values[index] |= numbers.nulls.first().is_some(),
                    _ => {}
                }
            }
        }
        let mut column = 0;
        for (index, group) in groups.iter().enumerate() {
            let values: BTreeSet<String> = std::mem::take(&mut values[index]).into_iter().collect();
            match (&group.kind, group.purpose) {
                (Kind::Text, Purpose::Target) => {
                    let labels: BTreeSet<Label> = values.iter().map(|text| Label::parse(text)).collect();
                    let labels: Vec<Label> = labels.into_iter().collect();
                    let code = |text: String| {
                        let place = labels.binary_search(&Label::parse(&text)).expect("it is one of them");
                        (text, place as i64)
                    };
                    texts.codes[index] = values.into_iter().map(code).collect();
                    texts.labels = Some(labels.iter().map(Label::to_string).collect());
                }
                (Kind::Text, _) => {
                    let vocabulary = Vocabulary::new(group.names[0].clone(), values.into_iter().collect());
                    let code = |text: &String| (text.clone(), i64::from(vocabulary.code(text)));
                    texts.codes[index] = vocabulary.values().iter().map(code).collect();
                    texts.categories.push(CategoryColumn { column, vocabulary });
                }
                _ => {}
            }
            if group.purpose == Purpose::Feature {
                column += group.names.len();
            }
        }
        let mut again = Source::open(input)?;
        if let Source::Table(table) = &mut again {
            table.widen(&lacks_values);
        }
        Ok((again, texts))
    }
}

fn too_many_labels(schema: &Schema, column: &str) -> crate::error::Error {
    let reason = format!("the target \"{column}\" has more than {MAX_CLASSES} different texts");
    let hint = "name another column with --target, or write to a table such as .parquet".to_owned();
    RowsError::OutFormat { out: schema.source.clone(), reason, hint }.into()
}
