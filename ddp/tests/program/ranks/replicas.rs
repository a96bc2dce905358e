//! Whole runs that compare their replicas after every step: no false alarm, and not a single bit differs.

#![allow(clippy::unwrap_used)]

use crate::common::{ranks, read_weights, run_ok, same_bits, temp_dir};

#[test]
fn comparing_replicas_after_every_step_changes_no_bit() {
    let folder = temp_dir();
    for (n_ranks, zero) in [(2, 0), (3, 1), (2, 2)] {
        let runs = [0, 1].map(|every| {
            let out = folder.path().join(format!("{n_ranks}-{zero}-{every}"));
            let sets = [
                "model.hidden=[24, 16]".to_owned(),
                "optimizer.kind=adamw".to_owned(),
                format!("comm.zero={zero}"),
                "train.steps=30".to_owned(),
                "train.ema_decay=0.9".to_owned(),
                format!("train.replica_check_steps={every}"),
            ];
            let mut args = vec!["train", "-v", "--threads", "1", "--out", out.to_str().unwrap()];
            sets.iter().for_each(|set| args.extend(["--set", set]));
            run_ok(ranks(n_ranks, &args));
            out
        });
        let weights = runs.each_ref().map(|out| read_weights(&out.join("model.safetensors")));
        assert!(same_bits(&weights[0], &weights[1]), "{n_ranks} ranks, ZeRO {zero}");
        let log = std::fs::read_to_string(runs[1].join("logs/rank-1.log")).unwrap();
        assert_eq!(log.matches("all ranks hold the same bits").count(), 30, "{log}");
    }
}
