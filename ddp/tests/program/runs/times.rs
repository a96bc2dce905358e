//! Where the time of a run goes, in its events.

#![allow(clippy::unwrap_used)]

use serde_json::Value;

use crate::common::train;

const CONFIG: &str = "[data]\ntrain = \"builtin:digits\"\neval_fraction = 0.2\n[model]\nhidden = [16]\n[train]\nepochs = 2\nbatch_size = 32\neval_every_steps = 20\n\
                      [checkpoint]\nevery_steps = 30\n[log]\nevery_steps = 10\n";

const PARTS: [&str; 9] =
    ["data", "h2d", "forward", "backward", "exchange", "update", "evaluation", "checkpoint", "other"];

/// The time of a part.
fn part(time: &Value, name: &str) -> f64 {
    time[name].as_f64().unwrap_or_else(|| panic!("{name}: {time}"))
}

/// Rounded to a ten-thousandth each.
#[track_caller]
fn assert_adds_up(time: &Value) {
    let (sum, total) = (PARTS.iter().map(|name| part(time, name)).sum::<f64>(), part(time, "total"));
    assert!((sum - total).abs() < 1e-3 && total > 0.0, "{time}");
    assert!(PARTS.iter().all(|name| part(time, name) >= 0.0), "{time}");
}

#[test]
fn the_time_of_steps_and_of_the_run_adds_up() {
    for n_ranks in [1, 2] {
        let trained = train(n_ranks, CONFIG, &["--device", "cpu"]);
        for step in trained.events("step") {
            assert_adds_up(&step["time"]);
        }
        let end = &trained.events("end")[0];
        let time = &end["time"];
        assert_adds_up(time);
        for name in ["forward", "backward", "update", "evaluation", "checkpoint"] {
            assert!(part(time, name) > 0.0, "{name}: {time}");
        }
        assert_eq!(part(time, "exchange") > 0.0, n_ranks > 1, "{time}");
        let elapsed = end["elapsed_s"].as_f64().unwrap();
        assert!(part(time, "total") <= elapsed && !time["bound"].as_str().unwrap().is_empty(), "{end}");
        let ranks: Vec<_> = time["ranks"].as_array().into_iter().flatten().collect();
        assert_eq!(ranks.len(), if n_ranks == 1 { 0 } else { n_ranks }, "{time}");
        for (rank, of_rank) in ranks.into_iter().enumerate() {
            assert_eq!(of_rank["rank"], rank);
            assert!(of_rank["busy_ms"].as_f64().unwrap() > 0.0, "{of_rank}");
        }
    }
}
