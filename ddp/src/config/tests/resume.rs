//! Differences between a run's config and a checkpoint's, and saved configs that lack a key.

use super::*;

#[test]
fn files_of_weights_may_lie_elsewhere() {
    let differences = |theirs: &str, ours: &str, more: &[&str]| {
        let config = |weight: &str| {
            let weight = format!("data.weight={weight}");
            from_sets(&[&["data.train=x.npy", &weight], more].concat()).unwrap()
        };
        config(ours).differences(&config(theirs)).len()
    };
    for (theirs, ours) in
        [("w.npy", "/elsewhere/w.npy"), ("a/w-ubyte.gz", "w.idx"), ("weights/*", "/b/weights/*")]
    {
        assert_eq!(differences(theirs, ours, &[]), 0, "{theirs} {ours}");
    }
    assert_eq!(differences("w", "v", &["data.format=npy"]), 0);
    // A column under another name is a different column.
    for (theirs, ours) in [("w", "v"), ("w", "v.npy"), ("w.npy", "w")] {
        assert_eq!(differences(theirs, ours, &["data.train=x.csv"]), 1, "{theirs} {ours}");
    }
}

#[test]
fn differences_leave_out_what_may_change() {
    let saved = from_sets(&["data.eval_fraction=0.2", "optimizer.groups=[{match=\"a\"}]"]).unwrap();
    let may_change = [
        "name=other",
        "data.train=elsewhere.csv",
        // Resuming sets the task: the targets determined it when the run began.
        "data.task=classification",
        "data.eval_fraction=0.2",
        "optimizer.groups=[{match=\"a\"}]",
        "data.prefetch=9",
        "train.steps=4",
        "train.global_batch_size=64",
        "train.stop_after_steps=3",
        "train.stop_after_epochs=3",
        "train.early_stop_patience=3",
        "comm.zero=1",
        "comm.overlap=false",
        "checkpoint.keep=9",
        "log.every_steps=1",
    ];
    assert_eq!(from_sets(&may_change).unwrap().differences(&saved), []);

    let ours = from_sets(&["optimizer.lr=0.5", "schedule.kind=cosine", "data.eval=builtin:digits"]).unwrap();
    let keys: Vec<_> = ours
        .differences(&saved)
        .into_iter()
        .map(|Difference { key, ours, theirs }| format!("{key}: {ours} / {theirs}"))
        .collect();
    assert_eq!(
        keys,
        [
            "optimizer.lr: 0.5 / 0.001",
            "optimizer.groups: [] / [{ match = \"a\", lr_scale = 1.0 }]",
            "schedule.kind: \"cosine\" / \"constant\"",
            "schedule.final_fraction: 0.0 / absent",
            "data.eval_fraction: absent / 0.2",
        ]
    );
    let resumable = resumable_keys();
    for name in [
        "name",
        "data.train",
        "data.weight (if it names files)",
        "train.epochs",
        "comm.*",
        "checkpoint.*",
        "log.*",
    ] {
        assert!(resumable.iter().any(|key| key == name), "{name}: {resumable:?}");
    }
    assert!(
        !resumable.iter().any(|key| key.starts_with("optimizer") || key == "train.seed"),
        "{resumable:?}"
    );
}

/// Comments and marks of a saved config mean nothing, and a key that it lacks has its default.
#[test]
fn saved_configs_without_comments_read_the_same() {
    let config =
        from_sets(&["optimizer.kind=sgd", "train.steps=7", "schedule.kind=wsd", "data.drop=[\"id\"]"])
            .unwrap();
    let toml = config.to_toml();
    let lines = toml.lines().filter(|line| !line.starts_with('#'));
    let plain: String = lines.map(|line| format!("{}\n", line.trim_end_matches("  # default"))).collect();
    assert!(!plain.contains('#'), "{plain}");
    let path = Path::new("step-7");
    for text in [&toml, &plain] {
        assert_eq!(Config::from_saved(text, path).unwrap(), config);
    }
    let resumed =
        Config::from_saved_with(&plain, path, &Overrides::from_sets(&["train.epochs=2".to_owned()])).unwrap();
    assert_eq!(resumed.train.length, Length::Epochs(2));
    assert_eq!(Config::from_saved("", path).unwrap(), Config::load(None, &[]).unwrap());
    let error = Config::from_saved("[data]\nfuture = 1", path).unwrap_err().to_string();
    assert!(error.starts_with("step-7: line 2, column 1: unknown key `data.future`"), "{error}");
}
