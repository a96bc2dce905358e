//! Parses plain lines in place: no quote inside a cell or a quoted one, and every cell valid for its column.
//!
//! Several threads split the lines of a block into cells and read their digits. What depends on the rows before follows on the calling
//! thread, row by row: labels, categories, exact values.

use ddp::data::parallel;
use memchr::{memchr, memchr_iter, memchr2};

use crate::table::cell;
use crate::table::columns::{ColumnPlan, Role};
use crate::table::kept::KeptValues;
use crate::table::label_column::LabelCell;
use crate::table::rows::{TableRows, TargetCell, TargetCells};
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;
use crate::values::number::digits::Decimal;

/// Bytes of text from which another thread is worth its start.
const MIN_PART_BYTES: usize = 64 << 10;
/// Bytes of a block for one thread: its late cells stay in the L2 cache.
const BLOCK_BYTES: usize = 32 << 10;
/// Bytes of a block for each of several threads.
const PART_BYTES: usize = 512 << 10;
/// Most lines of a block.
const MAX_LINES: usize = 1 << 16;

/// Reads plain rows of a file whose lines are records.
pub(super) struct PlainRows {
    delimiter: u8,
    /// Decimal mark, and whether it may as well separate thousands.
    point: u8,
    is_unclear: bool,
    /// Columns of the file that are kept, ascending, each with its place among the kept ones.
    kept: Vec<(usize, usize)>,
    /// Lines of the next block: twice as many as in the last one, up to the first that was not plain.
    n_lines: usize,
    /// Ends of the block's lines.
    ends: Vec<usize>,
    /// Late cells of each thread.
    late: Vec<Vec<LateCell>>,
}

/// Text whose first lines are a block.
pub(super) struct Block<'a> {
    pub(super) text: &'a [u8],
    /// Bytes of whole lines; at least eight bytes of text follow them.
    pub(super) len: usize,
    pub(super) roles: &'a [Role],
    pub(super) notation: &'a Notation,
}

/// Where the value of a column's cells goes.
#[derive(Clone, Copy)]
enum Place {
    /// To this feature, if it is a number that f32 holds.
    Feature(usize),
    Nowhere,
    /// The calling thread decides; it reads no number from a text.
    Late {
        is_text: bool,
    },
}

/// Delimiter and decimal mark, and whether the latter may as well separate thousands.
type Marks = (u8, u8, bool);

/// Lines that one thread reads.
struct Part<'a> {
    /// Index of the first line.
    first: usize,
    ends: &'a [usize],
    /// Lines before the first that is not plain.
    n_plain: usize,
    late: &'a mut Vec<LateCell>,
}

/// A cell that the calling thread writes.
struct LateCell {
    line: u32,
    column: u32,
    start: usize,
    len: usize,
    number: Option<Decimal>,
}

impl PlainRows {
    /// `None` for a file that has no plain rows, by its notation.
    pub(super) fn new(delimiter: u8, notation: &Notation, plan: &ColumnPlan) -> Option<Self> {
        let point = match notation.decimal {
            _ if notation.has_missing_numbers() => return None,
            DecimalMark::GivenComma if delimiter == b',' => return None,
            DecimalMark::Comma | DecimalMark::GivenComma => b',',
            _ => b'.',
        };
        let is_unclear = notation.decimal == DecimalMark::Unclear;
        let kept = plan.kept.iter().copied().enumerate().map(|(place, column)| (column, place));
        let mut kept: Vec<_> = kept.filter(|(column, _)| *column < plan.names.len()).collect();
        kept.sort_unstable();
        let (n_lines, ends, late) = (MAX_LINES, Vec::new(), Vec::new());
        Some(PlainRows { delimiter, point, is_unclear, kept, n_lines, ends, late })
    }

    /// Appends the rows of the first lines, up to `max_rows` and up to one that is not plain. Returns their number, and the bytes of their
    /// lines.
    pub(super) fn read(
        &mut self,
        block: &Block<'_>,
        max_rows: usize,
        rows: &mut TableRows,
    ) -> (usize, usize) {
        let n_threads = parallel::n_threads();
        let max_bytes = if n_threads == 1 { BLOCK_BYTES } else { n_threads * PART_BYTES };
        self.ends.clear();
        for end in memchr_iter(b'\n', &block.text[..block.len]).take(max_rows.min(self.n_lines)) {
            self.ends.push(end + 1);
            if end > max_bytes {
                break;
            }
        }
        let first = rows.add_rows(self.ends.len());
        let n_parts = (self.ends.last().map_or(0, |end| end / MIN_PART_BYTES)).clamp(1, n_threads);
        let parts = self.read_parts(block, n_parts, first, rows);
        let n_plain = finish(&parts, block, first, rows);
        rows.drop_rows_from(first + n_plain);
        self.n_lines =
            if n_plain < self.ends.len() { n_plain.max(1) } else { MAX_LINES.min(2 * self.n_lines) };
        let n_bytes = n_plain.checked_sub(1).map_or(0, |last| self.ends[last]);
        if !self.kept.is_empty() {
            let mut start = 0;
            for &end in &self.ends[..n_plain] {
                self.keep(&block.text[start..end], &mut rows.kept);
                start = end;
            }
        }
        (n_plain, n_bytes)
    }

    /// Reads the lines into the rows from `first` on, as far as their cells do not depend on each other.
    fn read_parts(
        &mut self,
        block: &Block<'_>,
        n_parts: usize,
        first: usize,
        rows: &mut TableRows,
    ) -> Vec<Part<'_>> {
        let place = |role: &Role| match *role {
            Role::Feature(index) if !rows.exact.keeps(index) => Place::Feature(index),
            Role::Dropped => Place::Nowhere,
            role => {
                Place::Late { is_text: matches!(role, Role::Category { .. } | Role::Date(_) | Role::Blank) }
            }
        };
        let places: Vec<Place> = block.roles.iter().map(place).collect();
        let n_features = rows.n_features;
        let mut features = &mut rows.features[first * n_features..];
        let per_part = self.ends.len().div_ceil(n_parts).max(1);
        self.late.resize_with(n_parts, Vec::new);
        let (mut first, mut start) = (0, 0);
        let parts = self.ends.chunks(per_part).zip(&mut self.late).map(|(ends, late)| {
            late.clear();
            let own = features.split_off_mut(..ends.len() * n_features).expect("all rows have features");
            let part = (Part { first, ends, n_plain: 0, late }, start, own);
            (first, start) = (first + ends.len(), ends[ends.len() - 1]);
            part
        });
        let marks = (self.delimiter, self.point, self.is_unclear);
        parallel::map(parts.collect::<Vec<_>>(), |(mut part, start, features)| {
            let text = block.text;
            // The usual characters as constants, so that the compiler knows them.
            match marks {
                (b',', ..) => part.read(text, start, &places, (b',', b'.', false), features),
                (delimiter, b',', _) => part.read(text, start, &places, (delimiter, b',', false), features),
                (delimiter, ..) => part.read(text, start, &places, (delimiter, b'.', marks.2), features),
            }
            part
        })
    }

    /// Appends the kept cells of a plain row.
    fn keep(&self, line: &[u8], kept: &mut [KeptValues]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (mut rest, mut next) = (line, 0);
        for &(column, place) in &self.kept {
            while next < column {
                rest = self.split(rest).1;
                next += 1;
            }
            kept[place].push(&String::from_utf8_lossy(self.split(rest).0));
        }
    }

    /// The first cell of the end of a plain row, and the cells after it.
    fn split<'a>(&self, rest: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        if let [b'"', inside @ ..] = rest
            && let Some(len) = memchr(b'"', inside)
        {
            return (&inside[..len], inside.get(len + 2..).unwrap_or_default());
        }
        match memchr(self.delimiter, rest) {
            Some(len) => (&rest[..len], &rest[len + 1..]),
            None => (rest, &[]),
        }
    }
}

impl Part<'_> {
    /// Reads the lines from byte `start` on, up to one that is not plain, into their rows of `features`.
    #[inline(always)]
    fn read(&mut self, text: &[u8], start: usize, places: &[Place], marks: Marks, features: &mut [f32]) {
        let (n_features, mut start) = (features.len() / self.ends.len(), start);
        for (line, &end) in self.ends.iter().enumerate() {
            let n_late = self.late.len();
            let features = &mut features[line * n_features..][..n_features];
            if read_line(text, start, self.first + line, places, marks, features, self.late).is_none() {
                self.late.truncate(n_late);
                return;
            }
            start = end;
            self.n_plain += 1;
        }
    }
}

/// Reads a line, whose cells end at the delimiter and whose numbers have the decimal mark of `marks`. What it has written is undefined if
/// the line is not plain.
#[inline(always)]
fn read_line(
    text: &[u8],
    start: usize,
    line: usize,
    places: &[Place],
    marks: Marks,
    features: &mut [f32],
    late: &mut Vec<LateCell>,
) -> Option<()> {
    let delimiter = marks.0;
    let mut at = start;
    let (last, others) = places.split_last()?;
    // An empty line is not a row.
    if matches!(text.get(at)?, b'\n' | b'\r') {
        return None;
    }
    for (column, &place) in others.iter().enumerate() {
        let cell = text.get(at..)?;
        at += if let Place::Feature(index) = place
            && let Some((number, len)) = number_at(cell, marks)
            && cell[len] == delimiter
            && let Some(value) = number.to_f32()
        {
            features[index] = value;
            len
        } else {
            other_cell(text, (line, column), at, place, marks, delimiter, late)?
        } + 1;
    }
    let cell = text.get(at..)?;
    if let Place::Feature(index) = *last
        && let Some((number, len)) = number_at(cell, marks)
        && ends_line(&cell[len..])
        && let Some(value) = number.to_f32()
    {
        features[index] = value;
    } else {
        other_cell(text, (line, others.len()), at, *last, marks, b'\n', late)?;
    }
    Some(())
}

/// The number at the start of `cell`, and its length, unless its mark may separate thousands.
#[inline(always)]
fn number_at(cell: &[u8], (_, point, is_unclear): Marks) -> Option<(Decimal, usize)> {
    Decimal::read(cell, point).filter(|(number, _)| !(is_unclear && number.has_thousandths()))
}

/// Reads the cell that starts at byte `start` of `text`, up to the character `end`: any but a feature that f32 holds. Returns its length.
#[inline(never)]
fn other_cell(
    text: &[u8],
    (line, column): (usize, usize),
    start: usize,
    place: Place,
    marks: Marks,
    end: u8,
    late: &mut Vec<LateCell>,
) -> Option<usize> {
    let (cell, delimiter) = (&text[start..], marks.0);
    if let [b'"', inside @ ..] = cell {
        let len = len_of_quoted(inside, delimiter, end)?;
        if !matches!(place, Place::Nowhere) {
            let is_text = matches!(place, Place::Late { is_text: true });
            let number = if is_text { None } else { number_at(inside, marks) };
            let number = number.filter(|(_, n)| *n == len).map(|(number, _)| number);
            late.push(LateCell { line: line as u32, column: column as u32, start: start + 1, len, number });
        }
        return Some(len + 2);
    }
    let is_end = |len: usize| if end == b'\n' { ends_line(&cell[len..]) } else { cell[len] == end };
    let number = if let Place::Late { is_text: true } = place { None } else { number_at(cell, marks) };
    let (number, len) = match number {
        Some((number, len)) if is_end(len) => (Some(number), len),
        _ => (None, len_of_cell(cell, delimiter, end)?),
    };
    if !matches!(place, Place::Nowhere) {
        late.push(LateCell { line: line as u32, column: column as u32, start, len, number });
    }
    Some(len)
}

/// Writes the late cells to the rows from `first` on. Returns the number of rows before the first that is not plain.
fn finish(parts: &[Part<'_>], block: &Block<'_>, first: usize, rows: &mut TableRows) -> usize {
    let mut n_plain = 0;
    for part in parts {
        for late in part.late.iter() {
            let (row, role) = (first + late.line as usize, block.roles[late.column as usize]);
            let cell = &block.text[late.start..][..late.len];
            let number = late.number.filter(|_| !(matches!(role, Role::Target(_)) && may_be_code(cell)));
            let is_put = number.is_some_and(|number| put(rows, row, role, number).is_some())
                || cell::put(rows, row, role, cell, block.notation).is_ok();
            // Only the exact reader knows the line.
            if !is_put || rows.lacks_place() {
                return late.line as usize;
            }
        }
        n_plain += part.n_plain;
        if part.n_plain < part.ends.len() {
            break;
        }
    }
    n_plain
}

#[inline]
fn ends_line(bytes: &[u8]) -> bool {
    matches!(bytes, [b'\n', ..] | [b'\r', b'\n', ..])
}

/// Writes a number that is plain for its column.
#[inline(always)]
fn put(rows: &mut TableRows, row: usize, role: Role, number: Decimal) -> Option<()> {
    match role {
        Role::Feature(index) => {
            rows.set_feature(row, index, number.to_f32()?);
            if rows.exact.keeps(index) {
                rows.set_exact(row, index, number.exact()?);
            }
        }
        Role::Target(index) => {
            let target = match &rows.targets {
                TargetCells::Classes(_) => TargetCell::Label(LabelCell::Integer(number.to_i64()?)),
                TargetCells::Values { .. } => {
                    let exact = if rows.exact_targets.keeps(index) { Some(number.exact()?) } else { None };
                    TargetCell::Value(number.to_f32()?, exact)
                }
            };
            rows.set_target(row, index, target).ok()?;
        }
        Role::Weight => {
            let weight = number.to_f32().filter(|weight| *weight >= 0.0)?;
            *rows.weights.as_mut()?.get_mut(row)? = weight;
        }
        Role::Dropped => {}
        // Categories are texts.
        Role::Category { .. } | Role::Date(_) | Role::Blank => return None,
    }
    Some(())
}

/// Whether a number starts like a code, whose spelling counts if it is a label: with a zero before another digit.
#[inline(always)]
fn may_be_code(cell: &[u8]) -> bool {
    match cell {
        [b'+' | b'-', b'0', digit, ..] | [b'0', digit, ..] => digit.is_ascii_digit(),
        _ => false,
    }
}

/// Length of the plain line that `text` begins with, including its end; `None` if there is another one.
pub(super) fn len_of_line(text: &[u8], delimiter: u8) -> Option<usize> {
    let mut at = 0;
    loop {
        let cell = &text[at..];
        at += match cell {
            [b'"', inside @ ..] => {
                len_of_quoted(inside, delimiter, delimiter)
                    .or_else(|| len_of_quoted(inside, delimiter, b'\n'))?
                    + 2
            }
            _ => len_of_cell(cell, delimiter, delimiter).or_else(|| len_of_cell(cell, delimiter, b'\n'))?,
        };
        match &text[at..] {
            [b'\r', b'\n', ..] => return Some(at + 2),
            [b'\n', ..] => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Length of a quoted cell without quotes inside, from after its first quote on, that ends at `end`.
#[inline]
fn len_of_quoted(inside: &[u8], delimiter: u8, end: u8) -> Option<usize> {
    let len = memchr2(b'"', b'\n', inside)?;
    let after = inside.get(len + 1..)?;
    let is_end = if end == b'\n' { ends_line(after) } else { after.first() == Some(&delimiter) };
    (inside[len] == b'"' && is_end && memchr(b'\r', &inside[..len]).is_none()).then_some(len)
}

/// Length of an unquoted cell that ends at `end`.
#[inline]
fn len_of_cell(bytes: &[u8], delimiter: u8, end: u8) -> Option<usize> {
    let len = memchr2(delimiter, b'\n', bytes)?;
    if bytes[len] != end {
        return None;
    }
    let cell = &bytes[..len];
    let cell = if end == b'\n' { cell.strip_suffix(b"\r").unwrap_or(cell) } else { cell };
    memchr2(b'"', b'\r', cell).is_none().then_some(cell.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_cells_are_those_of_the_line() {
        for (line, delimiter) in [("a, b ,,d\r\n", b','), ("a; b ;;d\n", b';'), ("a\t b \t\td", b'\t')] {
            let mut kept = vec![KeptValues::default(); 4];
            let plain = |kept| PlainRows {
                delimiter,
                point: b'.',
                is_unclear: false,
                kept,
                n_lines: 1,
                ends: Vec::new(),
                late: Vec::new(),
            };
            plain(vec![(0, 2), (1, 0), (2, 3), (3, 1)]).keep(line.as_bytes(), &mut kept);
            let texts: Vec<_> = kept.iter().map(|kept| kept.texts.get(0)).collect();
            assert_eq!(texts, [" b ", "d", "a", ""], "{line:?}");
            let (quoted, mut kept) =
                (line.replace(" b ", "\" b \"").replace('d', "\"d\""), vec![KeptValues::default(); 4]);
            plain(vec![(0, 2), (1, 0), (2, 3), (3, 1)]).keep(quoted.as_bytes(), &mut kept);
            let texts: Vec<_> = kept.iter().map(|kept| kept.texts.get(0)).collect();
            assert_eq!(texts, [" b ", "d", "a", ""], "{quoted:?}");
            let mut last = vec![KeptValues::default()];
            plain(vec![(3, 0)]).keep(line.as_bytes(), &mut last);
            assert_eq!(last[0].texts.get(0), "d");
        }
    }
}
