//! Conditions on single cells, and errors of their texts.

use super::*;
use crate::values::number::DecimalMark;

/// Whether a row with the cell `x`, and `y` of 1, is kept.
fn keeps(filter: &str, x: &str) -> bool {
    let filter: Filter = filter.parse().unwrap_or_else(|error| panic!("{filter}: {error}"));
    let notation = Notation::new(DecimalMark::Point, &["-9".to_owned()]);
    let cell = |column: usize| Cell::Text(if filter.columns()[column] == "x" { x.as_bytes() } else { b"1" });
    let keeps = filter.keeps(&cell, &notation).unwrap();
    // A number that a file holds as one.
    if let Some(number) =
        x.parse().ok().filter(|of: &f64| of.to_string() == x && of.abs() < 1e15 && *of != -9.0)
    {
        let cell = |column: usize| Cell::Number(if filter.columns()[column] == "x" { number } else { 1.0 });
        assert_eq!(filter.keeps(&cell, &notation), Ok(keeps), "{x} as a number");
    }
    keeps
}

#[track_caller]
fn assert_kept(filter: &str, kept: &[&str], others: &[&str]) {
    for x in kept {
        assert!(keeps(filter, x), "{filter} of {x:?}");
    }
    for x in others {
        assert!(!keeps(filter, x), "{filter} of {x:?}");
    }
}

#[test]
fn numbers_compare_by_value() {
    assert_kept("x >= 18", &["18", "18.0", " 19 ", "1e2"], &["17.9", "", "NA", "old", "-9"]);
    assert_kept("x != -2.5", &["1", "-2.4"], &["-2.50", "NaN"]);
    assert_kept("x < 1_000", &["999", "False"], &["1000", "2024-05-01"]);
    assert_kept("x = true", &["yes", "True", "1"], &["no", "0", ""]);
}

#[test]
fn texts_compare_by_their_spelling_and_dates_by_time() {
    assert_kept("x != 'DE'", &["FR", "de", "NA"], &["DE", " DE ", "", "-9"]);
    assert_kept("x = '7'", &["7", "7.0"], &["07", "7.5"]);
    assert_kept("x = 'it''s'", &["it's"], &["its"]);
    let day = "x >= '2024-05-31'";
    assert_kept(day, &["2024-05-31", "31.05.2024", "2024-06-01T00:00:00Z"], &["2024-05-30", "soon", ""]);
}

#[test]
fn values_of_one_meaning_are_equal_in_each_spelling() {
    // 2^53 + 1 is no f64.
    assert_kept("x = 9007199254740993", &["9007199254740993"], &["9007199254740992", "9007199254740994"]);
    assert_kept(
        "x in (9007199254740993, 0, -0.0)",
        &["9007199254740993", "0", "-0"],
        &["9007199254740992", "1"],
    );
    // Written with an exponent, as some programs write what f64 holds.
    let large = ["1.5e+18", "1500000000000000000", "2e19"];
    assert_kept("x > 50", &large, &["50", "-1.5e+18"]);
    assert_kept("x != 3", &large, &["3", "3e0", ""]);
    assert_kept("x in (1500000000000000000, 2)", &["1.5e+18", "2"], &["2e19"]);
    assert_kept("x = 'True'", &["true", "TRUE", "yes"], &["False", "no", "maybe"]);
    assert_kept("x != 'True'", &["false", "maybe"], &["true", ""]);
    assert_kept("x < '2000-01-01'", &["1999-12-31"], &["12:30", "P1D", "2000-01-01"]);
    assert_kept("x in ('2024-05-31', 'soon')", &["31.05.2024", "soon"], &["2024-05-30", "12:30", ""]);
    assert_kept("x not in ('2024-05-31')", &["2024-05-30"], &["31.05.2024", "12:30", "soon", ""]);
    let filter: Filter = "x > 0 and x != 'a'".parse().unwrap();
    let unclear = Notation::new(DecimalMark::Unclear, &[]);
    let error = filter.keeps(&|_| Cell::Text(b"1,001"), &unclear).unwrap_err();
    assert_eq!(error, UnclearCell { column: 0, text: "1,001".to_owned() });
}

#[test]
fn conditions_combine_as_in_sql() {
    assert_kept("x > 1 and x < 3 or x = 9", &["2", "9"], &["1", "3"]);
    assert_kept("not (x > 1 or y = 2)", &["1"], &["2", ""]);
    assert_kept("x in (1, 2, 'c')", &["1", "2.0", "c"], &["3", ""]);
    assert_kept("x not in (1, 2)", &["3"], &["1", "", "c"]);
    assert_kept("x is missing", &["", "NA", "-9"], &["0", "a"]);
    assert_kept("X IS NOT NULL".replace('X', "x").as_str(), &["0", "a"], &["", "NA"]);
    // A missing value decides only where the others do not.
    assert_kept("x > 1 or y = 1", &["", "2", "0"], &[]);
    assert_kept("not (x > 1 and y = 2)", &["", "5"], &[]);
}

#[test]
fn names_of_columns_may_be_quoted() {
    let filter: Filter =
        "\"unit price\" > 1 and \"a\"\"b\" = 1 and größe = 1 and \"unit price\" < 9".parse().unwrap();
    assert_eq!(filter.columns(), ["unit price", "a\"b", "größe"]);
}

#[test]
fn errors_name_the_place() {
    for (text, want) in [
        ("", "expected a column (its name in double quotes, where it is no plain word) at its end"),
        ("age", "expected =, !=, <, <=, >, >=, in, or is missing at its end"),
        ("age > ", "expected a number, a text in single quotes, true or false at its end"),
        ("age > DE", "expected a number, a text in single quotes, true or false at `DE`"),
        ("age > 'DE", "expected a number, a text in single quotes, true or false at `'DE`"),
        ("age > 1 country = 'DE'", "expected and, or, or the end at `country = 'DE'`"),
        ("(age > 1", "expected `)` at its end"),
        ("age in 1", "expected `(` before the values at `1`"),
        ("age is 1", "expected missing at `1`"),
        (
            "18 < age",
            "expected a column (its name in double quotes, where it is no plain word) at `18 < age`",
        ),
        ("age < inf", "expected a number, a text in single quotes, true or false at `inf`"),
    ] {
        assert_eq!(text.parse::<Filter>().unwrap_err().to_string(), want, "{text}");
    }
    assert!("not ".repeat(1000).parse::<Filter>().is_err());
    assert!("(".repeat(100_000).parse::<Filter>().is_err());
}

#[test]
fn kept_rows_are_counted() {
    let filter: Filter = "x = 1".parse().unwrap();
    for cell in ["1", "2", ""] {
        filter.keeps(&|_| Cell::Text(cell.as_bytes()), &Notation::for_folders()).unwrap();
    }
    assert_eq!((filter.take_counts(), filter.take_counts()), ((1, 3), (0, 0)));
}
