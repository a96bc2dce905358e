//! Conditions on the columns of a table: `data.filter` says which rows a run trains on and evaluates.
//!
//! ```text
//! or         = and { "or" and }
//! and        = not { "and" not }
//! not        = "not" not | "(" or ")" | condition
//! condition  = column ("=" | "!=" | "<" | "<=" | ">" | ">=") value
//!            | column ["not"] "in" "(" value { "," value } ")"
//!            | column "is" ["not"] "missing"
//! column     = a name of letters, digits, `_` and `.`, or any name in double quotes
//! value      = a number, a text in single quotes, true or false
//! ```
//!
//! A condition on a missing value is neither true nor false, as in SQL: `and`, `or` and `not` carry that on, and only rows for
//! which the whole is true are kept. A value that is no number does not compare with a number: it counts as a missing one, and so
//! does a value of another kind than the date, time or duration that it is compared with.
//!
//! ```
//! use ddp_tables::values::filter::{Cell, Filter};
//! use ddp_tables::values::notation::Notation;
//!
//! let filter: Filter = "age >= 18 and country != 'DE'".parse()?;
//! assert_eq!(filter.columns(), ["age", "country"]);
//! let keeps = |cells: [&str; 2]| {
//!     filter.keeps(&|column| Cell::Text(cells[column].as_bytes()), &Notation::for_folders()) == Ok(true)
//! };
//! assert!(keeps(["18.5", "FR"]) && !keeps(["18", "DE"]) && !keeps(["", "FR"]));
//! # Ok::<(), ddp_tables::values::filter::FilterError>(())
//! ```

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering as Access};

use ddp::data::spelling::{truth_word, without_fraction};
use ddp::report::units::grouped;

use crate::values::notation::{Meaning, Notation};
use crate::values::number::digits::Decimal;
use crate::values::time;
use crate::values::time::Moment;

/// Deepest nesting of parentheses and `not`.
const MAX_DEPTH: usize = 64;

/// A condition on the cells of a row, most rows that are kept, and counts of the rows that were asked about.
#[derive(Debug)]
pub struct Filter {
    columns: Vec<String>,
    root: Node,
    max_kept: u64,
    n_seen: AtomicU64,
    n_kept: AtomicU64,
}

#[derive(Debug)]
enum Node {
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
    Compare { column: usize, test: Test, value: Value },
    In { column: usize, values: Values },
    IsMissing { column: usize },
}

/// Orders of a cell and a value for which a comparison is true.
#[derive(Debug, Clone, Copy)]
struct Test {
    less: bool,
    equal: bool,
    greater: bool,
}

#[derive(Debug)]
enum Value {
    /// A number, and the whole number that it is.
    Number(f64, Option<i128>),
    /// A text, and the truth value that it is a word for.
    Text(String, Option<bool>),
    /// A date, time or duration.
    Moment(Moment),
}

/// A cell of a row.
#[derive(Debug, Clone, Copy)]
pub enum Cell<'a> {
    /// Its text.
    Text(&'a [u8]),
    /// A finite number that is not missing and that f64 holds exactly.
    Number(f64),
}

impl<'a> Cell<'a> {
    /// The text without white space around it. Text that is not UTF-8 is nothing that a value could equal.
    fn text(self) -> Cow<'a, str> {
        match self {
            Cell::Text(text) => Cow::Borrowed(std::str::from_utf8(text).unwrap_or("\u{fffd}").trim()),
            Cell::Number(number) => Cow::Owned(number.to_string()),
        }
    }
}

/// The values of `in`.
#[derive(Debug, Default)]
struct Values {
    /// Sorted.
    numbers: Vec<f64>,
    wholes: HashSet<i128>,
    texts: HashSet<String>,
    truths: Vec<bool>,
    moments: Vec<Moment>,
}

/// A cell that may be two numbers, in a column that a condition compares with a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnclearCell {
    /// Place of the column in [`Filter::columns`].
    pub column: usize,
    /// The cell's text.
    pub text: String,
}

/// A text that is no condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// Expected at the place, in words.
    pub expected: &'static str,
    /// Rest of the text from the place on; empty at its end.
    pub rest: String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rest.as_str() {
            "" => write!(f, "expected {} at its end", self.expected),
            rest => write!(f, "expected {} at `{rest}`", self.expected),
        }
    }
}

impl std::error::Error for FilterError {}

impl Filter {
    /// Keeps all rows.
    pub fn all() -> Self {
        Filter {
            columns: Vec::new(),
            root: Node::All(Vec::new()),
            max_kept: u64::MAX,
            n_seen: AtomicU64::new(0),
            n_kept: AtomicU64::new(0),
        }
    }

    /// Keeps at most the first `n` of these rows, counted from the last [`Self::take_counts`] on.
    #[must_use]
    pub fn first(self, n: usize) -> Self {
        Filter { max_kept: n as u64, ..self }
    }

    /// Whether no further row would be kept.
    pub fn is_full(&self) -> bool {
        self.n_kept.load(Access::Relaxed) >= self.max_kept
    }

    /// Names of the columns, each once.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Whether a row is kept.
    ///
    /// - `cell`: the cell of a column, by its place in [`Self::columns`]
    ///
    /// # Errors
    /// [`UnclearCell`]
    pub fn keeps<'a>(
        &self,
        cell: &dyn Fn(usize) -> Cell<'a>,
        notation: &Notation,
    ) -> Result<bool, UnclearCell> {
        if self.is_full() {
            return Ok(false);
        }
        let keeps = self.root.truth(cell, notation)? == Some(true);
        self.n_seen.fetch_add(1, Access::Relaxed);
        self.n_kept.fetch_add(u64::from(keeps), Access::Relaxed);
        Ok(keeps)
    }

    /// Says what was kept of the rows of `source` since the last [`Self::take_counts`]; `None` if all were.
    pub fn report(&self, source: &str) -> Option<String> {
        let (n_kept, n_seen) = self.counts();
        let (n_kept, n_seen) = (grouped(n_kept), grouped(n_seen));
        match (self.is_full(), self.columns.is_empty()) {
            (true, true) => Some(format!("data.max_rows keeps the first {n_kept} rows of {source}")),
            (true, false) => Some(format!(
                "data.filter and data.max_rows keep {n_kept} of the first {n_seen} rows of {source}"
            )),
            (false, true) => None,
            (false, false) => Some(format!("data.filter keeps {n_kept} of the {n_seen} rows of {source}")),
        }
    }

    /// Rows that were kept, and all rows, since the last [`Self::take_counts`].
    pub fn counts(&self) -> (u64, u64) {
        (self.n_kept.load(Access::Relaxed), self.n_seen.load(Access::Relaxed))
    }

    /// Goes back to earlier [`Self::counts`], for rows that are read again.
    pub fn rewind(&self, (n_kept, n_seen): (u64, u64)) {
        self.n_kept.store(n_kept, Access::Relaxed);
        self.n_seen.store(n_seen, Access::Relaxed);
    }

    /// Rows that were kept, and all rows, since the last call.
    pub fn take_counts(&self) -> (u64, u64) {
        (self.n_kept.swap(0, Access::Relaxed), self.n_seen.swap(0, Access::Relaxed))
    }
}

impl Node {
    /// Three-valued truth: `None` where a missing value decides.
    fn truth<'a>(
        &self,
        cell: &dyn Fn(usize) -> Cell<'a>,
        notation: &Notation,
    ) -> Result<Option<bool>, UnclearCell> {
        // The value that decides, whatever the others are.
        let all = |nodes: &[Node], decides: bool| {
            let mut truth = Some(!decides);
            for node in nodes {
                match node.truth(cell, notation)? {
                    Some(one) if one == decides => return Ok(Some(decides)),
                    Some(_) => {}
                    None => truth = None,
                }
            }
            Ok(truth)
        };
        let unclear = |column| move |text| UnclearCell { column, text };
        Ok(match self {
            Node::All(nodes) => return all(nodes, false),
            Node::Any(nodes) => return all(nodes, true),
            Node::Not(node) => node.truth(cell, notation)?.map(|truth| !truth),
            Node::Compare { column, test, value } => {
                let order = value.order(cell(*column), notation).map_err(unclear(*column))?;
                order.map(|order| match order {
                    Ordering::Less => test.less,
                    Ordering::Equal => test.equal,
                    Ordering::Greater => test.greater,
                })
            }
            Node::In { column, values } => {
                values.contain(cell(*column), notation).map_err(unclear(*column))?
            }
            Node::IsMissing { column } => Some(match cell(*column) {
                Cell::Number(_) => false,
                cell @ Cell::Text(_) => notation.is_missing(cell.text().as_bytes()),
            }),
        })
    }
}

/// The number that a cell is; `None` for another one, and its text if it may be two.
fn number(cell: &str, notation: &Notation) -> Result<Option<f64>, String> {
    if let Some(number) = notation.plain(cell.as_bytes()).and_then(Decimal::to_f64) {
        return Ok(Some(number));
    }
    match notation.meaning(cell) {
        Meaning::Number(value) => Ok(Some(value)),
        Meaning::Truth(value) => Ok(Some(f64::from(u8::from(value)))),
        Meaning::Unclear(_) => Err(cell.to_owned()),
        Meaning::Missing | Meaning::Moment(_) | Meaning::Text => Ok(None),
    }
}

/// Whether f64 may round a whole number.
fn is_rounded(number: f64) -> bool {
    number.abs() >= (1_u64 << 53) as f64
}

/// Whether a cell is missing where it is compared with a text: as in columns of categories, `NA` may be a name.
fn is_missing_text(cell: &str, notation: &Notation) -> bool {
    cell.is_empty() || notation.is_marked(cell.as_bytes())
}

impl Value {
    /// Order of a cell and the value; `None` if the cell is missing or of another kind.
    fn order(&self, cell: Cell<'_>, notation: &Notation) -> Result<Option<Ordering>, String> {
        if let (Value::Number(wanted, _), Cell::Number(value)) = (self, cell) {
            return Ok(value.partial_cmp(wanted));
        }
        let text = cell.text();
        let cell = &*text;
        Ok(match self {
            Value::Number(wanted, whole) => number(cell, notation)?.and_then(|value| match whole {
                Some(whole) if is_rounded(value) => match cell.parse::<i128>() {
                    Ok(cell) => Some(cell.cmp(whole)),
                    Err(_) => value.partial_cmp(wanted),
                },
                _ => value.partial_cmp(wanted),
            }),
            _ if is_missing_text(cell, notation) => None,
            Value::Moment(wanted) => {
                let moment = time::parse(cell).filter(|moment| moment.is_like(wanted));
                moment.and_then(|moment| moment.seconds.partial_cmp(&wanted.seconds))
            }
            // Each format spells truth values in its own way.
            Value::Text(text, truth) => match truth.and_then(|wanted| Some(truth_word(cell)?.cmp(&wanted))) {
                Some(order) => Some(order),
                None => Some(without_fraction(cell).cmp(without_fraction(text))),
            },
        })
    }
}

impl Values {
    fn add(&mut self, value: Value) {
        match value {
            Value::Number(_, Some(whole)) if is_rounded(whole as f64) => _ = self.wholes.insert(whole),
            Value::Number(number, _) => self.numbers.push(number),
            Value::Moment(moment) => self.moments.push(moment),
            Value::Text(text, truth) => {
                self.truths.extend(truth);
                self.texts.insert(without_fraction(&text).to_owned());
            }
        }
    }

    /// Whether a cell is one of them; `None` if it is none, but missing or of another kind for one of them.
    fn contain(&self, cell: Cell<'_>, notation: &Notation) -> Result<Option<bool>, String> {
        let text = cell.text();
        let cell = &*text;
        let mut is_unknown = false;
        if !(self.numbers.is_empty() && self.wholes.is_empty()) {
            match number(cell, notation)? {
                None => is_unknown = true,
                Some(value) if is_rounded(value) => {
                    let is_one = match cell.parse() {
                        Ok(whole) => self.wholes.contains(&whole),
                        Err(_) => self.wholes.iter().any(|whole| *whole as f64 == value),
                    };
                    if is_one || self.numbers.contains(&value) {
                        return Ok(Some(true));
                    }
                }
                // Zero has two signs.
                Some(value) if self.numbers.binary_search_by(|of| of.total_cmp(&(value + 0.0))).is_ok() => {
                    return Ok(Some(true));
                }
                Some(_) => {}
            }
        }
        let has_texts = !(self.texts.is_empty() && self.moments.is_empty());
        if has_texts && is_missing_text(cell, notation) {
            return Ok(None);
        }
        if self.texts.contains(without_fraction(cell))
            || !self.truths.is_empty() && truth_word(cell).is_some_and(|truth| self.truths.contains(&truth))
        {
            return Ok(Some(true));
        }
        if !self.moments.is_empty() {
            match time::parse(cell) {
                None => is_unknown = true,
                Some(moment) => {
                    let alike: Vec<&Moment> = self.moments.iter().filter(|of| of.is_like(&moment)).collect();
                    if alike.iter().any(|of| of.seconds == moment.seconds) {
                        return Ok(Some(true));
                    }
                    is_unknown |= alike.is_empty();
                }
            }
        }
        Ok(if is_unknown { None } else { Some(false) })
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut parser = Parser { rest: text, columns: Vec::new(), depth: 0 };
        let root = parser.any()?;
        if !parser.rest.trim_start().is_empty() {
            return Err(parser.wrong("and, or, or the end"));
        }
        let columns = parser.columns;
        Ok(Filter { columns, root, ..Filter::all() })
    }
}

struct Parser<'a> {
    rest: &'a str,
    columns: Vec<String>,
    depth: usize,
}

const OPERATORS: [(&str, Test); 9] = {
    const fn test(less: bool, equal: bool, greater: bool) -> Test {
        Test { less, equal, greater }
    }
    [
        ("==", test(false, true, false)),
        ("!=", test(true, false, true)),
        ("<>", test(true, false, true)),
        ("<=", test(true, true, false)),
        (">=", test(false, true, true)),
        ("=", test(false, true, false)),
        ("<", test(true, false, false)),
        (">", test(false, false, true)),
        ("≠", test(true, false, true)),
    ]
};

impl<'a> Parser<'a> {
    fn any(&mut self) -> Result<Node, FilterError> {
        let mut nodes = vec![self.all()?];
        while self.word("or") {
            nodes.push(self.all()?);
        }
        Ok(single_or(nodes, Node::Any))
    }

    fn all(&mut self) -> Result<Node, FilterError> {
        let mut nodes = vec![self.not()?];
        while self.word("and") {
            nodes.push(self.not()?);
        }
        Ok(single_or(nodes, Node::All))
    }

    fn not(&mut self) -> Result<Node, FilterError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wrong("fewer nested conditions"));
        }
        let node = if self.word("not") {
            Node::Not(Box::new(self.not()?))
        } else if self.sign("(") {
            let node = self.any()?;
            if !self.sign(")") {
                return Err(self.wrong("`)`"));
            }
            node
        } else {
            self.condition()?
        };
        self.depth -= 1;
        Ok(node)
    }

    fn condition(&mut self) -> Result<Node, FilterError> {
        let column = self.column()?;
        if self.word("is") {
            let is_negated = self.word("not");
            if !(self.word("missing") || self.word("null")) {
                return Err(self.wrong("missing"));
            }
            let node = Node::IsMissing { column };
            return Ok(if is_negated { Node::Not(Box::new(node)) } else { node });
        }
        let is_negated = self.word("not");
        if self.word("in") {
            if !self.sign("(") {
                return Err(self.wrong("`(` before the values"));
            }
            let mut values = Values::default();
            values.add(self.value()?);
            while self.sign(",") {
                values.add(self.value()?);
            }
            values.numbers.sort_by(f64::total_cmp);
            if !self.sign(")") {
                return Err(self.wrong("`,` or `)`"));
            }
            let node = Node::In { column, values };
            return Ok(if is_negated { Node::Not(Box::new(node)) } else { node });
        }
        if is_negated {
            return Err(self.wrong("in"));
        }
        match OPERATORS.iter().find(|(sign, _)| self.sign(sign)) {
            Some((_, test)) => Ok(Node::Compare { column, test: *test, value: self.value()? }),
            None => Err(self.wrong("=, !=, <, <=, >, >=, in, or is missing")),
        }
    }

    fn column(&mut self) -> Result<usize, FilterError> {
        self.rest = self.rest.trim_start();
        let name = match self.quoted('"') {
            Some(name) => name,
            None => {
                let name = self.name();
                let is_keyword =
                    ["and", "or", "not", "in", "is"].iter().any(|word| name.eq_ignore_ascii_case(word));
                if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || is_keyword {
                    return Err(self.wrong("a column (its name in double quotes, where it is no plain word)"));
                }
                self.rest = &self.rest[name.len()..];
                name.to_owned()
            }
        };
        let found = self.columns.iter().position(|column| *column == name);
        Ok(found.unwrap_or_else(|| {
            self.columns.push(name);
            self.columns.len() - 1
        }))
    }

    fn value(&mut self) -> Result<Value, FilterError> {
        self.rest = self.rest.trim_start();
        if let Some(text) = self.quoted('\'') {
            let text = text.trim();
            return Ok(time::parse(text)
                .map_or_else(|| Value::Text(text.to_owned(), truth_word(text)), Value::Moment));
        }
        for (word, value) in [("true", 1.0), ("false", 0.0)] {
            if self.word(word) {
                return Ok(Value::Number(value, None));
            }
        }
        let is_of_number = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-' | '_');
        let end = self.rest.find(|c| !is_of_number(c)).unwrap_or(self.rest.len());
        let number = self.rest[..end].replace('_', "");
        match number.parse::<f64>() {
            Ok(value) if value.is_finite() => {
                self.rest = &self.rest[end..];
                // Zero has two signs.
                Ok(Value::Number(value + 0.0, number.parse().ok()))
            }
            _ => Err(self.wrong("a number, a text in single quotes, true or false")),
        }
    }

    /// Takes a text in these quotes, in which two of them stand for one.
    fn quoted(&mut self, quote: char) -> Option<String> {
        let mut rest = self.rest.strip_prefix(quote)?;
        let mut text = String::new();
        loop {
            let end = rest.find(quote)?;
            text.push_str(&rest[..end]);
            rest = &rest[end + 1..];
            match rest.strip_prefix(quote) {
                Some(more) => {
                    text.push(quote);
                    rest = more;
                }
                None => break,
            }
        }
        self.rest = rest;
        Some(text)
    }

    fn name(&self) -> &'a str {
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '[' | ']');
        &self.rest[..self.rest.find(|c| !is_of_name(c)).unwrap_or(self.rest.len())]
    }

    /// Takes a word in any case.
    fn word(&mut self, word: &str) -> bool {
        self.rest = self.rest.trim_start();
        let is_next = self.name().eq_ignore_ascii_case(word);
        if is_next {
            self.rest = &self.rest[word.len()..];
        }
        is_next
    }

    fn sign(&mut self, sign: &str) -> bool {
        self.rest = self.rest.trim_start();
        self.rest.strip_prefix(sign).map(|rest| self.rest = rest).is_some()
    }

    fn wrong(&self, expected: &'static str) -> FilterError {
        FilterError { expected, rest: self.rest.trim().chars().take(40).collect() }
    }
}

fn single_or(mut nodes: Vec<Node>, several: fn(Vec<Node>) -> Node) -> Node {
    if nodes.len() == 1 { nodes.remove(0) } else { several(nodes) }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
