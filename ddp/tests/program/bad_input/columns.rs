//! Columns that the config names but the table lacks, or whose values do not fit their use.

use super::file_sets::{self, train};
use super::harness::Place;
use crate::data::files;

const TABLE: &str = "id,city,x,w,label\n1,Rome,1,1,0\n2,Bern,2,1,1\n3,Rome,3,2,0\n4,Oslo,4,0,1\n";
const BASE: [&str; 3] = ["data.train=rows.csv", "data.drop=[\"id\"]", "data.categorical=[\"city\"]"];

#[track_caller]
fn refused(table: &str, more: &[&str], parts: &[&str]) {
    let place = Place::with(&[("rows.csv", table)]);
    place.refuses(&train(&[&["data.train=rows.csv"], more].concat()), parts);
}

#[test]
fn columns_that_are_not_there() {
    Place::with(&[("rows.csv", TABLE)]).run(&train(&BASE)).is_good();
    for (set, parts) in [
        (
            "data.target=kind",
            [
                "no target column \"kind\"",
                "hint: set `data.target` (--target) to one of the columns: id, city",
            ],
        ),
        ("data.target=lable", ["no target column \"lable\"", "hint: did you mean \"label\"?"]),
        (
            "data.drop=[\"ident\"]",
            ["no column \"ident\" for `data.drop`", "hint: the columns are id, city, x, w, label"],
        ),
        ("data.drop=[\"citi\"]", ["no column \"citi\" for `data.drop`", "hint: did you mean \"city\"?"]),
        (
            "data.drop=[\"id,city\"]",
            [
                "no column \"id,city\"",
                "hint: for several columns write the list [\"id\", \"city\"], or repeat",
            ],
        ),
        ("data.categorical=[\"town\"]", ["no column \"town\" for `data.categorical`", "hint: "]),
        ("data.weight=weight", ["no column \"weight\" for `data.weight`", "hint: "]),
    ] {
        refused(TABLE, &[set], &[&["data file `rows.csv`"], &parts[..]].concat());
    }
}

/// Files for evaluation are often without the identifiers of the training file.
#[test]
fn rows_to_evaluate_may_lack_dropped_columns() {
    let without =
        TABLE.lines().map(|line| format!("{}\n", line.split_once(',').unwrap().1)).collect::<String>();
    let place = Place::with(&[("rows.csv", TABLE), ("eval.csv", &without)]);
    place.run(&train(&[&BASE[..], &["data.eval=eval.csv"]].concat())).is_good();
    place.run(&["eval", "--checkpoint", "out", "--data", "eval.csv"]).is_good();
}

#[test]
fn columns_with_two_uses() {
    for sets in [
        ["data.drop=[\"label\"]", "data.weight=w"],
        ["data.drop=[\"w\"]", "data.weight=w"],
        ["data.categorical=[\"city\"]", "data.drop=[\"city\"]"],
    ] {
        refused(TABLE, &sets, &["--set", "hint: a column is a feature, a target, the weight, or left out"]);
    }
    refused(TABLE, &["data.weight=label"], &["label", "hint: "]);
}

#[test]
fn text_and_gaps() {
    refused(TABLE, &[], &["line 2, column \"city\": expected a number, got \"Rome\"", "hint: "]);
    let gap = TABLE.replace("3,Rome,3,", "3,Rome,,");
    refused(&gap, &BASE[1..], &["line 4, column \"x\": the cell is empty", "hint: "]);
    let fill = ["data.missing=mean"];
    Place::with(&[("rows.csv", &gap)]).run(&train(&[&BASE[..], &fill].concat())).is_good();
    let infinite = TABLE.replace("3,Rome,3,", "3,Rome,inf,");
    refused(
        &infinite,
        &[&BASE[1..], &fill].concat(),
        &["line 4, column \"x\": expected a finite number", "hint: "],
    );
    let no_label = TABLE.replace(",2,0\n", ",2,\n");
    refused(&no_label, &[&BASE[1..], &fill].concat(), &["line 4, column \"label\": the cell is empty"]);
}

#[test]
fn weights_that_are_none() {
    let sets = [BASE[1], BASE[2], "data.weight=w"];
    Place::with(&[("rows.csv", TABLE)]).run(&train(&[&BASE[..], &["data.weight=w"]].concat())).is_good();
    for (weight, part) in [("-1", "a weight"), ("nan", "finite"), ("", "empty"), ("heavy", "a number")] {
        let table = TABLE.replace("Bern,2,1,", &format!("Bern,2,{weight},"));
        refused(&table, &sets, &["data file `rows.csv`: line 3, column \"w\": ", part, "hint: "]);
    }
    let none =
        TABLE.replace(",2,0\n", ",0,0\n").replace("Rome,1,1,", "Rome,1,0,").replace("Bern,2,1,", "Bern,2,0,");
    let ended = Place::with(&[("rows.csv", &none)]).run(&train(&[&BASE[..], &["data.weight=w"]].concat()));
    assert!(ended.status.is_some(), "weights that are all 0 are no reason to crash: {ended:#?}");
}

#[test]
fn settings_that_arrays_have_no_use_for() {
    let place = Place::new();
    place.write("x.npy", &file_sets::x_npy());
    place.write("y.npy", &file_sets::y_npy());
    for key in ["data.drop", "data.categorical"] {
        let set = format!("{key}=[\"f0\"]");
        place.refuses(
            &train(&["data.train=x.npy", "data.labels=y.npy", &set]),
            &[&format!("`{key}` is set, but `x.npy` holds an array"), "hint: "],
        );
    }
}

#[test]
fn shards_of_other_columns() {
    let place = Place::with(&[("t/0.csv", "a,b,label\n1,2,0\n2,3,1\n"), ("t/1.csv", "a,c,label\n1,2,0\n")]);
    let args = train(&["data.train=t"]);
    place.refuses(
        &args,
        &["`t/0.csv` and `t/1.csv` don't match", "\"b\" is missing, \"c\" is extra", "hint: "],
    );
    place.write("t/1.csv", b"a,b,label,more\n1,2,0,1\n");
    place.refuses(&args, &["don't match", "3 columns against 4"]);
    place.write("t/1.csv", b"a,b,label\n");
    place.run(&args).is_good();
    place.write("t/0.csv", b"a,b,label\n");
    place.refuses(&args, &["data file `t/0.csv`: no rows after the header"]);
    place.write("t/0.csv", b"a,b,label\n1,2,0\n2,3,1\n");
    place.write("t/1.csv", b"a,b,label\n1,x,0\n");
    place.refuses(&args, &["data file `t/1.csv`: line 2, column \"b\": expected a number, got \"x\""]);
}

/// A `.safetensors` file with three named columns, the last of them categorical if there are `cities`.
fn converted(names: &str, cities: Option<&str>) -> Vec<u8> {
    let file = file_sets::safetensors();
    let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(file[8..8 + len].to_vec()).unwrap();
    let mut texts = format!("\"ddp_train.features\":{names:?}");
    if let Some(cities) = cities {
        let categories =
            format!("[{{\"column\":2,\"vocabulary\":{{\"column\":\"city\",\"values\":{cities}}}}}]");
        texts += &format!(",\"ddp_train.categories\":{categories:?}");
    }
    files::safetensors_with(
        &header.replacen('{', &format!("{{\"__metadata__\":{{{texts}}},"), 1),
        &file[8 + len..],
    )
}

/// Without trimming, the text would be read as another column, or another city.
#[test]
fn arrays_whose_columns_have_other_names() {
    let place = Place::new();
    let with_cities = |cities| converted("[\"a\",\"b\",\"city\"]", Some(cities));
    place.write("t.safetensors", &with_cities("[\"Bern\",\"Oslo\",\"Rome\"]"));
    place.write("same.safetensors", &with_cities("[\"Bern\",\"Oslo\",\"Rome\"]"));
    place.write("cities.safetensors", &with_cities("[\"Bern\",\"Lima\",\"Rome\"]"));
    place.write("order.safetensors", &converted("[\"b\",\"a\",\"city\"]", None));
    place.write("numbers.safetensors", &converted("[\"a\",\"b\",\"city\"]", None));
    place.write("nameless.safetensors", &file_sets::safetensors());
    let one_more: Vec<f64> = vec![1.0; 12 * 4];
    place.write("wide.npy", &file_sets::npy_f32(&[12, 4], &one_more));
    place.write("y.npy", &file_sets::y_npy());
    for (name, parts) in [
        ("cities.safetensors", ["t.safetensors", "the categories of \"city\" are numbered differently"]),
        (
            "numbers.safetensors",
            ["t.safetensors", "\"city\" holds categories in t.safetensors, but numbers in"],
        ),
        (
            "nameless.safetensors",
            ["t.safetensors", "\"city\" holds categories in t.safetensors, but numbers in"],
        ),
        ("order.safetensors", ["t.safetensors", "column 1 of the array is \"b\", not \"a\""]),
        ("wide.npy", ["its 4 feature columns differ from the 3 of t.safetensors", "as they are"]),
    ] {
        let eval = format!("data.eval={name}");
        let sets = ["data.train=t.safetensors", &eval, "data.eval_labels=y.npy"];
        let sets = if name == "wide.npy" { &sets[..] } else { &sets[..2] };
        place.refuses(&train(sets), &[&[name, "hint: "], &parts[..]].concat());
    }
    for (name, other) in [("t", "same"), ("numbers", "nameless"), ("nameless", "numbers")] {
        let sets = [format!("data.train={name}.safetensors"), format!("data.eval={other}.safetensors")];
        place.run(&train(&sets.each_ref().map(String::as_str))).is_good();
        std::fs::remove_dir_all(place.file("out")).unwrap();
    }
}

/// Whoever made the file chose its names.
#[test]
fn names_of_any_length_fill_no_screen() {
    let place = Place::new();
    let long = "n".repeat(10_000);
    let words = "two words ".repeat(1000);
    let rows: String =
        (0..60).map(|i| format!("{},{},{}\n", i % 7, i * 3 % 5, ["yes", "no"][i % 2])).collect();
    for (at, name) in [&long, &words].into_iter().enumerate() {
        place.write("a.csv", format!("{name},y,label\n{rows}").as_bytes());
        place.write("b.csv", format!("x,y,label{name}\n{rows}").as_bytes());
        let labels = rows.replace("yes", name);
        place.write("c.csv", format!("x,y,label\n{labels}").as_bytes());
        place.write("k.toml", format!("[model]\n\"{name}\" = 3\n").as_bytes());
        for table in ["a", "c"] {
            let line = format!("train {table}.csv --target label --epochs 1 --out {table}{at}");
            place.run(&line.split(' ').collect::<Vec<_>>()).is_good();
        }
        let run = |line: &str| {
            let line = line.replace('@', &at.to_string());
            let ended = place.run(&line.split(' ').collect::<Vec<_>>());
            let longest =
                ended.stdout.lines().chain(ended.stderr.lines()).map(|line| line.chars().count()).max();
            assert!(longest.unwrap() < 600, "{line}: {longest:?}\n{}{}", ended.stdout, ended.stderr);
            ended.status
        };
        for line in [
            "data inspect a.csv --target label",
            "data inspect c.csv --target label",
            "data show c.csv --rows 0..4",
            "checkpoint show a@",
            "checkpoint show c@",
            "checkpoint export a@ --out a@.onnx",
            "eval --importance --checkpoint a@ --data a.csv",
            "eval --checkpoint c@ --data c.csv",
            "runs show a@",
        ] {
            assert_eq!(run(line), Some(0), "{line}");
        }
        for line in [
            "train a.csv --target lab",
            "train b.csv --target label",
            "predict --checkpoint a@ --data b.csv --out o.csv",
            "eval --checkpoint a@ --data c.csv",
            "train k.toml",
        ] {
            assert_eq!(run(line), Some(2), "{line}");
        }
        let set = format!("model.{name}=3");
        let ended = place.run(&["train", "a.csv", "--set", &set]);
        // It is named as a word and as a key.
        assert!(ended.stderr.lines().all(|line| line.chars().count() < 1000), "{}", ended.stderr);
    }
}
