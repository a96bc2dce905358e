//! Files of converted rows, by the kind of values that their writer accepts.

use ddp_tables::formats::write::{
    ArrayEncoder, ArrayLayout, ArrayWriter, Block, CellKind, Chunk, Codes, ColumnWriter, Group, Kind,
    OpenArrays, OpenColumns, OpenText, OutFiles, Schema, Staging, TextColumn, TextWriter, cast_features,
};
use ddp_tables::values::element::RawType;

use crate::error::Result;

/// The current file, and how to open the next one.
pub(super) enum Output {
    Text {
        open: OpenText,
        columns: Vec<TextColumn>,
        groups: Vec<Group>,
        writer: Option<Box<dyn TextWriter>>,
    },
    Columns {
        open: OpenColumns,
        schema: Schema,
        /// Type of the features, if they have a common type.
        dtype: Option<RawType>,
        n_rounded: u64,
        writer: Option<Box<dyn ColumnWriter>>,
    },
    Arrays {
        open: OpenArrays,
        layout: ArrayLayout,
        encoder: Box<ArrayEncoder>,
        writer: Option<Box<dyn ArrayWriter>>,
    },
}

impl Output {
    /// Files of text for rows of arrays.
    pub(super) fn text(open: OpenText, schema: &Schema) -> Self {
        let cells = |group: &Group, column: usize| match group.kind {
            _ if group.categories.iter().any(|category| category.column == column) => CellKind::Text,
            Kind::Number(RawType::Bool) => CellKind::Truth,
            Kind::Number(_) => CellKind::Number,
            _ => CellKind::Text,
        };
        let of_group = |group: &Group| -> Vec<TextColumn> {
            let column =
                |(at, name): (usize, &String)| TextColumn { name: name.clone(), cells: cells(group, at) };
            group.names.iter().enumerate().map(column).collect()
        };
        let columns = schema.groups.iter().flat_map(of_group).collect();
        Output::Text { open, columns, groups: schema.groups.clone(), writer: None }
    }

    /// Files of typed columns.
    pub(super) fn columns(open: OpenColumns, schema: &Schema, dtype: Option<RawType>) -> Self {
        let mut schema = schema.clone();
        if let Some(dtype) = dtype {
            schema.groups.iter_mut().for_each(|group| group.set_feature_type(dtype));
        }
        Output::Columns { open, schema, dtype, n_rounded: 0, writer: None }
    }

    /// Files of arrays.
    pub(super) fn arrays(open: OpenArrays, schema: Schema, layout: ArrayLayout, codes: Vec<Codes>) -> Self {
        let encoder = Box::new(ArrayEncoder::new(schema, layout.clone(), codes));
        Output::Arrays { open, layout, encoder, writer: None }
    }

    /// Approximate bytes per row.
    pub(super) fn row_bytes(&self) -> usize {
        match self {
            Output::Text { groups, .. } => {
                groups.iter().map(|group| 4 * group.names.len()).sum::<usize>().max(1)
            }
            Output::Columns { schema, .. } => schema.row_bytes(),
            Output::Arrays { layout, .. } => layout.row_bytes(),
        }
    }

    /// Starts the next file.
    pub(super) fn open(&mut self, files: &OutFiles, staging: &mut Staging) -> Result<()> {
        match self {
            Output::Text { open, columns, writer, .. } => *writer = Some(open(columns, files, staging)?),
            Output::Columns { open, schema, writer, .. } => *writer = Some(open(schema, files, staging)?),
            Output::Arrays { open, layout, writer, .. } => *writer = Some(open(layout, files, staging)?),
        }
        Ok(())
    }

    /// Appends rows to the open file; `first` is the index of the first row among all rows.
    pub(super) fn write(&mut self, mut chunk: Chunk, first: usize) -> Result<()> {
        const OPEN: &str = "a file is open";
        match self {
            Output::Text { groups, writer, .. } => {
                let writer = writer.as_mut().expect(OPEN);
                let mut cells = Vec::new();
                for row in 0..chunk.n_rows {
                    let mut at = 0;
                    for (group, block) in groups.iter().zip(&chunk.blocks) {
                        for column in 0..group.names.len() {
                            if at == cells.len() {
                                cells.push(String::new());
                            }
                            cells[at].clear();
                            put_cell(group, block, row, column, &mut cells[at]);
                            at += 1;
                        }
                    }
                    writer.write(&mut cells.iter().map(String::as_str))?;
                }
            }
            Output::Columns { schema, dtype, n_rounded, writer, .. } => {
                if let Some(dtype) = dtype {
                    *n_rounded += cast_features(schema, &mut chunk, *dtype, first)?;
                }
                writer.as_mut().expect(OPEN).write(chunk)?;
            }
            Output::Arrays { encoder, writer, .. } => {
                writer.as_mut().expect(OPEN).write(encoder.encode(&chunk, first)?)?;
            }
        }
        Ok(())
    }

    /// Completes the open file, if any; it keeps its temporary name.
    pub(super) fn finish(&mut self) -> Result<()> {
        Ok(match self {
            Output::Text { writer, .. } => writer.take().map_or(Ok(()), |writer| writer.finish()),
            Output::Columns { writer, .. } => writer.take().map_or(Ok(()), |writer| writer.finish()),
            Output::Arrays { writer, .. } => writer.take().map_or(Ok(()), |writer| writer.finish()),
        }?)
    }

    /// Number of values that were rounded.
    pub(super) fn n_rounded(&self) -> u64 {
        match self {
            Output::Text { .. } => 0,
            Output::Columns { n_rounded, .. } => *n_rounded,
            Output::Arrays { encoder, .. } => encoder.n_rounded,
        }
    }

    /// The type of the features in arrays and the reason for it, unless the user chose it.
    pub(super) fn feature_type(&self) -> Option<String> {
        let Output::Arrays { layout, .. } = self else { return None };
        layout.reason.map(|reason| format!("{}, {reason}", layout.dtype.name()))
    }

    /// The type that they were rounded to.
    pub(super) fn rounded_to(&self) -> &'static str {
        match self {
            Output::Arrays { layout, .. } => layout.dtype.name(),
            Output::Columns { dtype: Some(dtype), .. } => dtype.name(),
            _ => RawType::F64.name(),
        }
    }
}

/// Writes a value from an array as text.
fn put_cell(group: &Group, block: &Block, row: usize, column: usize, out: &mut String) {
    match block {
        Block::Texts { texts, nulls } if !nulls.is_null(row) => out.push_str(texts.get(row)),
        Block::Numbers(numbers) => {
            let index = row * group.names.len() + column;
            match group.categories.iter().find(|category| category.column == column) {
                // 0 and indices without a value are unknown values.
                Some(category) => {
                    let place = (numbers.double(index) as usize).checked_sub(1);
                    let value = place.and_then(|place| category.vocabulary.values().get(place));
                    out.push_str(value.map_or("", String::as_str));
                }
                None => numbers.put(index, out),
            }
        }
        _ => {}
    }
}
