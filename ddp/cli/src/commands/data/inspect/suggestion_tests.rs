//! The config that is suggested for a table trains, whatever the table; or it was said why not.

use ddp::config::Config;
use ddp::train::setup::BatchPartition;
use ddp::train::trainer::GraphMode;
use ddp::train::{TrainError, setup};
use ddp_comm::World;
use ddp_kernels::Device;

use super::profile::Profile;
use super::tests::{Files, noise, rows};
use super::warning::WarningKind;

/// The mean loss of one training step by the suggested config.
pub(super) fn train_a_step(files: &Files, profile: &Profile) -> Result<f64, String> {
    let path = files.path("run.toml");
    files.write("run.toml", profile.data_section.as_bytes());
    let world = World::single();
    let sets = ["model.hidden=[3]".to_owned()];
    let config = Config::load(Some(&path), &sets).map_err(|error| error.to_string())?;
    let data = ddp_tables::load(&config, &world).map_err(|stop| stop.to_string())?;
    let config = data.resolve(config).map_err(|error| error.to_string())?;
    let of_step = || -> Result<f64, TrainError> {
        let partition = BatchPartition::new(&config, &world, &data, None)?;
        let mut trainer =
            setup::trainer(&world, GraphMode::default(), &config, &data, &partition, Device::Cpu)?;
        let (mut loader, _) = setup::loader(&config, &data, &partition, &world, Device::Cpu, None)?;
        let mut rows = loader.next_step()?.expect("the plan of a run has no end");
        let outcome = trainer.step_and_wait(&mut rows, false)?;
        Ok(outcome.sums.mean())
    };
    of_step().map_err(|error| error.to_string())
}

/// A value of a column of kind `kind`.
fn cell_of(kind: usize, row: usize) -> String {
    let odd = |every: usize| row % every == every - 1;
    let or = |every: usize, rare: &str, usual: String| if odd(every) { rare.to_owned() } else { usual };
    match kind {
        0 => format!("{:.3}", noise(row) * 8.0 - 4.0),
        1 => (row * 7 % 100).to_string(),
        2 => ["red", "green, light", "\u{fc}ber \"x\""][row * 5 % 3].to_owned(),
        3 => or(3, "NA", format!("{:e}", noise(row) * 1e9)),
        4 => ["True", "no", "YES"][row % 3].to_owned(),
        5 => format!("2024-{:02}-{:02} 12:00", row % 12 + 1, row % 28 + 1),
        6 => String::new(),
        7 => "same".to_owned(),
        8 => format!("id-{row}"),
        9 => row.to_string(),
        10 => or(7, "oops", row.to_string()),
        11 => or(5, "inf", "1.5".to_owned()),
        12 => or(2, "yes", "maybe".to_owned()),
        13 => format!("{:.2}", -1e38 + noise(row)),
        14 => or(4, "-", format!("text {}", row % 5)),
        15 => format!("one of many {}", row * 31 % 53),
        16 => (1_700_000_000_000_000_000 + row as i64 * 1_000_003).to_string(),
        17 => or(6, "", format!("2024-05-{:02}T08:30:00+02:00", row % 28 + 1)),
        18 => format!("{:02}:{:02}", row % 24, row * 7 % 60),
        19 => format!("{},5", row % 9),
        20 => or(3, "1,234", "7".to_owned()),
        21 => or(9, "2024-02-30", format!("2024-02-{:02}", row % 28 + 1)),
        22 => or(2, "1e39", "-0".to_owned()),
        23 => format!("${},{:03}.50", row % 9 + 1, row * 37 % 1000),
        24 => format!("{:02}.{:02}.20{:02}", row % 28 + 1, row % 12 + 1, row % 30),
        25 => format!("{}/{}/2024", row % 12 + 1, row % 28 + 1),
        26 => or(2, "", "C85".to_owned()),
        27 => or(3, "", "7".to_owned()),
        28 => format!("ticket {}", row * 2 / 3),
        29 => or(4, "12:30", format!("2024-{:02}-{:02}", row % 12 + 1, row % 28 + 1)),
        _ => or(3, "\u{65e5}\u{672c};\t|", "a \"b\"".to_owned()),
    }
}
const N_KINDS: usize = 31;

/// The target in a row, of kind `kind`.
fn target_of(kind: usize, row: usize) -> String {
    let odd = |every: usize| row % every == every - 1;
    match kind {
        0 => (row % 2).to_string(),
        1 => (row * 3 % 7).to_string(),
        2 => format!("{:.4}", noise(row) * 1e5),
        3 => "0".to_owned(),
        4 => ["no", "yes", "may be, or not"][row % 3].to_owned(),
        5 => ["True", "False"][row % 2].to_owned(),
        6 => (1 + row % 4).to_string(),
        7 => ["-1", "1"][row * 5 % 3 % 2].to_owned(),
        8 => (row % 3 * 100_000).to_string(),
        9 => format!("{:.7}", 1e9 + noise(row)),
        10 => (row * 7 % 150).to_string(),
        11 => "the only one".to_owned(),
        12 => format!("name {row}"),
        13 => format!("2024-{:02}-{:02}", row % 12 + 1, row % 28 + 1),
        14 => format!("{}.0", 1 + row % 4),
        15 if odd(5) => String::new(),
        15 => (row % 3).to_string(),
        16 if odd(6) => "unknown".to_owned(),
        16 => format!("{:.2}", noise(row)),
        17 => (1_000_000_000_000_000_000 + row as i64).to_string(),
        18 => format!("{:e}", noise(row) * 1e-30),
        19 if odd(4) => "inf".to_owned(),
        19 => format!("{:.3}", noise(row)),
        20 => "2.5".to_owned(),
        21 => format!("{}", u64::MAX - row as u64),
        22 => format!("{:.1}", noise(row) * 1e38 * 6.0),
        23 => format!("${},{:03}", row % 9 + 1, row * 37 % 1000),
        24 => (row % 11).to_string(),
        25 => "7".to_owned(),
        26 => (row * 5_003 % 100_003).to_string(),
        27 if odd(2) => (row * 5_003 % 100_003).to_string(),
        27 | 28 => "NA".to_owned(),
        _ => (-(row as i64) % 3).to_string(),
    }
}
const N_TARGETS: usize = 30;

/// Whether it is said that the target, or the lack of features, stops training.
fn is_refused(profile: &Profile) -> bool {
    use WarningKind::{ManyClasses, NotFinite, OneClass, TargetText};
    let stops = |kind: WarningKind| matches!(kind, OneClass | TargetText | ManyClasses);
    let of_target = |columns: &[String]| columns.iter().any(|column| column == TARGET);
    let mut warnings = profile.warnings.iter();
    profile.stops_training()
        || warnings
            .any(|warning| stops(warning.kind) || warning.kind == NotFinite && of_target(&warning.columns))
}

const TARGET: &str = "the target";

/// The fault of the config that is suggested for such a table.
fn fault(kinds: &[usize], n_rows: usize, target: usize, delimiter: char, has_index: bool) -> Option<String> {
    let quoted = |cell: String| {
        if cell.contains([',', ';', '\t', '|', '"']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell
        }
    };
    let line =
        |cells: Vec<String>| cells.into_iter().map(quoted).collect::<Vec<_>>().join(&delimiter.to_string());
    let index = |text: String| has_index.then_some(text);
    let names = (0..kinds.len()).map(|i| format!("column {i}"));
    let mut text = line(index(String::new()).into_iter().chain(names).chain([TARGET.to_owned()]).collect());
    for row in 0..n_rows {
        let cells = kinds.iter().map(|&kind| cell_of(kind, row));
        text += "\n";
        text +=
            &line(index(row.to_string()).into_iter().chain(cells).chain([target_of(target, row)]).collect());
    }
    let files = Files::new(&[("rows.csv", &text)]);
    let profile = files.inspect("rows.csv", &["--target", TARGET]).unwrap();
    let error = match train_a_step(&files, &profile) {
        Ok(_) if profile.stops_training() => "it trains although warnings say that it can't".to_owned(),
        Ok(loss) if loss.is_finite() => return None,
        Ok(loss) => format!("loss {loss}"),
        Err(_) if is_refused(&profile) => return None,
        Err(error) => error,
    };
    let Profile { data_section, warnings, .. } = &profile;
    Some(format!("columns {kinds:?}, target {target}, {n_rows} rows\n{data_section}{error}\n{warnings:?}\n"))
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(250))]

    #[test]
    fn the_suggested_config_trains(
        kinds in proptest::collection::vec(0..N_KINDS, 0..6),
        n_rows in proptest::prop_oneof![1usize..4, 5usize..120],
        target in 0..N_TARGETS,
        delimiter in proptest::sample::select(vec![',', ';', '\t', '|']),
        has_index in proptest::bool::ANY,
    ) {
        proptest::prop_assert_eq!(fault(&kinds, n_rows, target, delimiter, has_index), None);
    }
}

/// Each kind of column and of target alone, where a mix of columns could hide what one of them does.
#[test]
fn each_kind_trains_alone() {
    let mut faults = Vec::new();
    for n_rows in [1, 2, 40] {
        faults.extend((0..N_KINDS).filter_map(|kind| fault(&[kind], n_rows, 0, ',', false)));
        faults.extend((0..N_TARGETS).filter_map(|target| fault(&[0, 2], n_rows, target, ',', false)));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn given_keys_are_kept_and_weights_are_no_features() {
    let text = rows("a,b,w,fold,y", 60, |n| {
        let b = if n % 7 == 0 { String::new() } else { format!("{}", noise(n + 60)) };
        format!("{},{b},{},{},{}", noise(n) * 50.0, 1 + n % 3, ["train", "test"][n % 2], noise(n + 120))
    });
    let files = Files::new(&[("rows.csv", &text)]);
    let inspect = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        files.inspect("rows.csv", &sets.collect::<Vec<_>>()).unwrap()
    };
    let split = "data.split={ column = \"fold\", eval = \"test\" }";
    let given = ["data.target=y", "data.weight=w", split, "data.missing=zero", "train.epochs=3"];
    let profile = inspect(&given);
    let section = &profile.data_section;
    for line in ["target = \"y\"", "weight = \"w\"", "missing = \"zero\"", "normalize = \"standard\""] {
        assert_eq!(section.lines().filter(|of| *of == line).count(), 1, "{line}: {section}");
    }
    assert!(section.contains("split = {") && section.ends_with("\n\n[train]\nepochs = 3\n"), "{section}");
    for key in ["eval_fraction", "categorical", "missing = \"mean\""] {
        assert!(!section.contains(key), "{key}: {section}");
    }
    train_a_step(&files, &profile).unwrap();

    let profile =
        inspect(&["data.target=y", "data.weight=w", "data.eval_fraction=0.3", "data.categorical=[\"fold\"]"]);
    let section = &profile.data_section;
    assert!(
        section.contains("eval_fraction = 0.3") && section.contains("categorical = [\"fold\"]"),
        "{section}"
    );
    assert_eq!(section.matches("eval_fraction").count(), 1, "{section}");
    let (_, features) = files.loaded(&profile);
    assert!(features.iter().all(|feature| feature != "w"), "{features:?}");
}
