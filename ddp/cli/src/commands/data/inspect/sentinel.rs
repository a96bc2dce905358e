//! Numbers that seem to mark missing values: -999 among temperatures, 9999 among ages.
//!
//! A mark lies outside the range of all other values of its column, far away for that range, and it repeats. Values that people use
//! as marks (nines, eights, -1, the limits of integers) need a smaller distance than others. A zero next to counts, a label of -1 and
//! a clipped maximum lie next to their neighbours.

/// Most marks at each end of a range.
const MAX_MARKS: usize = 3;
/// Fewest rows with a mark, and fewest with other values.
const MIN_ROWS: u64 = 5;
const MIN_OTHERS: u64 = 20;
/// Distance from the other values, in units of their range, of a value that is not a usual mark.
const FAR: f64 = 10.0;
/// Distance of a usual mark.
const NEAR: f64 = 0.5;
/// Fewest rows of 1000 with a value that is not a usual mark.
const MIN_PER_MILLE: u64 = 10;

/// A number that seems to mark missing values, and its rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sentinel {
    pub(super) value: f64,
    pub(super) n_rows: u64,
}

/// The smallest and the largest values of a column, each with its rows, in order from the outermost.
#[derive(Debug, Clone, Default)]
pub(super) struct Extremes {
    lowest: Vec<(f64, u64)>,
    highest: Vec<(f64, u64)>,
    n: u64,
}

impl Extremes {
    /// Adds a number that is finite.
    #[inline]
    pub(super) fn add(&mut self, value: f64) {
        self.n += 1;
        add(&mut self.lowest, value, |a, b| a < b);
        add(&mut self.highest, value, |a, b| a > b);
    }

    /// The numbers that seem to mark missing values, if any.
    pub(super) fn sentinels(&self) -> Vec<Sentinel> {
        for n_marks in (1..=2 * MAX_MARKS).rev() {
            for n_low in 0..=n_marks.min(MAX_MARKS) {
                let n_high = n_marks - n_low;
                if n_high <= MAX_MARKS && self.are_marks(n_low, n_high) {
                    let marks = self.lowest[..n_low].iter().chain(self.highest[..n_high].iter().rev());
                    return marks.map(|&(value, n_rows)| Sentinel { value, n_rows }).collect();
                }
            }
        }
        Vec::new()
    }

    /// Whether the `n_low` smallest and `n_high` largest values may be marks next to the others.
    fn are_marks(&self, n_low: usize, n_high: usize) -> bool {
        let (Some(&(min, _)), Some(&(max, _))) = (self.lowest.get(n_low), self.highest.get(n_high)) else {
            return false;
        };
        let marks = || self.lowest[..n_low].iter().chain(&self.highest[..n_high]);
        let n_others = self.n - marks().map(|(_, n_rows)| n_rows).sum::<u64>().min(self.n);
        // Two values are a choice between two.
        min < max
            && n_others >= MIN_OTHERS
            && marks().all(|&(value, n_rows)| n_rows >= MIN_ROWS && self.is_mark(value, n_rows, min, max))
    }

    /// Whether `value` may mark missing values next to others from `min` to `max`.
    fn is_mark(&self, value: f64, n_rows: u64, min: f64, max: f64) -> bool {
        let distance = (min - value).max(value - max) / (max - min);
        let is_only_negative = value < 0.0 && min >= 0.0;
        match usual_mark(value) {
            Some(Usual::Long) => distance >= NEAR || is_only_negative,
            Some(Usual::Short) => distance >= 1.0 && min >= 0.0 && value < 0.0,
            Some(Usual::One) => min >= 10.0 && distance >= 1.0 || min >= 1000.0,
            None => {
                value.fract() == 0.0 && distance >= FAR && n_rows * 1000 >= MIN_PER_MILLE * self.n.max(1000)
            }
        }
    }
}

/// Kinds of numbers that people write for a missing value.
enum Usual {
    /// -99, 999, -8888 and such, and the limits of integers.
    Long,
    /// -9 and -8.
    Short,
    /// -1.
    One,
}

fn usual_mark(value: f64) -> Option<Usual> {
    let limits =
        [f64::from(i16::MIN), f64::from(i32::MIN), f64::from(i32::MAX), i64::MIN as f64, i64::MAX as f64];
    if value == -1.0 {
        return Some(Usual::One);
    }
    // Nines may have a fraction of nines: -999.9, -99.99.
    let text = value.abs().to_string();
    let digits: Vec<char> = text.chars().filter(|c| *c != '.').collect();
    let repeats = |digit: char| digits.iter().all(|c| *c == digit);
    let is_power = value.abs() >= 1e20 && text.trim_end_matches('0') == "1";
    match digits.len() {
        1 if value < 0.0 && (repeats('9') || repeats('8')) => Some(Usual::Short),
        2.. if repeats('9') || repeats('8') && value.fract() == 0.0 => Some(Usual::Long),
        _ if limits.contains(&value) || is_power => Some(Usual::Long),
        _ => None,
    }
}

/// Adds `value` to the outermost values, of which one more is kept than can be marks.
#[inline]
fn add(values: &mut Vec<(f64, u64)>, value: f64, is_outside: impl Fn(f64, f64) -> bool) {
    if values.len() > MAX_MARKS && is_outside(values[MAX_MARKS].0, value) {
        return;
    }
    let at = values.iter().take_while(|(of, _)| is_outside(*of, value)).count();
    match values.get_mut(at) {
        Some((same, n_rows)) if *same == value => *n_rows += 1,
        _ => {
            values.insert(at, (value, 1));
            values.truncate(MAX_MARKS + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The marks among `values`.
    fn marks(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
        let mut extremes = Extremes::default();
        values.into_iter().for_each(|value| extremes.add(value));
        extremes.sentinels().iter().map(|sentinel| sentinel.value).collect()
    }

    /// 1000 values by a function of the row and of a number from 0 to 1, where every `n`-th is `mark`.
    fn with(mark: f64, n: usize, value: impl Fn(usize, f64) -> f64) -> Vec<f64> {
        let uniform = |row: usize| ((row * 7919 + 13) % 1000) as f64 / 1000.0;
        let value = |row: usize| if row.is_multiple_of(n) { mark } else { value(row, uniform(row)) };
        (0..1000).map(value).collect()
    }

    #[test]
    fn usual_marks_are_found() {
        for (mark, low, high) in [
            (-999.0, -20.0, 40.0),
            (-9999.0, 0.0, 1e6),
            (-99.0, 0.0, 500.0),
            (-999.9, -40.0, 50.0),
            (999.0, 18.0, 90.0),
            (9999.0, 0.0, 5000.0),
            (888.0, 0.0, 300.0),
            (-9.0, 0.0, 5.0),
            (-1.0, 1900.0, 2020.0),
            (-1.0, 12_000.0, 250_000.0),
            (-32768.0, -500.0, 900.0),
            (1e20, -5.0, 30.0),
            (0.0, 1900.0, 2020.0),
            (-500.0, 1.0, 20.0),
        ] {
            let values = with(mark, 9, |_, uniform| low + (high - low) * uniform);
            assert_eq!(marks(values), [mark], "{mark} next to {low} to {high}");
        }
        let both = with(-999.0, 5, |row, uniform| if row % 7 == 3 { 9999.0 } else { uniform });
        assert_eq!(marks(both), [-999.0, 9999.0]);
        let two = with(-9999.0, 5, |row, uniform| if row % 7 == 3 { -999.0 } else { uniform });
        assert_eq!(marks(two), [-9999.0, -999.0]);
        // Most rows of a well-known table have the mark.
        let most = with(0.0, 1, |_, _| 0.0).into_iter().enumerate();
        assert_eq!(
            marks(most.map(|(row, _)| if row % 10 == 0 { (row % 28) as f64 } else { 999.0 })),
            [999.0]
        );
    }

    #[test]
    fn ordinary_columns_hold_none() {
        let normal = |uniform: f64| (uniform.max(1e-3) / (1.0 - uniform).max(1e-3)).ln();
        let cases: [(&str, Vec<f64>); 18] = [
            ("one-hot", with(1.0, 9, |_, _| 0.0)),
            ("signs", with(-1.0, 2, |_, _| 1.0)),
            ("three signs", with(-1.0, 3, |row, _| (row % 3) as f64 - 1.0)),
            ("a choice of two", with(-999.0, 2, |_, _| 5.0)),
            ("counts", with(0.0, 3, |row, _| (row % 17) as f64)),
            ("zero-inflated counts", with(0.0, 2, |_, uniform| (1.0 / (1.001 - uniform)).floor())),
            ("zero-inflated amounts", with(0.0, 2, |_, uniform| 10.0 + 90.0 * uniform)),
            ("clipped", with(999.0, 9, |_, uniform| (1500.0 * uniform).min(999.0))),
            ("long tail", with(0.5, 9, |_, uniform| 1.0 / (1.001 - uniform))),
            ("an outlier", with(1e6, 500, |_, uniform| uniform)),
            ("two outliers", with(-999.0, 500, |_, uniform| uniform)),
            ("normal", with(0.0, 9, |_, uniform| normal(uniform))),
            ("ages to 99", with(99.0, 9, |_, uniform| (100.0 * uniform).floor())),
            ("grades to 9", with(9.0, 9, |row, _| (row % 5) as f64)),
            ("degrees", with(-9.0, 9, |_, uniform| 50.0 * uniform - 10.0)),
            ("balances", with(-99.0, 9, |_, uniform| 2000.0 * uniform - 1000.0)),
            ("sales", with(-1.0, 9, |row, _| (row % 30) as f64)),
            ("constant", vec![7.0; 100]),
        ];
        for (name, values) in cases {
            assert_eq!(marks(values), [0.0; 0], "{name}");
        }
        assert_eq!(marks((0..30).map(|row| if row % 2 == 0 { -999.0 } else { f64::from(row) })), [0.0; 0]);
    }

    #[test]
    fn a_value_that_comes_late_is_counted_from_its_first_row() {
        let mut extremes = Extremes::default();
        for row in 0..500 {
            extremes.add(f64::from(row));
            if row >= 490 {
                extremes.add(-9999.0);
            }
        }
        assert_eq!(extremes.sentinels(), [Sentinel { value: -9999.0, n_rows: 10 }]);
    }
}
