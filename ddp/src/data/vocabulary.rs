//! The known values of a categorical column.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};
use serde::{Deserialize, Serialize};

use crate::data::spelling::{self, category_text, is_integer, truth_text, truth_word, without_fraction};

/// Most distinct values of a category; columns with more are identifiers.
pub const MAX_VALUES: usize = 1 << 20;

/// Values with their numbers: 0 is unknown, known values count from 1. If all are words for truth values, other spellings of them are the
/// same values.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Vocabulary {
    name: String,
    values: Vec<String>,
    /// Numbers of the values, by the hash of the value.
    codes: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Numbers of values that are no shortest spelling of theirs, by that: of `1.50` by `1.5`, unless it is a value itself.
    shortest: HashMap<String, u32>,
    /// Numbers of false and true, 0 for one that no value spells; `None` if some value is no word for a truth value.
    truths: Option<[u32; 2]>,
}

impl PartialEq for Vocabulary {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.values) == (&other.name, &other.values)
    }
}

impl Eq for Vocabulary {}

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
        let (codes, hasher) = (HashTable::new(), DefaultHashBuilder::default());
        let shortest = HashMap::new();
        let mut vocabulary =
            Vocabulary { name, values: Vec::new(), codes, hasher, shortest, truths: Some([0; 2]) };
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

    /// The number of `value`; 0 if it is not known. `1` and `1.0` are the same value, and so are `1.5` and `1.50` where only one of them is known.
    pub fn code(&self, value: &str) -> u32 {
        let find = |value: &str| self.find(value, self.hasher.hash_one(value));
        let truth = || Some(self.truths?[usize::from(truth_word(value)?)]).filter(|code| *code > 0);
        let shortest = || {
            let shortest = category_text(value);
            find(&shortest).or_else(|| self.shortest.get(&*shortest).copied())
        };
        let other = || {
            let whole = without_fraction(value);
            // Vocabularies of earlier versions hold numbers as they were spelled.
            find(whole).or_else(|| find(&format!("{whole}.0"))).or_else(shortest)
        };
        find(value).or_else(truth).or_else(other).unwrap_or(0)
    }

    /// Spellings of truth values, in any case, and usual ones of numbers that are not listed, with their numbers: `1.0` and `1.00` of `1`,
    /// `1.50` of `1.5`, `1e+16` of `1e16`.
    pub fn other_spellings(&self) -> Vec<(String, i64)> {
        let words = ["false", "true", "no", "yes"].into_iter().filter(|_| self.truths.is_some());
        let numbers = self.values.iter().flat_map(|value| {
            let shortest = category_text(value).into_owned();
            if is_integer(without_fraction(value)) {
                return vec![format!("{shortest}.0"), format!("{shortest}.00"), shortest];
            }
            let is_fraction = value.contains('.') && !shortest.contains('e');
            let longer = is_fraction.then(|| [format!("{value}0"), format!("{shortest}0")]);
            let of_python = spelling::python_exponent(&shortest);
            of_python.into_iter().chain(longer.into_iter().flatten()).chain([shortest]).collect()
        });
        let mut seen = HashSet::new();
        let is_new = |word: &String| {
            self.find(word, self.hasher.hash_one(word.as_str())).is_none() && seen.insert(word.clone())
        };
        words
            .flat_map(spelling::cases)
            .chain(numbers)
            .filter(is_new)
            .map(|word| (self.code(&word), word))
            .filter(|(code, _)| *code > 0)
            .map(|(code, word)| (word, code.into()))
            .collect()
    }

    fn find(&self, value: &str, hash: u64) -> Option<u32> {
        self.codes.find(hash, |code| self.values[*code as usize - 1] == value).copied()
    }

    /// The number of `value`, which is added if it is unknown.
    pub fn add(&mut self, value: &str) -> u32 {
        let hash = self.hasher.hash_one(value);
        if let Some(code) = self.find(value, hash) {
            return code;
        }
        self.values.push(value.to_owned());
        let code = self.values.len() as u32;
        let Vocabulary { values, codes, hasher, .. } = self;
        codes.insert_unique(hash, code, |code| hasher.hash_one(values[*code as usize - 1].as_str()));
        let shortest = category_text(value);
        if shortest != value {
            self.shortest.entry(shortest.into_owned()).or_insert(code);
        }
        self.truths = self.truths.zip(truth_word(value)).map(|(mut codes, truth)| {
            // The first of several spellings.
            let place = &mut codes[usize::from(truth)];
            *place = if *place == 0 { code } else { *place };
            codes
        });
        code
    }

    /// Sorts the values alphabetically, so that the order of rows does not matter, and returns the new numbers by old ones. Spellings of a
    /// truth value become one, `False` or `True` if one of them is, if all values are such words.
    pub fn sort(&mut self) -> Vec<u32> {
        let old = std::mem::take(&mut self.values);
        let mut sorted = old.clone();
        if self.truths.is_some() && !old.is_empty() {
            let of_truth = |truth: bool| {
                let mut words: Vec<&String> =
                    old.iter().filter(|word| truth_word(word) == Some(truth)).collect();
                words.sort_unstable();
                let is_usual = words.iter().any(|word| spelling::truth(word).is_some());
                if is_usual { Some(truth_text(truth).to_owned()) } else { words.first().copied().cloned() }
            };
            sorted = [false, true].into_iter().filter_map(of_truth).collect();
        }
        sorted.sort_unstable();
        *self = Vocabulary::new(std::mem::take(&mut self.name), sorted);
        std::iter::once(0).chain(old.iter().map(|value| self.code(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::data::vocabulary::*;

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
        let others = known.other_spellings();
        let others: Vec<_> = others.iter().map(|(text, code)| (text.as_str(), *code)).collect();
        assert_eq!(others, [("1.0", 1), ("1.00", 1), ("2.00", 2), ("2", 2)]);
    }

    #[test]
    fn spellings_of_a_number_are_one_value_unless_several_are_known() {
        for (value, expected) in [
            ("1.50", "1.5"),
            ("-0.10", "-0.1"),
            ("1.0", "1"),
            ("1e+16", "1e16"),
            ("1e-05", "1e-5"),
            ("10000000000000000", "10000000000000000"),
            ("01.50", "01.50"),
            ("1e3", "1e3"),
            ("1e+999", "1e+999"),
            ("1.5.0", "1.5.0"),
            ("v1.50", "v1.50"),
        ] {
            assert_eq!(category_text(value), expected);
        }
        let of = |values: [&str; 2]| Vocabulary::new("k".to_owned(), values.map(str::to_owned).to_vec());
        let known = of(["1.50", "1e+16"]);
        assert_eq!(["1.5", "1.50", "1.500", "1e16", "1.51"].map(|v| known.code(v)), [1, 1, 1, 2, 0]);
        assert!(known.other_spellings().contains(&("1.5".to_owned(), 1)));
        assert_eq!(["1.50", "1.5"].map(|v| of(["1.5", "x"]).code(v)), [1, 1]);
        // Versions are no numbers.
        let versions = of(["3.1", "3.10"]);
        assert_eq!(["3.1", "3.10"].map(|v| versions.code(v)), [1, 2]);
        assert!(versions.other_spellings().iter().all(|(word, code)| versions.code(word) == *code as u32));
    }

    #[test]
    fn usual_spellings_are_listed_with_the_codes_that_they_have() {
        let of = |values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            let vocabulary = Vocabulary::new("k".to_owned(), values);
            let others = vocabulary.other_spellings();
            assert!(
                others.iter().all(|(word, code)| i64::from(vocabulary.code(word)) == *code),
                "{others:?}"
            );
            others.into_iter().map(|(word, _)| word).collect::<Vec<_>>()
        };
        let contains = |values: &[&str], words: &[&str]| {
            let others = of(values);
            words.iter().for_each(|word| assert!(others.contains(&(*word).to_owned()), "{word}: {others:?}"));
        };
        // As Python's str, and formats of one and two digits.
        contains(&["1e16", "1.5e-5", "-2e-7"], &["1e+16", "1.5e-05", "-2e-07"]);
        contains(&["1e+16", "1.5e-05", "1e+100"], &["1e16", "1.5e-5", "1e100"]);
        contains(&["2", "3.0", "1.5", "1.20"], &["2.0", "2.00", "3", "3.00", "1.50", "1.2", "1.200"]);
        contains(&["False", "True"], &["tRuE", "fALSE", "nO", "yEs", "no", "YES"]);
        // All spellings of four words, but the two that are values.
        assert_eq!(of(&["False", "True"]).len(), 32 + 16 + 4 + 8 - 2);
        assert_eq!(of(&["a", "true", "1e3", "v1.0"]), Vec::<String>::new());
    }

    #[test]
    fn spellings_of_a_truth_value_are_one_value() {
        let sorted = |words: &[&str]| {
            let mut vocabulary = Vocabulary::new("k".to_owned(), Vec::new());
            words.iter().for_each(|word| _ = vocabulary.add(word));
            let codes = vocabulary.sort();
            (vocabulary, codes)
        };
        for words in [["True", "False"], ["true", "false"], ["FALSE", "TRUE"], ["TRUE", "false"]] {
            let (vocabulary, codes) = sorted(&words);
            assert_eq!(vocabulary.values(), ["False", "True"]);
            assert_eq!(words.map(|word| vocabulary.code(word)).to_vec(), codes[1..]);
            let known = ["false", "True", "TRUE", "no", "yes", "maybe"].map(|word| vocabulary.code(word));
            assert_eq!(known, [1, 2, 2, 1, 2, 0]);
        }
        assert_eq!(sorted(&["True", "true", "False"]).1, [0, 2, 2, 1]);
        assert_eq!(sorted(&["yes", "no", "No"]).0.values(), ["No", "yes"]);
        assert_eq!(sorted(&["true"]).0.code("False"), 0);
        // Other words keep all spellings apart.
        let (vocabulary, _) = sorted(&["true", "True", "maybe"]);
        assert_eq!(vocabulary.values(), ["True", "maybe", "true"]);
        assert_eq!(["true", "True", "TRUE"].map(|word| vocabulary.code(word)), [3, 1, 0]);
        // Vocabularies of earlier versions.
        let old = Vocabulary::new("k".to_owned(), ["false", "true"].map(str::to_owned).to_vec());
        assert_eq!((old.code("False"), old.code("TRUE")), (1, 2));
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
