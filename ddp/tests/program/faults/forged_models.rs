//! Models whose metadata contradict each other, as those of a stranger may.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::common::{run_line, run_line_ok, temp_dir, write};

/// Rewrites the metadata of the model in `from` by `change`.
fn forge(from: &Path, to: &Path, change: impl Fn(&mut Map<String, Value>)) {
    let bytes = std::fs::read(from).unwrap();
    let (len, rest) = bytes.split_at(8);
    let (header, tensors) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    change(header["__metadata__"].as_object_mut().unwrap());
    let header = header.to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), tensors].concat();
    std::fs::write(to, bytes).unwrap();
}

#[test]
fn models_that_contradict_themselves_are_refused() {
    let folder = temp_dir();
    let row = |n: usize| format!("{}.5,{},L{}\n", n % 7, ["u", "v", "w"][n % 3], n % 2);
    write(folder.path(), "t.csv", &format!("a,c,y\n{}", (0..60).map(row).collect::<String>()));
    let table = "t.csv --plain --target y --categorical c --epochs 1 --hidden 4 --device cpu";
    run_line_ok(folder.path(), &format!("{table} --out base"));
    let (base, forged) = (folder.path().join("base/model.safetensors"), folder.path().join("e.safetensors"));
    let column = |key: &'static str, value: Value| {
        move |metadata: &mut Map<String, Value>| {
            let mut columns: Value =
                serde_json::from_str(metadata["ddp_train.columns"].as_str().unwrap()).unwrap();
            columns[key] = value.clone();
            metadata["ddp_train.columns"] = columns.to_string().into();
        }
    };
    let labels = |labels: &'static str| {
        move |metadata: &mut Map<String, Value>| metadata["ddp_train.labels"] = labels.into()
    };
    let long = |metadata: &mut Map<String, Value>| {
        metadata["ddp_train.config"] = format!("[data]\n{} = 1\n", "x".repeat(2_000_000)).into();
    };
    type Change = Box<dyn Fn(&mut Map<String, Value>)>;
    let cases: [(&str, Change); 9] = [
        ("labels: none", Box::new(labels("[]"))),
        ("labels: one more", Box::new(labels("[\"L0\",\"L1\",\"L2\"]"))),
        ("labels: one less", Box::new(labels("[\"L0\"]"))),
        ("columns", Box::new(column("columns", json!([])))),
        ("fill", Box::new(column("fill", json!([])))),
        ("ranges", Box::new(column("ranges", json!([])))),
        ("vocabularies", Box::new(column("vocabularies", json!([])))),
        ("indicators", Box::new(column("indicators", json!([9])))),
        ("a key of 2 MB", Box::new(long)),
    ];
    for (name, change) in cases {
        forge(&base, &forged, change);
        for line in [
            "eval --checkpoint e.safetensors --data t.csv".to_owned(),
            "predict --checkpoint e.safetensors --data t.csv --out p.csv --overwrite".to_owned(),
            "checkpoint export e.safetensors --out m.onnx --overwrite".to_owned(),
            format!("{table} --init-from e.safetensors --out o --overwrite"),
        ] {
            let began = std::time::Instant::now();
            let ended = run_line(folder.path(), &line);
            let is_refused = matches!(ended.status.code(), Some(0..=2)) && !ended.stderr.contains("panicked");
            assert!(is_refused, "{name}, {line}: {}", ended.stderr);
            assert!(began.elapsed().as_secs() < 10, "{name}, {line}: {:?}", began.elapsed());
        }
    }
}

/// The config claims two layers of 16 million units, whose weights would take a petabyte.
#[test]
fn layers_that_the_file_does_not_hold_are_refused_before_they_are_made() {
    let folder = temp_dir();
    let row = |n: usize| format!("{}.5,{},L{}\n", n % 7, n % 3, n % 2);
    write(folder.path(), "t.csv", &format!("a,b,y\n{}", (0..60).map(row).collect::<String>()));
    let table = "t.csv --plain --target y --epochs 1 --hidden 4 --device cpu";
    run_line_ok(folder.path(), &format!("{table} --out base"));
    let bytes = std::fs::read(folder.path().join("base/model.safetensors")).unwrap();
    let (len, rest) = bytes.split_at(8);
    let (header, tensors) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
    let good = std::str::from_utf8(header).unwrap();
    let header =
        good.replace("layers.1.", "layers.2.").replace("hidden = [4]", "hidden = [16777216, 16777216]");
    assert_eq!(header.len(), good.len() + 17);
    let forged = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), tensors].concat();
    std::fs::write(folder.path().join("e.safetensors"), forged).unwrap();
    for line in [
        "eval --checkpoint e.safetensors --data t.csv",
        "predict --checkpoint e.safetensors --data t.csv --out p.csv",
        "checkpoint export e.safetensors --out m.onnx",
    ] {
        let ended = run_line(folder.path(), line);
        let part = "layers.0.weight is [4, 2] in the file, [16777216, 2] in the model";
        assert!(ended.status.code() == Some(2) && ended.stderr.contains(part), "{line}: {ended:?}");
    }
}
