//! A table with a filter is the table of the rows that it keeps, in each format, and with `data.max_rows` that of its first rows.

use std::fmt::Write as _;
use std::fs;

use ddp::config::Config;
use ddp::data::Loaded;
use ddp_comm::threads;
use ddp_kernels::Tensor;

use crate::load::load;
use crate::testing::gathered;

const NAMES: [&str; 4] = ["DE", "FR", "IT", "AT"];

/// Row `row`: every seventh age is missing; every eleventh row is garbage in all columns that a filter may look at first.
fn cells(row: usize) -> [String; 5] {
    let day = format!("2024-0{}-{:02}", 1 + row / 100 % 9, 1 + row % 28);
    let age = if row % 7 == 3 { String::new() } else { format!("{}.5", row * 13 % 90) };
    let income = if row % 11 == 5 { "n/k".to_owned() } else { (row * 7).to_string() };
    [age, NAMES[row % 4].to_owned(), day, income, (row % 2).to_string()]
}

fn csv(rows: impl Iterator<Item = usize>) -> String {
    let mut text = "age,country,day,income,y\n".to_owned();
    for row in rows {
        writeln!(text, "{}", cells(row).join(",")).unwrap();
    }
    text
}

fn json(rows: impl Iterator<Item = usize>) -> String {
    let mut text = String::new();
    for row in rows {
        let [age, country, day, income, y] = cells(row);
        let age = if age.is_empty() { "null" } else { &age };
        let income = if income == "n/k" { "\"n/k\"".to_owned() } else { income };
        let line = format!(
            "{{\"age\":{age},\"country\":\"{country}\",\"day\":\"{day}\",\"income\":{income},\"y\":{y}}}"
        );
        writeln!(text, "{line}").unwrap();
    }
    text
}

#[cfg(feature = "parquet")]
fn parquet(path: &std::path::Path, rows: impl Iterator<Item = usize>) {
    use std::sync::Arc;

    use arrow_array::{Date32Array, DictionaryArray, Float64Array, Int64Array, types};

    let rows: Vec<usize> = rows.collect();
    let ages = rows.iter().map(|row| cells(*row)[0].parse().ok());
    let countries: DictionaryArray<types::Int8Type> = rows.iter().map(|row| NAMES[row % 4]).collect();
    // Days since 1970 of the first days of the months of 2024.
    let months = [19723, 19754, 19783, 19814, 19844, 19875, 19905, 19936, 19967];
    let days = rows.iter().map(|row| months[row / 100 % 9] + (row % 28) as i32);
    let incomes = rows.iter().map(|row| cells(*row)[3].parse().ok());
    let labels = rows.iter().map(|row| (row % 2) as i64);
    let columns: Vec<(&str, arrow_array::ArrayRef)> = vec![
        ("age", Arc::new(ages.collect::<Float64Array>())),
        ("country", Arc::new(countries)),
        ("day", Arc::new(Date32Array::from_iter_values(days))),
        ("income", Arc::new(incomes.collect::<Int64Array>())),
        ("y", Arc::new(Int64Array::from_iter_values(labels))),
    ];
    crate::table::large::tests::write(path, columns, 64);
}

/// The bits of features and targets of the training rows, and of the evaluation rows.
type Rows = [Vec<u32>; 2];

fn rows_of(loaded: &Loaded) -> Rows {
    [Some(&loaded.train), loaded.eval.as_ref()].map(|rows| {
        rows.map_or_else(Vec::new, |rows| {
            let (x, y, _) = gathered(&**rows, &(0..rows.len()).collect::<Vec<_>>());
            x.iter().chain(&y).map(|value| value.to_bits()).collect()
        })
    })
}

fn loaded(sets: &[String], n_ranks: usize) -> Result<Rows, String> {
    let config = Config::load(None, sets).map_err(|error| ddp_kernels::hint::with_hint(&error))?;
    let ranks = threads::run(n_ranks, |world| match load(&config, &world) {
        Ok(loaded) => Ok(rows_of(&loaded)),
        Err(stop) => {
            Err(stop.error().map_or_else(|| stop.to_string(), |error| ddp_kernels::hint::with_hint(error)))
        }
    });
    let mut ranks = ranks.into_iter();
    // The message is that of one rank; the others know only that there is one.
    let first = ranks.next().unwrap()?;
    assert!(ranks.all(|rank| rank.as_ref() == Ok(&first)), "the ranks differ");
    Ok(first)
}

fn sets(train: &std::path::Path, more: &[&str]) -> Vec<String> {
    let mut sets = vec![format!("data.train={}", train.display())];
    let usual = ["data.target=y", "data.missing=mean", "data.categorical=country"];
    sets.extend(usual.iter().chain(more).map(|set| (*set).to_owned()));
    sets
}

const KEPT: &str =
    "data.filter=(age >= 18 and country != 'DE' or age is missing) and day < '2024-06-01' and income > 0";

fn is_kept(row: &usize) -> bool {
    let [age, country, _, income, _] = cells(*row);
    let age: Option<f64> = age.parse().ok();
    let income: Option<i64> = income.parse().ok();
    age.is_none_or(|age| age >= 18.0 && country != "DE")
        && row / 100 % 9 < 5
        && income.is_some_and(|income| income > 0)
}

#[test]
fn each_format_gives_the_rows_that_the_filter_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let n_rows = 700;
    fs::write(at("all.csv"), csv(0..n_rows)).unwrap();
    fs::write(at("all.jsonl"), json(0..n_rows)).unwrap();
    fs::write(at("kept.csv"), csv((0..n_rows).filter(is_kept))).unwrap();
    fs::create_dir(at("parts")).unwrap();
    // The first part keeps no row.
    for (part, rows) in [(0, 600..700), (1, 0..300), (2, 300..600)] {
        fs::write(at(&format!("parts/{part}.csv")), csv(rows)).unwrap();
    }
    let n_kept = (0..n_rows).filter(is_kept).count();
    assert!((100..400).contains(&n_kept), "{n_kept}");
    for more in [
        &["data.eval=none"][..],
        &["data.eval_fraction=0.25"],
        &["data.eval_fraction=0.25", "data.split={group=\"country\"}", "data.categorical=[]"],
        &["data.eval_fraction=0.25", "data.split={time=\"day\"}"],
    ] {
        let want = loaded(&sets(&at("kept.csv"), more), 1).unwrap();
        let filtered = [more, &[KEPT]].concat();
        assert!(want[0].len() > 100, "{more:?}");
        for name in ["all.csv", "all.jsonl", "parts"] {
            for n_ranks in [1, 3] {
                assert!(loaded(&sets(&at(name), &filtered), n_ranks).unwrap() == want, "{name}, {more:?}");
            }
        }
        // Dates in text are seconds, as days are.
        #[cfg(feature = "parquet")]
        {
            parquet(&at("all.parquet"), 0..n_rows);
            parquet(&at("kept.parquet"), (0..n_rows).filter(is_kept));
            let want = loaded(&sets(&at("kept.parquet"), more), 1).unwrap();
            assert!(loaded(&sets(&at("all.parquet"), &filtered), 3).unwrap() == want, "parquet, {more:?}");
            let small = [&filtered[..], &["data.shuffle_mode=blocks"]].concat();
            assert!(loaded(&sets(&at("all.parquet"), &small), 1).unwrap() == want, "in blocks, {more:?}");
        }
    }
}

#[test]
fn each_format_gives_the_first_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (n_rows, max) = (700, 250);
    fs::write(at("all.csv"), csv(0..n_rows)).unwrap();
    fs::write(at("all.jsonl"), json(0..n_rows)).unwrap();
    fs::write(at("first.csv"), csv(0..max)).unwrap();
    fs::write(at("kept.csv"), csv((0..n_rows).filter(is_kept).take(max))).unwrap();
    fs::create_dir(at("parts")).unwrap();
    for (part, rows) in [(0, 0..100), (1, 100..250), (2, 250..600), (3, 600..700)] {
        fs::write(at(&format!("parts/{part}.csv")), csv(rows)).unwrap();
    }
    let first = format!("data.max_rows={max}");
    for more in [
        &["data.eval=none"][..],
        &["data.fold=2/3"],
        &["data.eval_fraction=0.25", "data.split={group=\"country\"}", "data.categorical=[]"],
        &["data.fold=1/4", "data.split={time=\"day\"}"],
        // Ages without a value are rows without a target.
        &["data.target=age", "data.missing_target=skip", "data.split={column=\"y\"}"],
        &["data.target=age", "data.missing_target=skip", "data.eval_fraction=0.25"],
    ] {
        let more = &[more, &["data.missing_values=[\"n/k\"]"]].concat()[..];
        let want = loaded(&sets(&at("first.csv"), more), 1).unwrap();
        let limited = [more, &[&*first]].concat();
        assert!(want[0].len() > 100, "{more:?}");
        for name in ["all.csv", "all.jsonl", "parts", "first.csv"] {
            for n_ranks in [1, 3] {
                assert!(loaded(&sets(&at(name), &limited), n_ranks).unwrap() == want, "{name}, {more:?}");
            }
        }
        let kept = loaded(&sets(&at("kept.csv"), more), 1).unwrap();
        assert!(loaded(&sets(&at("all.csv"), &[&limited[..], &[KEPT]].concat()), 2).unwrap() == kept);
        #[cfg(feature = "parquet")]
        {
            parquet(&at("all.parquet"), 0..n_rows);
            parquet(&at("first.parquet"), 0..max);
            let want = loaded(&sets(&at("first.parquet"), more), 1).unwrap();
            for more in [&[][..], &["data.shuffle_mode=blocks", "data.loader_memory_mib=1"]] {
                let sets = sets(&at("all.parquet"), &[&limited[..], more].concat());
                assert!(loaded(&sets, 3).unwrap() == want, "parquet, {limited:?}");
            }
        }
    }
}

#[test]
fn the_first_rows_of_arrays_have_their_classes_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let x: Vec<f32> = (0..120).map(|i| i as f32 * 0.5).collect();
    // The last rows have a class of their own.
    let y: Vec<i64> = (0..60).map(|row| if row < 40 { row % 3 } else { 9 }).collect();
    for n in [40, 60] {
        let x = Tensor::from_slice(&x[..2 * n], &[n, 2], ddp_kernels::Device::Cpu).unwrap();
        let y = Tensor::from_slice(&y[..n], &[n], ddp_kernels::Device::Cpu).unwrap();
        crate::io::write_npz(at(&format!("{n}.npz")), &[("x", &x), ("y", &y)]).unwrap();
    }
    let rows = |name: &str, more: &[&str]| {
        let sets: Vec<String> = [&[&*format!("data.train={}", at(name).display())], more]
            .concat()
            .iter()
            .map(|set| (*set).to_owned())
            .collect();
        let config = Config::load(None, &sets).unwrap();
        let of_ranks = threads::run(2, |world| {
            let loaded = load(&config, &world).unwrap();
            (rows_of(&loaded), loaded.train.layout().targets.clone())
        });
        of_ranks.into_iter().next().unwrap()
    };
    for more in [&["data.eval=none"][..], &["data.fold=2/4"]] {
        assert!(rows("60.npz", &[more, &["data.max_rows=40"]].concat()) == rows("40.npz", more), "{more:?}");
    }
}

#[test]
fn a_folder_of_partitions_is_filtered_by_its_names() {
    let folder = tempfile::tempdir().unwrap();
    for year in [2022, 2023, 2024] {
        let part = folder.path().join(format!("rows/year={year}"));
        fs::create_dir_all(&part).unwrap();
        fs::write(part.join("a.csv"), csv((year - 2022) * 50..(year - 2021) * 50)).unwrap();
    }
    let more = ["data.eval=none", "data.drop=[\"year\", \"income\"]"];
    let want = folder.path().join("kept.csv");
    fs::write(&want, csv(50..150)).unwrap();
    let want = loaded(&sets(&want, &["data.eval=none", "data.drop=income"]), 1).unwrap();
    let rows = folder.path().join("rows");
    assert!(loaded(&sets(&rows, &[&more[..], &["data.filter=year >= 2023"]].concat()), 1).unwrap() == want);
}

#[test]
fn a_folder_s_value_applies_to_a_column_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for side in ["train", "test"] {
        let rows = |more: [&str; 2]| -> String {
            let row = |n: usize| format!("{n},{}{}\n", n % 2, more[1]);
            format!("x,y{}\n{}", more[0], (0..20).map(row).collect::<String>())
        };
        for (table, rows) in [("plain", rows(["", ""])), ("repeated", rows([",side", ",train"]))] {
            let part = at(&format!("{table}/side={side}"));
            fs::create_dir_all(&part).unwrap();
            fs::write(part.join("rows.csv"), rows).unwrap();
        }
    }
    let load = |table: &str, more: [&str; 2]| {
        let sets = [&*format!("data.train={}", at(table).display()), "data.target=y", more[0], more[1]];
        loaded(&sets.map(str::to_owned), 2).unwrap()
    };
    for more in [
        ["data.split={column=\"side\"}", "data.drop=[]"],
        ["data.filter=side = 'train'", "data.drop=side"],
        ["data.filter=side = 'test'", "data.drop=side"],
    ] {
        let want = load("plain", more);
        assert!(!want[0].is_empty() && load("repeated", more) == want, "{more:?}");
    }
}

#[test]
fn what_a_filter_cannot_do_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, csv(0..50)).unwrap();
    let refused = |filter: &str| loaded(&sets(&path, &["data.eval=none", filter]), 2).unwrap_err();
    for (filter, parts) in [
        ("data.filter=age >", &["is no condition: expected a number", "hint: "][..]),
        ("data.filter=ages > 1", &["rows.csv", "\"ages\"", "`data.filter`", "is it \"age\"?"]),
        ("data.filter=sex = 'f'", &["\"sex\"", "columns of the file: \"age\", \"country\""]),
        ("data.filter=age > 1000", &["keeps none of the 50 rows", "data inspect"]),
    ] {
        let message = refused(filter);
        for part in parts {
            assert!(message.contains(part), "{filter}: {message}");
        }
    }
    let sets = ["data.train=builtin:digits", "data.filter=a = 1"].map(str::to_owned);
    let message = loaded(&sets, 1).unwrap_err();
    assert!(message.contains("`data.filter`") && message.contains("arrays"), "{message}");
}

#[test]
fn a_fault_after_rows_that_are_left_out_has_its_own_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, "a,y\nx,0\n1,1\n2,0\ny,1\n").unwrap();
    let refused = |filter: &str| {
        let sets = [&format!("data.train={}", path.display()), "data.target=y", "data.eval=none", filter];
        loaded(&sets.map(str::to_owned), 1).unwrap_err()
    };
    assert!(refused("data.filter=a != 'x'").contains("line 5"), "{}", refused("data.filter=a != 'x'"));
}

#[test]
fn rows_that_are_left_out_decide_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let rows: String =
        (0..40).map(|row| format!("1,2024-05-{:02},{row}.5,{}\n", 1 + row % 28, row % 2)).collect();
    fs::write(at("all.csv"), format!("k,day,x,y\n0,soon,1.5,maybe\n{rows}0,,inf,\n")).unwrap();
    fs::write(at("kept.csv"), format!("k,day,x,y\n{rows}")).unwrap();
    let load = |name: &str, more: &[&str]| {
        let usual =
            ["data.target=y", "data.eval=none", "data.datetime=parts", "data.drop=k"].map(str::to_owned);
        let more = more.iter().map(|set| (*set).to_owned());
        let all = [format!("data.train={}", at(name).display())].into_iter().chain(usual).chain(more);
        loaded(&all.collect::<Vec<_>>(), 1)
    };
    let want = load("kept.csv", &[]).unwrap();
    assert!(load("all.csv", &["data.filter=k = 1"]).unwrap() == want);
    // A number that may be two is none that a filter may pass over.
    fs::write(at("two.csv"), "income;y\n".to_owned() + &"100;1\n1,001;0\n".repeat(20)).unwrap();
    let sets = [format!("data.train={}", at("two.csv").display()), "data.target=y".to_owned()];
    let filter = "data.filter=income > 0".to_owned();
    let message = loaded(&[&sets[..], &[filter, "data.eval=none".to_owned()]].concat(), 1).unwrap_err();
    assert!(message.contains("line 3") && message.contains("`data.decimal`"), "{message}");
}

#[test]
fn an_epoch_of_balanced_rows_has_each_class_alike_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    let label = |row: usize| if row.is_multiple_of(10) { "rare" } else { "usual" };
    let text: String = (0..103).map(|row| format!("{row},{}\n", label(row))).collect();
    fs::write(&path, format!("a,y\n{text}")).unwrap();
    let sets =
        [&format!("data.train={}", path.display()), "data.target=y", "data.eval=none", "data.normalize=none"]
            .map(|set| set.to_owned());
    let plain = loaded(&sets, 1).unwrap();
    let mut balanced = sets.to_vec();
    balanced.push("data.balance=classes".to_owned());
    let rows = loaded(&balanced, 1).unwrap();
    assert_eq!(rows, loaded(&balanced, 3).unwrap());
    // Features and labels of 92 rows of each class.
    assert_eq!((plain[0].len(), rows[0].len()), (103 * 2, 184 * 2));
    let (x, y) = rows[0].split_at(184);
    assert_eq!(y.iter().filter(|class| **class == y[0]).count(), 92);
    let times = |row: usize| x.iter().filter(|value| f32::from_bits(**value) == row as f32).count();
    assert!((0..103).all(|row| if row % 10 == 0 { (8..=9).contains(&times(row)) } else { times(row) == 1 }));
}
