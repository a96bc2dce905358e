//! Roles of a table's columns; tables in several files, compressed tables, and tables that exceed the memory.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use ddp::config::Config;
use ddp::config::table_options::Decimal;
use ddp::data::{Dataset, Loaded};
use ddp_comm::World;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use crate::fit::preprocess::ColumnCodes;
use crate::load;
use crate::source::SourceSpec;
use crate::testing::{columns_of, features_of, gathered};

/// A folder with files.
struct Files(tempfile::TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = Files(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, text)| folder.write(name, text.as_bytes()));
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Loads `train` with these `--set` arguments; in those, FOLDER is the folder.
    fn load(&self, train: &str, sets: &[&str]) -> Result<Loaded, String> {
        let mut all = vec![format!("data.train={}", self.path(train).display())];
        if !sets.iter().any(|set| set.starts_with("data.eval")) {
            all.push("data.eval=none".to_owned());
        }
        let folder = self.0.path().display().to_string();
        all.extend(sets.iter().map(|set| set.replace("FOLDER", &folder)));
        load(&Config::load(None, &all).unwrap(), &World::single()).map_err(|stop| {
            stop.error().map_or_else(|| stop.to_string(), |error| ddp_kernels::hint::with_hint(error))
        })
    }
}

/// Loads one file of this text.
fn load_text(text: &str, sets: &[&str]) -> Result<Loaded, String> {
    Files::new(&[("rows.csv", text)]).load("rows.csv", sets)
}

#[track_caller]
fn assert_refused(result: Result<Loaded, String>, parts: &[&str]) {
    let message = result.expect_err("refused");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    assert!(message.lines().last().unwrap_or_default().starts_with("hint: "), "{message}");
}

/// Rows of features, with the names of the columns.
fn rows_of(dataset: &dyn Dataset) -> (Vec<String>, Vec<Vec<f32>>) {
    let names = dataset.layout().features.clone();
    let rows = features_of(dataset).chunks(names.len()).map(<[f32]>::to_vec).collect();
    (names, rows)
}

const ROWS: &str = "a,b,label\n1,10,0\n2,20,1\n3,30,2\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Rows that differ, so that a compressed file has several blocks.
fn many_rows() -> String {
    (0..20_000u32).map(|i| format!("{},{},{}\n", i.wrapping_mul(2_654_435_761), i, i % 3)).collect()
}

#[test]
fn compressed_tables_are_read_as_they_were() {
    let text = format!("a,b,label\n{}", many_rows());
    let plain = load_text(&text, &[]).unwrap();
    let folder = Files::new(&[]);
    folder.write("rows.csv.gz", &gzip(text.as_bytes()));
    folder.write("rows.csv.zst", &zstd::encode_all(text.as_bytes(), 1).unwrap());
    // Several concatenated streams, as `cat a.gz b.gz` makes them.
    let (first, second) = text.as_bytes().split_at(text.len() / 2);
    folder.write("two.csv.gz", &[gzip(first), gzip(second)].concat());
    folder.write(
        "two.csv.zst",
        &[zstd::encode_all(first, 1).unwrap(), zstd::encode_all(second, 1).unwrap()].concat(),
    );
    for name in ["rows.csv.gz", "rows.csv.zst", "two.csv.gz", "two.csv.zst"] {
        let packed = folder.load(name, &[]).unwrap();
        assert_eq!(packed.train.fingerprint().unwrap(), plain.train.fingerprint().unwrap(), "{name}");
    }
}

#[test]
fn compressed_tables_that_are_cut_off_are_named() {
    let text = format!("a,b,label\n{}", many_rows());
    let (gz, zst) = (gzip(text.as_bytes()), zstd::encode_all(text.as_bytes(), 1).unwrap());
    let folder = Files::new(&[("text.csv.gz", ROWS), ("text.csv.zst", ROWS)]);
    for share in [2, 3, 50] {
        folder.write("cut.csv.gz", &gz[..gz.len() / share]);
        assert_refused(folder.load("cut.csv.gz", &[]), &["cut.csv.gz", "not a valid gzip file", "cut off"]);
        folder.write("cut.csv.zst", &zst[..zst.len() / share]);
        assert_refused(folder.load("cut.csv.zst", &[]), &["cut.csv.zst", "not a valid zstd file", "cut off"]);
    }
    assert_refused(folder.load("text.csv.gz", &[]), &["text.csv.gz", "not a valid gzip file"]);
    assert_refused(folder.load("text.csv.zst", &[]), &["text.csv.zst", "not a valid zstd file"]);
    // Lines are those of the text, not of the packed bytes.
    folder.write("bad.csv.gz", &gzip(b"a,label\n\n1,0\n\nx,1\n"));
    assert_refused(folder.load("bad.csv.gz", &[]), &["bad.csv.gz", "line 5, column \"a\""]);
}

#[test]
fn dropped_columns_are_not_looked_at() {
    let text = "id,a,note,label\nx7,1,\"so, so\",0\n,2,\u{e9},1\n";
    let loaded = load_text(text, &["data.drop=[\"note\", \"id\"]"]).unwrap();
    assert_eq!(rows_of(&*loaded.train), (vec!["a".to_owned()], vec![vec![1.0], vec![2.0]]));
    assert_refused(
        load_text(text, &["data.drop=[\"nota\"]"]),
        &["no column \"nota\"", "`data.drop`", "\"note\"?"],
    );
}

#[test]
fn weights_are_read_and_checked() {
    let text = |weight: &str| format!("w,a,label\n0.5,1,0\n{weight},2,1\n");
    let loaded = load_text(&text("2"), &["data.weight=w"]).unwrap();
    assert_eq!(loaded.train.layout().features, ["a"]);
    assert_eq!(gathered(&*loaded.train, &[1, 0]).2, Some(vec![2.0, 0.5]));
    for (weight, part) in [
        ("-1", "a weight of 0 or above, got -1"),
        ("-1e-3", "a weight of 0 or above, got -1e-3"),
        ("", "the cell is empty"),
        ("nan", "a finite number"),
        ("heavy", "expected a number, got \"heavy\""),
    ] {
        let refused = load_text(&text(weight), &["data.weight=w"]);
        assert_refused(refused, &["rows.csv`: line 3, column \"w\": ", part]);
    }
    assert_refused(load_text(&text("1"), &["data.weight=v"]), &["no column \"v\" for `data.weight`"]);
    // Rows to evaluate on need none.
    let files = Files::new(&[("rows.csv", &text("2")), ("eval.csv", "a,label\n3,1\n")]);
    let loaded = files.load("rows.csv", &["data.weight=w", "data.eval=FOLDER/eval.csv"]).unwrap();
    let eval = loaded.eval.unwrap();
    assert_eq!(gathered(&*eval, &[0]).2, Some(vec![1.0]));
    assert_eq!(eval.layout().left_out, ["its rows have no \"w\", so all weigh 1"]);
}

#[test]
fn categories_are_numbered_by_the_alphabet() {
    let folder = Files::new(&[
        ("train.csv", "city,a,label\nRome,1,0\nBern,2,1\n \"Oslo\",3,0\nRome,4,1\n,5,0\n10,6,1\n1.0,7,1\n"),
        ("eval.csv", "label,city,a\n0,Oslo,1\n1,Paris,2\n0,,3\n0, Rome ,4\n"),
    ]);
    let sets = [
        "data.categorical=[\"city\"]",
        "data.encode=embedding",
        "data.category_min_rows=1",
        "data.eval=FOLDER/eval.csv",
    ];
    let loaded = folder.load("train.csv", &sets).unwrap();
    let values = columns_of(&loaded).vocabularies[0].values().to_vec();
    assert_eq!(values, ["\"Oslo\"", "1", "10", "Bern", "Rome"]);
    // The numbers of categories follow the other columns; 0 is an unknown category.
    let (names, rows) = rows_of(&*loaded.train);
    assert_eq!(names, ["a", "city"]);
    let codes: Vec<f32> = rows.iter().map(|row| row[1]).collect();
    assert_eq!(codes, [5.0, 4.0, 1.0, 5.0, 0.0, 3.0, 2.0]);
    let (_, rows) = rows_of(&*loaded.eval.unwrap());
    assert_eq!(rows, [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 5.0]]);

    let loaded = folder.load("train.csv", &["data.categorical=[\"city\"]"]).unwrap();
    let (names, rows) = rows_of(&*loaded.train);
    assert_eq!(names[..3], ["a", "city is unknown", "city = \"Oslo\""]);
    assert_eq!(rows[4], [5.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(rows[6], [7.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn missing_values_become_means_with_an_indicator() {
    let text = "a,b,label\n1,NA,0\n,4,1\nNaN,6,1\n 5 ,\" \",0\n";
    let names = ["a", "b", "a is missing", "b is missing"];
    for (missing, [a, b]) in [("mean", [3.0, 5.0]), ("zero", [0.0, 0.0])] {
        let loaded = load_text(text, &[&format!("data.missing={missing}")]).unwrap();
        let (got, rows) = rows_of(&*loaded.train);
        assert_eq!(got, names);
        let want = [[1.0, b, 0.0, 1.0], [a, 4.0, 1.0, 0.0], [a, 6.0, 1.0, 0.0], [5.0, b, 0.0, 1.0]];
        assert_eq!(rows, want, "{missing}");
    }
    assert_refused(load_text(text, &[]), &["line 2, column \"b\": the value is missing (\"NA\")"]);
    // Neither other words nor a target are missing values.
    let refused = load_text("a,label\n1,0\nnone,1\n", &["data.missing=mean"]);
    assert_refused(refused, &["line 3, column \"a\": expected a number, got \"none\""]);
    let refused = load_text("a,label\n1,0\n2,\n", &["data.missing=mean"]);
    assert_refused(refused, &["line 3, column \"label\": the cell is empty"]);
    // A column without gaps gets no indicator, and evaluation rows are filled by training means.
    let folder =
        Files::new(&[("train.csv", "a,b,label\n1,1,0\n,2,1\n3,3,1\n"), ("eval.csv", "a,b,label\nNA,NA,1\n")]);
    let loaded = folder.load("train.csv", &["data.missing=mean", "data.eval=FOLDER/eval.csv"]).unwrap();
    let (names, rows) = rows_of(&*loaded.eval.unwrap());
    assert_eq!(
        (names, rows),
        (vec!["a".to_owned(), "b".to_owned(), "a is missing".to_owned()], vec![vec![2.0, 2.0, 1.0]])
    );
}

#[test]
fn shards_are_one_table() {
    let folder = Files::new(&[
        ("part-1.csv", "a,label\n3,1\n4,0\n"),
        ("part-0.csv", "a,label\r\n1,0\r\n2,1"),
        ("part-2.csv", "label,a\n0,5\n"),
        ("notes.txt", "not data"),
        (".hidden.csv", "x"),
    ]);
    let features = |loaded: Loaded| features_of(&*loaded.train);
    assert_eq!(features(folder.load("part-[01].csv", &[]).unwrap()), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(features(folder.load("part-*.csv", &[]).unwrap()), [1.0, 2.0, 3.0, 4.0, 5.0], "by name");
    folder.write("part-2.csv", b"label,b\n0,5\n");
    assert_refused(folder.load("part-*.csv", &[]), &["part-0.csv", "part-2.csv", "\"a\" is missing"]);
    folder.write("part-2.csv", b"a,label,c\n1,0,1\n");
    assert_refused(folder.load("", &[]), &["part-0.csv", "part-2.csv", "2 columns against 3"]);
    for without_rows in [&b"a,label\n"[..], b""] {
        folder.write("part-2.csv", without_rows);
        let loaded = folder.load("", &[]).unwrap();
        let note = &loaded.train.layout().left_out[0];
        assert!(note.contains("left out 1 file that has no rows") && note.contains("part-2.csv"), "{note}");
        assert_eq!(features(loaded), [1.0, 2.0, 3.0, 4.0]);
    }
    fs::remove_file(folder.path("part-0.csv")).unwrap();
    fs::remove_file(folder.path("part-1.csv")).unwrap();
    folder.write("part-1.csv", b"a,label\n");
    assert_refused(folder.load("", &[]), &["part-1.csv", "no rows after the header"]);
    folder.write("part-1.csv", b"a,label\n3,1\n4,0\n");
    folder.write("part-0.csv", b"a,label\r\n1,0\r\n2,1");
    folder.write("part-2.csv", b"a,label\n5,NA\n");
    assert_refused(folder.load("", &[]), &["part-2.csv", "line 2, column \"label\""]);
    fs::remove_file(folder.path("part-2.csv")).unwrap();
    folder.write("part-3.csv.gz", &gzip(b"a,label\n9,2\n"));
    assert_eq!(features(folder.load("", &[]).unwrap()), [1.0, 2.0, 3.0, 4.0, 9.0], "the folder");
}

#[test]
fn tables_larger_than_the_memory_are_refused() {
    // 20,000 rows of two features in f32 and a label in i64 take 312 KiB; 10 columns more make it 1,094 KiB.
    let wide: String = many_rows().lines().map(|line| format!("1,2,3,4,5,6,7,8,9,0,{line}\n")).collect();
    let text = format!("c,d,e,f,g,h,i,j,k,l,a,b,label\n{wide}");
    let refused = load_text(&text, &["data.loader_memory_mib=1"]);
    assert_refused(
        refused,
        &["rows.csv", "2 MiB", "`data.loader_memory_mib` allows 1", "ddp-train data convert"],
    );
    assert!(load_text(&text, &["data.loader_memory_mib=2"]).is_ok());
}

/// Rows of many columns are read fewer at a time, so that the limit is looked at in time.
#[test]
fn wide_tables_are_refused_before_much_of_them_is_read() {
    let n = 20_000;
    let header: String = (0..n).map(|i| format!("x{i},")).collect();
    let mut text = format!("{header}label\n{}", format!("{}1\n", "1,".repeat(n)).repeat(100));
    text.push_str("oops\n");
    let refused = load_text(&text, &["data.loader_memory_mib=1"]);
    assert_refused(refused, &["rows.csv", "`data.loader_memory_mib` allows 1"]);
}

proptest! {
    /// However rows are spread over files, they are the same rows.
    #[test]
    fn shards_hold_the_rows_of_the_whole(cuts in prop::collection::vec(1usize..40, 1..5)) {
        let lines: Vec<String> = (0..40).map(|i| format!("{i},{},{}\n", i * 3, i % 2)).collect();
        let mut cuts = cuts;
        cuts.extend([0, 40]);
        cuts.sort_unstable();
        cuts.dedup();
        let folder = Files::new(&[]);
        for (n, pair) in cuts.windows(2).enumerate() {
            let text = format!("a,b,label\n{}", lines[pair[0]..pair[1]].concat());
            folder.write(&format!("part-{n}.csv"), text.as_bytes());
        }
        let whole = load_text(&format!("a,b,label\n{}", lines.concat()), &[]).unwrap();
        prop_assert_eq!(folder.load("part-*.csv", &[]).unwrap().train.fingerprint().unwrap(), whole.train.fingerprint().unwrap());
    }
}

#[test]
fn half_an_emoji_in_json_is_an_error_where_it_is_used() {
    let rows = "{\"x\":1,\"t\":\"a\",\"y\":0}\n{\"x\":2,\"t\":\"a\\ud83d\",\"y\":1}\n{\"x\":3,\"t\":\"\\ud83d\\ude00\",\"y\":0}\n";
    let folder = Files::new(&[("rows.jsonl", rows)]);
    let place = ["rows.jsonl", "line 2", "\"t\"", "not UTF-8 text", "\\ud83d"];
    assert_refused(folder.load("rows.jsonl", &["data.target=y", "data.categorical=t"]), &place);
    assert_refused(folder.load("rows.jsonl", &["data.target=t", "data.drop=y"]), &place);
    let loaded = folder.load("rows.jsonl", &["data.target=y", "data.drop=t"]).unwrap();
    assert_eq!(loaded.train.len(), 3);
}

#[test]
fn no_column_has_the_name_of_a_part_of_a_date() {
    let sets = |more: &[&'static str]| {
        [&["data.target=y", "data.task=regression", "data.datetime=parts"], more].concat()
    };
    for header in ["d,d.year,y", "d,d.second,y"] {
        let text = format!("{header}\n2024-01-01,5,0.5\n2024-02-02,6,1.5\n2025-03-03,9,2.5\n");
        let name = header.split(',').nth(1).unwrap();
        let words = format!("two features \"{name}\": the column, and the part of the date \"d\"");
        assert_refused(load_text(&text, &sets(&[])), &[&words, "`data.drop`"]);
    }
    let text = "d.year,d,y\n5,2024-01-01,0.5\n6,2024-02-02,1.5\n9,2025-03-03,2.5\n";
    // The year of the date, and not of the column that is left out.
    let (names, rows) = rows_of(&*load_text(text, &sets(&["data.drop=d.year"])).unwrap().train);
    assert_eq!((names.len(), rows.iter().map(|row| row[0]).sum::<f32>()), (7, 6073.0));
    let (names, _) = rows_of(&*load_text(text, &sets(&["data.drop=d"])).unwrap().train);
    assert_eq!(names, ["d.year"]);
}

#[test]
fn paths_of_keys_that_are_one_name_are_refused() {
    for (line, name) in [
        (r#"{"a.b":1,"a":{"b":2},"y":0}"#, "a.b"),
        (r#"{"a":1,"a":2,"y":0}"#, "a"),
        (r#"{"a":[1,2],"a[1]":3,"y":0}"#, "a[1]"),
    ] {
        let files = Files::new(&[("rows.jsonl", &format!("{line}\n{line}\n"))]);
        let loaded = files.load("rows.jsonl", &["data.target=y", "data.task=regression"]);
        assert_refused(loaded, &[&format!("two of its columns are named \"{name}\"")]);
    }
}

#[test]
fn known_classes_are_found_by_their_spelling_first() {
    // Texts, as a file of types or strings of JSON have them.
    let texts = r#"{"x":1,"label":"0.0"}
{"x":2,"label":"1.0"}
{"x":3,"label":"1"}
"#;
    let files = Files::new(&[("rows.jsonl", texts), ("eval.csv", "x,label\n1,0.0\n2,1.0\n3,1\n")]);
    let loaded = files.load("rows.jsonl", &["data.eval=FOLDER/eval.csv"]).unwrap();
    let labels = |dataset: &dyn Dataset| gathered(dataset, &[0, 1, 2]).1;
    let eval = loaded.eval.unwrap();
    assert_eq!(labels(&*eval), labels(&*loaded.train));
}

/// Files without decimals of their own would be read by the factor of 1000.
#[test]
fn files_of_a_table_have_one_decimal_mark() {
    let folder = tempfile::tempdir().unwrap();
    let write =
        |name: &str, rows: &str| fs::write(folder.path().join(name), format!("a;q;y\n{rows}")).unwrap();
    let rows = |sets: &[&str]| {
        let train = format!("data.train={}", folder.path().join("*.csv").display());
        let sets: Vec<String> = [train, "data.target=y".to_owned(), "data.task=regression".to_owned()]
            .into_iter()
            .chain(sets.iter().map(|set| (*set).to_owned()))
            .collect();
        let config = Config::load(None, &sets).unwrap();
        let rows = SourceSpec::train(&config.data).open();
        rows.map(|rows| features_of(&*rows)).map_err(|error| error.to_string())
    };
    write("1.csv", "8.302;9,2;0\n1.000;7,5;1\n");
    write("2.csv", "9.118;6;0\n1.234;7;1\n");
    assert_eq!(rows(&[]).unwrap(), [8302.0, 9.2, 1000.0, 7.5, 9118.0, 6.0, 1234.0, 7.0]);
    write("0.csv", "9;6;0\n8;7;1\n");
    assert_eq!(rows(&[]).unwrap()[..6], [9.0, 6.0, 8.0, 7.0, 8302.0, 9.2], "whole numbers show no mark");
    write("3.csv", "9.5;6.25;0\n1.5;7;1\n");
    let error = rows(&[]).unwrap_err();
    assert!(error.contains("3.csv` have a decimal point, unlike those of `"), "{error}");
    write("0.csv", "9.118;6;0\n1.234;7;1\n");
    let error = rows(&[]).unwrap_err();
    assert!(error.contains("0.csv") && error.contains("1.csv"), "{error}");
    fs::remove_file(folder.path().join("3.csv")).unwrap();
    assert_eq!(rows(&["data.decimal=,"]).unwrap()[0], 9118.0);
    fs::remove_file(folder.path().join("0.csv")).unwrap();
    write("2.csv", &format!("{}12.5;7;1\n", "9;6;0\n".repeat(70)));
    let error = rows(&[]).unwrap_err();
    assert!(error.contains("\"12.5\" has a point"), "{error}");
    assert_eq!(*rows(&["data.decimal=,"]).unwrap().iter().nth_back(1).unwrap(), 12.5);
}

/// The mark that training rows showed is saved with their columns, and is that of rows that show none.
#[test]
fn rows_for_a_model_have_the_decimal_mark_of_its_training_rows() {
    let open = "a;q;y\n8.302;9;0\n1.000;7;1\n";
    let german = "a;q;y\n8.302;9,2;0\n1.000;7,5;1\n";
    let english = "a;q;y\n8,302;9.2;0\n1,000;7.5;1\n";
    for (train, other, [thousands, fraction]) in
        [(german, english, [8302.0, 9.2]), (english, german, [8302.0, 9.2])]
    {
        let open = if train == german { open.to_owned() } else { open.replace('.', ",") };
        let files = Files::new(&[("rows.csv", train), ("eval.csv", &open), ("other.csv", other)]);
        let sets = ["data.task=regression", "data.target=y"];
        for more in [&["data.eval=FOLDER/eval.csv"][..], &["data.eval=FOLDER/eval.csv", "data.filter=q > 0"]]
        {
            let loaded = files.load("rows.csv", &[&sets[..], more].concat()).unwrap();
            assert_eq!(features_of(&*loaded.plain)[..2], [thousands, fraction]);
            assert_eq!(features_of(&**loaded.eval.as_ref().unwrap()), [8302.0, 9.0, 1000.0, 7.0]);
            let mark = if train == german { Decimal::Comma } else { Decimal::Point };
            assert_eq!(columns_of(&loaded).decimal, mark);
            let again = serde_json::to_string(&columns_of(&loaded)).unwrap();
            assert_eq!(serde_json::from_str::<ColumnCodes>(&again).unwrap(), columns_of(&loaded));
        }
        let more = ["data.eval=FOLDER/other.csv"];
        let error = files.load("rows.csv", &[&sets[..], &more].concat()).unwrap_err().to_string();
        assert!(error.contains("other.csv` have a decimal ") && error.contains("rows.csv"), "{error}");
    }
}

#[test]
fn settings_of_text_are_refused_for_other_formats() {
    let files = Files::new(&[("rows.jsonl", "{\"x\":1,\"label\":0}\n{\"x\":2,\"label\":1}\n")]);
    for (set, key) in [
        ("data.header=true", "data.header"),
        ("data.header=false", "data.header"),
        ("data.delimiter=tab", "data.delimiter"),
        ("data.decimal=,", "data.decimal"),
    ] {
        assert_refused(files.load("rows.jsonl", &[set]), &[&format!("`{key}`"), "rows.jsonl"]);
    }
    assert!(files.load("rows.jsonl", &["data.header=auto"]).is_ok());
}

#[test]
fn a_column_of_dates_or_times_has_no_numbers() {
    let open = |values: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let rows: String =
            values.iter().enumerate().map(|(row, value)| format!("{value},{}\n", row % 2)).collect();
        fs::write(&path, format!("when,label\n{rows}")).unwrap();
        let sets = [
            format!("data.train={}", path.display()),
            "data.target=label".to_owned(),
            "data.missing=mean".to_owned(),
        ];
        let config = Config::load(None, &sets).unwrap();
        SourceSpec::train(&config.data).open().map(|rows| rows.len()).map_err(|error| error.to_string())
    };
    for values in
        [["2024-01-01", "20240102", "2024-01-03"], ["20240102", "7", "2024-01-03"], ["12:30", "90", "13:00"]]
    {
        let error = open(&values).unwrap_err();
        assert!(error.contains("column \"when\" holds") && error.contains("another row has"), "{error}");
    }
    for values in [
        ["2024-01-01", "", "2024-01-03 12:00:00"],
        ["12:30", "NA", "PT1H"],
        ["12:30", "2024-01-01", ""],
        ["1", "", "2.5"],
    ] {
        assert_eq!(open(&values), Ok(3), "{values:?}");
    }
}
