//! Collects properties of columns while rows are read.

use std::collections::BTreeMap;

use ddp_tables::fit::stats::ColumnStats;
use ddp_tables::formats::table::types::{Found, Inference, Place};
use rayon::prelude::*;

use super::values::{MIX, Values, key_of_number};

/// Most distinct values that are counted over all columns, about 100 MiB.
const MAX_VALUES: usize = 1 << 21;

/// Values of a column in consecutive rows.
#[derive(Debug)]
pub(super) struct Cells {
    /// `[n]`; NaN for everything but finite numbers.
    pub(super) numbers: Vec<f64>,
    /// `[n]`: equal for equal values, 0 for missing ones.
    pub(super) keys: Vec<u64>,
}

impl Cells {
    /// With room for `n` rows.
    pub(super) fn with_rows(n: usize) -> Self {
        Cells { numbers: Vec::with_capacity(n), keys: Vec::with_capacity(n) }
    }

    /// The numbers of `column` at `places`; NaN is a missing one.
    pub(super) fn from_numbers(
        numbers: impl Iterator<Item = f64>,
        places: &[Place],
        column: &mut Column,
    ) -> Self {
        let mut cells = Cells::with_rows(places.len());
        for (number, &place) in numbers.zip(places) {
            let is_finite = is_finite_f32(number);
            if number.is_nan() {
                column.types.missing.add(place, "");
            } else if !is_finite {
                column.not_finite.add(place, number.to_string());
            }
            cells.numbers.push(if is_finite { number } else { f64::NAN });
            cells.keys.push(if number.is_nan() { 0 } else { key_of_number(number) });
        }
        cells
    }
}

/// Whether a number is finite in f32, in which models compute.
pub(super) fn is_finite_f32(value: f64) -> bool {
    (value as f32).is_finite()
}

/// Properties of all columns.
pub(super) struct Collector {
    pub(super) columns: Vec<Column>,
    pub(super) n_rows: usize,
    /// Column that the others are compared with.
    target: Option<usize>,
    limit: usize,
    /// Whether rows follow that were not looked at.
    pub(super) is_partial: bool,
}

/// Properties of one column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) stats: ColumnStats,
    pub(super) values: Values,
    /// Hash of all values in order.
    pub(super) hash: u64,
    /// Kinds of its values; texts are those that are not numbers.
    pub(super) types: Inference,
    /// Texts among them that a person would read as numbers or dates.
    pub(super) n_formatted: u64,
    /// Texts, and numbers that are not finite, with their rows, as long as they are few and short.
    pub(super) words: Words,
    /// Values that are not UTF-8.
    pub(super) not_utf8: Found,
    /// Missing values that are written `NA`.
    pub(super) n_na: u64,
    /// NaN and infinity, and numbers beyond f32.
    pub(super) not_finite: Found,
    pub(super) nines: Nines,
    pub(super) sample: Sample,
    /// Whether each number exceeds the one before.
    pub(super) is_rising: bool,
    last: f64,
    pair: Pair,
}

/// Numbers that often mark missing values.
const NINES: [f64; 8] = [-99_999.0, -9_999.0, -999.0, -99.0, 99.0, 999.0, 9_999.0, 99_999.0];

/// Rows with each of [`NINES`], and the range of all other numbers.
#[derive(Debug)]
pub(super) struct Nines {
    counts: [u64; NINES.len()],
    min: f64,
    max: f64,
}

impl Default for Nines {
    fn default() -> Self {
        Nines { counts: [0; NINES.len()], min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Nines {
    #[inline]
    fn add(&mut self, value: f64) {
        let may_be_one = (99.0..=99_999.0).contains(&value.abs());
        match NINES.iter().position(|nines| may_be_one && *nines == value) {
            Some(at) => self.counts[at] += 1,
            // NaN changes neither.
            None => (self.min, self.max) = (self.min.min(value), self.max.max(value)),
        }
    }

    /// The one far outside the other values that most rows hold, and their number.
    pub(super) fn outside(&self) -> Option<(f64, u64)> {
        const MIN_ROWS: u64 = 5;
        let is_far = |value: f64| {
            let distance = (self.min - value).max(value - self.max);
            distance >= (self.max - self.min) / 2.0 || value < 0.0 && self.min >= 0.0
        };
        let found = NINES.into_iter().zip(self.counts).filter(|(value, n)| *n >= MIN_ROWS && is_far(*value));
        found.filter(|_| self.min < self.max).max_by_key(|(_, n)| *n)
    }
}

/// Most different texts that may be marks of missing values.
const MAX_WORDS: usize = 10;
/// Most bytes of such a text.
const MAX_WORD_BYTES: usize = 30;

/// Texts with their rows, as long as there are few.
#[derive(Debug, Default)]
pub(super) struct Words {
    counts: BTreeMap<String, u64>,
    is_full: bool,
}

impl Words {
    pub(super) fn add(&mut self, text: &str) {
        if self.is_full {
            return;
        }
        if let Some(count) = self.counts.get_mut(text) {
            *count += 1;
        } else if self.counts.len() == MAX_WORDS || text.len() > MAX_WORD_BYTES {
            self.is_full = true;
        } else {
            self.counts.insert(text.to_owned(), 1);
        }
    }

    /// The texts, the most frequent first; none if they are many or long.
    pub(super) fn by_count(&self) -> Vec<(&str, u64)> {
        if self.is_full {
            return Vec::new();
        }
        let mut counts: Vec<_> = self.counts.iter().map(|(text, count)| (text.as_str(), *count)).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }
}

/// Numbers of rows that are evenly spread over all, the same rows in all columns.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) values: Vec<f64>,
    n_seen: usize,
    /// Rows from one to the next: 2 to this power.
    log_stride: u32,
}

impl Sample {
    fn add(&mut self, numbers: &[f64]) {
        const MAX_ROWS: usize = 1024;
        let stride = 1 << self.log_stride;
        let first = self.n_seen.next_multiple_of(stride) - self.n_seen;
        self.values.extend(numbers.iter().skip(first).step_by(stride));
        self.n_seen += numbers.len();
        while self.values.len() > MAX_ROWS {
            let mut is_kept = false;
            self.values.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.log_stride += 1;
        }
    }
}

/// Sums for the correlation of two columns, over rows with both values.
#[derive(Debug, Clone, Copy, Default)]
struct Pair {
    n: f64,
    mean: [f64; 2],
    m2: [f64; 2],
    product: f64,
}

impl Pair {
    /// Sums of rows; NaN is a missing value.
    fn of(x: &[f64], y: &[f64]) -> Self {
        let rows = || x.iter().zip(y).filter(|(x, y)| !x.is_nan() && !y.is_nan());
        let [mut n, mut sum_x, mut sum_y] = [0.0; 3];
        rows().for_each(|(x, y)| (n, sum_x, sum_y) = (n + 1.0, sum_x + x, sum_y + y));
        let mean = [sum_x, sum_y].map(|sum| sum / f64::max(n, 1.0));
        let (mut m2, mut product) = ([0.0; 2], 0.0);
        for (x, y) in rows() {
            let (dx, dy) = (x - mean[0], y - mean[1]);
            (m2[0], m2[1], product) = (m2[0] + dx * dx, m2[1] + dy * dy, product + dx * dy);
        }
        Pair { n, mean, m2, product }
    }

    /// Merges the sums of further rows, as [`ColumnStats::merge`] does.
    fn merge(&mut self, other: &Self) {
        let n = self.n + other.n;
        if other.n == 0.0 {
            return;
        }
        let delta = [0, 1].map(|of| other.mean[of] - self.mean[of]);
        let weight = self.n * other.n / n;
        for of in [0, 1] {
            self.m2[of] += other.m2[of] + delta[of] * delta[of] * weight;
            self.mean[of] += delta[of] * (other.n / n);
        }
        self.product += other.product + delta[0] * delta[1] * weight;
        self.n = n;
    }

    fn correlation(&self) -> Option<f64> {
        let scale = (self.m2[0] * self.m2[1]).sqrt();
        (self.n > 2.0 && scale > 0.0).then(|| self.product / scale)
    }
}

impl Collector {
    /// Collects `n_columns` columns and compares them with the column `target`.
    pub(super) fn new(n_columns: usize, target: Option<usize>) -> Self {
        Collector {
            columns: (0..n_columns).map(|_| Column::new()).collect(),
            n_rows: 0,
            target,
            limit: (MAX_VALUES / n_columns.max(1)).clamp(300, 1 << 16),
            is_partial: false,
        }
    }

    /// Rows that are best added at a time.
    pub(super) fn chunk_rows(&self) -> usize {
        ((1 << 18) / self.columns.len().max(1)).clamp(1, 1024)
    }

    /// Adds rows, all columns at once.
    ///
    /// - `places`: `[n]`
    /// - `cells`: the values of a column, which may note what is odd about them
    /// - `text`: the text of a row and column
    pub(super) fn add(
        &mut self,
        places: &[Place],
        cells: &(dyn Fn(usize, &mut Column) -> Cells + Sync),
        text: &(dyn Fn(usize, usize) -> String + Sync),
    ) {
        self.n_rows += places.len();
        let (target, limit) = (self.target, self.limit);
        let of_target = target.map(|target| cells(target, &mut self.columns[target]));
        self.columns.par_iter_mut().enumerate().for_each(|(index, column)| {
            let own;
            let values = match &of_target {
                Some(values) if target == Some(index) => values,
                _ => {
                    own = cells(index, column);
                    &own
                }
            };
            column.add(values, of_target.as_ref(), limit, &|row| text(row, index));
        });
    }
}

impl Column {
    fn new() -> Self {
        Column {
            stats: ColumnStats::new(1),
            values: Values::default(),
            hash: 0,
            types: Inference::default(),
            n_formatted: 0,
            words: Words::default(),
            not_utf8: Found::default(),
            n_na: 0,
            not_finite: Found::default(),
            nines: Nines::default(),
            sample: Sample::default(),
            is_rising: true,
            last: f64::NEG_INFINITY,
            pair: Pair::default(),
        }
    }

    fn add(
        &mut self,
        cells: &Cells,
        of_target: Option<&Cells>,
        limit: usize,
        text: &dyn Fn(usize) -> String,
    ) {
        let Cells { numbers, keys } = cells;
        self.stats.add(numbers);
        self.sample.add(numbers);
        self.hash = keys.iter().fold(self.hash, |hash, key| (hash.rotate_left(5) ^ key).wrapping_mul(MIX));
        for (row, key) in keys.iter().enumerate().filter(|(_, key)| **key != 0) {
            if self.values.is_full() {
                break;
            }
            self.values.add(*key, of_target.map_or(0, |target| target.keys[row]), limit, || text(row));
        }
        for (&number, _) in numbers.iter().zip(keys).filter(|(_, key)| **key != 0) {
            self.is_rising &= number > self.last;
            self.last = number;
            self.nines.add(number);
        }
        if let Some(target) = of_target {
            self.pair.merge(&Pair::of(numbers, &target.numbers));
        }
    }

    /// Whether some number is not whole.
    pub(super) fn has_fractions(&self) -> bool {
        self.stats.n_fractional[0] > 0.0
    }

    /// Values that are neither finite numbers nor dates.
    pub(super) fn n_odd(&self) -> u64 {
        self.types.texts.n + self.not_finite.n
    }

    /// Whether such values are so few, of `n_values`, that they are mistakes or marks of missing values: at most one in a hundred.
    pub(super) fn has_strays(&self, n_values: u64) -> bool {
        const MIN_VALUES: u64 = 10;
        let is_few = n_values >= MIN_VALUES && 100 * self.n_odd() <= n_values.max(100);
        self.n_odd() > 0
            && is_few
            && self.types.n_truths == 0
            && self.not_utf8.n == 0
            && !self.words.by_count().is_empty()
    }

    /// Values that are words if the column is one of words: in such a column, yes and dates are words too.
    pub(super) fn n_words(&self) -> u64 {
        if self.types.texts.n == 0 {
            0
        } else {
            self.types.texts.n + self.types.n_truths + self.types.n_moments
        }
    }

    /// Whether `NA` among the values is a code like they are, all of two capital letters: Namibia among countries.
    pub(super) fn has_na_code(&self) -> bool {
        let is_code = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_uppercase());
        let mut codes = self.values.examples();
        self.n_na > 0 && self.n_na == self.types.missing.n && codes.len() > 2 && codes.all(is_code)
    }

    /// Pearson's correlation with the target, if both vary.
    pub(super) fn correlation(&self) -> Option<f64> {
        self.pair.correlation()
    }
}
