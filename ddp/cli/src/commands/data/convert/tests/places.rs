//! Names of outputs: which are refused, what is replaced, and what a failed conversion leaves.

use super::*;

#[test]
fn a_failed_conversion_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.csv");
    table(&bad, "classification", false, 5000);
    let good = fs::read_to_string(&bad).unwrap();
    fs::write(&bad, format!("{good}1,1e999,0\n")).unwrap();
    let out = folder.path().join("out.parquet");
    let keys = keys(&bad, "classification", false);
    let message = convert_rows(&words(&bad, &out, &keys)).unwrap_err().to_string();
    assert!(message.contains("line 5002, column \"y, z\""), "{message}");
    let mut parts = words(&bad, &folder.path().join("new/parts/"), &keys);
    parts.extend(["--rows-per-file", "1000"].map(str::to_owned));
    assert!(convert_rows(&parts).is_err());
    assert_eq!(names_in(folder.path()), ["bad.csv"]);

    // Existing files are left unchanged.
    fs::write(&out, b"precious").unwrap();
    assert_refused(&[text(&bad), text(&out), "--target", "kind"], &["out.parquet` exists", "--overwrite"]);
    assert!(run(&args(&[text(&bad), text(&out), "--target", "kind", "--overwrite"])).is_err());
    assert_eq!(fs::read(&out).unwrap(), b"precious");

    // A killed process left a file behind; the file of a live process is kept.
    fs::write(folder.path().join(".out.parquet.4294967294.convert"), b"half").unwrap();
    let live = format!(".out.parquet.{}.convert", 1);
    fs::write(folder.path().join(&live), b"half").unwrap();
    fs::write(&bad, good).unwrap();
    run(&args(&[text(&bad), text(&out), "--target", "kind", "--overwrite"])).unwrap();
    assert_eq!(names_in(folder.path()), [&live[..], "bad.csv", "out.parquet"]);
}

#[test]
fn places_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    let input = "builtin:digits";
    for (name, parts) in [
        ("rows", ["to Parquet, and to nothing else", "in / for a folder"]),
        ("rows.csv", ["to Parquet, and to nothing else", "polars and DuckDB"]),
        ("rows.jsonl.gz", ["to Parquet, and to nothing else", "polars and DuckDB"]),
        ("rows.feather", ["to Parquet, and to nothing else", "polars and DuckDB"]),
        ("rows.npy", ["to Parquet, and to nothing else", "numpy.save"]),
        ("rows.npz", ["to Parquet, and to nothing else", "numpy.save"]),
        ("rows.safetensors", ["to Parquet, and to nothing else", "safetensors.numpy.save_file"]),
        ("rows.parquet.gz", ["to Parquet, and to nothing else", "end its name in .parquet"]),
    ] {
        assert_refused(&[input, &at(name)], &parts);
    }
    let message = run(&args(&[input, &at("none/rows.parquet"), "--target", "x"])).unwrap_err().to_string();
    assert!(message.contains("builtin:digits"), "{message}");
    assert_refused(&[&at("none.csv"), &at("rows.parquet")], &["none.csv` does not exist"]);
    assert_eq!(names_in(folder.path()), [""; 0]);
    let summary = run(&args(&[input, &at("digits.parquet")])).unwrap();
    assert!(summary.starts_with("1,438 rows in 1 file, 0.") && summary.contains(" MB in "), "{summary}");
}

#[test]
fn only_former_parts_are_replaced_and_never_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    table(&at("rows.csv"), "classification", false, 20);
    let others =
        ["other.parquet", "part-1.parquet", "part-00001.old.parquet", "part-0000x.parquet", "part-00001.csv"];
    for name in others {
        fs::write(at(name), b"precious").unwrap();
    }
    let out = format!("{}/", folder.path().display());
    let convert = |from: &str, to: &str, more: &[&str]| {
        let from = at(from);
        run(&args(&[&[text(&from), to, "--target", "kind", "--overwrite"], more].concat()))
    };
    for (n_rows, n_parts) in [("5", 4), ("10", 2)] {
        convert("rows.csv", &out, &["--rows-per-file", n_rows]).unwrap();
        let parts: Vec<_> =
            names_in(folder.path()).into_iter().filter(|name| name.starts_with("part-0000")).collect();
        assert_eq!(parts.len(), n_parts + 3, "{parts:?}");
    }
    for name in others {
        assert_eq!(fs::read(at(name)).unwrap(), b"precious", "{name}");
    }
    convert("rows.csv", &out, &[]).unwrap();

    // Numbered files whose names end like those of this command.
    let numbered = ["out-00007.x.parquet", "out-00007.parquet", "out-007.parquet"];
    for name in numbered {
        fs::write(at(name), b"precious").unwrap();
    }
    convert("rows.csv", text(&at("out.parquet")), &["--rows-per-file", "10"]).unwrap();
    assert_eq!(numbered.map(|name| at(name).exists()), [true, false, true]);

    let before = fs::read(at("part-00000.parquet")).unwrap();
    for to in [&out, text(&at("part-00000.parquet"))] {
        let message = convert("part-00000.parquet", to, &[]).unwrap_err().to_string();
        assert!(
            message.contains("part-00000.parquet`, which is an input") && message.contains("hint: "),
            "{message}"
        );
    }
    assert_eq!(fs::read(at("part-00000.parquet")).unwrap(), before);
    let message = run(&args(&[text(&at("rows.csv")), &out])).unwrap_err().to_string();
    assert!(message.contains("part-00000.parquet` exists"), "{message}");
}
