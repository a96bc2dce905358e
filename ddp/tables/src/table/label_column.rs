//! The labels of a table's rows: class indices where the classes are known, else the values until all rows are read.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ddp::data::labels::{Label, LabelVocabulary, MAX_CLASSES};
use ddp::data::spelling::{is_integer, whole};

use crate::formats::error::CellProblem;
use crate::labels::survey::LabelSurvey;
use crate::source::SourceSpec;
use crate::table::exact_columns::ExactColumns;
use crate::values::number::Exact;

/// Labels read so far.
#[derive(Debug)]
pub(crate) struct LabelColumn {
    cells: Cells,
    /// Rows of numbers whose spelling differs, such as `007` and `1.10`, and the numbers of their texts.
    codes: Vec<(usize, u32)>,
    /// Texts of `codes`.
    spellings: Box<Texts>,
    /// Whether texts stay as they are spelled, also those that are integers.
    are_texts: bool,
    /// The first number with a fraction, which is not a label unless another row holds text.
    fraction: Option<Fraction>,
    /// The first label that was taken for a class with a point at its end.
    pointed: Option<String>,
}

#[derive(Debug)]
enum Cells {
    /// Class indices; -1 for a label that is not a class, if such rows are left out.
    Known {
        classes: Vec<i64>,
        vocabulary: Arc<LabelVocabulary>,
        skips_unknown: bool,
    },
    Integers(Vec<i64>),
    Numbers(Vec<f64>),
    Texts(Texts),
}

/// A number among the labels that is not whole.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fraction {
    pub(crate) value: f64,
    /// File and line, once the reader has reported it.
    pub(crate) place: Option<String>,
}

/// Texts by number.
#[derive(Default)]
struct Texts {
    codes: Vec<u32>,
    texts: Vec<String>,
    numbers: HashMap<String, u32>,
}

/// The value of one cell.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LabelCell<'a> {
    Integer(i64),
    /// A finite number that is not whole.
    Fraction(f64),
    /// A number that is spelled in an unusual way, in a file that does not distinguish texts from numbers; see
    /// [`is_code`](ddp::data::spelling::is_code).
    Code(&'a str),
    Text(&'a str),
    /// A text that the file marks as one.
    String(&'a str),
}

/// Labels of all rows.
#[derive(Debug)]
pub(crate) enum Collected {
    /// Class indices of a known vocabulary.
    Classes(Vec<i64>),
    Integers(Vec<i64>),
    Numbers(Vec<f64>),
    /// Numbers of texts, and the texts.
    Texts(Vec<u32>, Vec<String>),
}

impl LabelColumn {
    /// An empty column; its classes are known if `spec` knows them.
    pub(crate) fn new(spec: &SourceSpec<'_>) -> Self {
        let cells = match spec.vocabulary() {
            Some(vocabulary) => {
                Cells::Known { classes: Vec::new(), vocabulary, skips_unknown: spec.skips_unknown() }
            }
            None => Cells::Integers(Vec::new()),
        };
        LabelColumn {
            cells,
            codes: Vec::new(),
            spellings: Box::default(),
            are_texts: false,
            fraction: None,
            pointed: None,
        }
    }

    /// Whether the classes are known.
    pub(crate) fn are_known(&self) -> bool {
        matches!(self.cells, Cells::Known { .. })
    }

    /// The note on labels that differ from their class.
    pub(crate) fn note(&self, column: &str) -> Option<String> {
        let text = self.pointed.as_deref()?;
        let class = text.strip_suffix('.').expect("it ends with a point");
        Some(format!("labels of \"{column}\" like \"{text}\" are taken for \"{class}\""))
    }

    /// Appends rows whose labels are still to be set, or removes rows at the end.
    pub(crate) fn resize(&mut self, n_rows: usize) {
        self.codes.truncate(self.codes.partition_point(|(row, _)| *row < n_rows));
        match &mut self.cells {
            Cells::Known { classes: labels, .. } | Cells::Integers(labels) => labels.resize(n_rows, 0),
            Cells::Numbers(numbers) => numbers.resize(n_rows, 0.0),
            Cells::Texts(texts) => texts.codes.resize(n_rows, 0),
        }
    }

    /// Reserves memory for exactly `n` more rows.
    #[cfg(feature = "parquet")]
    pub(crate) fn reserve(&mut self, n: usize) {
        match &mut self.cells {
            Cells::Known { classes: labels, .. } | Cells::Integers(labels) => labels.reserve_exact(n),
            Cells::Numbers(numbers) => numbers.reserve_exact(n),
            Cells::Texts(texts) => texts.codes.reserve_exact(n),
        }
    }

    /// Removes all rows.
    pub(crate) fn clear(&mut self) {
        self.fraction = None;
        self.codes.clear();
        match &mut self.cells {
            Cells::Known { classes: labels, .. } | Cells::Integers(labels) => labels.clear(),
            Cells::Numbers(_) | Cells::Texts(_) => self.cells = Cells::Integers(Vec::new()),
        }
    }

    /// Bytes of memory in use.
    pub(crate) fn size_bytes(&self) -> usize {
        match &self.cells {
            Cells::Known { classes: labels, .. } | Cells::Integers(labels) => 8 * labels.len(),
            Cells::Numbers(numbers) => 8 * numbers.len(),
            Cells::Texts(texts) => 4 * texts.codes.len(),
        }
    }

    /// Class indices, or integers as stored; `None` for numbers with fractions and for texts.
    #[cfg(any(feature = "parquet", test))]
    pub(crate) fn integers(&self) -> Option<&[i64]> {
        match &self.cells {
            Cells::Known { classes: labels, .. } | Cells::Integers(labels) => Some(labels),
            Cells::Numbers(_) | Cells::Texts(_) => None,
        }
    }

    /// Sets the label of row `row`.
    #[inline]
    pub(crate) fn set(&mut self, row: usize, cell: LabelCell<'_>) -> Result<(), CellProblem> {
        match (&mut self.cells, cell) {
            (Cells::Integers(labels), LabelCell::Integer(number)) => labels[row] = number,
            (Cells::Known { classes, vocabulary, skips_unknown }, cell) => {
                let class = match cell {
                    LabelCell::Integer(number) => vocabulary.class_of_integer(number),
                    LabelCell::Code(text) | LabelCell::Text(text) | LabelCell::String(text) => {
                        vocabulary.class_of_text(text)
                    }
                    // A text among other texts, if at all.
                    LabelCell::Fraction(number) => vocabulary.class_of_text(&number.to_string()),
                };
                let mut pointed = |text: &str| {
                    let class = vocabulary.class_of_pointed(text)?;
                    self.pointed.get_or_insert_with(|| text.trim().to_owned());
                    Some(class)
                };
                let class = class.or_else(|| match cell {
                    LabelCell::Text(text) | LabelCell::String(text) => pointed(text),
                    _ => None,
                });
                classes[row] = match class {
                    Some(class) => class as i64,
                    None if *skips_unknown => -1,
                    None => return Err(unknown(&cell, vocabulary)),
                };
            }
            (_, cell) => self.set_other(row, cell)?,
        }
        Ok(())
    }

    /// Sets the labels of rows from `first` on; an error has the index of its row among `numbers`.
    #[cfg(feature = "parquet")]
    pub(crate) fn set_integers(&mut self, first: usize, numbers: &[i64]) -> Result<(), (usize, CellProblem)> {
        match &mut self.cells {
            Cells::Integers(labels) => labels[first..][..numbers.len()].copy_from_slice(numbers),
            Cells::Known { classes, vocabulary, skips_unknown } => {
                let classes = &mut classes[first..][..numbers.len()];
                classes.copy_from_slice(numbers);
                if let Some(row) = vocabulary.map_integers(classes, -1).filter(|_| !*skips_unknown) {
                    return Err((row, unknown(&LabelCell::Integer(numbers[row]), vocabulary)));
                }
            }
            _ => {
                for (row, &number) in numbers.iter().enumerate() {
                    self.set(first + row, LabelCell::Integer(number)).map_err(|problem| (row, problem))?;
                }
            }
        }
        Ok(())
    }

    /// Sets a label that changes the kind of the column, or one in a column of numbers or texts.
    fn set_other(&mut self, row: usize, cell: LabelCell<'_>) -> Result<(), CellProblem> {
        if let LabelCell::Fraction(value) = cell {
            self.fraction.get_or_insert(Fraction { value, place: None });
        }
        self.are_texts |= matches!(cell, LabelCell::String(_));
        if let (LabelCell::Code(text), Cells::Integers(_) | Cells::Numbers(_)) = (cell, &self.cells) {
            let number = LabelCell::from_code(text);
            match self.spellings.code(text) {
                Ok(spelling) => self.codes.push((row, spelling)),
                // Quantities may have any number of values.
                Err(_) if matches!(number, LabelCell::Fraction(_)) => {}
                Err(problem) => return Err(problem),
            }
            if let Cells::Numbers(numbers) = &mut self.cells {
                numbers[row] = text.parse().unwrap_or(f64::NAN);
                return Ok(());
            }
            return self.set(row, number);
        }
        if let (LabelCell::Text(_) | LabelCell::String(_), Cells::Integers(_) | Cells::Numbers(_)) =
            (cell, &self.cells)
        {
            self.become_texts()?;
        }
        if let (Cells::Integers(labels), LabelCell::Fraction(_)) = (&mut self.cells, cell) {
            let mut numbers: Vec<f64> = labels.iter().map(|&label| label as f64).collect();
            for (row, spelling) in &self.codes {
                // That of an integer beyond i64 was none.
                numbers[*row] = self.spellings.texts[*spelling as usize].parse().unwrap_or(f64::NAN);
            }
            self.cells = Cells::Numbers(numbers);
        }
        match (&mut self.cells, cell) {
            (Cells::Numbers(numbers), LabelCell::Integer(number)) => numbers[row] = number as f64,
            (Cells::Numbers(numbers), LabelCell::Fraction(number)) => numbers[row] = number,
            (Cells::Texts(texts), cell) => {
                self.are_texts |= matches!(cell, LabelCell::Code(_));
                texts.codes[row] = match cell {
                    LabelCell::Integer(number) => texts.code(&number.to_string())?,
                    LabelCell::Fraction(number) => texts.code(&number.to_string())?,
                    LabelCell::Code(text) | LabelCell::Text(text) | LabelCell::String(text) => {
                        texts.code(text)?
                    }
                };
            }
            _ => unreachable!("the column was changed to a kind that holds the cell"),
        }
        Ok(())
    }

    /// Turns numbers into texts, as they were spelled.
    fn become_texts(&mut self) -> Result<(), CellProblem> {
        let mut texts = Texts::default();
        let mut spelled = self.codes.iter().peekable();
        let n_rows = match &self.cells {
            Cells::Integers(labels) => labels.len(),
            Cells::Numbers(numbers) => numbers.len(),
            Cells::Known { .. } | Cells::Texts(_) => return Ok(()),
        };
        for row in 0..n_rows {
            let code = match (spelled.next_if(|(of, _)| *of == row), &self.cells) {
                (Some((_, spelling)), _) => texts.code(&self.spellings.texts[*spelling as usize])?,
                (None, Cells::Integers(labels)) => texts.code(&labels[row].to_string())?,
                (None, Cells::Numbers(numbers)) => texts.code(&numbers[row].to_string())?,
                (None, _) => unreachable!("texts were excluded"),
            };
            texts.codes.push(code);
        }
        self.are_texts |= !self.codes.is_empty();
        self.codes.clear();
        self.cells = Cells::Texts(texts);
        Ok(())
    }

    /// Decides on integers with unusual spellings after the last row: next to numbers with fractions they are numbers, else all
    /// labels are texts.
    ///
    /// # Errors
    /// [`CellProblem::TooManyLabels`]
    pub(crate) fn settle(&mut self) -> Result<(), CellProblem> {
        match &self.cells {
            Cells::Integers(_) if !self.codes.is_empty() => self.become_texts(),
            _ => Ok(()),
        }
    }

    /// Whether a number with a fraction was set whose place is unknown.
    pub(crate) fn lacks_place(&self) -> bool {
        self.fraction.as_ref().is_some_and(|fraction| fraction.place.is_none())
    }

    /// Sets the place of the first number with a fraction.
    pub(crate) fn set_place(&mut self, place: impl FnOnce() -> String) {
        if let Some(fraction) = self.fraction.as_mut().filter(|fraction| fraction.place.is_none()) {
            fraction.place = Some(place());
        }
    }

    /// The first number with a fraction.
    pub(crate) fn fraction(&self) -> Option<&Fraction> {
        self.fraction.as_ref()
    }

    /// Gives rows without a label that of another row: they are left out, but their cells must hold some label.
    pub(crate) fn fill(&mut self, without_label: &[usize]) {
        // The first number that is not in the list.
        let other = (0..).zip(without_label).take_while(|(row, without)| row == *without).count();
        for &row in without_label {
            match &mut self.cells {
                Cells::Known { .. } => {}
                Cells::Integers(labels) => labels[row] = labels[other],
                Cells::Numbers(numbers) => numbers[row] = numbers[other],
                Cells::Texts(texts) => texts.codes[row] = texts.codes[other],
            }
        }
    }

    /// Adds the labels of all rows to `survey`, except those of the rows `without_label`.
    pub(crate) fn survey(&self, survey: &mut LabelSurvey, without_label: &[usize]) {
        match &self.cells {
            Cells::Known { .. } => {}
            Cells::Integers(labels) => survey.add_integers(&except(labels, without_label)),
            Cells::Numbers(numbers) => survey.add_numbers(&except(numbers, without_label)),
            Cells::Texts(texts) => {
                // A text may have been replaced in the only row that had it.
                let mut counts = vec![0u64; texts.texts.len()];
                except(&texts.codes, without_label).iter().for_each(|&code| counts[code as usize] += 1);
                for (text, &n_rows) in texts.texts.iter().zip(&counts).filter(|(_, n_rows)| **n_rows > 0) {
                    if self.are_texts {
                        survey.add_texts(text, n_rows);
                    } else {
                        survey.add_cells(text, n_rows);
                    }
                }
            }
        }
    }

    pub(crate) fn into_collected(self) -> Collected {
        match self.cells {
            Cells::Known { classes, .. } => Collected::Classes(classes),
            Cells::Integers(labels) => Collected::Integers(labels),
            Cells::Numbers(numbers) => Collected::Numbers(numbers),
            Cells::Texts(texts) => Collected::Texts(texts.codes, texts.texts),
        }
    }
}

impl Collected {
    /// Class indices of the rows, all of whose labels are in `vocabulary`.
    pub(crate) fn into_classes(self, vocabulary: &LabelVocabulary) -> Vec<i64> {
        const KNOWN: &str = "the vocabulary holds all labels";
        match self {
            Collected::Classes(classes) => classes,
            Collected::Integers(mut labels) => {
                let unknown = vocabulary.map_integers(&mut labels, -1);
                debug_assert_eq!(unknown, None, "{KNOWN}");
                labels
            }
            Collected::Numbers(numbers) => {
                let class = |number: f64| vocabulary.class_of_integer(whole(number).expect(KNOWN));
                numbers.into_iter().map(|number| class(number).expect(KNOWN) as i64).collect()
            }
            Collected::Texts(codes, texts) => {
                // Texts in no row may be unknown.
                let classes: Vec<_> = texts.iter().map(|text| vocabulary.class_of_text(text)).collect();
                codes.into_iter().map(|code| classes[code as usize].expect(KNOWN) as i64).collect()
            }
        }
    }
}

impl Collected {
    /// The numbers of the rows as f32; their exact values become column 0 of `exact`.
    pub(crate) fn into_values(self, exact: &mut ExactColumns) -> Vec<f32> {
        let mut singles = Vec::new();
        let mut add = |value: Exact, single: f32| {
            singles.push(single);
            exact.set(0, singles.len() - 1, value, &singles);
        };
        match self {
            Collected::Integers(values) => {
                values.into_iter().for_each(|value| add(Exact::from_whole(value.into()), value as f32));
            }
            Collected::Numbers(values) => {
                values.into_iter().for_each(|value| add(Exact::Double(value), value as f32));
            }
            Collected::Classes(..) | Collected::Texts(..) => unreachable!("texts are classes"),
        }
        singles
    }
}

/// The values of all rows except some, whose numbers ascend.
fn except<'a, T: Copy>(values: &'a [T], rows: &[usize]) -> Cow<'a, [T]> {
    if rows.is_empty() {
        return Cow::Borrowed(values);
    }
    let mut rows = rows.iter().peekable();
    let kept = values.iter().enumerate().filter(|(row, _)| rows.next_if(|next| *next == row).is_none());
    kept.map(|(_, value)| *value).collect()
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rest follows, in no fixed order.
        f.debug_struct("Texts")
            .field("codes", &self.codes)
            .field("texts", &self.texts)
            .finish_non_exhaustive()
    }
}

impl Texts {
    /// The number of a text, which is added if it is new.
    fn code(&mut self, text: &str) -> Result<u32, CellProblem> {
        if let Some(&code) = self.numbers.get(text) {
            return Ok(code);
        }
        if self.texts.len() > MAX_CLASSES {
            return Err(CellProblem::TooManyLabels { limit: MAX_CLASSES });
        }
        let code = self.texts.len() as u32;
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), code);
        Ok(code)
    }
}

impl LabelCell<'_> {
    /// A finite number.
    pub(crate) fn from_number(number: f64) -> Self {
        whole(number).map_or(LabelCell::Fraction(number), LabelCell::Integer)
    }

    /// The number of a code; the nearest one for an integer beyond i64.
    fn from_code(text: &str) -> Self {
        let number = || text.parse().map_or(LabelCell::Fraction(f64::NAN), LabelCell::from_number);
        let nearest = || if text.starts_with('-') { i64::MIN } else { i64::MAX };
        match text.parse() {
            Ok(whole) => LabelCell::Integer(whole),
            Err(_) if is_integer(text) => LabelCell::Integer(nearest()),
            Err(_) => number(),
        }
    }
}

/// The problem of a label that is not a class.
fn unknown(cell: &LabelCell<'_>, vocabulary: &LabelVocabulary) -> CellProblem {
    match cell {
        LabelCell::Integer(number) => unknown_label(&Label::Integer(*number), vocabulary),
        LabelCell::Code(text) | LabelCell::Text(text) | LabelCell::String(text) => {
            unknown_label(&Label::parse(text), vocabulary)
        }
        LabelCell::Fraction(number) => CellProblem::LabelFractional { text: number.to_string() },
    }
}

/// The problem of a label that is not in `vocabulary`.
fn unknown_label(label: &Label, vocabulary: &LabelVocabulary) -> CellProblem {
    match label {
        Label::Integer(label) if vocabulary.is_numbers() && *label < 0 => {
            CellProblem::LabelNegative { label: *label }
        }
        Label::Integer(label) if vocabulary.is_numbers() => {
            CellProblem::LabelOutOfRange { label: *label, classes: vocabulary.len() }
        }
        label => CellProblem::LabelUnknown {
            label: label.to_string(),
            n_classes: vocabulary.len(),
            classes: vocabulary.summary(),
        },
    }
}

#[cfg(test)]
mod tests {
    use ddp::config::Config;

    use super::*;

    fn column(cells: &[LabelCell<'_>]) -> LabelColumn {
        let config = Config::load(None, &["data.train=x.csv".to_owned()]).unwrap();
        let mut column = LabelColumn::new(&SourceSpec::train(&config.data));
        for (row, cell) in cells.iter().enumerate() {
            column.resize(row + 1);
            column.set(row, *cell).unwrap();
        }
        column
    }

    /// Class names of the rows.
    fn names(cells: &[LabelCell<'_>]) -> Vec<String> {
        let column = column(cells);
        let mut survey = LabelSurvey::default();
        column.survey(&mut survey, &[]);
        assert_eq!(survey.n_rows(), cells.len() as u64);
        let vocabulary = survey.vocabulary().unwrap();
        let classes = column.into_collected().into_classes(&vocabulary);
        classes.into_iter().map(|class| vocabulary.name(class as usize)).collect()
    }

    #[test]
    fn labels_keep_their_values_in_any_order() {
        use LabelCell::{Fraction, Integer, Text};
        assert_eq!(names(&[Integer(3), Integer(-1), Integer(3)]), ["3", "-1", "3"]);
        assert_eq!(names(&[Text("b"), Text("a")]), ["b", "a"]);
        assert_eq!(names(&[Integer(7), Text("a"), Integer(7)]), ["7", "a", "7"]);
        // The place of a row that is not set yet holds no label.
        assert_eq!(names(&[Integer(5), Integer(6), Text("x")]).len(), 3);
        assert_eq!(names(&[Integer(1), Fraction(2.5), Text("x"), Fraction(2.5)]), ["1", "2.5", "x", "2.5"]);
        assert_eq!(names(&[Text("x"), Fraction(2.5), Integer(1)]), ["x", "2.5", "1"]);
        let mut spare = column(&[Integer(1), Text("x")]);
        let mut survey = LabelSurvey::default();
        spare.survey(&mut survey, &[]);
        assert_eq!(survey.vocabulary().unwrap().len(), 2, "0 was in a row before it was set");
        spare.clear();
        assert_eq!(spare.integers(), Some(&[][..]));
    }

    #[test]
    fn rows_without_a_label_count_for_nothing() {
        use LabelCell::{Code, Fraction, Integer, Text};
        // The first and the third row are not set, or hold 0.
        for cells in [
            [Integer(0), Integer(5), Integer(0), Integer(6)],
            [Integer(0), Text("a"), Integer(0), Text("b")],
            [Integer(0), Code("007"), Integer(0), Integer(7)],
            [Integer(0), Fraction(0.5), Integer(0), Text("b")],
        ] {
            let mut column = column(&cells);
            column.settle().unwrap();
            column.fill(&[0, 2]);
            let mut survey = LabelSurvey::default();
            column.survey(&mut survey, &[0, 2]);
            assert_eq!(survey.n_rows(), 2);
            let vocabulary = survey.vocabulary().unwrap();
            assert_eq!(vocabulary.len(), 2, "{cells:?}");
            assert_eq!(column.into_collected().into_classes(&vocabulary).len(), 4);
        }
    }

    #[test]
    fn trailing_zeros_are_spelling_only_next_to_texts() {
        use LabelCell::{Code, Fraction, Integer, Text};
        assert_eq!(names(&[Code("1.10"), Fraction(1.1), Text("x")]), ["1.10", "1.1", "x"]);
        assert_eq!(names(&[Text("x"), Code("1.10"), Integer(2)]), ["x", "1.10", "2"]);
        let mut prices = column(&[Code("1.10"), Fraction(2.25), Integer(3)]);
        prices.settle().unwrap();
        assert!(
            matches!(prices.into_collected(), Collected::Numbers(numbers) if numbers == [1.1, 2.25, 3.0])
        );
        // More spellings than there may be labels.
        let spellings: Vec<String> = (0..MAX_CLASSES + 10).map(|i| format!("{i}.50")).collect();
        let cells: Vec<_> = spellings.iter().map(|text| Code(text)).collect();
        assert_eq!(
            column(&cells).into_collected().into_values(&mut ExactColumns::new(1, false)).len(),
            cells.len()
        );
    }

    #[test]
    fn a_fraction_is_remembered_with_its_place() {
        let mut column = column(&[LabelCell::Integer(1), LabelCell::Fraction(0.5), LabelCell::Fraction(0.7)]);
        assert!(column.lacks_place());
        column.set_place(|| "line 3".to_owned());
        column.set_place(|| "line 4".to_owned());
        let fraction = Fraction { value: 0.5, place: Some("line 3".to_owned()) };
        assert_eq!((column.fraction(), column.lacks_place()), (Some(&fraction), false));
    }
}
