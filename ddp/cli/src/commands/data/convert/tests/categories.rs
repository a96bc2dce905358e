//! Columns of categories keep their texts, also where a file holds codes.

use super::*;

/// Rows of `city`, a category of `first`, as safetensors with the codes and their meaning, and the labels of `first`.
fn with_codes(first: &dyn Dataset, path: &Path) {
    let (x, targets, _) = gathered(first, &(0..first.len()).collect::<Vec<_>>());
    let layout = first.layout();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let targets: Vec<u8> = targets.iter().flat_map(|class| (*class as i64).to_le_bytes()).collect();
    let x = bytes(&x);
    let view = |dtype, shape: &[usize], bytes| {
        safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes).unwrap()
    };
    let tensors = [
        ("features", view(safetensors::Dtype::F32, &[first.len(), layout.n_features()], &x)),
        ("labels", view(safetensors::Dtype::I64, &[first.len()], &targets)),
    ];
    let metadata = [
        ("ddp_train.features", serde_json::to_string(&layout.features).unwrap()),
        ("ddp_train.categories", serde_json::to_string(&layout.categories).unwrap()),
    ];
    let metadata = metadata.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
    fs::write(path, safetensors::serialize(tensors, Some(metadata)).unwrap()).unwrap();
}

fn open_categorical(path: &Path) -> Arc<dyn Dataset> {
    let sets = [format!("data.train={path:?}"), "data.categorical=[\"city\"]".to_owned()];
    SourceSpec::train(&Config::load(None, &sets).unwrap().data).open().unwrap()
}

#[test]
fn categories_keep_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let first = at("first.csv");
    fs::write(&first, "size,city,label\n1,Rome,0\n2,\"Bern, BE\",1\n3,,1\n4,Rome,0\n").unwrap();
    let expected = open_categorical(&first);
    let stored = at("rows.safetensors");
    with_codes(&*expected, &stored);
    let keys = [("categorical", "city".to_owned())];
    for (from, keys) in [(&first, &keys[..]), (&first, &[]), (&stored, &[])] {
        let mut words = words(from, &at("rows.parquet"), keys);
        words.push("--overwrite".to_owned());
        convert_rows(&words).unwrap();
        let rows = open_categorical(&at("rows.parquet"));
        assert_eq!(rows.layout().categories, expected.layout().categories);
        assert_eq!(bits(&*rows), bits(&*expected));
    }
    // Numbers that are categories are texts if they are named.
    fs::write(&first, "size,city,label\n1,30,0\n2,07,1\n").unwrap();
    convert_rows(&words(&first, &at("texts.parquet"), &keys)).unwrap();
    assert_eq!(cells(&at("texts.parquet"))[1..], rows_of("1,30,0\n2,07,1\n"));
}

#[test]
fn rows_of_any_format_have_the_categories_of_a_file_with_codes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Values that could be mistaken for codes of categories.
    fs::write(at("first.csv"), "size,city,label\n1,30,0\n2,1,1\n3,2,1\n4,30,0\n").unwrap();
    fs::write(at("eval.csv"), "size,city,label\n5,30,0\n6,7,1\n").unwrap();
    with_codes(&*open_categorical(&at("first.csv")), &at("rows.safetensors"));
    let plain = open(&at("eval.csv"), &[]);
    for name in ["plain.npy", "plain.safetensors"] {
        as_arrays(&*plain, &at(name));
    }
    let load = |train: &str, eval: &str, more: &[&str]| {
        let mut sets = vec![format!("data.train={:?}", at(train)), format!("data.eval={:?}", at(eval))];
        sets.extend(more.iter().map(|set| (*set).to_owned()));
        let config = Config::load(None, &sets).unwrap();
        ddp_tables::load(&config, &ddp_comm::World::single())
            .map_err(|stop| crate::exit::Stop::from(stop).to_string())
    };
    let categorical = ["data.categorical=[\"city\"]"];
    let expected = bits(&*load("first.csv", "eval.csv", &categorical).unwrap().eval.unwrap());
    convert_rows(&words(&at("eval.csv"), &at("texts.parquet"), &[("categorical", "city".to_owned())]))
        .unwrap();
    for table in ["eval.csv", "texts.parquet"] {
        let eval = load("rows.safetensors", table, &[]).unwrap().eval.unwrap();
        assert!(bits(&*eval) == expected, "{table}");
    }

    // An array does not describe its columns, but it has no categories.
    let labels = format!("data.eval_labels={:?}", at("plain.labels.npy"));
    let message = load("rows.safetensors", "plain.npy", &[&labels]).unwrap_err();
    assert!(message.contains("\"city\" holds categories in") && message.contains("hint: "), "{message}");
    let labels = format!("data.labels={:?}", at("plain.labels.npy"));
    let message = load("plain.npy", "rows.safetensors", &[&labels]).unwrap_err();
    assert!(message.contains("\"city\" holds categories in"), "{message}");
    let message = load("rows.safetensors", "plain.safetensors", &[]).unwrap_err();
    assert!(message.contains("\"city\" holds categories in"), "{message}");
}

#[test]
fn a_code_beyond_the_vocabulary_is_an_unknown_value() {
    let folder = tempfile::tempdir().unwrap();
    let (first, stored) = (folder.path().join("first.csv"), folder.path().join("rows.safetensors"));
    let table = folder.path().join("rows.parquet");
    fs::write(&first, "size,city,label\n1,Rome,0\n5,Bern,1\n").unwrap();
    with_codes(&*open_categorical(&first), &stored);
    let mut bytes = fs::read(&stored).unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == 2.0f32.to_le_bytes()).unwrap();
    for code in [3.0, 1e30, f32::from_bits(0x4eff_ffff)] {
        bytes[at..at + 4].copy_from_slice(&code.to_le_bytes());
        fs::write(&stored, &bytes).unwrap();
        convert_rows(&[&words(&stored, &table, &[])[..], &["--overwrite".to_owned()]].concat()).unwrap();
        assert_eq!(gathered(&*open_categorical(&table), &[0, 1]).0, [1.0, 0.0, 5.0, 1.0]);
    }
}
