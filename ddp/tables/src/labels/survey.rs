//! The distinct labels of some rows, in bounded memory; surveys of parts of the rows can be merged.

use std::collections::HashSet;

use ddp::data::labels::label::Label;
use ddp::data::labels::vocabulary::{LabelVocabulary, MAX_CLASSES};
use ddp::data::spelling::{is_code, truth, truth_word, whole};
use serde::{Deserialize, Serialize};

use crate::labels::task::TargetFacts;

/// Words of the bitmap of integers from 0.
const N_WORDS: usize = MAX_CLASSES / 64;

/// Distinct labels; once there are more than [`MAX_CLASSES`], no further ones are collected.
#[derive(Debug, Clone)]
pub(crate) struct LabelSurvey {
    n_rows: u64,
    has_fractions: bool,
    /// A bit per integer in `0..MAX_CLASSES`, the usual labels.
    bits: Box<[u64; N_WORDS]>,
    /// Other integers.
    integers: HashSet<i64>,
    texts: HashSet<String>,
    /// Whether labels are texts as they are spelled, also those that are integers.
    are_texts: bool,
    is_full: bool,
}

/// Representation for other ranks.
#[derive(Serialize, Deserialize)]
struct Sent {
    n_rows: u64,
    has_fractions: bool,
    integers: Vec<i64>,
    texts: Vec<String>,
    are_texts: bool,
    is_full: bool,
}

impl Default for LabelSurvey {
    fn default() -> Self {
        LabelSurvey {
            n_rows: 0,
            has_fractions: false,
            bits: Box::new([0; N_WORDS]),
            integers: HashSet::new(),
            texts: HashSet::new(),
            are_texts: false,
            is_full: false,
        }
    }
}

impl LabelSurvey {
    /// Adds rows of integers.
    pub(crate) fn add_integers(&mut self, numbers: &[i64]) {
        self.n_rows += numbers.len() as u64;
        let mut last = None;
        for &number in numbers {
            if (0..MAX_CLASSES as i64).contains(&number) {
                self.bits[number as usize / 64] |= 1 << (number % 64);
            } else if last != Some(number) {
                last = Some(number);
                self.add_large(number);
            }
        }
    }

    fn add_large(&mut self, number: i64) {
        if !self.is_full {
            self.integers.insert(number);
            self.is_full = self.integers.len() > MAX_CLASSES;
        }
    }

    /// Adds rows of finite numbers.
    pub(crate) fn add_numbers(&mut self, numbers: &[f64]) {
        for &number in numbers {
            match whole(number) {
                Some(number) => self.add_integers(&[number]),
                None => {
                    self.n_rows += 1;
                    // A number without fraction that no integer holds exactly is a quantity too.
                    self.has_fractions = true;
                }
            }
        }
    }

    /// Adds rows of the same text, which the file marks as a text or which keeps its spelling.
    pub(crate) fn add_texts(&mut self, text: &str, n_rows: u64) {
        self.are_texts = true;
        self.n_rows += n_rows;
        self.add_spelling(text.trim());
    }

    /// Adds rows of the same text from a file that does not distinguish texts from numbers: it may be an integer. If one is spelled
    /// like a code, all labels are texts.
    pub(crate) fn add_cells(&mut self, text: &str, n_rows: u64) {
        self.n_rows += n_rows;
        self.are_texts |= is_code(text.trim());
        match Label::parse(text) {
            Label::Integer(number) => {
                self.add_integers(&[number]);
                self.n_rows -= 1;
            }
            Label::Text(text) => self.add_spelling(&text),
        }
    }

    fn add_spelling(&mut self, text: &str) {
        if !self.is_full && !self.texts.contains(text) {
            self.texts.insert(text.to_owned());
            self.is_full = self.texts.len() > MAX_CLASSES;
        }
    }

    /// Adds the rows of another survey.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.n_rows += other.n_rows;
        self.has_fractions |= other.has_fractions;
        self.are_texts |= other.are_texts;
        self.is_full |= other.is_full;
        for (bits, other) in self.bits.iter_mut().zip(other.bits.iter()) {
            *bits |= other;
        }
        // In sorted order, so that a full survey holds the same on all ranks.
        let mut integers: Vec<i64> = other.integers.iter().copied().collect();
        integers.sort_unstable();
        integers.into_iter().for_each(|number| self.add_large(number));
        let mut texts: Vec<&String> = other.texts.iter().collect();
        texts.sort_unstable();
        for text in texts {
            if !self.is_full && self.texts.insert(text.clone()) {
                self.is_full = self.texts.len() > MAX_CLASSES;
            }
        }
    }

    pub(crate) fn n_rows(&self) -> u64 {
        self.n_rows
    }

    pub(crate) fn has_fractions(&self) -> bool {
        self.has_fractions
    }

    /// Number of distinct labels; `None` if there are more than [`MAX_CLASSES`].
    pub(crate) fn n_distinct(&self) -> Option<usize> {
        let small: usize = self.bits.iter().map(|word| word.count_ones() as usize).sum();
        let mut n = small + self.integers.len() + self.texts.len();
        if self.are_texts && n > self.texts.len() {
            let is_listed = |number: &i64| self.texts.contains(&number.to_string());
            n -= self.sorted_integers().iter().filter(|number| is_listed(number)).count();
        }
        if let Some(words) = self.truth_words() {
            n = words.len();
        }
        (!self.is_full && n <= MAX_CLASSES).then_some(n)
    }

    /// One spelling per truth value, the first in order, if all labels are words for truth values, such as `yes`, `Yes` and `no`.
    fn truth_words(&self) -> Option<Vec<String>> {
        let (is_full, has_numbers) = (self.is_full, self.has_fractions || self.has_integers());
        if is_full || has_numbers || self.texts.is_empty() {
            return None;
        }
        let mut words: [Option<&String>; 2] = [None; 2];
        for text in &self.texts {
            let word = &mut words[usize::from(truth_word(text)?)];
            *word = Some(word.map_or(text, |word| word.min(text)));
        }
        Some(words.into_iter().flatten().cloned().collect())
    }

    fn has_integers(&self) -> bool {
        !self.integers.is_empty() || self.bits.iter().any(|word| *word != 0)
    }

    /// The labels as classes; `None` if there are more than [`MAX_CLASSES`].
    pub(crate) fn vocabulary(&self) -> Option<LabelVocabulary> {
        self.n_distinct()?;
        let label = |number: i64| {
            if self.are_texts { Label::Text(number.to_string()) } else { Label::Integer(number) }
        };
        let integers = self.sorted_integers().into_iter().map(label);
        let texts = self.truth_words().unwrap_or_else(|| self.texts.iter().cloned().collect());
        Some(LabelVocabulary::new(integers.chain(texts.into_iter().map(Label::Text))))
    }

    /// Evidence that decides on the task.
    pub(crate) fn facts(&self) -> TargetFacts {
        let has_text = !self.texts.is_empty();
        let is_truth = |text: &String| truth(text).is_some();
        let integers = if has_text || self.has_fractions { Vec::new() } else { self.sorted_integers() };
        TargetFacts {
            n_distinct: self.n_distinct(),
            has_text,
            is_boolean: has_text
                && !self.has_integers()
                && !self.has_fractions
                && self.texts.iter().all(is_truth),
            has_fractions: self.has_fractions,
            is_binary: !has_text
                && !self.has_fractions
                && self.integers.is_empty()
                && self.bits[0] & !3 == 0
                && self.bits[1..].iter().all(|word| *word == 0),
            range: integers.first().zip(integers.last()).map(|(&min, &max)| [min, max]),
        }
    }

    fn sorted_integers(&self) -> Vec<i64> {
        let mut integers: Vec<i64> = self.integers.iter().copied().collect();
        for (index, &word) in self.bits.iter().enumerate() {
            let mut word = word;
            while word != 0 {
                integers.push((index * 64) as i64 + i64::from(word.trailing_zeros()));
                word &= word - 1;
            }
        }
        integers.sort_unstable();
        integers
    }

    /// The survey as bytes for other ranks.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let sent = Sent {
            n_rows: self.n_rows,
            has_fractions: self.has_fractions,
            integers: self.sorted_integers(),
            texts: self.texts.iter().cloned().collect(),
            are_texts: self.are_texts,
            is_full: self.is_full,
        };
        serde_json::to_vec(&sent).expect("numbers and texts")
    }

    /// The survey of all ranks, in the order of the ranks.
    ///
    /// # Panics
    /// If the bytes are not those of [`to_bytes`](Self::to_bytes).
    pub(crate) fn from_ranks(ranks: &[Vec<u8>]) -> Self {
        let mut all = Self::default();
        for bytes in ranks {
            let sent: Sent = serde_json::from_slice(bytes).expect("a rank of the same program sent it");
            let mut of_rank = LabelSurvey { is_full: sent.is_full, ..Self::default() };
            of_rank.texts.extend(sent.texts);
            of_rank.are_texts = sent.are_texts;
            // A full survey keeps what it has.
            for number in sent.integers {
                match usize::try_from(number).ok().filter(|number| *number < MAX_CLASSES) {
                    Some(number) => of_rank.bits[number / 64] |= 1 << (number % 64),
                    None => drop(of_rank.integers.insert(number)),
                }
            }
            of_rank.n_rows = sent.n_rows;
            of_rank.has_fractions = sent.has_fractions;
            all.merge(&of_rank);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(texts: &[String]) -> LabelSurvey {
        let mut survey = LabelSurvey::default();
        texts.iter().for_each(|text| survey.add_cells(text, 1));
        survey
    }

    proptest! {
        #[test]
        fn parts_of_the_rows_give_the_same_classes(
            texts in proptest::collection::vec("-?[0-9]{1,6}|[a-z]{1,2}|[01]|True|False", 1..60),
            cut in 0usize..60,
        ) {
            let cut = cut.min(texts.len());
            let whole = of(&texts);
            let parts = [of(&texts[cut..]).to_bytes(), of(&texts[..cut]).to_bytes()];
            let merged = LabelSurvey::from_ranks(&parts);
            prop_assert_eq!(merged.vocabulary(), whole.vocabulary());
            prop_assert_eq!((merged.n_rows(), merged.facts()), (texts.len() as u64, whole.facts()));
            let are_texts = texts.iter().any(|text| is_code(text));
            let label = |text: &String| match Label::parse(text) {
                label if are_texts => Label::Text(label.to_string()),
                label => label,
            };
            let labels = LabelVocabulary::new(texts.iter().map(label));
            prop_assert_eq!(whole.vocabulary(), Some(labels));
        }
    }

    #[test]
    fn spellings_of_a_truth_value_are_one_class() {
        let names = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            let survey = of(&texts);
            let vocabulary = survey.vocabulary().unwrap();
            assert_eq!(survey.n_distinct(), Some(vocabulary.len()));
            for text in &texts {
                assert!(vocabulary.class_of_text(text).is_some(), "{text}");
            }
            vocabulary.labels().map(|label| label.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&["yes", "Yes", "no", "No", "NO"]), ["NO", "Yes"]);
        assert_eq!(names(&["yes", "TRUE", "no"]), ["TRUE", "no"]);
        assert_eq!(names(&["yes", "Yes", "maybe"]), ["Yes", "maybe", "yes"]);
        assert_eq!(names(&["yes", "Yes", "1"]), ["1", "Yes", "yes"]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut survey = LabelSurvey::default();
        survey.add_integers(&(0..MAX_CLASSES as i64).collect::<Vec<_>>());
        assert_eq!(survey.n_distinct(), Some(MAX_CLASSES));
        survey.add_integers(&[-1]);
        assert_eq!((survey.n_distinct(), survey.vocabulary()), (None, None));
        survey.add_integers(&(0..200_000).map(|i| i * -7).collect::<Vec<_>>());
        assert!(survey.integers.len() <= MAX_CLASSES + 1);
        let mut other = LabelSurvey::default();
        (0..100_000).for_each(|i| other.add_texts(&format!("t{i}"), 1));
        assert_eq!(other.texts.len(), MAX_CLASSES + 1);
        assert_eq!(LabelSurvey::from_ranks(&[survey.to_bytes(), other.to_bytes()]).n_distinct(), None);
    }

    #[test]
    fn facts_follow_the_values() {
        let facts =
            |texts: &[&str]| of(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).facts();
        assert!(facts(&["True", "False"]).is_boolean);
        assert!(!facts(&["True", "maybe"]).is_boolean && facts(&["True", "maybe"]).has_text);
        assert!(!facts(&["True", "0"]).is_boolean);
        assert!(facts(&["0", "1", "1.0"]).is_binary);
        assert!(!facts(&["0", "1", "2"]).is_binary && !facts(&["-1", "1"]).is_binary);
        let mut numbers = LabelSurvey::default();
        numbers.add_numbers(&[1.0, 2.0]);
        assert_eq!((numbers.facts().n_distinct, numbers.facts().has_fractions), (Some(2), false));
        numbers.add_numbers(&[1e300, 0.5]);
        assert!(numbers.facts().has_fractions);
    }
}
