//! pandas reads converted files as intended.

use std::process::Command;

use super::{convert, fixtures};
use crate::common::{run_ok, temp_dir, write};

fn has_packages() -> bool {
    let imports = Command::new("python3").args(["-c", "import pandas, pyarrow"]).output();
    let has_packages = imports.is_ok_and(|output| output.status.success());
    if !has_packages {
        eprintln!("skipped: needs the Python packages pandas and pyarrow");
    }
    has_packages
}

#[test]
fn pandas_reads_the_same_values_with_the_same_types() {
    if !has_packages() {
        return;
    }
    let folder = temp_dir();
    write(
        folder.path(),
        "typed.csv",
        "whole,large,number,truth,text,day,moment,label\n\
         -9007199254740993,18446744073709551615,0.1,true,öß,2024-02-29,1999-12-31 23:59:59.123456,0\n\
         7,18446744073709551614,-2.5e-300,false,NA,1970-01-01,2024-02-29 00:00:00,1\n\
         ,9223372036854775808,,,x y,,,1\n",
    );
    for mixed in ["snappy.parquet", "lz4.feather"] {
        let from = fixtures("mixed").join(mixed);
        let from = from.to_str().unwrap();
        convert(folder.path(), &[from, &format!("{mixed}.parquet")]);
    }
    convert(folder.path(), &["typed.csv", "typed.parquet"]);
    let script = crate::common::ddp_folder().join("tests/program/data/convert/check.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(folder.path()).arg(fixtures("mixed"));
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    assert_eq!(run_ok(python).stdout, "3 files\n");
}
