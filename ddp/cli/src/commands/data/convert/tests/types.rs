//! Values and types of columns.

use super::*;

#[test]
fn missing_values_are_kept_and_infinite_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("first.csv"), "x,y,label\n1,NA,0\n,7,1\n").unwrap();
    run(&args(&[text(&at("first.csv")), text(&at("rows.parquet"))])).unwrap();
    assert_eq!(cells(&at("rows.parquet")), rows_of("x,y,label\n1,,0\n,7,1\n"));
    let array = |values: &[f32]| {
        let x = Tensor::from_slice(values, &[2, 2], Device::Cpu).unwrap();
        let labels = Tensor::from_slice(&[0_i64, 1], &[2], Device::Cpu).unwrap();
        io::write_npz(at("rows.npz"), &[("features", &x), ("labels", &labels)]).unwrap();
    };
    array(&[1.0, f32::NAN, f32::NAN, 7.0]);
    run(&args(&[text(&at("rows.npz")), text(&at("of-array.parquet"))])).unwrap();
    let of_array = cells(&at("of-array.parquet"));
    assert_eq!(of_array[0], ["f0", "f1", "label"]);
    let number = |row: usize, column: usize| {
        of_array[row][column].parse::<f64>().ok().filter(|number| !number.is_nan())
    };
    assert_eq!([number(1, 0), number(1, 1), number(2, 0), number(2, 1)], [Some(1.0), None, None, Some(7.0)]);
    array(&[1.0, f32::INFINITY, 2.0, 7.0]);
    assert_refused(&[text(&at("rows.npz")), text(&at("y.parquet"))], &["rows.npz", "inf"]);
}

#[test]
fn tables_keep_their_values_and_types() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ (state >> 29)
    };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut lines = "whole,large,number,truth,text,date,moment,time,kind\n".to_owned();
    for row in 0..200 {
        let number = loop {
            let value = f64::from_bits(random());
            if value.is_finite() {
                break value;
            }
        };
        let mut of = |texts: &[&'static str]| texts[random() as usize % texts.len()].to_owned();
        let texts = [
            of(&["true", "false"]),
            of(&["Bern", "öß \u{1f600}", "NA", "7", "x'y", "true"]),
            of(&["cat", "dog", "True", "3"]),
        ];
        let [truth, text, kind] = texts;
        let cells = [
            (random() as i64).to_string(),
            (random() | 1 << 63).to_string(),
            format!("{number:e}"),
            truth,
            text,
            format!("20{:02}-0{}-1{}", random() % 100, 1 + random() % 9, random() % 10),
            format!("1999-12-31 23:59:{:02}.{:06}", random() % 60, 1 + random() % 999_999),
            format!("0{}:30:00", random() % 10),
            kind,
        ];
        // The last row turns the text column into strings; the second row lacks values.
        let cells: Vec<String> = cells
            .into_iter()
            .enumerate()
            .map(|(column, cell)| match (row, column) {
                (1, 0..8) => String::new(),
                (199, 4) => "late".to_owned(),
                (199, 8) => "cat".to_owned(),
                _ => cell,
            })
            .collect();
        lines += &(cells.join(",") + "\n");
    }
    fs::write(at("first.csv"), &lines).unwrap();
    for (from, to) in [("first.csv", "one.parquet"), ("one.parquet", "other.parquet")] {
        run(&args(&[text(&at(from)), text(&at(to)), "--target", "kind"])).unwrap();
        let (want, got) = (rows_of(&lines), cells(&at(to)));
        assert_eq!((want.len(), &want[0]), (got.len(), &got[0]), "{to}");
        for (row, (want, got)) in want.iter().zip(&got).enumerate().skip(1) {
            for (column, (want, got)) in want.iter().zip(got).enumerate() {
                let is_same = match column {
                    2 if !want.is_empty() => {
                        want.parse::<f64>().unwrap().to_bits() == got.parse::<f64>().unwrap().to_bits()
                    }
                    6 => want.trim_end_matches('0') == got.trim_end_matches('0'),
                    _ => want == got,
                };
                assert!(is_same, "{to}, row {row}, column {column}: {want} became {got}");
            }
        }
    }
    fs::write(at("wide.csv"), "a,label\n9007199254740993,0\n0.5,1\n").unwrap();
    let said = run(&args(&[text(&at("wide.csv")), text(&at("wide.parquet"))])).unwrap();
    assert!(said.contains("1 value was rounded to f64"), "{said}");
}

#[test]
fn columns_of_parquet_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut lists = ListBuilder::new(Float64Builder::new());
    lists.append_value([Some(0.1), None]);
    lists.append_null();
    lists.append_value([Some(3.0), Some(1e300)]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("spectrum", Arc::new(lists.finish())),
        ("gaps", Arc::new(Int16Array::from(vec![Some(300), None, Some(-7)]))),
        ("city", Arc::new(StringArray::from(vec!["Rome", "Bern", "Rome"]))),
        ("label", Arc::new(Int64Array::from(vec![0, 1, 0]))),
    ];
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(at("in.parquet")).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    run(&args(&[text(&at("in.parquet")), text(&at("out.parquet"))])).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(at("out.parquet")).unwrap()).unwrap();
    let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    assert_eq!(batches, [batch]);
}
