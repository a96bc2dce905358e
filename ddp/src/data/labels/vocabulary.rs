//! The classes of a model: labels in sorted order.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::label::{Label, bool_text};
use crate::data::spelling::{integer, is_code, truth, truth_word};
use crate::report::visible::{is_invisible, visible};

/// Most classes that the data alone may imply; a model has an output per class.
pub const MAX_CLASSES: usize = 65_536;

/// Marks an integer of the table that is not a label.
const NONE: u32 = u32::MAX;
/// Largest table per integer label, and its smallest limit.
const TABLE_PER_LABEL: usize = 16;
const MIN_TABLE: usize = 1 << 16;

/// Distinct labels in sorted order, integers by value, then texts by their bytes; or in the order that the config states. The
/// position of a label is its class index.
///
/// ```
/// use ddp::data::labels::{Label, LabelVocabulary};
///
/// let vocabulary = LabelVocabulary::new(["setosa", "virginica", "setosa"].map(Label::from));
/// assert_eq!(vocabulary.len(), 2);
/// assert_eq!(vocabulary.class_of(&Label::from("virginica")), Some(1));
/// assert_eq!(vocabulary.name(0), "setosa");
/// assert_eq!(LabelVocabulary::from_json(&vocabulary.to_json()).unwrap(), vocabulary);
/// ```
#[derive(Debug, Clone)]
pub struct LabelVocabulary {
    /// The labels in sorted order. The position of a label here is its place.
    classes: Classes,
    /// The order of the classes, if it is another.
    order: Option<Order>,
}

/// An order of labels other than the sorted one.
#[derive(Debug, Clone)]
struct Order {
    /// Place of each class.
    places: Vec<u32>,
    /// Class of each place.
    classes: Vec<u32>,
}

#[derive(Debug, Clone)]
enum Classes {
    /// The integers 0 to n - 1.
    Numbers(usize),
    Listed {
        integers: Vec<i64>,
        /// Class of `integers[0] + i`, or [`NONE`]; empty if the integers are too far apart.
        table: Vec<u32>,
        texts: Vec<String>,
    },
}

impl PartialEq for LabelVocabulary {
    fn eq(&self, other: &Self) -> bool {
        // The rest follows from the labels.
        self.len() == other.len()
            && self.is_numbers() == other.is_numbers()
            && self.labels().eq(other.labels())
    }
}

impl Eq for LabelVocabulary {}

impl LabelVocabulary {
    /// The vocabulary of these labels, in any order and with repetitions.
    pub fn new(labels: impl IntoIterator<Item = Label>) -> Self {
        let (mut integers, mut texts) = (Vec::new(), Vec::new());
        for label in labels {
            match label {
                Label::Integer(number) => integers.push(number),
                Label::Text(text) => texts.push(text),
            }
        }
        integers.sort_unstable();
        integers.dedup();
        texts.sort_unstable();
        texts.dedup();
        let is_range = integers.first() == Some(&0) && integers.last() == Some(&(integers.len() as i64 - 1));
        let classes = if texts.is_empty() && is_range {
            Classes::Numbers(integers.len())
        } else {
            Classes::Listed { table: table(&integers), integers, texts }
        };
        LabelVocabulary { classes, order: None }
    }

    /// The vocabulary of these labels, whose class indices follow this order.
    ///
    /// # Errors
    /// The first label that appears twice.
    pub fn in_order(labels: Vec<Label>) -> Result<Self, Label> {
        let mut vocabulary = Self::new(labels.iter().cloned());
        let mut classes = vec![NONE; vocabulary.len()];
        let mut places = Vec::with_capacity(labels.len());
        for (class, label) in labels.into_iter().enumerate() {
            let place = match &label {
                Label::Integer(number) => vocabulary.listed_integer(*number),
                Label::Text(text) => vocabulary.listed_text(text),
            };
            let place = place.expect("the vocabulary is of these labels");
            if classes[place] != NONE {
                return Err(label);
            }
            classes[place] = class as u32;
            places.push(place as u32);
        }
        if !places.is_sorted() {
            vocabulary.order = Some(Order { places, classes });
        }
        Ok(vocabulary)
    }

    /// The integers 0 to `n_classes - 1`.
    pub fn numbers(n_classes: usize) -> Self {
        LabelVocabulary { classes: Classes::Numbers(n_classes), order: None }
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        match &self.classes {
            Classes::Numbers(n) => *n,
            Classes::Listed { integers, texts, .. } => integers.len() + texts.len(),
        }
    }

    /// Whether there are no classes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the labels are the class indices themselves: the integers from 0.
    pub fn is_numbers(&self) -> bool {
        matches!(self.classes, Classes::Numbers(_)) && self.order.is_none()
    }

    /// The label of class `class`.
    ///
    /// # Panics
    /// If `class` is not below [`len`](Self::len).
    pub fn label(&self, class: usize) -> Label {
        assert!(class < self.len(), "class {class} of {}", self.len());
        let place = self.order.as_ref().map_or(class, |order| order.places[class] as usize);
        match &self.classes {
            Classes::Numbers(_) => Label::Integer(place as i64),
            Classes::Listed { integers, texts, .. } => match place.checked_sub(integers.len()) {
                None => Label::Integer(integers[place]),
                Some(text) => Label::Text(texts[text].clone()),
            },
        }
    }

    fn class_at(&self, place: usize) -> usize {
        self.order.as_ref().map_or(place, |order| order.classes[place] as usize)
    }

    /// The label of class `class` as text, as the user wrote it.
    ///
    /// # Panics
    /// If `class` is not below [`len`](Self::len).
    pub fn name(&self, class: usize) -> String {
        self.label(class).to_string()
    }

    /// All labels in the order of their classes.
    pub fn labels(&self) -> impl Iterator<Item = Label> + '_ {
        (0..self.len()).map(|class| self.label(class))
    }

    /// The class index of a label; `None` if it is not among the labels. Truth values match their other spellings, and 0 and 1.
    pub fn class_of(&self, label: &Label) -> Option<usize> {
        match label {
            Label::Integer(number) => self.class_of_integer(*number),
            Label::Text(text) => self.class_of_text(text),
        }
    }

    /// [`LabelVocabulary::class_of`] for an integer, also of a vocabulary of texts that spell integers.
    pub fn class_of_integer(&self, number: i64) -> Option<usize> {
        self.place_of_integer(number).map(|place| self.class_at(place))
    }

    fn place_of_integer(&self, number: i64) -> Option<usize> {
        let other = || match number {
            0 => self.listed_truth(false),
            1 => self.listed_truth(true),
            _ => None,
        };
        self.listed_integer(number).or_else(|| self.text_of_integer(number)).or_else(other)
    }

    /// [`LabelVocabulary::class_of`] for a text, which may spell an integer.
    pub fn class_of_text(&self, text: &str) -> Option<usize> {
        let text = text.trim();
        let place = || self.place_of_other(text).or_else(|| self.place_of_word(text));
        self.listed_text(text).or_else(place).map(|place| self.class_at(place))
    }

    /// The class of a text that differs from a label only by a point at its end, as the test file of the table "adult" has them.
    pub fn class_of_pointed(&self, text: &str) -> Option<usize> {
        let plain = text.trim().strip_suffix('.')?;
        self.listed_text(plain).map(|place| self.class_at(place))
    }

    /// The place of a text that is not a label itself, but spells a number or a truth value.
    fn place_of_other(&self, text: &str) -> Option<usize> {
        match integer(text) {
            // `007` is not the text `7`.
            Some(number) if is_code(text) => return self.listed_integer(number),
            Some(number) => return self.place_of_integer(number),
            None => {}
        }
        let value = truth(text)?;
        // Earlier versions numbered truth values.
        let are_numbers = matches!(self.classes, Classes::Numbers(_));
        let number = || self.listed_integer(i64::from(value)).filter(|_| are_numbers);
        self.listed_truth(value).or_else(number)
    }

    /// The place of a word for a truth value, where all labels are such words.
    fn place_of_word(&self, text: &str) -> Option<usize> {
        let Classes::Listed { integers, texts, .. } = &self.classes else { return None };
        let value = truth_word(text)?;
        let words: Option<Vec<bool>> = texts.iter().map(|text| truth_word(text)).collect();
        let words = words.filter(|words| integers.is_empty() && words.len() <= 2)?;
        words.iter().position(|word| *word == value)
    }

    /// The labels that differ only in case, in white space or in invisible characters, in groups.
    pub fn similar(&self) -> Vec<Vec<String>> {
        let Classes::Listed { texts, .. } = &self.classes else { return Vec::new() };
        similar(texts.iter().map(String::as_str))
    }

    /// Replaces integer labels by class indices, and labels that are not known by `unknown`; returns the position of the first of
    /// those.
    pub fn map_integers(&self, labels: &mut [i64], unknown: i64) -> Option<usize> {
        if let (Classes::Numbers(n), None) = (&self.classes, &self.order) {
            let n = *n;
            // Without branches, because this is the usual case.
            let is_bad = |label: i64| (label < 0) | (label >= n as i64);
            if !labels.iter().fold(false, |bad, &label| bad | is_bad(label)) {
                return None;
            }
        }
        let mut first = None;
        for (index, label) in labels.iter_mut().enumerate() {
            *label = match self.class_of_integer(*label) {
                Some(class) => class as i64,
                None => {
                    first.get_or_insert(index);
                    unknown
                }
            };
        }
        first
    }

    fn listed_integer(&self, number: i64) -> Option<usize> {
        match &self.classes {
            Classes::Numbers(n) => usize::try_from(number).ok().filter(|class| class < n),
            Classes::Listed { integers, table, .. } if table.is_empty() => {
                integers.binary_search(&number).ok()
            }
            Classes::Listed { integers, table, .. } => {
                let place = usize::try_from(number.checked_sub(integers[0])?).ok()?;
                table.get(place).filter(|class| **class != NONE).map(|class| *class as usize)
            }
        }
    }

    fn listed_text(&self, text: &str) -> Option<usize> {
        let Classes::Listed { integers, texts, .. } = &self.classes else { return None };
        let place = texts.binary_search_by(|other| other.as_str().cmp(text)).ok()?;
        Some(integers.len() + place)
    }

    /// The place of a text that spells an integer as numbers are written.
    fn text_of_integer(&self, number: i64) -> Option<usize> {
        match &self.classes {
            Classes::Listed { texts, .. } if !texts.is_empty() => self.listed_text(&number.to_string()),
            _ => None,
        }
    }

    /// The place of a truth value, in any of its usual spellings.
    fn listed_truth(&self, value: bool) -> Option<usize> {
        let usual = bool_text(value);
        self.listed_text(usual)
            .or_else(|| self.listed_text(&usual.to_lowercase()))
            .or_else(|| self.listed_text(&usual.to_uppercase()))
    }

    /// The labels as a JSON array of numbers and strings, for the model's file.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.labels().collect::<Vec<_>>()).expect("numbers and texts")
    }

    /// The vocabulary that [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// The fault, for anything but an array of distinct labels.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let labels: Vec<Label> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Self::in_order(labels).map_err(|twice| format!("the label \"{twice}\" appears twice"))
    }

    /// The labels in one line, the middle ones left out if there are many.
    pub fn summary(&self) -> String {
        const SHOWN: usize = 12;
        const MAX_CHARS: usize = 30;
        let shown = |class: usize| {
            let name = self.name(class);
            match name.char_indices().nth(MAX_CHARS) {
                Some((cut, _)) => format!("{}...", &name[..cut]),
                None => name,
            }
        };
        let n = self.len();
        if n <= SHOWN {
            return (0..n).map(shown).collect::<Vec<_>>().join(", ");
        }
        let first: Vec<_> = (0..SHOWN - 2).map(shown).collect();
        format!("{}, ... {}", first.join(", "), shown(n - 1))
    }
}

/// Labels as a list of numbers and texts; the number of classes instead where they are too many to list.
impl Serialize for LabelVocabulary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.len() {
            n if n > MAX_CLASSES => serializer.serialize_u64(n as u64),
            _ => serializer.collect_seq(self.labels()),
        }
    }
}

/// Texts that differ only in case, in white space or in invisible characters, in groups.
pub fn similar<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for text in texts {
        let is_shown = |c: &char| !c.is_whitespace() && !c.is_control() && !is_invisible(*c);
        let spelling: String = text.chars().filter(is_shown).flat_map(char::to_lowercase).collect();
        groups.entry(spelling).or_default().push(visible(text).into_owned());
    }
    groups.into_values().filter(|group| group.len() > 1).collect()
}

/// Class of each integer from the first to the last; empty if that would take too much memory.
fn table(integers: &[i64]) -> Vec<u32> {
    let (Some(first), Some(last)) = (integers.first(), integers.last()) else { return Vec::new() };
    let len = last.checked_sub(*first).and_then(|span| usize::try_from(span).ok());
    let limit = (TABLE_PER_LABEL * integers.len()).max(MIN_TABLE);
    let Some(len) = len.filter(|len| *len < limit) else { return Vec::new() };
    let mut table = vec![NONE; len + 1];
    for (class, number) in integers.iter().enumerate() {
        table[(number - first) as usize] = class as u32;
    }
    table
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(texts: &[&str]) -> LabelVocabulary {
        LabelVocabulary::new(texts.iter().map(|text| Label::from(*text)))
    }

    fn names(vocabulary: &LabelVocabulary) -> Vec<String> {
        (0..vocabulary.len()).map(|class| vocabulary.name(class)).collect()
    }

    #[test]
    fn labels_are_sorted_numbers_first() {
        assert_eq!(names(&of(&["b", "10", "9", "a", "-1", "é", "10.0"])), ["-1", "9", "10", "a", "b", "é"]);
        assert_eq!(names(&of(&["1", "-1"])), ["-1", "1"]);
        assert_eq!(names(&of(&["200000", "0", "100000"])), ["0", "100000", "200000"]);
        assert!(of(&["2", "0", "1.0"]).is_numbers());
        assert!(!of(&["1", "2"]).is_numbers());
        assert_eq!(of(&["0", "1", "2"]), LabelVocabulary::numbers(3));
        assert!(LabelVocabulary::new([]).is_empty());
    }

    #[test]
    fn the_same_number_is_the_same_class() {
        let vocabulary = of(&["1", "2", "3.5"]);
        for one in ["1", "1.0", " 1 ", "1e0", "+1"] {
            assert_eq!(vocabulary.class_of_text(one), Some(0), "{one}");
        }
        assert_eq!(vocabulary.class_of_integer(2), Some(1));
        assert_eq!(vocabulary.class_of_text("3.5"), Some(2));
        for unknown in ["0", "3", "inf", "nan", "", "true"] {
            assert_eq!(vocabulary.class_of_text(unknown), None, "{unknown}");
        }
        // Beyond the integers that f64 holds exactly, the text counts.
        let ids = of(&["12345678901234567890123", "12345678901234567890124"]);
        assert_eq!(ids.len(), 2);
    }

    #[test]
    fn truth_values_match_their_spellings() {
        let texts = LabelVocabulary::new([true, false].map(Label::from_bool));
        assert_eq!(names(&texts), ["False", "True"]);
        for vocabulary in [texts, of(&["true", "false"]), of(&["TRUE", "FALSE"]), LabelVocabulary::numbers(2)]
        {
            for (text, class) in [("true", 1), ("False", 0), ("TRUE", 1), ("0", 0), ("1", 1)] {
                assert_eq!(vocabulary.class_of_text(text), Some(class), "{text} in {vocabulary:?}");
            }
            assert_eq!(vocabulary.class_of_integer(2), None);
        }
        assert_eq!(of(&["no", "yes"]).class_of_integer(1), None);
    }

    #[test]
    fn codes_keep_their_spelling_and_numbers_match_their_texts() {
        let codes = LabelVocabulary::new(["7", "007", "0012"].map(|text| Label::Text(text.to_owned())));
        assert_eq!(names(&codes), ["0012", "007", "7"]);
        for (text, class) in [("007", Some(1)), ("7", Some(2)), ("7.0", Some(2)), ("07", None), ("12", None)]
        {
            assert_eq!(codes.class_of_text(text), class, "{text}");
        }
        assert_eq!((codes.class_of_integer(7), codes.class_of_integer(12)), (Some(2), None));
        assert_eq!(LabelVocabulary::from_json(&codes.to_json()).unwrap(), codes);
        // A model of an earlier version read codes as numbers.
        assert_eq!(of(&["7", "12"]).class_of_text("0012"), Some(1));
    }

    #[test]
    fn labels_that_look_alike_are_found() {
        assert_eq!(
            of(&["New York", "new york", "Rome", "newyork"]).similar(),
            [["New York", "new york", "newyork"]]
        );
        assert!(of(&["a", "b", "1"]).similar().is_empty());
    }

    #[test]
    fn an_order_numbers_the_classes() {
        let labels = |texts: &[&str]| texts.iter().map(|text| Label::from(*text)).collect::<Vec<_>>();
        let sizes = LabelVocabulary::in_order(labels(&["small", "large", "7", "huge", "3"])).unwrap();
        assert_eq!(names(&sizes), ["small", "large", "7", "huge", "3"]);
        for (class, label) in sizes.labels().enumerate() {
            assert_eq!((sizes.class_of(&label), sizes.label(class)), (Some(class), label));
        }
        assert_eq!((sizes.class_of_text(" 7.0 "), sizes.class_of_text("tiny")), (Some(2), None));
        let mut integers = [3, 7, 5];
        assert_eq!(sizes.map_integers(&mut integers, -1), Some(2));
        assert_eq!(integers, [4, 2, -1]);
        assert_eq!(LabelVocabulary::from_json(&sizes.to_json()).unwrap(), sizes);
        assert_ne!(sizes, LabelVocabulary::new(sizes.labels()));
        let backwards = LabelVocabulary::in_order(labels(&["2", "1", "0"])).unwrap();
        assert!(!backwards.is_numbers());
        let mut integers = [0, 1, 2];
        assert_eq!((backwards.map_integers(&mut integers, -1), integers), (None, [2, 1, 0]));
        assert!(LabelVocabulary::in_order(labels(&["0", "1"])).unwrap().is_numbers());
        let words = LabelVocabulary::in_order(labels(&["yes", "no"])).unwrap();
        assert_eq!((words.class_of_text("Yes"), words.class_of_text("false")), (Some(0), Some(1)));
        assert_eq!(LabelVocabulary::in_order(labels(&["1", "a", "1.0"])), Err(Label::Integer(1)));
    }

    #[test]
    fn a_saved_vocabulary_is_checked() {
        assert_eq!(of(&["a", "-3", "b\"c"]).to_json(), r#"[-3,"a","b\"c"]"#);
        for bad in ["", "{}", "[1.5]", "[1,1]", r#"["a",1,"a"]"#, "[null]"] {
            assert!(LabelVocabulary::from_json(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn many_labels_are_summed_up() {
        assert_eq!(of(&["a", "b"]).summary(), "a, b");
        assert_eq!(LabelVocabulary::numbers(100).summary(), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... 99");
        assert_eq!(of(&["x".repeat(40).as_str()]).summary(), format!("{}...", "x".repeat(30)));
    }

    proptest! {
        #[test]
        fn each_label_finds_its_class(
            integers in proptest::collection::vec(prop_oneof![-9i64..9, -70_000i64..70_000, any::<i64>()], 0..40),
            texts in proptest::collection::vec("[a-c]{1,3}|[^\\pC\\s]{1,4}", 0..10),
        ) {
            let labels: Vec<Label> = integers
                .iter()
                .map(|&number| Label::Integer(number))
                .chain(texts.iter().map(|text| Label::parse(text)))
                .collect();
            let vocabulary = LabelVocabulary::new(labels.clone());
            let mut sorted = labels.clone();
            sorted.sort();
            sorted.dedup();
            prop_assert!(vocabulary.labels().eq(sorted.iter().cloned()));
            for (class, label) in sorted.iter().enumerate() {
                prop_assert_eq!(vocabulary.class_of(label), Some(class));
                prop_assert_eq!(vocabulary.class_of_text(&label.to_string()), Some(class));
            }
            let mut mapped = integers.clone();
            prop_assert_eq!(vocabulary.map_integers(&mut mapped, -1), None);
            for (number, class) in integers.iter().zip(mapped) {
                prop_assert_eq!(vocabulary.label(class as usize), Label::Integer(*number));
            }
            prop_assert_eq!(LabelVocabulary::from_json(&vocabulary.to_json()), Ok(vocabulary));
        }
    }
}
