//! Kinds and types of the columns of text files, found in all of their cells, and values of those types.

mod inferred;

use ddp::data::spelling::truth_word;
pub use inferred::{CellUse, Found, Inference, Place};

use self::inferred::is_missing;
use crate::formats::write::{Block, Kind, Nulls, Numbers};
use crate::values::element::RawType;
use crate::values::notation::Notation;
use crate::values::texts::Texts;
use crate::values::time;
use crate::values::time::MomentType;

/// Values of consecutive rows.
#[derive(Debug)]
pub struct TypedColumn {
    use_: CellUse,
    form: Form,
    n_rows: usize,
    nulls: Nulls,
    bytes: Vec<u8>,
    moments: Vec<i64>,
    texts: Texts,
}

/// Form of the values.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// Numbers of a type.
    Number(RawType),
    /// Dates or times.
    Moment(MomentType),
    /// Texts.
    Text,
}

impl Form {
    fn of(kind: &Kind) -> Self {
        match kind {
            Kind::Number(raw) => Form::Number(*raw),
            Kind::Moment(moment) => Form::Moment(*moment),
            _ => Form::Text,
        }
    }
}

impl TypedColumn {
    /// An empty column of the type `kind`.
    pub fn from_kind(use_: CellUse, kind: &Kind) -> Self {
        TypedColumn {
            use_,
            form: Form::of(kind),
            n_rows: 0,
            nulls: Nulls::default(),
            bytes: Vec::new(),
            moments: Vec::new(),
            texts: Texts::default(),
        }
    }

    /// Appends a cell; false if it is not of the column's type.
    pub fn push(&mut self, cell: &[u8], notation: &Notation) -> bool {
        if let Form::Number(raw @ (RawType::F64 | RawType::I64)) = self.form
            && let Some(number) = notation.plain(cell)
        {
            let bytes = match raw {
                RawType::F64 => number.to_f64().map(f64::to_le_bytes),
                _ => number.to_i64().map(i64::to_le_bytes),
            };
            self.n_rows += usize::from(bytes.is_some());
            return self.extend(bytes);
        }
        let Ok(text) = std::str::from_utf8(cell) else { return false };
        let text = text.trim();
        let row = self.n_rows;
        self.n_rows += 1;
        let is_null = match self.form {
            // NA may be a category, but no label.
            Form::Text if self.use_ == CellUse::Number => is_missing(text, CellUse::Category, notation),
            // A date beyond the calendar.
            Form::Moment(_) | Form::Number(_) if time::is_infinite(text) => true,
            _ => is_missing(text, self.use_, notation),
        };
        if is_null {
            self.nulls.mark(row);
            self.push_null();
            return true;
        }
        let is_valid = match self.form {
            Form::Text => {
                self.texts.push(text);
                true
            }
            Form::Moment(of) => time::parse(text)
                .and_then(|moment| of.value(&moment))
                .map(|value| self.moments.push(value))
                .is_some(),
            Form::Number(RawType::I64) => self.extend(text.parse::<i64>().ok().map(i64::to_le_bytes)),
            Form::Number(RawType::U64) => self.extend(text.parse::<u64>().ok().map(u64::to_le_bytes)),
            Form::Number(RawType::Bool) => self.extend(truth_word(text).map(|truth| [u8::from(truth)])),
            Form::Number(_) => self.extend(notation.number(text).map(f64::to_le_bytes)),
        };
        if !is_valid {
            self.n_rows -= 1;
        }
        is_valid
    }

    fn extend<const N: usize>(&mut self, bytes: Option<[u8; N]>) -> bool {
        bytes.map(|bytes| self.bytes.extend(bytes)).is_some()
    }

    fn push_null(&mut self) {
        match self.form {
            Form::Text => self.texts.push(""),
            Form::Moment(_) => self.moments.push(0),
            Form::Number(RawType::F64) => self.bytes.extend(f64::NAN.to_le_bytes()),
            Form::Number(raw) => self.bytes.resize(self.bytes.len() + raw.size_bytes(), 0),
        }
    }

    /// The values so far; the column is empty afterward.
    pub fn take(&mut self) -> Block {
        let nulls = std::mem::take(&mut self.nulls);
        self.n_rows = 0;
        match self.form {
            Form::Text => Block::Texts { texts: std::mem::take(&mut self.texts), nulls },
            Form::Moment(_) => Block::Moments { values: std::mem::take(&mut self.moments), nulls },
            Form::Number(raw) => {
                Block::Numbers(Numbers { raw, bytes: std::mem::take(&mut self.bytes), nulls })
            }
        }
    }
}
