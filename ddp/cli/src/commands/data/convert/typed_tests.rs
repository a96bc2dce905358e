//! Types and values survive each format that can represent them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;

use super::*;
use crate::cli::{Cli, Command, DataCommand};
use crate::report::progress::ProgressChoice;

#[track_caller]
pub(super) fn convert(words: &[&str]) -> String {
    try_convert(words).unwrap()
}

pub(super) fn try_convert(words: &[&str]) -> Result<String> {
    let cli = Cli::try_parse_from(["ddp-train", "data", "convert"].iter().chain(words)).unwrap();
    let Command::Data(DataCommand::Convert(args)) = cli.command else { panic!() };
    run(&ConvertArgs { progress: ProgressChoice::None, ..*args }, Meter::none())
}

/// Random numbers determined by a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ (self.0 >> 29)
    }

    fn of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.next() as usize % texts.len()]
    }

    fn double(&mut self) -> f64 {
        loop {
            let value = f64::from_bits(self.next());
            if value.is_finite() {
                return value;
            }
        }
    }
}

/// The cells of a file without quotes around them.
fn rows_of(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(',').map(|cell| cell.trim_matches('"').to_owned()).collect()).collect()
}

pub(super) fn path_of(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_string_lossy().into_owned()
}

fn columnar() -> Vec<&'static str> {
    let mut endings = vec!["jsonl", "csv.gz"];
    endings.extend(["parquet", "feather", "arrow"].into_iter().filter(|_| cfg!(feature = "parquet")));
    endings
}

#[test]
fn typed_tables_keep_their_values_in_every_table_format() {
    for seed in 1..6 {
        let folder = tempfile::tempdir().unwrap();
        let mut random = Random(seed);
        let mut lines = "whole,large,number,truth,text,date,moment,time,kind\n".to_owned();
        for row in 0..40 {
            let cells = [
                (random.next() as i64).to_string(),
                (random.next() | 1 << 63).to_string(),
                format!("{:e}", random.double()),
                random.of(&["true", "false"]).to_owned(),
                random.of(&["Bern", "öß \u{1f600}", "NA", "7", "x'y", "true"]).to_owned(),
                format!("20{:02}-0{}-1{}", random.next() % 100, 1 + random.next() % 9, random.next() % 10),
                format!("1999-12-31 23:59:{:02}.{:06}", random.next() % 60, 1 + random.next() % 999_999),
                format!("0{}:30:00", random.next() % 10),
                random.of(&["cat", "dog", "True", "3"]).to_owned(),
            ];
            // The last row turns the text column into strings; the second row lacks values.
            let cells: Vec<String> = cells
                .into_iter()
                .enumerate()
                .map(|(column, cell)| match (row, column) {
                    (1, 0..8) => String::new(),
                    (39, 4) => "late".to_owned(),
                    (39, 8) => "cat".to_owned(),
                    _ => cell,
                })
                .collect();
            lines += &(cells.join(",") + "\n");
        }
        let (first, back) = (path_of(&folder, "first.csv"), path_of(&folder, "back.csv"));
        fs::write(&first, &lines).unwrap();
        for from in columnar() {
            for to in columnar() {
                let (one, other) =
                    (path_of(&folder, &format!("one.{from}")), path_of(&folder, &format!("other.{to}")));
                for (from, to) in [(&first, &one), (&one, &other), (&other, &back)] {
                    convert(&[from, to, "--target", "kind", "--overwrite"]);
                }
                let (want, got) = (rows_of(Path::new(&first)), rows_of(Path::new(&back)));
                assert_eq!((want.len(), &want[0]), (got.len(), &got[0]), "{from} {to}");
                for (row, (want, got)) in want.iter().zip(&got).enumerate().skip(1) {
                    for (column, (want, got)) in want.iter().zip(got).enumerate() {
                        let is_same = match column {
                            2 if !want.is_empty() => {
                                want.parse::<f64>().unwrap().to_bits()
                                    == got.parse::<f64>().unwrap().to_bits()
                            }
                            6 => want.trim_end_matches('0') == got.trim_end_matches('0'),
                            _ => want == got,
                        };
                        assert!(is_same, "{from} {to}, row {row}, column {column}: {want} became {got}");
                    }
                }
            }
        }
    }
}

#[test]
fn numbers_keep_their_values_in_every_array_format() {
    for seed in 1..8 {
        let folder = tempfile::tempdir().unwrap();
        let mut random = Random(seed);
        let mut lines = "number,short,kind\n".to_owned();
        for _ in 0..50 {
            let kind = random.of(&["cat", "dog", "3", "10"]);
            lines += &format!("{:e},{},{kind}\n", random.double(), random.next() % 1000);
        }
        lines += "1,2,dog\n";
        let first = path_of(&folder, "first.csv");
        fs::write(&first, &lines).unwrap();
        for ending in ["npy", "npz", "safetensors"] {
            let (one, back) = (path_of(&folder, &format!("one.{ending}")), path_of(&folder, "back.csv"));
            let said = convert(&[&first, &one, "--target", "kind", "--overwrite"]);
            assert!(!said.contains("rounded"), "{said}");
            let labels: Vec<String> =
                serde_json::from_slice(&fs::read(format!("{one}.labels.json")).unwrap()).unwrap();
            assert_eq!(labels, ["3", "10", "cat", "dog"]);
            let mut words = vec![&one[..], &back, "--overwrite"];
            let classes = PathBuf::from(&one).with_extension("labels.npy");
            if ending == "npy" {
                words.extend(["--labels", classes.to_str().unwrap()]);
            }
            convert(&words);
            for (want, got) in rows_of(Path::new(&first)).iter().zip(rows_of(Path::new(&back))).skip(1) {
                for column in 0..2 {
                    let bits = |text: &str| text.parse::<f64>().unwrap().to_bits();
                    assert_eq!(bits(&want[column]), bits(&got[column]), "{ending}");
                }
                let place = labels.iter().position(|label| *label == want[2]).unwrap().to_string();
                // Only safetensors stores the labels.
                assert_eq!(got[2], if ending == "safetensors" { want[2].clone() } else { place }, "{ending}");
            }
        }
    }
}

#[test]
fn arrays_take_the_type_that_loses_nothing_or_say_what_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let first = path_of(&folder, "first.csv");
    let (npy, csv) = (path_of(&folder, "rows.npy"), path_of(&folder, "back.csv"));
    let classes = path_of(&folder, "rows.labels.npy");
    let header = |path: &str| String::from_utf8_lossy(&fs::read(path).unwrap()[..128]).into_owned();
    for (rows, dtype) in [
        ("1,9007199254740993,0\n2,3,1\n", "<i8"),
        ("1,18446744073709551615,0\n2,3,1\n", "<f8"),
        ("0.5,3,0\n2,4,1\n", "<f4"),
        ("0.1,3,0\n,4,1\n", "<f4"),
        ("123.4567,3,0\n2,4,1\n", "<f4"),
        ("0.123456789,3,0\n2,4,1\n", "<f8"),
        ("16777216,3,0\n2,4,1\n", "<f4"),
        ("16777217,3,0\n2,4,1\n", "<i8"),
        ("16777217,0.5,0\n2,4,1\n", "<f8"),
        ("true,no,0\nfalse,yes,1\n", "|b1"),
    ] {
        fs::write(&first, format!("a,b,label\n{rows}")).unwrap();
        let said = convert(&[&first, &npy, "--overwrite", "--keep-missing"]);
        assert!(header(&npy).contains(dtype), "{rows} {}", header(&npy));
        assert!(said.contains("features are "), "{said}");
        assert_eq!(said.contains("rounded"), rows.contains("18446744073709551615"), "{said}");
        assert!(header(&classes).contains("<i8"));
    }
    fs::write(&first, "a,b,label\n0.1,9007199254740993,0\n0.5,3,1\n").unwrap();
    let said = convert(&[&first, &npy, "--overwrite"]);
    assert!(said.contains("1 value was rounded to f64"), "{said}");
    let said = convert(&[&first, &npy, "--overwrite", "--dtype", "f32"]);
    assert!(said.contains("2 values were rounded to f32"), "{said}");
    // An array keeps its type.
    convert(&[&npy, &csv, "--labels", &classes]);
    assert_eq!(fs::read_to_string(&csv).unwrap(), "f0,f1,label\n0.1,9007199000000000,0\n0.5,3,1\n");
    let other = path_of(&folder, "other.npz");
    convert(&[&npy, &other, "--labels", &classes]);
    assert!(String::from_utf8_lossy(&fs::read(&other).unwrap()).contains("<f4"));
}

#[test]
fn texts_in_arrays_are_refused_by_name_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (first, npy) = (path_of(&folder, "first.csv"), path_of(&folder, "rows.npy"));
    let numbers = "1,2,0\n".repeat(70_000);
    fs::write(&first, format!("a,b,label\n{numbers}1,late,1\n")).unwrap();
    let message = try_convert(&[&first, &npy]).unwrap_err().to_string();
    for part in ["line 70002", "\"b\"", "\"late\"", "--drop", "--categorical"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    convert(&[&first, &npy, "--drop", "b"]);
}

#[test]
fn tables_need_no_target() {
    let folder = tempfile::tempdir().unwrap();
    let (first, lines) = (path_of(&folder, "first.csv"), path_of(&folder, "rows.jsonl"));
    fs::write(&first, "species,size,note\nsetosa,1.50,\nvirginica,,x\n").unwrap();
    convert(&[&first, &lines]);
    assert_eq!(
        fs::read_to_string(&lines).unwrap(),
        "{\"species\":\"setosa\",\"size\":1.50,\"note\":null}\n{\"species\":\"virginica\",\"size\":null,\"note\":\"x\"}\n"
    );
    let message = try_convert(&[&first, &lines, "--target", "kind", "--overwrite"]).unwrap_err().to_string();
    assert!(message.contains("kind"), "{message}");
}

#[test]
fn training_and_evaluation_rows_are_both_converted() {
    let folder = tempfile::tempdir().unwrap();
    let array = |name: &str, rows: &str| {
        let (csv, npy) = (path_of(&folder, "x.csv"), path_of(&folder, &format!("{name}.npy")));
        fs::write(&csv, format!("a,b,label\n{rows}")).unwrap();
        convert(&[&csv, &npy, "--overwrite"]);
        [fs::read(&npy).unwrap(), fs::read(path_of(&folder, &format!("{name}.labels.npy"))).unwrap()]
    };
    let train = array("train", "1,2,0\n3,4,1\n5,6,0\n");
    let test = array("test", "7,8,1\n");
    let npz = path_of(&folder, "both.npz");
    let mut archive = zip::ZipWriter::new(fs::File::create(&npz).unwrap());
    for (name, bytes) in ["x_train", "y_train", "x_test", "y_test"].iter().zip(train.iter().chain(&test)) {
        let options = zip::write::SimpleFileOptions::default();
        archive.start_file(format!("{name}.npy"), options).unwrap();
        std::io::Write::write_all(&mut archive, bytes).unwrap();
    }
    archive.finish().unwrap();
    let (out, of_eval) = (path_of(&folder, "out.csv"), path_of(&folder, "out.eval.csv"));
    let said = convert(&[&npz, &out]);
    assert!(said.contains("train: 3 rows in") && said.contains("eval: 1 rows in"), "{said}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "f0,f1,label\n1,2,0\n3,4,1\n5,6,0\n");
    assert_eq!(fs::read_to_string(&of_eval).unwrap(), "f0,f1,label\n7,8,1\n");
    assert!(try_convert(&[&npz, &out]).unwrap_err().to_string().contains("exists"));

    let parts = path_of(&folder, "parts");
    convert(&[&npz, &parts, "--to", "npy"]);
    assert!(Path::new(&parts).join("eval/labels/part-00000.npy").exists());
    let only = path_of(&folder, "only.csv");
    convert(&[&npz, &only, "--subset", "eval"]);
    assert_eq!(fs::read_to_string(&only).unwrap(), "f0,f1,label\n7,8,1\n");
    let message = try_convert(&[&out, &only, "--split", "eval", "--overwrite"]).unwrap_err().to_string();
    assert!(message.contains("holds no rows for evaluation"), "{message}");
}
