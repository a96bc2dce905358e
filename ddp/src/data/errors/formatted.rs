//! Recognises numbers and dates that are formatted for people, `$40,551`, `12 %`, `80 m²`, `5/31/2024`, and says how to rewrite
//! them.

/// Currencies in front of numbers or after them.
const CURRENCIES: [&str; 34] = [
    "$", "€", "£", "¥", "₹", "₽", "₩", "₺", "₴", "₪", "฿", "US$", "A$", "C$", "R$", "kr", "kr.", "zł", "Kč",
    "Ft", "Fr.", "Rs", "Rs.", "USD", "EUR", "GBP", "CHF", "JPY", "CNY", "INR", "SEK", "NOK", "DKK", "PLN",
];
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
/// Marks between groups of three digits: comma, point, apostrophes and spaces.
const GROUP_MARKS: [char; 7] = [',', '.', '\'', '’', ' ', '\u{a0}', '\u{202f}'];
/// Longer texts are sentences.
const MAX_BYTES: usize = 40;
const MAX_UNIT_CHARS: usize = 6;

/// Texts of a column that are read as numbers or dates.
#[derive(Debug, Default)]
pub struct FormattedTexts {
    numbers: Numbers,
    dates: Dates,
}

#[derive(Debug, Default)]
struct Numbers {
    n: u64,
    /// The text before all numbers that have one, and that after them.
    affixes: [String; 2],
    /// Whether affixes differ, so that the numbers can't be compared.
    is_mixed: bool,
    group: Option<char>,
    has_decimal_comma: bool,
    has_brackets: bool,
}

#[derive(Debug, Default)]
struct Dates {
    n: u64,
    has_year_first: bool,
    has_names: bool,
    /// With points between its fields a date begins with the day.
    has_points: bool,
    /// Largest first and second field.
    max: [u32; 2],
}

/// A number in a text.
#[derive(Debug, PartialEq)]
struct Decorated<'a> {
    affixes: [&'a str; 2],
    group: Option<char>,
    has_decimal_comma: bool,
    has_brackets: bool,
}

/// The fields of a date in a text.
#[derive(Debug, PartialEq)]
enum Fields {
    /// The year comes last, after the day and the month in either order.
    YearLast {
        fields: [u32; 2],
        has_points: bool,
    },
    YearFirst,
    /// The month is a word.
    Named,
}

impl FormattedTexts {
    /// Adds a text that is neither number nor date as it stands.
    pub fn add(&mut self, text: &str) {
        if text.len() > MAX_BYTES || !text.bytes().any(|byte| byte.is_ascii_digit()) {
            return;
        }
        if let Some(fields) = date(text) {
            self.dates.add(&fields);
        } else if !self.numbers.is_mixed
            && let Some(number) = number(text)
        {
            self.numbers.add(&number);
        }
    }

    /// The format of a column where nearly all of its `n_texts` texts have it, and the line of pandas that undoes it.
    pub fn of_column(&self, name: &str, n_texts: u64) -> Option<(String, String)> {
        let are_most = |n: u64| n > 0 && 10 * n >= 9 * n_texts;
        if are_most(self.numbers.n) && !self.numbers.is_mixed {
            Some((self.numbers.words(), self.numbers.remedy(name)))
        } else if are_most(self.dates.n) && !self.dates.are_impossible() {
            Some(("dates that are not written as 2024-05-31".to_owned(), self.dates.remedy(name)))
        } else {
            None
        }
    }
}

/// The format of `text` and the line of pandas that undoes it in column `name`, as of a column of this text alone.
pub(crate) fn of_text(name: &str, text: &str) -> Option<(String, String)> {
    let mut texts = FormattedTexts::default();
    texts.add(text);
    texts.of_column(name, 1)
}

/// Type of the values of a column that a file stores as texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextType {
    /// Numbers with units, signs or separators.
    Numbers,
    /// Dates or times.
    Dates,
}

/// Same as [`FormattedTexts::of_column`], for a column that a file stores as texts although they need no rewriting.
pub fn stored_as_text(name: &str, of: TextType) -> (String, String) {
    let column = column(name);
    match of {
        TextType::Numbers => {
            ("numbers that are stored as text".to_owned(), format!("{column} = pd.to_numeric({column})"))
        }
        TextType::Dates => {
            ("dates that are stored as text".to_owned(), format!("{column} = pd.to_datetime({column})"))
        }
    }
}

impl Numbers {
    fn add(&mut self, number: &Decorated<'_>) {
        self.n += 1;
        for (known, affix) in self.affixes.iter_mut().zip(number.affixes) {
            if known.is_empty() {
                affix.clone_into(known);
            }
            self.is_mixed |= !affix.is_empty() && *known != affix;
        }
        self.group = self.group.or(number.group);
        self.has_decimal_comma |= number.has_decimal_comma;
        self.has_brackets |= number.has_brackets;
    }

    /// The mark between groups, unless it is the decimal mark of other values.
    fn group(&self) -> Option<char> {
        self.group.filter(|mark| !(*mark == ',' && self.has_decimal_comma))
    }

    fn words(&self) -> String {
        let [prefix, suffix] = &self.affixes;
        let mut with = Vec::new();
        if !prefix.is_empty() {
            with.push(format!("\"{prefix}\""));
        }
        if !suffix.is_empty() {
            with.push(format!("\"{suffix}\""));
        }
        if self.group().is_some() {
            with.push("thousands separators".to_owned());
        }
        if self.has_decimal_comma {
            with.push("a decimal comma".to_owned());
        }
        if self.has_brackets {
            with.push("brackets for a minus".to_owned());
        }
        format!("numbers with {}", with.join(" and "))
    }

    fn remedy(&self, name: &str) -> String {
        let column = column(name);
        let mut text = column.clone();
        let mut replace = |from: &str, to: &str| {
            text += &format!(".str.replace({}, {})", python(from), python(to));
        };
        for affix in self.affixes.iter().filter(|affix| !affix.is_empty()) {
            replace(affix, "");
        }
        if let Some(mark) = self.group() {
            replace(&mark.to_string(), "");
        }
        if self.has_decimal_comma {
            replace(",", ".");
        }
        if self.has_brackets {
            replace("(", "-");
            replace(")", "");
        }
        format!("{column} = pd.to_numeric({text})")
    }
}

impl Dates {
    fn add(&mut self, fields: &Fields) {
        self.n += 1;
        match fields {
            Fields::YearLast { fields, has_points } => {
                self.has_points |= has_points;
                self.max = [self.max[0].max(fields[0]), self.max[1].max(fields[1])];
            }
            Fields::YearFirst => self.has_year_first = true,
            Fields::Named => self.has_names = true,
        }
    }

    /// Whether neither order of day and month fits all values.
    fn are_impossible(&self) -> bool {
        self.max[0] > 12 && self.max[1] > 12
    }

    fn remedy(&self, name: &str) -> String {
        let column = column(name);
        let order = match self.max {
            _ if self.has_year_first || self.has_names => "",
            [first, _] if first > 12 => ", dayfirst=True",
            [_, second] if second > 12 => "",
            _ if self.has_points => ", dayfirst=True",
            // No value says which field is the day.
            _ => {
                return format!(
                    "{column} = pd.to_datetime({column}, dayfirst=True), or False if the month comes first"
                );
            }
        };
        format!("{column} = pd.to_datetime({column}{order})")
    }
}

/// A column of a data frame.
fn column(name: &str) -> String {
    format!("df[{}]", python(name))
}

/// A Python string.
fn python(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The number in a text with something around or between its digits; `None` for plain numbers too.
fn number(text: &str) -> Option<Decorated<'_>> {
    let text = text.trim();
    let (inner, has_brackets) = match text.strip_prefix('(').and_then(|text| text.strip_suffix(')')) {
        Some(inner) => (inner, true),
        None => (text, false),
    };
    let start = inner.find(|c: char| c.is_ascii_digit())?;
    let end = inner[start..].find(|c: char| !c.is_ascii_digit() && !GROUP_MARKS.contains(&c));
    let end = end.map_or(inner.len(), |end| start + end);
    let body = inner[start..end].trim_end();
    let signs = ['+', '-', '\u{2212}'];
    let prefix = inner[..start].trim().trim_start_matches(signs).trim_end_matches(signs).trim();
    let suffix = inner[start + body.len()..].trim();
    let is_currency = |text: &str| CURRENCIES.contains(&text);
    if !(prefix.is_empty() || is_currency(prefix))
        || !(suffix.is_empty() || is_currency(suffix) || is_unit(suffix))
    {
        return None;
    }
    let (group, has_decimal_comma) = marks(body)?;
    let affixes = [prefix, suffix];
    let is_plain = affixes.iter().all(|affix| affix.is_empty()) && group.is_none() && !has_decimal_comma;
    (!is_plain || has_brackets).then_some(Decorated { affixes, group, has_decimal_comma, has_brackets })
}

/// Whether a text is a percent sign or a short unit, such as `m²`, `m2` and `km/h`.
fn is_unit(text: &str) -> bool {
    let letters = text.strip_suffix(['2', '3', '²', '³']).unwrap_or(text);
    let is_of_units = |c: char| c.is_alphabetic() || matches!(c, '/' | '°' | '%' | '‰' | 'µ');
    !letters.is_empty() && text.chars().count() <= MAX_UNIT_CHARS && letters.chars().all(is_of_units)
}

/// The mark between groups of three digits, and whether a comma is the decimal mark; `None` if the marks make no number.
fn marks(body: &str) -> Option<(Option<char>, bool)> {
    let fields: Vec<&str> = body.split(GROUP_MARKS).collect();
    let marks: Vec<char> = body.chars().filter(|c| !c.is_ascii_digit()).collect();
    if fields.iter().any(|field| field.is_empty()) {
        return None;
    }
    let are_groups =
        |fields: &[&str]| fields[0].len() <= 3 && fields[1..].iter().all(|group| group.len() == 3);
    let is_decimal = |mark: char| matches!(mark, '.' | ',');
    match &marks[..] {
        [] => Some((None, false)),
        ['.'] => Some((None, false)),
        [mark] if are_groups(&fields) => Some((Some(*mark), false)),
        [','] => Some((None, true)),
        [first, others @ ..] => {
            let (last, between) = others.split_last()?;
            let is_repeated = between.iter().all(|mark| mark == first);
            if is_repeated && last == first && are_groups(&fields) {
                return Some((Some(*first), false));
            }
            let are_grouped = is_repeated && are_groups(&fields[..fields.len() - 1]);
            (are_grouped && last != first && is_decimal(*last)).then_some((Some(*first), *last == ','))
        }
    }
}

/// The fields of a date in another notation than ISO 8601, perhaps with a time.
fn date(text: &str) -> Option<Fields> {
    let is_mark = |c: char| matches!(c, '/' | '.' | '-');
    let (day, time) = match text.find(':') {
        // The time is the word with the colon, and what follows.
        Some(colon) => text.split_at(text[..colon].rfind([' ', 'T'])?),
        None => (text, ""),
    };
    if time.len() > 20 {
        return None;
    }
    let day = day.trim().trim_end_matches(',');
    let words: Vec<&str> = day.split([' ', ',', '-']).filter(|word| !word.is_empty()).collect();
    if let [first, second, year] = words[..] {
        let is_month = |word: &str| {
            word.len() <= 10
                && word.chars().all(char::is_alphabetic)
                && MONTHS.iter().any(|month| word.to_lowercase().starts_with(month))
        };
        let is_day = |word: &str| word.parse::<u32>().is_ok_and(|day| (1..=31).contains(&day));
        let is_year = matches!(year.len(), 2 | 4) && year.bytes().all(|byte| byte.is_ascii_digit());
        if is_year && (is_month(first) && is_day(second) || is_month(second) && is_day(first)) {
            return Some(Fields::Named);
        }
    }
    let mark = day.chars().find(|c| !c.is_ascii_digit()).filter(|c| is_mark(*c))?;
    let fields: Vec<&str> = day.split(mark).collect();
    let [first, second, third] = fields[..] else { return None };
    let number =
        |field: &str| field.bytes().all(|byte| byte.is_ascii_digit()).then(|| field.parse::<u32>().ok())?;
    let [a, b, c] = [number(first)?, number(second)?, number(third)?];
    let is_short = |field: &str| matches!(field.len(), 1 | 2);
    let is_day_and_month = |a: u32, b: u32| (1..=31).contains(&a) && (1..=31).contains(&b) && a.min(b) <= 12;
    if first.len() == 4 && is_short(second) && is_short(third) && is_day_and_month(b, c) {
        Some(Fields::YearFirst)
    } else if is_short(first)
        && is_short(second)
        && matches!(third.len(), 2 | 4)
        && is_day_and_month(a, b)
        && (third.len() == 2 || (1000..3000).contains(&c))
    {
        Some(Fields::YearLast { fields: [a, b], has_points: mark == '.' })
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::data::errors::formatted::*;

    /// The words and the remedy for a column `c` of these texts.
    fn of(texts: &[&str]) -> Option<(String, String)> {
        let mut formatted = FormattedTexts::default();
        texts.iter().for_each(|text| formatted.add(text));
        formatted.of_column("c", texts.len() as u64)
    }

    #[test]
    fn formatted_numbers_are_found() {
        for (texts, words, remedy) in [
            (
                &["$40,551.50", "$5,793.00", "-$7.25"][..],
                "\"$\" and thousands separators",
                r#".str.replace("$", "").str.replace(",", "")"#,
            ),
            (&["12 %", "7.5%"], "\"%\"", r#".str.replace("%", "")"#),
            (
                &["80 m²", "1,200.5 m²"],
                "\"m²\" and thousands separators",
                r#".str.replace("m²", "").str.replace(",", "")"#,
            ),
            (&["80 m2"], "\"m2\"", r#".str.replace("m2", "")"#),
            (&["40,551", "1,234,567"], "thousands separators", r#".str.replace(",", "")"#),
            (
                &["1.234,5 €", "7,25 €", "3 €"],
                "\"€\" and thousands separators and a decimal comma",
                r#".str.replace("€", "").str.replace(".", "").str.replace(",", ".")"#,
            ),
            (
                &["0,125 kg", "12,5 kg"],
                "\"kg\" and a decimal comma",
                r#".str.replace("kg", "").str.replace(",", ".")"#,
            ),
            (
                &["1'234 Fr."],
                "\"Fr.\" and thousands separators",
                r#".str.replace("Fr.", "").str.replace("'", "")"#,
            ),
            (
                &["(1,234)", "2,500"],
                "thousands separators and brackets for a minus",
                r#".str.replace(",", "").str.replace("(", "-").str.replace(")", "")"#,
            ),
        ] {
            let remedy = format!("df[\"c\"] = pd.to_numeric(df[\"c\"]{remedy})");
            assert_eq!(of(texts), Some((format!("numbers with {words}"), remedy)), "{texts:?}");
        }
    }

    #[test]
    fn formatted_dates_are_found() {
        for (texts, remedy) in [
            (&["5/31/2024", "12/1/2024 10:30 PM"][..], ""),
            (&["31/05/24", "01/12/24"], ", dayfirst=True"),
            (&["1.5.2024", "3.4.2024"], ", dayfirst=True"),
            (&["2024/05/31", "2024/12/01 08:00:00"], ""),
            (&["31 May 2024", "1 December 2024"], ""),
            (&["May 31, 2024", "Dec 1, 2024"], ""),
            (&["31-May-24"], ""),
        ] {
            let remedy = format!("df[\"c\"] = pd.to_datetime(df[\"c\"]{remedy})");
            assert_eq!(of(texts).map(|(_, remedy)| remedy), Some(remedy), "{texts:?}");
        }
        let (words, remedy) = of(&["1/5/2024", "12/4/2024"]).unwrap();
        assert_eq!(words, "dates that are not written as 2024-05-31");
        assert!(remedy.ends_with("dayfirst=True), or False if the month comes first"), "{remedy}");
    }

    #[test]
    fn other_texts_are_words() {
        for texts in [
            &["A/5 21171", "PC 17599", "113803"][..],
            &["12A", "12B"],
            &["$5", "€5"],
            &["user 7"],
            &["id-7"],
            &["1.2.3"],
            &["1,2,3"],
            &["12,34,567"],
            &["31/31/2024"],
            &["31/05/2024", "05/31/2024"],
            &["10.0.0.1"],
            &["7 of nine men"],
            &["3,"],
            &[",5 %"],
            &["Bern", "80 m²", "Oslo"],
            &["é1"],
            &["%"],
        ] {
            assert_eq!(of(texts), None, "{texts:?}");
        }
    }
}
