//! Tests of findings in made-up files, and of training on a config made from them.

use std::fs;
use std::path::PathBuf;

use clap::Parser as _;
use ddp::config::Config;
use ddp_comm::World;

use super::column_profile::Kind;
use super::profile::Profile;
use super::warning::WarningKind;
use super::{profile as profile_of, report};
use crate::cli::{Cli, Command, DataCommand, InspectArgs};
use crate::error::Result;

/// A folder with files.
pub(super) struct Files(tempfile::TempDir);

impl Files {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let folder = Files(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, text)| folder.write(name, text.as_bytes()));
        folder
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub(super) fn inspect(&self, name: &str, flags: &[&str]) -> Result<Profile> {
        profile_of(&args(&self.path(name).display().to_string(), flags))
    }

    /// Output as printed, with paths inside the folder.
    pub(super) fn text(&self, name: &str, flags: &[&str]) -> String {
        let text = report::text(&self.inspect(name, flags).unwrap(), false);
        text.replace(&format!("{}/", self.0.path().display()), "")
    }

    /// Rows and features that the lines of a config lead to.
    pub(super) fn loaded(&self, profile: &Profile) -> (usize, Vec<String>) {
        self.write("run.toml", profile.data_section.as_bytes());
        let mut config = Config::load(Some(&self.path("run.toml")), &[]).unwrap();
        config.data.eval = ddp::config::EvalSource::None;
        let train =
            ddp_tables::load(&config, &World::single()).map_err(|stop| stop.to_string()).unwrap().train;
        (train.len(), train.layout().features.clone())
    }
}

pub(super) fn args(path: &str, flags: &[&str]) -> InspectArgs {
    let line = ["ddp-train", "data", "inspect", path].into_iter().chain(flags.iter().copied());
    match Cli::try_parse_from(line).unwrap().command {
        Command::Data(DataCommand::Inspect(args)) => args,
        other => panic!("{other:?}"),
    }
}

pub(super) fn inspect_text(text: &str, flags: &[&str]) -> Profile {
    Files::new(&[("rows.csv", text)]).inspect("rows.csv", flags).unwrap()
}

/// A table of `n` rows, made by `row`.
pub(super) fn rows(header: &str, n: usize, row: impl Fn(usize) -> String) -> String {
    let rows: Vec<String> = (0..n).map(row).collect();
    format!("{header}\n{}\n", rows.join("\n"))
}

/// A number in [0, 1) that looks random.
pub(super) fn noise(n: usize) -> f64 {
    ((n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24)
}

pub(super) fn kinds(profile: &Profile) -> Vec<WarningKind> {
    profile.warnings.iter().map(|warning| warning.kind).collect()
}

/// The message of the only warning of this kind.
#[track_caller]
pub(super) fn message(profile: &Profile, kind: WarningKind) -> &str {
    let found: Vec<_> = profile.warnings.iter().filter(|warning| warning.kind == kind).collect();
    assert_eq!(found.len(), 1, "{:?}", profile.warnings);
    &found[0].message
}

#[test]
fn a_small_file_as_a_whole() {
    let text = "id,size,city,note,label\n\
                1,2.5,Bern,x,0\n2,,Oslo,x,1\n3,-1,Bern,x,1\n4,1e3,,x,0\n\n5,0.001,\"Rome, old\",x,0\n";
    let folder = Files::new(&[("rows.csv", text)]);
    let shown = folder.text("rows.csv", &[]);
    assert_eq!(
        shown,
        "\
rows.csv: CSV, 5 rows x 5 columns (101 B)

column          type     missing  distinct  min   max   mean  std. dev.
id              integer        -         5    1     5      3      1.414
size            number         1         4   -1  1000  250.4      432.8
city            text           1         3
note            text           -         1
label (target)  integer        -         2    0     1    0.4     0.4899

class  rows   share
0         3  60.0 %
1         2  40.0 %

warning: text in city: `data.categorical` treats it as categories, `data.drop` ignores it
warning: missing values in size, first in line 3: `data.missing` = \"mean\" or \"zero\" fills them
warning: the same value in all rows: note; `data.drop` ignores the columns
warning: only 5 rows for 4 features: what a model finds in them may be chance

[data]
train = \"rows.csv\"
drop = [\"note\"]  # see the warnings
categorical = [\"city\"]
missing = \"mean\"
normalize = \"standard\"
"
    );
    assert!(shown.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn types_come_from_the_values() {
    let text = "a,b,c,d,e,f,g\n1,1,1.5,x,,inf,01\n2,2.0,NA,1,NA,1,1\n-3,+3,?,2,nan,2,1.0\n";
    let profile = inspect_text(text, &[]);
    let kinds: Vec<Kind> = profile.columns.iter().map(|column| column.kind).collect();
    use Kind::{Empty, Integer, Number, Text};
    assert_eq!(kinds, [Integer, Integer, Number, Text, Empty, Number, Integer]);
    let missing: Vec<u64> = profile.columns.iter().map(|column| column.n_missing).collect();
    assert_eq!(missing, [0, 0, 2, 0, 3, 0, 0]);
    assert_eq!(profile.columns[6].n_distinct, Some(1), "01, 1 and 1.0 are one number");
    assert_eq!(profile.task, None);
    let range = profile.columns[0].range.unwrap();
    assert_eq!((range.min, range.max, range.mean), (-3.0, 2.0, 0.0));
}

#[test]
fn statistics_do_not_depend_on_chunks() {
    let text = rows("x,y,label", 5000, |n| format!("{},{},{}", 1_000_000 + n, noise(n), n % 3));
    let profile = inspect_text(&text, &[]);
    let values: Vec<f64> = (0..5000).map(noise).collect();
    let mean = values.iter().sum::<f64>() / 5000.0;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 5000.0;
    let [x, y] = [0, 1].map(|column: usize| profile.columns[column].range.unwrap());
    assert_eq!((x.min, x.max, x.mean), (1_000_000.0, 1_004_999.0, 1_002_499.5));
    assert!((y.mean - mean).abs() < 1e-12 && (y.standard_deviation - variance.sqrt()).abs() < 1e-12);
    assert_eq!(profile.columns[2].values[0].n_rows, 1667);
}

#[test]
fn clean_data_give_no_warnings() {
    let text = rows("x,y,label", 300, |n| {
        format!("{},{},{}", noise(n), noise(n + 1000), noise(n + 2000) > 0.5)
            .replace("true", "1")
            .replace("false", "0")
    });
    let folder = Files::new(&[("rows.csv", &text)]);
    let profile = folder.inspect("rows.csv", &[]).unwrap();
    assert_eq!(kinds(&profile), []);
    assert_eq!(profile.task, Some("classification"));
    assert_eq!(folder.loaded(&profile), (300, vec!["x".to_owned(), "y".to_owned()]));
}

#[test]
fn columns_that_hold_the_target_are_told() {
    let header = "copy,scaled,group,fair,label";
    let text = rows(header, 400, |n| {
        let label = usize::from(noise(n) > 0.9);
        let group = ["low", "mid", "high"][if label == 1 { 2 } else { n % 2 }];
        format!("{label}.0,{},{group},{},{label}", 5.0 - 2.0 * label as f64, n % 7)
    });
    let folder = Files::new(&[("rows.csv", &text)]);
    let profile = folder.inspect("rows.csv", &[]).unwrap();
    let leaks: Vec<&str> = profile
        .warnings
        .iter()
        .filter(|warning| [WarningKind::Leak, WarningKind::Determines].contains(&warning.kind))
        .map(|warning| warning.message.as_str())
        .collect();
    assert_eq!(leaks.len(), 3, "{leaks:?}");
    assert!(leaks[0].starts_with("copy equals the target label"));
    assert!(
        leaks[1].starts_with("scaled is a rescaled copy of the target label: their correlation is -1.00000")
    );
    assert!(
        leaks[2].starts_with("group alone determines label: each of its 3 values occurs with a single class")
    );
    let loaded = folder.loaded(&profile).1;
    assert!(loaded[0] == "fair" && loaded[1..].iter().all(|name| name.starts_with("group ")), "{loaded:?}");
    // One row that differs, and it tells nothing for sure.
    let text = text.replacen("low,", "high,", 1);
    let profile = inspect_text(&text, &[]);
    let is_told = profile
        .warnings
        .iter()
        .any(|warning| warning.kind == WarningKind::Determines && warning.columns == ["group"]);
    assert!(!is_told, "{:?}", profile.warnings);

    let text =
        rows("cents,x,price", 100, |n| format!("{:.2},{},{}", noise(n) * 100.0, noise(n + 500), noise(n)));
    let profile = inspect_text(&text, &["--target", "price"]);
    assert!(message(&profile, WarningKind::Leak).starts_with("cents is a rescaled copy of the target price"));
    assert_eq!(profile.task, Some("regression"));
}

#[test]
fn chance_is_no_leak() {
    // One row of the smaller class, whose value is its own: that says nothing of the column.
    let text = rows("x,y,label", 200, |n| format!("{},{},{}", n % 97, noise(n), usize::from(n == 96)));
    let profile = inspect_text(&text, &[]);
    assert_eq!(kinds(&profile), [WarningKind::Imbalance]);
}

#[test]
fn columns_of_no_use_are_told() {
    let text = rows("row,name,same,x,twin,void,label", 120, |n| {
        format!("{n},user {n},7,{0},{0},,{1}", noise(n), usize::from(noise(n + 300) > 0.4))
    });
    let folder = Files::new(&[("rows.csv", &text)]);
    let profile = folder.inspect("rows.csv", &[]).unwrap();
    assert!(message(&profile, WarningKind::Identifier).contains("identifier: row, name;"));
    assert!(message(&profile, WarningKind::Constant).contains("in all rows: same, void"));
    assert!(message(&profile, WarningKind::Duplicate).contains("identical columns: x, twin"));
    assert_eq!(profile.warnings.len(), 3, "{:?}", profile.warnings);
    assert_eq!(folder.loaded(&profile).0, 120);
}

#[test]
fn values_that_stop_training_are_reported_with_their_line() {
    let text = rows("a,b,c,label", 200, |n| {
        let a = if n == 10 { "old".to_owned() } else { n.to_string() };
        let b = if n == 20 { "1e39".to_owned() } else { noise(n).to_string() };
        let c = if n == 30 { "NA".to_owned() } else { noise(n + 7).to_string() };
        format!("{a},{b},{c},{}", usize::from(noise(n + 300) > 0.5))
    });
    let folder = Files::new(&[("rows.csv", &text)]);
    let profile = folder.inspect("rows.csv", &[]).unwrap();
    let strays: Vec<&str> = profile
        .warnings
        .iter()
        .filter(|warning| warning.kind == WarningKind::Marked)
        .map(|warning| warning.message.as_str())
        .collect();
    let of = |name: &str, text: &str, line: usize| {
        format!(
            "{name}: 1 of 200 values are not numbers, \"{text}\" (1), the first is \"{text}\" in line {line}"
        )
    };
    assert!(
        strays[0].starts_with(&of("a", "old", 12)) && strays[1].starts_with(&of("b", "1e39", 22)),
        "{strays:?}"
    );
    assert!(message(&profile, WarningKind::Missing).contains("in c, first in line 32"));
    assert_eq!(folder.loaded(&profile).1, ["b", "c", "b is missing", "c is missing"]);
}

#[test]
fn targets_that_cannot_be_learned_are_reported() {
    let profile = inspect_text("x,label\n1,cat\n2,\n3,dog\n", &[]);
    assert!(message(&profile, WarningKind::TargetMissing).contains("missing in 1 row, first in line 3"));
    assert!(profile.data_section.contains("missing_target = \"skip\""));
    // A few texts among quantities make all of them classes.
    let text = rows("x,label", 200, |n| {
        format!("{},{}", noise(n), if n == 7 { "old".into() } else { noise(n + 1).to_string() })
    });
    let profile = inspect_text(&text, &[]);
    assert!(
        message(&profile, WarningKind::TargetText)
            .contains("label is text in 1 of 200 rows, the first is \"old\" in line 9")
    );
    assert!(message(&profile, WarningKind::ManyClasses).contains("200 distinct labels in 200 rows"));
    let profile = inspect_text("x,a,b\n1,0,cat\n2,1,dog\n", &["--target", "a", "--target", "b"]);
    assert!(message(&profile, WarningKind::TargetText).contains("for example \"cat\" in line 2"));

    let profile = inspect_text("x,label\n1,3\n2,3\n", &[]);
    assert!(message(&profile, WarningKind::OneClass).contains("label is 3 in all rows"));
    let profile = inspect_text("label\n1\n0\n", &[]);
    assert!(message(&profile, WarningKind::NoFeatures).ends_with("the target is the only column"));
    assert!(profile.stops_training());
    let profile = inspect_text(",label\n0,1\n1,0\n2,1\n", &[]);
    assert!(
        message(&profile, WarningKind::NoFeatures)
            .ends_with("only column besides an index, which is left out")
    );
    // Of a target without values nothing else is said.
    let text = rows("x,y,label", 60, |n| format!("{},{},", n % 3, n % 7));
    let profile = inspect_text(&text, &[]);
    assert_eq!(profile.warnings.iter().filter(|warning| warning.kind != WarningKind::FewRows).count(), 1);
    assert!(message(&profile, WarningKind::TargetEmpty).starts_with("label has no value in any row"));
    assert!(profile.stops_training());
    assert!(!report::text(&profile, false).contains("0 classes"));
    // Of 30 rows one has a target, and it trains.
    let text = rows("x,label", 30, |n| if n == 3 { "1,2.5".to_owned() } else { format!("{n},") });
    let section = inspect_text(&text, &[]).data_section;
    assert!(section.contains("missing_target") && !section.contains("eval_fraction"), "{section}");
    // Each row has an integer of its own, and some rows have none.
    let text =
        rows("x,label", 30, |n| if n % 2 == 0 { format!("{n},") } else { format!("{n},{}", n * 1_009) });
    let profile = inspect_text(&text, &[]);
    let task = "task = \"regression\"  # or \"classification\": 15 distinct integers may be either";
    assert!(profile.data_section.contains(task), "{}", profile.data_section);
}

#[test]
fn a_stray_value_costs_its_cell_and_not_the_column() {
    for (column, stray) in
        [(0, "#DIV/0!"), (0, "inf"), (0, "Total 7"), (1, "0000-00-00 00:00:00"), (1, "UTC")]
    {
        let text = rows("amount,when,label", 300, |n| {
            let mut cells = [format!("{}", noise(n)), format!("2024-{:02}-{:02}", 1 + n % 12, 1 + n % 28)];
            if n == 7 {
                cells[column] = stray.to_owned();
            }
            format!("{},{}", cells.join(","), n % 2)
        });
        let folder = Files::new(&[("rows.csv", &text)]);
        let profile = folder.inspect("rows.csv", &[]).unwrap();
        let section = &profile.data_section;
        assert!(!section.contains("drop =") && !section.contains("categorical"), "{stray}: {section}");
        assert!(section.contains(&format!("missing_values = [\"{stray}\"]")), "{stray}: {section}");
        let warning = message(&profile, WarningKind::Marked);
        let name = ["amount", "when"][column];
        assert!(
            warning.starts_with(&format!("{name}: 1 of 300 values")) && warning.contains("line 9"),
            "{warning}"
        );
        folder.loaded(&profile);
    }
}

#[test]
fn namibia_is_a_country_and_times_without_a_zone_are_named() {
    let text = rows("x,country", 100, |n| format!("{},{}", noise(n), ["US", "DE", "NA", "FR", "ZA"][n % 5]));
    let folder = Files::new(&[("rows.csv", &text)]);
    let profile = folder.inspect("rows.csv", &["--target", "country"]).unwrap();
    assert!(message(&profile, WarningKind::TargetMissing).contains("\"NA\" seems to be a code"));
    let section = &profile.data_section;
    assert!(section.contains("missing_values = [\"\"]") && !section.contains("missing_target"), "{section}");
    assert_eq!(folder.loaded(&profile).0, 100);

    let times = |zone: &'static str| {
        rows("when,label", 60, |n| {
            format!("2024-01-{:02}T10:00:00{},{}", 1 + n % 28, if n % 3 == 0 { zone } else { "Z" }, n * 7 % 2)
        })
    };
    let profile = inspect_text(&times(""), &[]);
    assert!(message(&profile, WarningKind::Zones).starts_with("when: 20 times without a time zone"));
    let kinds = inspect_text(&times("+02:00"), &[]).warnings;
    assert!(kinds.iter().all(|warning| warning.kind != WarningKind::Zones));
}

#[test]
fn a_column_that_determines_the_label_stays() {
    let text =
        rows("days_late,x,label", 600, |n| format!("{},{},{}", n % 30, noise(n), u8::from(n % 30 > 20)));
    let profile = inspect_text(&text, &[]);
    assert!(message(&profile, WarningKind::Determines).starts_with("days_late alone determines label"));
    assert!(!profile.data_section.contains("drop"), "{}", profile.data_section);
}

#[test]
fn labels_of_all_kinds_train_by_the_section() {
    for (label, task) in [
        (
            &(|n: usize| ["no", "yes", "may be, or not"][n % 3].to_owned()) as &dyn Fn(usize) -> String,
            "classification",
        ),
        (&|n| ["-1", "1"][n % 2].to_owned(), "classification"),
        (&|n| ["0", "100000", "200000"][n % 3].to_owned(), "classification"),
        (&|n| ["True", "False"][n % 2].to_owned(), "classification"),
        (&|n| format!("{}.0", 1 + n % 4), "classification"),
        (&|n| (n % 19).to_string(), "classification"),
        (&|n| (n % 26).to_string(), "classification"),
        (&|n| (n * 7 % 150).to_string(), "regression"),
        // Counts and ages: with gaps, or with rare values.
        (&|n| (17 + n % 40).to_string(), "regression"),
        (&|n| (n % 13 + n % 11).to_string(), "regression"),
        (&|n| format!("{}", noise(n)), "regression"),
    ] {
        let text = rows("x,label", 200, |n| format!("{},\"{}\"", noise(n + 3), label(n)));
        let folder = Files::new(&[("rows.csv", &text)]);
        let profile = folder.inspect("rows.csv", &[]).unwrap();
        assert_eq!(profile.task, Some(task), "{}", label(1));
        folder.loaded(&profile);
    }
    let undecided = rows("x,label", 200, |n| format!("{},{}", noise(n + 3), n * 7 % 150));
    let section = inspect_text(&undecided, &[]).data_section;
    assert!(
        section.contains("task = \"regression\"  # or \"classification\": 150 distinct integers"),
        "{section}"
    );
}

#[test]
fn classes_out_of_balance_are_told() {
    let text = rows("x,label", 500, |n| format!("{},{}", noise(n), if n % 250 == 9 { 3 } else { n % 2 }));
    let profile = inspect_text(&text, &[]);
    assert!(message(&profile, WarningKind::Imbalance).contains("has 125 rows for each row of class 3"));
}

#[test]
fn several_targets_are_several_outputs() {
    let text = rows("x,a,b", 100, |n| format!("{},{},{}", noise(n), usize::from(noise(n + 9) > 0.5), n % 2));
    let folder = Files::new(&[("rows.csv", &text)]);
    let profile = folder.inspect("rows.csv", &["--target", "b", "--target", "a"]).unwrap();
    assert_eq!(profile.task, Some("multilabel"));
    assert!(profile.data_section.contains("target = [\"b\", \"a\"]\ntask = \"multilabel\"\n"));
    assert_eq!(folder.loaded(&profile).1, ["x"]);
}

#[test]
fn wide_data_are_cut_and_files_are_counted() {
    let header: Vec<String> = (0..60).map(|n| format!("c{n}")).collect();
    let shard = |k: usize| {
        rows(&format!("{},label", header.join(",")), 40, |n| {
            let cells: Vec<String> =
                (0..60).map(|c| format!("{:.3}", noise(n * 60 + c + k * 10_000))).collect();
            format!("{},{}", cells.join(","), (n + n / 3) % 2)
        })
    };
    let folder = Files::new(&[("part-1.csv", &shard(1)), ("part-0.csv", &shard(0))]);
    let text = folder.text("part-*.csv", &[]);
    assert!(text.contains("\nc9 ") && !text.contains("\nc10 "), "{text}");
    assert!(text.contains("\n... 50 more; --all shows them\nlabel (target)  integer"), "{text}");
    assert!(text.contains("(2 files, "), "{text}");
    let profile = folder.inspect("part-*.csv", &[]).unwrap();
    assert!(profile.files[0].path.ends_with("part-0.csv") && profile.files.len() == 2);
    assert_eq!(report::text(&profile, true).matches("\nc").count(), 1 + 60 + 1, "titles, columns, classes");

    folder.write("part-2.csv", b"c0,label\n1,0\n");
    let error = folder.inspect("part-*.csv", &[]).unwrap_err();
    assert!(error.to_string().contains("column 2 is \"c1\" in one and \"label\" in the other"), "{error}");
    assert_eq!(error.exit_code(), 2);
}

/// A `.npy` file of f32.
fn npy(dims: &[usize], values: &[f32]) -> Vec<u8> {
    let dims: Vec<String> = dims.iter().map(|dim| format!("{dim},")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", dims.concat());
    header += &" ".repeat(63 - (10 + header.len()) % 64);
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

#[test]
fn arrays_are_shown_by_their_columns() {
    let mut x: Vec<f32> = (0..400).map(|n| noise(n) as f32).collect();
    (x[2 * 7 + 1], x[2 * 9]) = (f32::NAN, f32::NEG_INFINITY);
    let y: Vec<f32> = (0..200).map(|n| f32::from(noise(n + 77) > 0.5)).collect();
    let folder = Files::new(&[]);
    folder.write("x.npy", &npy(&[200, 2], &x));
    folder.write("y.npy", &npy(&[200], &y));
    let labels = folder.path("y.npy").display().to_string();
    let profile = folder.inspect("x.npy", &["--labels", &labels]).unwrap();
    assert!(message(&profile, WarningKind::Missing).contains("in f1, first in row 7"));
    assert!(
        message(&profile, WarningKind::NotFinite)
            .contains("f0: not finite in f32 in 1 row, the first is \"-inf\" in row 9")
    );
    assert_eq!(profile.arrays[0].shape, [200, 2]);
    assert_eq!((profile.columns[0].kind, profile.columns[2].is_target), (Kind::Element("f32"), true));
    x[2 * 9] = 0.0;
    folder.write("x.npy", &npy(&[200, 2], &x));
    let profile = folder.inspect("x.npy", &["--labels", &labels]).unwrap();
    assert_eq!(
        folder.loaded(&profile),
        (200, vec!["f0".to_owned(), "f1".to_owned(), "f1 is missing".to_owned()])
    );

    // Texts of one character take four bytes too.
    let letters: Vec<f32> = (0..200).map(|n| f32::from_bits(97 + n % 3)).collect();
    let mut letters = npy(&[200], &letters);
    let descr = letters.windows(3).position(|bytes| bytes == b"<f4").unwrap();
    letters[descr..descr + 3].copy_from_slice(b"<U1");
    folder.write("letters.npy", &letters);
    let profile = folder.inspect("x.npy", &["--labels", &folder.path("letters.npy").display().to_string()]);
    let letters = profile.unwrap().columns.pop().unwrap();
    assert_eq!((letters.kind, letters.n_missing, letters.n_distinct), (Kind::Text, 0, Some(3)));
    let mut one_hot: Vec<f32> = (0..600).map(|n| f32::from(n % 3 == n / 3 % 3)).collect();
    for is_one_hot in [true, false] {
        folder.write("one_hot.npy", &npy(&[200, 3], &one_hot));
        let path = folder.path("one_hot.npy").display().to_string();
        let profile = folder.inspect("x.npy", &["--labels", &path]).unwrap();
        assert_eq!(profile.task, Some("multilabel"));
        assert_eq!(kinds(&profile).contains(&WarningKind::OneHot), is_one_hot, "{:?}", profile.warnings);
        one_hot[300..303].fill(1.0);
    }

    let text = folder.text("x.npy", &[]);
    assert!(text.contains("no labels: --labels PATH") && text.contains("labels = \"\"  #"), "{text}");
    folder.write("short.npy", &npy(&[100], &y[..100]));
    let short = folder.path("short.npy").display().to_string();
    let error = folder.inspect("x.npy", &["--labels", &short]).unwrap_err().to_string();
    assert!(error.contains("has 200 rows, but its labels"), "{error}");
    folder.write("cut.npy", &npy(&[200, 2], &x[..100]));
    let error = folder.inspect("cut.npy", &[]).unwrap_err();
    assert!(error.to_string().contains("cut.npy") && error.exit_code() == 2, "{error}");
}

#[test]
fn built_in_digits_are_shown() {
    let profile = profile_of(&args("builtin:digits", &[])).unwrap();
    assert_eq!((profile.n_rows, profile.columns.len(), profile.task), (1438, 65, Some("classification")));
    assert_eq!(kinds(&profile), [WarningKind::Constant]);
    assert_eq!(profile.data_section, "[data]\ntrain = \"builtin:digits\"\n");
}

#[test]
fn bad_files_and_names_are_refused_with_status_2() {
    let folder = Files::new(&[
        ("empty.csv", ""),
        ("header.csv", "a,b\n"),
        ("ragged.csv", "a,b\n1,2\n3\n"),
        ("good.csv", "age,b\n1,2\n"),
        ("text.csv.gz", "a,b\n1,2\n"),
    ]);
    for (name, flags, part) in [
        ("empty.csv", &[][..], "the file is empty"),
        ("header.csv", &[], "no rows after the header"),
        ("ragged.csv", &[], "line 3: expected 2 cells as in the header, got 1"),
        ("gone.csv", &[], "does not exist"),
        ("text.csv.gz", &[], "not a valid gzip file"),
        ("good.csv", &["--target", "aje"], "no column \"aje\" for `--target`\nhint: did you mean \"age\"?"),
    ] {
        let error = folder.inspect(name, flags).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.exit_code(), 2, "{error}");
    }
}

#[test]
fn json_is_one_object_with_units() {
    let profile = inspect_text("x,city,label\n1,Bern,0\n2.5,,1\n", &[]);
    let json: serde_json::Value = serde_json::from_str(&ddp::report::metrics::json_line(&profile)).unwrap();
    assert_eq!((&json["n_rows"], &json["format"]), (&2.into(), &"CSV".into()));
    assert_eq!(json["files"][0]["size_bytes"], 29);
    let (x, city) = (&json["columns"][0], &json["columns"][1]);
    assert_eq!(
        (&x["type"], &x["mean"], &x["standard_deviation"]),
        (&"number".into(), &1.75.into(), &0.75.into())
    );
    assert_eq!(
        (&city["type"], &city["n_missing"], &city["min"]),
        (&"text".into(), &1.into(), &serde_json::Value::Null)
    );
    assert_eq!(city["values"][0], serde_json::json!({ "value": "Bern", "n_rows": 1, "share": 1.0 }));
    assert_eq!(json["warnings"][0]["kind"], "few_rows");
    assert!(json["data_section"].as_str().unwrap().starts_with("[data]\n"));
}

#[test]
fn degenerate_tables_are_warned_of() {
    let of_one_class = rows("x,label", 40, |n| format!("{},0", noise(n)));
    let profile = inspect_text(&of_one_class, &[]);
    assert!(message(&profile, WarningKind::OneClass).contains("in all rows"));
    let profile = inspect_text("x,label\n1,1\n", &[]);
    assert!(message(&profile, WarningKind::FewRows).contains("only 1 row for 1 feature:"));
    let profile = inspect_text(&rows("label", 40, |n| (n % 3).to_string()), &[]);
    assert!(message(&profile, WarningKind::NoFeatures).contains("only column"));
}

#[test]
fn the_section_has_the_rows_that_were_looked_at() {
    let text = rows("x,label", 100, |n| format!("{},{}", noise(n), n % 2));
    let folder = Files::new(&[("rows.csv", &text)]);
    let profile = folder.inspect("rows.csv", &["--set", "data.max_rows=60"]).unwrap();
    assert_eq!(folder.loaded(&profile).0, 60, "{}", profile.data_section);
}
