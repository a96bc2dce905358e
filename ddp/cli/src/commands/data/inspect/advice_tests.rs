//! The advice on dates, formatted numbers, identifiers and constants, and the config that follows it.

use super::column_profile::Kind;
use super::suggestion_tests::train_a_step;
use super::tests::{Files, args, inspect_text, kinds, message, noise, rows};
use super::warning::WarningKind;
use super::{inspect, profile as profile_of};

/// The config that is suggested for a table with a column `y` to predict; it must train.
#[track_caller]
fn section(text: &str) -> String {
    let files = Files::new(&[("rows.csv", text)]);
    let profile = files.inspect("rows.csv", &["--target", "y"]).unwrap();
    let loss = train_a_step(&files, &profile);
    assert!(loss.as_ref().is_ok_and(|loss| loss.is_finite()), "{loss:?}\n{}", profile.data_section);
    profile.data_section
}

/// A day of 2020 or after it.
fn day(row: usize) -> String {
    format!("20{:02}-{:02}-{:02}", 20 + row / 336, row / 28 % 12 + 1, row % 28 + 1)
}

#[test]
fn dates_are_no_identifiers_but_features_in_parts() {
    let pointed = |row: usize| day(row).split('-').rev().collect::<Vec<_>>().join(".");
    let text = rows("date,german,epoch,y", 400, |n| {
        format!("{},{},{},{}", day(n), pointed(n + 1), 1_577_836_800 + 86_400 * n, noise(n))
    });
    let profile = inspect_text(&text, &["--target", "y"]);
    assert_eq!(kinds(&profile), []);
    assert_eq!([profile.columns[0].kind, profile.columns[1].kind], [Kind::Date; 2]);
    let section = section(&text);
    assert!(section.contains("datetime = \"parts\"") && !section.contains("drop"), "{section}");
    // In two weeks no weekday comes again.
    let text = rows("date,y", 40, |n| format!("2024-05-01 {:02}:00,{}", n % 24, noise(n)));
    assert!(!self::section(&text).contains("datetime"));
    // A feature has the name of a part.
    let text = rows("date,date.year,y", 400, |n| format!("{},{},{}", day(n), n % 7, noise(n)));
    assert!(!self::section(&text).contains("datetime"));
}

#[test]
fn times_of_day_among_dates_have_no_parts() {
    let text = rows("date,mixed,y", 60, |n| match n % 5 {
        4 => format!("{},12:{n:02},{}", day(n), noise(n)),
        _ => format!("{},{},{}", day(n), day(7 * n), noise(n)),
    });
    assert!(!section(&text).contains("datetime"));
}

#[test]
fn formatted_numbers_are_named() {
    let text = rows("area,mileage,when,x,y", 60, |n| {
        format!(
            "{n}.5 m\u{b2},\"{},{:03}\",{}/{}/2024,{},{}",
            n + 1,
            16 * n,
            n % 12 + 1,
            n % 28 + 1,
            noise(n),
            noise(n + 99)
        )
    });
    let profile = inspect_text(&text, &["--target", "y"]);
    let found: Vec<&str> = profile.warnings.iter().map(|warning| warning.message.as_str()).collect();
    assert_eq!(kinds(&profile)[..3], [WarningKind::Formatted; 3], "{found:?}");
    assert_eq!(
        found[0],
        "area seems to hold numbers or dates as text, like \"0.5 m\u{b2}\" in line 2: write numbers as 1234.5 and dates as \
         2024-05-31"
    );
    assert!(found[1].contains("like \"1,000\" in line 2"), "{found:?}");
    let section = section(&text);
    assert!(
        section.contains("drop = [\"area\", \"mileage\", \"when\"]") && !section.contains("categorical"),
        "{section}"
    );

    // Few values are names, whatever they look like.
    let text = rows("size,x,y", 60, |n| format!("{} cm,{},{} kg", n % 4, noise(n), n % 3));
    let profile = inspect_text(&text, &["--target", "y"]);
    assert_eq!(kinds(&profile), [WarningKind::Formatted, WarningKind::FewRows]);
    assert!(profile.data_section.contains("categorical = [\"size\"]"), "{}", profile.data_section);

    let text = rows("x,y", 120, |n| format!("{},\"${},000\"", noise(n), n % 40 + 1));
    let profile = inspect_text(&text, &["--target", "y"]);
    let found = message(&profile, WarningKind::TargetText);
    assert!(found.starts_with("y seems to hold numbers or dates as text, like \"$1,000\""), "{found}");
    assert_eq!(kinds(&profile), [WarningKind::TargetText]);
}

#[test]
fn numbers_far_outside_may_mark_missing_values() {
    let text = rows("x,far,score,two,y", 120, |n| {
        let far = if n % 9 == 0 { -999.0 } else { noise(n) * 40.0 };
        format!("{},{far},{},{},{}", noise(n + 7), (n * 37) % 100, [-99, 5][n % 2], noise(n + 99))
    });
    let profile = inspect_text(&text, &["--target", "y"]);
    assert_eq!(
        message(&profile, WarningKind::Sentinel),
        "far: -999 in 14 rows is far outside the other values: if it marks a missing value, list it in `data.missing_values`"
    );
    section(&text);
}

#[test]
fn values_far_outside_are_named_as_in_training() {
    let usual = |n: usize| 300.5 + (n * 37 % 101) as f64;
    let of = |far: f64| {
        let x = |n: usize| if n == 3 { -far } else { usual(n) };
        let y = |n: usize| if n == 5003 { far } else { usual(n + 50) };
        let profile = inspect_text(&rows("x,y", 9000, |n| format!("{},{}", x(n), y(n))), &["--target", "y"]);
        let found = profile.warnings.into_iter().filter(|warning| warning.kind == WarningKind::FarValue);
        found.map(|warning| warning.message).collect::<Vec<_>>()
    };
    let found = of(1e7);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with("x reaches -10000000, and 9 in 10 rows lie between 304.5 and 395.5: ")
            && found[0].contains("robust"),
        "{found:?}"
    );
    assert!(found[1].starts_with("y reaches 10000000") && found[1].contains("huber"), "{found:?}");
    assert_eq!(of(4000.0), [""; 0]);
}

#[test]
fn texts_with_too_many_values_are_dropped_and_wide_ones_embedded() {
    let text = rows("ticket,user,city,y", 900, |n| {
        format!("A/{},user {},{},{}", n - n % 20 / 19, n % 150, ["Bern", "Oslo"][n % 2], noise(n))
    });
    let profile = inspect_text(&text, &["--target", "y"]);
    assert!(message(&profile, WarningKind::Identifier).contains("like an identifier: ticket; `data.drop`"));
    let section = section(&text);
    assert!(section.contains("drop = [\"ticket\"]"), "{section}");
    assert!(
        section.contains(
            "categorical = [\"user\", \"city\"]\nencode = \"embedding\"  # \"user\" has 150 values\n"
        ),
        "{section}"
    );
    let text = rows("city,y", 900, |n| format!("city {},{}", n % 100, noise(n)));
    assert!(!self::section(&text).contains("encode"));
}

#[test]
fn single_values_are_told_apart_from_missing_ones() {
    let text = rows("cabin,size,same,text,x,y", 60, |n| {
        let or = |value: &'static str| if n % 3 == 0 { "" } else { value };
        format!("{},{},7,a,{},{}", or("C85"), or("9"), noise(n), noise(n + 60))
    });
    let profile = inspect_text(&text, &["--target", "y"]);
    assert_eq!(
        message(&profile, WarningKind::Constant),
        "the same value in all rows: same, text; `data.drop` ignores the columns"
    );
    let section = section(&text);
    assert!(
        section.contains("drop = [\"same\", \"text\"]") && section.contains("categorical = [\"cabin\"]"),
        "{section}"
    );
}

#[test]
fn a_single_target_value_is_nothing_to_learn() {
    for (value, end) in [
        ("7", "; training needs two classes or more"),
        ("no", "; training needs two classes or more"),
        ("2.5", ""),
    ] {
        let text = rows("x,y", 40, |n| format!("{},{value}", noise(n)));
        let profile = inspect_text(&text, &["--target", "y"]);
        let expected = format!("y is {value} in all rows: there is nothing to learn{end}");
        assert_eq!(message(&profile, WarningKind::OneClass), expected);
        assert!(!profile.data_section.contains("classes = "), "{}", profile.data_section);
    }
}

#[test]
fn ratings_may_be_quantities() {
    let of = |n_values: usize| section(&rows("x,y", 200, |n| format!("{},{}", noise(n), n * 7 % n_values)));
    assert!(
        of(11).contains("task = \"classification\"  # or \"regression\": 11 distinct integers may be either")
    );
    assert!(!of(4).contains("regression"));
}

#[test]
fn the_config_is_saved_and_replaced_only_on_request() {
    let text = rows("date,x,y", 60, |n| format!("{},{},{}", day(7 * n), noise(n), noise(n + 60)));
    let files = Files::new(&[("my rows.csv", &text)]);
    let path = |name: &str| files.path(name).display().to_string();
    let (table, out) = (path("my rows.csv"), path("run.toml"));
    let of = |more: &[&str]| args(&table, &[&["--target", "y"], more].concat());
    inspect(&of(&["--write-config", &out]), None).unwrap();
    let profile = profile_of(&of(&[])).unwrap();
    assert_eq!(std::fs::read_to_string(&out).unwrap(), profile.data_section);
    std::fs::write(&out, "mine").unwrap();
    let error = inspect(&of(&["--write-config", &out]), None).unwrap_err();
    assert!(
        error.to_string().contains("run.toml` exists\nhint: use --overwrite") && error.exit_code() == 2,
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "mine");
    inspect(&of(&["--write-config", &out, "--overwrite"]), None).unwrap();
    assert_eq!(std::fs::read_to_string(&out).unwrap(), profile.data_section);
}

#[test]
fn dates_and_counts_are_shown_as_such() {
    let files = Files::new(&[
        ("rows.csv", "when,at,y\n2024-05-01,12:00,1\n2024-05-31,12:30:30,0\n"),
        ("one.csv", "x\n1\n"),
    ]);
    let shown = files.text("rows.csv", &["--target", "y"]);
    let line = |start: &str| {
        shown
            .lines()
            .find(|line| line.starts_with(start))
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(line("when"), "when date - 2 2024-05-01 2024-05-31");
    assert_eq!(line("at"), "at time - 2 12:00:00 12:30:30");
    assert!(files.text("one.csv", &[]).starts_with("one.csv: CSV, 1 row x 1 column ("));
}

#[cfg(feature = "parquet")]
#[test]
fn numbers_that_a_file_stores_as_text_are_named() {
    use std::fs::File;
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;

    let texts = |text: &dyn Fn(usize) -> String| -> ArrayRef {
        Arc::new(StringArray::from((0..60).map(text).collect::<Vec<_>>()))
    };
    let numbers = |of: usize| -> ArrayRef {
        Arc::new(Float64Array::from((0..60).map(|n| noise(n + of)).collect::<Vec<_>>()))
    };
    let columns = [
        ("num", texts(&|n| format!("{n}.5"))),
        ("day", texts(&day)),
        ("sure", texts(&|n| ["yes", "no"][n % 2].to_owned())),
        ("x", numbers(0)),
        ("y", numbers(60)),
    ];
    let files = Files::new(&[]);
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(files.path("rows.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let profile = files.inspect("rows.parquet", &["--target", "y"]).unwrap();
    let found: Vec<&str> = profile.warnings.iter().map(|warning| warning.message.as_str()).collect();
    assert!(found[0].starts_with("num seems to hold numbers or dates as text: write"), "{found:?}");
    assert!(!found.iter().any(|message| message.contains("day")), "dates are read: {found:?}");
    let section = &profile.data_section;
    assert!(
        section.contains("drop = [\"num\"]")
            && section.contains("categorical = [\"sure\"]")
            && section.contains("datetime = \"parts\""),
        "{section}"
    );
    let loss = train_a_step(&files, &profile);
    assert!(loss.as_ref().is_ok_and(|loss| loss.is_finite()), "{loss:?}\n{section}");
}
