//! Kind of the values of a column: a model that was trained on dates can't use numbers in their place, nor the reverse.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Quantity that the numbers of a column measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// Numbers in units of their own, and truth values.
    Number,
    /// Dates, with or without a time: seconds since 1970.
    Date,
    /// Dates with times that all have a time zone.
    ZonedDate,
    /// Times of day and durations, in seconds.
    Time,
}

impl ColumnKind {
    const LETTERS: [(ColumnKind, char); 4] = [
        (ColumnKind::Number, 'n'),
        (ColumnKind::Date, 'd'),
        (ColumnKind::ZonedDate, 'z'),
        (ColumnKind::Time, 't'),
    ];

    /// The values of this kind in a message.
    pub fn name(self) -> &'static str {
        match self {
            ColumnKind::Number => "numbers",
            ColumnKind::Date | ColumnKind::ZonedDate => "dates",
            ColumnKind::Time => "times or durations",
        }
    }

    /// Whether values of the other kind mean the same as numbers; time zones may differ.
    pub fn fits(self, other: ColumnKind) -> bool {
        self.name() == other.name()
    }

    /// The remedy where a model of this kind meets values of the kind `found`.
    pub fn remedy(self, found: ColumnKind) -> &'static str {
        match (self, found) {
            (ColumnKind::Date | ColumnKind::ZonedDate, ColumnKind::Number) => {
                "write its dates as text, such as 2024-05-31 12:30:00 (pandas: `to_json(date_format=\"iso\")`), or as a type of dates"
            }
            (ColumnKind::Time, ColumnKind::Number) => {
                "write its values as a type of times or durations, or as text such as 12:30:00 or PT90S"
            }
            (ColumnKind::Number, _) => {
                "write the numbers on which the model was trained, or train again on such files"
            }
            _ => "write the column as in the training data",
        }
    }
}

/// Kinds of the values that a column has shown so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SeenKinds(u8);

impl SeenKinds {
    pub const NUMBER: SeenKinds = SeenKinds(1);
    pub const DATE: SeenKinds = SeenKinds(2);
    pub const TIME: SeenKinds = SeenKinds(4);
    /// A time of a date with a zone.
    pub const ZONED: SeenKinds = SeenKinds(8);
    /// A time of a date without a zone.
    pub const NAIVE: SeenKinds = SeenKinds(16);

    pub fn add(&mut self, other: SeenKinds) {
        self.0 |= other.0;
    }

    pub fn has(self, other: SeenKinds) -> bool {
        self.0 & other.0 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kind of the column; `None` without values and for values of several kinds.
    pub fn kind(self) -> Option<ColumnKind> {
        match (self.has(Self::NUMBER), self.has(Self::DATE), self.has(Self::TIME)) {
            (true, false, false) => Some(ColumnKind::Number),
            (false, true, false) if self.has(Self::ZONED) && !self.has(Self::NAIVE) => {
                Some(ColumnKind::ZonedDate)
            }
            (false, true, false) => Some(ColumnKind::Date),
            (false, false, true) => Some(ColumnKind::Time),
            _ => None,
        }
    }

    /// A kind among the values that does not fit `known`.
    pub fn other_than(self, known: ColumnKind) -> Option<ColumnKind> {
        let all = [
            (Self::DATE, ColumnKind::Date),
            (Self::TIME, ColumnKind::Time),
            (Self::NUMBER, ColumnKind::Number),
        ];
        all.into_iter().find(|(bit, kind)| self.has(*bit) && !kind.fits(known)).map(|(_, kind)| kind)
    }
}

/// Writes kinds as a letter per column, `-` for an unknown one: tables may have very many columns.
///
/// # Errors
/// Errors of the serializer.
pub fn to_letters<S: Serializer>(kinds: &[Option<ColumnKind>], to: S) -> Result<S::Ok, S::Error> {
    let letter = |kind: &Option<ColumnKind>| {
        ColumnKind::LETTERS.iter().find(|(of, _)| Some(*of) == *kind).map_or('-', |(_, letter)| *letter)
    };
    kinds.iter().map(letter).collect::<String>().serialize(to)
}

/// Reads what [`to_letters`] wrote.
///
/// # Errors
/// Errors of the deserializer.
pub fn from_letters<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Option<ColumnKind>>, D::Error> {
    let kind = |letter: char| ColumnKind::LETTERS.iter().find(|(_, of)| *of == letter).map(|(kind, _)| *kind);
    Ok(String::deserialize(from)?.chars().map(kind).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_differ_are_found() {
        let mut seen = SeenKinds::DATE;
        seen.add(SeenKinds::ZONED);
        assert_eq!(seen.kind(), Some(ColumnKind::ZonedDate));
        assert_eq!(seen.other_than(ColumnKind::Date), None);
        assert_eq!(seen.other_than(ColumnKind::Number), Some(ColumnKind::Date));
        seen.add(SeenKinds::NUMBER);
        assert_eq!((seen.kind(), seen.other_than(ColumnKind::Date)), (None, Some(ColumnKind::Number)));
        assert_eq!(SeenKinds::default().other_than(ColumnKind::Date), None);
    }
}
