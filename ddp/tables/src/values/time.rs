//! Dates and times of ISO 8601, and dates as `31.05.2024`, as seconds since 1970-01-01 00:00 UTC.
//!
//! `chrono` is the calendar. Its parsers read more notations than are meant here, such as `2024-5-31` and ` 2024-05-31`, and every cell
//! of a table that may be a date comes this way, so texts are taken apart here.

use chrono::{Datelike as _, NaiveDate};

/// Ends of the names of the features that a date becomes with `data.datetime = "parts"`.
pub const PARTS: [&str; 7] = [".year", ".month", ".day", ".weekday", ".hour", ".minute", ".second"];

/// The name of the date whose parts `names` begins with.
pub fn date_of_parts(names: &[String]) -> Option<&str> {
    let date = names.first()?.strip_suffix(PARTS[0])?;
    let is_part = |(name, part): (&String, &&str)| name.strip_prefix(date) == Some(*part);
    (names.len() >= PARTS.len() && names.iter().zip(&PARTS).all(is_part)).then_some(date)
}

const DAY_S: i64 = 86_400;
const NANOSECONDS: i128 = 1_000_000_000;

/// The first and the last day of the calendar, since 1970: some 262,000 years away.
pub const DAYS: [i32; 2] = [NaiveDate::MIN.to_epoch_days(), NaiveDate::MAX.to_epoch_days()];

/// A date, a time of day, or both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Seconds since 1970, or since midnight for a time of day.
    pub seconds: f64,
    /// The seconds, rounded down.
    whole: i64,
    /// Nanoseconds after the whole second; `None` for more than nine digits of a second.
    pub nanoseconds: Option<u32>,
    /// Whether the text names a date.
    pub has_date: bool,
    /// Whether the text names a time of day.
    pub has_time: bool,
    /// Whether the text names its offset from UTC.
    pub has_offset: bool,
    /// Whether it is a duration, which may be longer than a day or negative.
    pub is_duration: bool,
}

/// A type of dates and times in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MomentType {
    /// Days since 1970.
    Date,
    /// Time since 1970.
    DateTime {
        /// Unit of the stored integers.
        unit: MomentUnit,
        /// Whether the times are in UTC, since the strings have offsets.
        is_utc: bool,
    },
    /// Time since midnight.
    Time(MomentUnit),
}

/// Unit of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MomentUnit {
    /// Millionths of a second.
    Microseconds,
    /// Billionths of a second.
    Nanoseconds,
}

impl Moment {
    /// A duration of so many nanoseconds.
    fn from_duration(nanoseconds: i128) -> Option<Self> {
        let whole = i64::try_from(nanoseconds.div_euclid(NANOSECONDS)).ok()?;
        let of_second = nanoseconds.rem_euclid(NANOSECONDS) as u32;
        // As in files with types: whole seconds and the nanoseconds after them.
        let seconds = whole as f64 + f64::from(of_second) / 1e9;
        let (has_date, has_time, has_offset) = (false, true, false);
        let nanoseconds = Some(of_second);
        Some(Moment { seconds, whole, nanoseconds, has_date, has_time, has_offset, is_duration: true })
    }

    /// Whether both are dates, both times of day, or both durations, which have an order.
    pub fn is_like(&self, other: &Moment) -> bool {
        (self.has_date, self.is_duration) == (other.has_date, other.is_duration)
    }

    /// The text in the notation of files with types, where a date at midnight is a date; `None` for a duration, and for more than nine
    /// digits of a second.
    pub fn text(&self) -> Option<String> {
        let nanoseconds = self.nanoseconds.filter(|_| !self.is_duration)?;
        let is_date = nanoseconds == 0 && self.whole.rem_euclid(DAY_S) == 0;
        let of_day = self.whole.rem_euclid(DAY_S);
        Some(if self.has_date {
            format(self.whole, nanoseconds, is_date)
        } else {
            format_time(of_day, nanoseconds)
        })
    }

    /// Whole units since 1970 or midnight; `None` if they exceed i64, or if the unit is too coarse.
    pub fn in_unit(&self, unit: MomentUnit) -> Option<i64> {
        let (per_second, of_fraction) = match unit {
            MomentUnit::Microseconds => (1_000_000, self.nanoseconds? / 1000),
            MomentUnit::Nanoseconds => (1_000_000_000, self.nanoseconds?),
        };
        self.whole.checked_mul(per_second)?.checked_add(i64::from(of_fraction))
    }
}

impl MomentType {
    /// The value of a moment in files; `None` if the type does not hold it.
    pub fn value(self, moment: &Moment) -> Option<i64> {
        match self {
            MomentType::Date => Some(moment.whole.div_euclid(DAY_S)),
            MomentType::DateTime { unit, .. } | MomentType::Time(unit) => moment.in_unit(unit),
        }
    }
}

/// Parses `2024-05-31`, `2024-05-31 12:30`, `2024-05-31T12:30:15.5+02:00`, `31.05.2024 12:30`, `12:30:15` and the like. A time
/// without an offset is UTC. Durations of ISO 8601 are read as times, such as `PT90S`, and those of pandas, `1 days 00:01:30`.
pub fn parse(text: &str) -> Option<Moment> {
    if let [b'P', ..] | [b'-' | b'+', b'P', ..] = text.as_bytes() {
        return iso_duration(text);
    }
    if text.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        && let Some((days, rest)) = text.split_once(" day")
    {
        return pandas_duration(days, rest);
    }
    let Parsed { days, of_day, fraction, offset, has_date, has_time, has_offset } = Text::parsed(text)?;
    let digits = fraction.trim_end_matches('0');
    let (of_second, nanoseconds) = match digits.len() {
        0 => (0.0, Some(0)),
        n => (
            format!("0.{digits}").parse().ok()?,
            if n > 9 { None } else { format!("{digits:0<9}").parse().ok() },
        ),
    };
    let seconds = (days * DAY_S) as f64 + (of_day as f64 + of_second) - offset as f64;
    let whole = days * DAY_S + of_day - offset;
    Some(Moment { seconds, whole, nanoseconds, has_date, has_time, has_offset, is_duration: false })
}

/// The duration `P1DT2H3M4.5S` of ISO 8601, perhaps with weeks, but without months and years, whose lengths differ.
fn iso_duration(text: &str) -> Option<Moment> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (mut rest, mut is_time, mut nanoseconds, mut last) = (rest.strip_prefix('P')?, false, 0i128, 0);
    if rest.is_empty() || rest.ends_with('T') {
        return None;
    }
    while !rest.is_empty() {
        if let Some(time) = rest.strip_prefix('T').filter(|_| !is_time) {
            (is_time, rest) = (true, time);
            continue;
        }
        let n_digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')?;
        let (number, unit) = (&rest[..n_digits], rest.as_bytes()[n_digits]);
        // Units in their order, each at most once.
        let (place, seconds) = match (unit, is_time) {
            (b'W', false) => (1, 604_800),
            (b'D', false) => (2, DAY_S),
            (b'H', true) => (3, 3_600),
            (b'M', true) => (4, 60),
            (b'S', true) => (5, 1),
            _ => return None,
        };
        if place <= last {
            return None;
        }
        last = place;
        nanoseconds += nanoseconds_of(number, i128::from(seconds))?;
        rest = &rest[n_digits + 1..];
    }
    Moment::from_duration(sign * nanoseconds)
}

/// The duration `1 days 00:01:30.5` or `-1 days +23:58:30` of pandas, in which days may be negative and the time is not; `rest` follows
/// the letters ` day`.
fn pandas_duration(days: &str, rest: &str) -> Option<Moment> {
    let days: i64 = days.parse().ok()?;
    let rest = rest.strip_prefix('s').unwrap_or(rest);
    let mut parsed = Parsed::default();
    if !rest.is_empty() {
        let time = rest.strip_prefix(' ')?;
        let mut text = Text(time.strip_prefix('+').unwrap_or(time).as_bytes());
        text.time(&mut parsed)?;
        if !text.0.is_empty() {
            return None;
        }
    }
    let of_second = nanoseconds_of(&format!("0.{}", parsed.fraction), 1)?;
    let whole = i128::from(days) * i128::from(DAY_S) + i128::from(parsed.of_day);
    Moment::from_duration(whole * NANOSECONDS + of_second)
}

/// Nanoseconds of a number of units of `seconds`; `None` for what is no number without a sign.
fn nanoseconds_of(number: &str, seconds: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once(['.', ',']).unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    if whole.is_empty() || fraction.len() > 9 || fraction.contains(['.', ',']) {
        return None;
    }
    let of_fraction: i128 = format!("{fraction:0<9}").parse().ok()?;
    let whole: i128 = whole.parse::<u32>().ok()?.into();
    Some(seconds * (whole * NANOSECONDS + of_fraction))
}

/// Whether a text is a date without end, as PostgreSQL and DuckDB write it.
pub fn is_infinite(text: &str) -> bool {
    text.strip_prefix('-').unwrap_or(text).eq_ignore_ascii_case("infinity")
}

/// The seven parts of a moment since 1970, in the order of [`PARTS`]; Monday is weekday 0.
pub fn parts(seconds: f64) -> [f32; 7] {
    let days = (seconds / DAY_S as f64).floor();
    let of_day = seconds - days * DAY_S as f64;
    let date = date_of_days(days as i64);
    let (hour, minute) = ((of_day / 3600.0).floor(), (of_day / 60.0).floor());
    [
        date.year() as f32,
        date.month() as f32,
        date.day() as f32,
        date.weekday().num_days_from_monday() as f32,
        hour as f32,
        (minute - 60.0 * hour) as f32,
        (of_day - 60.0 * minute) as f32,
    ]
}

/// A moment as text that [`parse`] reads: `2024-05-31`, with a time unless `is_date`.
pub fn format(seconds: i64, nanoseconds: u32, is_date: bool) -> String {
    let date = date_of_days(seconds.div_euclid(DAY_S));
    let year = match date.year() {
        year @ 0..=9999 => format!("{year:04}"),
        year => format!("{year:+07}"),
    };
    let date = format!("{year}-{:02}-{:02}", date.month(), date.day());
    if is_date { date } else { format!("{date} {}", format_time(seconds.rem_euclid(DAY_S), nanoseconds)) }
}

/// A time of day as text that [`parse`] reads.
pub fn format_time(seconds: i64, nanoseconds: u32) -> String {
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let time = format!("{hour:02}:{minute:02}:{second:02}");
    match nanoseconds {
        0 => time,
        _ => format!("{time}.{}", format!("{nanoseconds:09}").trim_end_matches('0')),
    }
}

/// Seconds since 1970, or since midnight without `has_date`, as text; a moment at midnight is a date.
pub fn format_seconds(seconds: f64, has_date: bool) -> String {
    let whole = seconds.floor();
    let nanoseconds = ((seconds - whole) * 1e9) as u32;
    if has_date {
        format(whole as i64, nanoseconds, nanoseconds == 0 && whole as i64 % DAY_S == 0)
    } else {
        format_time(whole as i64, nanoseconds)
    }
}

/// A text that was taken apart.
#[derive(Default)]
struct Parsed<'a> {
    /// Days since 1970.
    days: i64,
    /// Whole seconds since midnight.
    of_day: i64,
    /// Digits of the fraction of a second.
    fraction: &'a str,
    /// Seconds by which the text is ahead of UTC.
    offset: i64,
    has_date: bool,
    has_time: bool,
    has_offset: bool,
}

/// The rest of a text.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    fn parsed(text: &'a str) -> Option<Parsed<'a>> {
        let mut text = Text(text.as_bytes());
        // Most texts are neither: decide fast.
        if !matches!(
            text.0,
            [b'0'..=b'9', b'0'..=b'9', b':' | b'.', ..]
                | [_, _, _, _, b'-', ..]
                | [b'+' | b'-', _, _, _, _, _, _, b'-', ..]
        ) {
            return None;
        }
        let mut parsed = Parsed::default();
        if text.0[2] == b':' {
            text.time(&mut parsed)?;
        } else {
            parsed.days = text.date()?;
            parsed.has_date = true;
            if let [b'T' | b't' | b' ', rest @ ..] = text.0 {
                text.0 = rest;
                text.time(&mut parsed)?;
                parsed.has_offset = !text.0.is_empty();
                parsed.offset = text.offset()?;
            }
        }
        text.0.is_empty().then_some(parsed)
    }

    /// A number of exactly `n` digits.
    fn digits(&mut self, n: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        digits.iter().try_fold(0, |number, digit| {
            digit.is_ascii_digit().then(|| 10 * number + i64::from(digit - b'0'))
        })
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    /// Days since 1970 of `2024-05-31` or `31.05.2024`, which are equally long, or of `+012024-05-31`. With points the day always comes first; with slashes
    /// it may be the month, so that no such text is a date.
    fn date(&mut self) -> Option<i64> {
        let is_german = self.0.get(2) == Some(&b'.');
        let sign = self.0.first().copied().filter(|sign| matches!(sign, b'+' | b'-'));
        let (separator, n_digits) = match sign {
            Some(sign) => {
                self.take(sign)?;
                (b'-', [6, 2, 2])
            }
            None if is_german => (b'.', [2, 2, 4]),
            None => (b'-', [4, 2, 2]),
        };
        let first = self.digits(n_digits[0])?;
        self.take(separator)?;
        let month = self.digits(n_digits[1])?;
        self.take(separator)?;
        let last = self.digits(n_digits[2])?;
        let first = if sign == Some(b'-') { -first } else { first };
        let (year, day) = if is_german { (last, first) } else { (first, last) };
        let date = NaiveDate::from_ymd_opt(year as i32, month as u32, day as u32)?;
        Some(date.to_epoch_days().into())
    }

    /// Parses `12:30`, `12:30:15` or `12:30:15.250`. A leap second is a second of the next minute.
    fn time(&mut self, parsed: &mut Parsed<'a>) -> Option<()> {
        let hour = self.digits(2)?;
        self.take(b':')?;
        let minute = self.digits(2)?;
        let mut second = 0;
        if self.take(b':').is_some() {
            second = self.digits(2)?;
            if let [b'.' | b',', rest @ ..] = self.0 {
                let n = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let (digits, rest) = rest.split_at(n);
                parsed.fraction = std::str::from_utf8(digits).ok().filter(|digits| !digits.is_empty())?;
                self.0 = rest;
            }
        }
        parsed.of_day = 3600 * hour + 60 * minute + second;
        parsed.has_time = true;
        (hour < 24 && minute < 60 && second <= 60).then_some(())
    }

    /// Seconds of `Z`, `UTC`, `GMT`, `+02:00`, `+0200` or `+02`; 0 for none.
    fn offset(&mut self) -> Option<i64> {
        if let [b' ', rest @ ..] = self.0
            && !rest.is_empty()
        {
            self.0 = rest;
        }
        let sign = match self.0 {
            [] => return Some(0),
            [b'Z' | b'z'] | b"UTC" | b"GMT" => {
                self.0 = &[];
                return Some(0);
            }
            [b'+', ..] => 1,
            [b'-', ..] => -1,
            _ => return None,
        };
        self.0 = &self.0[1..];
        let hours = self.digits(2)?;
        if !self.0.is_empty() {
            let _ = self.take(b':');
        }
        let minutes = if self.0.is_empty() { 0 } else { self.digits(2)? };
        (hours < 24 && minutes < 60).then_some(sign * (3600 * hours + 60 * minutes))
    }
}

/// The date of a day since 1970; a day beyond the calendar counts as its first or last one, some 262,000 years away.
fn date_of_days(days: i64) -> NaiveDate {
    let nearest = if days < 0 { NaiveDate::MIN } else { NaiveDate::MAX };
    i32::try_from(days).ok().and_then(NaiveDate::from_epoch_days).unwrap_or(nearest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::values::time::*;

    fn seconds(text: &str) -> Option<f64> {
        parse(text).map(|moment| moment.seconds)
    }

    #[test]
    fn usual_notations() {
        for (text, expected) in [
            ("1970-01-01", 0.0),
            ("1969-12-31", -86_400.0),
            ("2024-02-29", 1_709_164_800.0),
            ("2024-05-31 12:30", 1_717_158_600.0),
            ("2024-05-31T12:30:15", 1_717_158_615.0),
            ("2024-05-31T12:30:15.250", 1_717_158_615.25),
            ("2024-05-31 12:30:15+00:00", 1_717_158_615.0),
            ("2024-05-31T14:30:15+02:00", 1_717_158_615.0),
            ("2024-05-31T14:30:15 +0200", 1_717_158_615.0),
            ("2024-05-31T07:30:15-05", 1_717_158_615.0),
            ("2024-05-31T12:30:15Z", 1_717_158_615.0),
            ("0001-01-01", -62_135_596_800.0),
            ("9999-12-31", 253_402_214_400.0),
            ("31.12.9999", 253_402_214_400.0),
            ("29.02.2024", 1_709_164_800.0),
            ("31.05.2024 12:30", 1_717_158_600.0),
            ("+010000-01-01", 253_402_300_800.0),
            ("-000044-03-15 12:00", -63_549_316_800.0),
        ] {
            let moment = parse(text).map(|moment| (moment.seconds, moment.has_date));
            assert_eq!(moment, Some((expected, true)), "{text}");
        }
        assert_eq!(
            parse("12:30:15.5").map(|moment| (moment.seconds, moment.has_date)),
            Some((45_015.5, false))
        );
        assert_eq!(seconds("00:00"), Some(0.0));
    }

    #[test]
    fn other_texts_are_none() {
        for text in [
            "",
            "2024",
            "2024-",
            "2024-5-31",
            "2024-13-01",
            "2023-02-29",
            "2024-00-10",
            "2024-01-32",
            "31.13.2024",
            "29.02.2023",
            "31.05.24",
            "1.5.2024",
            "05/31/2024",
            "31.05-2024",
            "10.20.3000.4",
            "2024-05-31x",
            "2024-05-31 ",
            "2024-05-31T",
            "2024-05-31 25:00",
            "2024-05-31 12:60",
            "12:3",
            "12:30:",
            "12:30:15.",
            "24:00",
            "12:30 pm",
            "2024-05-31T12:30+2",
            "2024-05-31T12:30+25:00",
            "-2024-05-31",
            "2024-05-31 12:30 CEST",
            "2024-05-31 UTC",
            "P",
            "PT",
            "P1",
            "P1M",
            "PT1S2H",
            "PS",
            "PT1.S2",
            "1 day ago",
            "3 days ",
            "x days",
            "+2024-05-31",
            "+0a2024-05-31",
            "1234-567",
            "a:b",
            "é:30",
            "20:é",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_seconds() {
        for (text, expected) in [
            ("PT90S", 90.0),
            ("P0DT0H1M30S", 90.0),
            ("P1DT2H3M4.5S", 93_784.5),
            ("-PT0.25S", -0.25),
            ("P2W", 1_209_600.0),
            ("1 days 00:01:30", 86_490.0),
            ("0 days 00:00:00.250000", 0.25),
            ("-1 days +23:58:30", -90.0),
            ("1 days", 86_400.0),
        ] {
            let moment = parse(text).map(|moment| (moment.seconds, moment.has_date, moment.is_duration));
            assert_eq!(moment, Some((expected, false, true)), "{text}");
        }
    }

    #[test]
    fn names_of_utc_are_offsets_of_zero() {
        for text in ["2024-05-31 12:30:15 UTC", "2024-05-31T12:30:15GMT", "2024-05-31 12:30:15.000 UTC"] {
            let moment = parse(text).map(|moment| (moment.seconds, moment.has_offset));
            assert_eq!(moment, Some((1_717_158_615.0, true)), "{text}");
        }
    }

    #[test]
    fn both_notations_of_a_date_are_the_same_exactly() {
        for (points, iso) in
            [("31.05.2024", "2024-05-31"), ("01.12.1969 08:15:00.25", "1969-12-01T08:15:00.25")]
        {
            let moment = parse(points);
            assert!(moment.is_some() && moment == parse(iso), "{points}");
        }
    }

    #[test]
    fn parts_of_a_moment() {
        let of = |text: &str| parts(seconds(text).unwrap());
        assert_eq!(of("2024-05-31T12:30:15.5"), [2024.0, 5.0, 31.0, 4.0, 12.0, 30.0, 15.5]);
        assert_eq!(of("1969-12-31T23:59:59"), [1969.0, 12.0, 31.0, 2.0, 23.0, 59.0, 59.0]);
    }

    proptest! {
        #[test]
        fn texts_of_moments_are_read_back(seconds in -8_000_000_000_000i64..8_000_000_000_000, nanoseconds in 0u32..1_000_000_000) {
            let moment = parse(&format(seconds, nanoseconds, false)).unwrap();
            let want = seconds as f64 + f64::from(nanoseconds) / 1e9;
            prop_assert!((moment.seconds - want).abs() < 2e-3 && moment.has_date);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,30}", date in "[0-9:. TZ+-]{0,30}") {
            let _ = (parse(&text), parse(&date));
        }
    }
}
