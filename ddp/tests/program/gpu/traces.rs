//! Traces of runs on virtual GPUs: the streams of the device next to the training thread.

#![allow(clippy::unwrap_used)]

use super::program::on_gpus;
use crate::common::{read_weights, same_bits, temp_dir};
use crate::runs::traces::{Trace, gradient_bytes};

const RUN: &str = "train --device cuda --quiet --set train.steps=24 --set checkpoint.every_epochs=0 --set model.hidden=[48,32] \
                   --set train.global_batch_size=96 --set comm.bucket_mib=0.004";

#[test]
fn a_trace_shows_the_streams_of_each_gpu() {
    let folder = temp_dir();
    let mut weights = Vec::new();
    for (name, more) in
        [("plain", ""), ("graphs", "--trace 4..23"), ("eager", "--trace 4..23 --cuda-graph off")]
    {
        let out = folder.path().join(name);
        let line = format!("{RUN} --out {} {more}", out.display());
        let args: Vec<&str> = line.split_whitespace().collect();
        let Some(outcome) = on_gpus(2, 2, &args, &[("VGPU_CHECK", "1")]) else { return };
        outcome.ok();
        weights.push(read_weights(&out.join("model.safetensors")));
        if more.is_empty() {
            continue;
        }
        let trace = Trace::read(&out.join("traces/steps-4-23.json"));
        let all: Vec<u64> = (4..=23).collect();
        let want = gradient_bytes(&out.join("config.toml"));
        for rank in 0..2 {
            assert!(trace.metadata()["clocks"][rank]["device_error_us"].as_f64().unwrap() > 0.0);
            let tracks = trace.tracks(rank);
            for track in ["training thread", "exchange"] {
                Trace::assert_nests(&tracks[track]);
            }
            // Of one step: streams of virtual GPUs have no common clock, nor have their graphs.
            for step in &all {
                let of_step = tracks["GPU compute stream"].iter().filter(|slice| slice.step == *step);
                Trace::assert_nests(&of_step.cloned().collect::<Vec<_>>());
            }
            for track in ["training thread", "GPU compute stream"] {
                assert_eq!(Trace::steps(&tracks[track]), all, "{name}: {track}");
            }
            for part in ["host to device", "forward", "backward", "exposed communication", "update"] {
                let has = |step: &u64| {
                    let of_step =
                        |slice: &&crate::runs::traces::Slice| slice.step == *step && slice.name == part;
                    tracks["GPU compute stream"].iter().any(|slice| of_step(&slice))
                };
                assert!(all.iter().all(has), "{name}: {part}");
            }
            for step in &all {
                let of_step = tracks["GPU communication stream"].iter().filter(|slice| slice.step == *step);
                let bytes: u64 = of_step.filter_map(|slice| slice.bytes).sum();
                assert_eq!(bytes, want, "{name}: step {step} of rank {rank}");
            }
        }
    }
    assert!(weights.iter().all(|other| same_bits(&weights[0], other)));
}
