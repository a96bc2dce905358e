//! Rare values of a category share the code of unknown values.

#![allow(clippy::unwrap_used)]

use crate::common::{run_line_ok, temp_dir, write};
use serde_json::Value;

/// 300 rows: three frequent values, and one value per row otherwise.
fn table() -> String {
    let row = |i: usize| {
        let city = if i.is_multiple_of(3) { format!("village{i}") } else { format!("city{}", i % 7 % 3) };
        format!("{}.5,{city},{}\n", i * 37 % 101, i % 2)
    };
    "a,city,y\n".to_owned() + &(0..300).map(row).collect::<String>()
}

/// The model's embeddings, or its inputs, by the metadata of its file.
fn metadata(path: &std::path::Path, key: &str) -> Value {
    let bytes = std::fs::read(path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    serde_json::from_str(header["__metadata__"][key].as_str().unwrap()).unwrap()
}

#[test]
fn rare_values_share_a_row_of_the_embedding() {
    for (eval, rare) in [
        ("--eval-fraction 0.2", true),
        ("--eval rows.csv", true),
        ("--eval-fraction 0.2 --set data.category_min_rows=1", false),
    ] {
        let folder = temp_dir();
        write(folder.path(), "rows.csv", &table());
        let line = "train rows.csv --target y --task classification --categorical city --epochs 1 --out out";
        let outcome = run_line_ok(folder.path(), &format!("{line} --set data.encode=embedding {eval}"));
        let said = outcome.stderr.contains("values of \"city\" have fewer than");
        assert_eq!(said, rare, "{}", outcome.stderr);
        let tables = metadata(&folder.path().join("out/model.safetensors"), "ddp_train.embeddings");
        let (n_codes, dim) = (tables[0]["n_codes"].as_u64().unwrap(), tables[0]["dim"].as_u64().unwrap());
        if rare {
            assert_eq!((n_codes, dim), (4, 2), "{eval}: {tables}");
        } else {
            // Those of the training rows, four of five.
            assert!((70..90).contains(&n_codes) && dim == 5, "{eval}: {tables}");
        }
        let outcome = run_line_ok(folder.path(), "eval --checkpoint out --data rows.csv");
        assert!(outcome.stderr.contains("saw too rarely or never: \"city\""), "{}", outcome.stderr);
    }
}

#[test]
fn one_hot_categories_keep_all_values_unless_told() {
    for (more, n) in [("", 2 + 3 + 100), ("--set data.category_min_rows=5", 2 + 3)] {
        let folder = temp_dir();
        write(folder.path(), "rows.csv", &table());
        let line = "train rows.csv --plain --target y --task classification --categorical city --eval none --epochs 1 --out out -q";
        run_line_ok(folder.path(), &format!("{line} {more}"));
        let features = metadata(&folder.path().join("out/model.safetensors"), "ddp_train.features");
        assert_eq!(features.as_array().unwrap().len(), n, "{features}");
    }
}
