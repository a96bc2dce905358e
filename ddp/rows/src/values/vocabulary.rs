//! The known values of a categorical column.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::number::without_fraction;

/// Most distinct values of a category; columns with more are identifiers.
pub const MAX_VALUES: usize = 1 << 20;

/// Values with their numbers: 0 is unknown, known values count from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Vocabulary {
    name: String,
    values: Vec<String>,
    codes: HashMap<String, u32>,
}

/// A column of category numbers: 0 is unknown, the values of the vocabulary count from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CategoryColumn {
    /// Index among the features.
    pub column: usize,
    /// Its known values.
    pub vocabulary: Vocabulary,
}

/// Representation in a model's file.
#[derive(Serialize, Deserialize)]
struct Stored {
    column: String,
    values: Vec<String>,
}

impl From<Stored> for Vocabulary {
    fn from(Stored { column, values }: Stored) -> Self {
        Vocabulary::new(column, values)
    }
}

impl From<Vocabulary> for Stored {
    fn from(vocabulary: Vocabulary) -> Self {
        Stored { column: vocabulary.name, values: vocabulary.values }
    }
}

impl Vocabulary {
    /// The vocabulary of column `name`; a repeated value keeps its first number.
    pub fn new(name: String, values: Vec<String>) -> Self {
        let mut vocabulary = Vocabulary { name, values: Vec::new(), codes: HashMap::new() };
        for value in values {
            vocabulary.add(&value);
        }
        vocabulary
    }

    /// Name of the column.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The known values in the order of their numbers.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Number of codes: one per known value, and one for unknown values.
    pub fn n_codes(&self) -> usize {
        self.values.len() + 1
    }

    /// The number of `value`; 0 if it is not known. `1` and `1.0` are the same value.
    pub fn code(&self, value: &str) -> u32 {
        let find = |value: &str| self.codes.get(value).copied();
        let other = || {
            let whole = without_fraction(value);
            // Vocabularies of earlier versions hold numbers as they were spelled.
            find(whole).or_else(|| find(&format!("{whole}.0")))
        };
        find(value).or_else(other).unwrap_or(0)
    }

    /// The number of `value`, which is added if it is unknown.
    pub fn add(&mut self, value: &str) -> u32 {
        if let Some(&code) = self.codes.get(value) {
            return code;
        }
        self.values.push(value.to_owned());
        let code = self.values.len() as u32;
        self.codes.insert(value.to_owned(), code);
        code
    }

    /// Sorts the values alphabetically, so that the order of rows does not matter, and returns the new numbers by old ones.
    pub fn sort(&mut self) -> Vec<u32> {
        let old = std::mem::take(&mut self.values);
        let mut sorted = old.clone();
        sorted.sort_unstable();
        *self = Vocabulary::new(std::mem::take(&mut self.name), sorted);
        std::iter::once(0).chain(old.iter().map(|value| self.code(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::values::vocabulary::*;

    #[test]
    fn a_whole_number_is_the_same_value_with_a_fraction_of_zeros() {
        for (value, expected) in [
            ("1.0", "1"),
            ("-12.00", "-12"),
            ("1.5", "1.5"),
            ("01.0", "01"),
            (".0", ".0"),
            ("v1.0", "v1.0"),
            ("1.", "1."),
        ] {
            assert_eq!(without_fraction(value), expected);
        }
        let known = Vocabulary::new("k".to_owned(), ["1", "2.0"].map(str::to_owned).to_vec());
        assert_eq!(
            ["1", "1.0", "1.00", "2", "2.0", "2.00", "3.0"].map(|v| known.code(v)),
            [1, 1, 1, 2, 2, 2, 0]
        );
    }

    #[test]
    fn numbers_survive_sorting_and_storing() {
        let mut vocabulary = Vocabulary::new("city".to_owned(), Vec::new());
        let codes: Vec<_> = ["Rome", "Bern", "Rome", "Oslo"].map(|v| vocabulary.add(v)).to_vec();
        assert_eq!(codes, [1, 2, 1, 3]);
        let new = vocabulary.sort();
        assert_eq!(vocabulary.values(), ["Bern", "Oslo", "Rome"]);
        assert_eq!(new, [0, 3, 1, 2]);
        assert_eq!((vocabulary.code("Rome"), vocabulary.code("Paris"), vocabulary.n_codes()), (3, 0, 4));
        let stored = serde_json::to_string(&vocabulary).unwrap();
        assert_eq!(stored, r#"{"column":"city","values":["Bern","Oslo","Rome"]}"#);
        assert_eq!(serde_json::from_str::<Vocabulary>(&stored).unwrap(), vocabulary);
    }
}
