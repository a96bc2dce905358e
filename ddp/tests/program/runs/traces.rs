//! Traces of runs: all ranks, all steps, slices that nest, and buckets that add up to the gradients.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::common::{run_line, run_ok, same_bits, single, train};

const CONFIG: &str = "[data]\ntrain = \"builtin:digits\"\neval_fraction = 0.2\n[model]\nhidden = [32, 16]\n[train]\nepochs = 2\nbatch_size = 32\neval_every_steps = 10\n\
                      [checkpoint]\nevery_steps = 12\n[comm]\nbucket_mib = 0.004\n";

/// A trace.
pub(crate) struct Trace {
    json: Value,
}

/// A complete event.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub(crate) name: String,
    pub(crate) step: u64,
    pub(crate) bytes: Option<u64>,
    begin: f64,
    end: f64,
}

/// Half of the resolution of the file, in µs.
const ROUNDING: f64 = 0.001;

impl Trace {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Trace { json: serde_json::from_slice(&text).unwrap() }
    }

    pub(crate) fn metadata(&self) -> &Value {
        &self.json["otherData"]
    }

    fn events(&self, rank: usize, phase: &str) -> impl Iterator<Item = &Value> {
        let events = self.json["traceEvents"].as_array().unwrap();
        events.iter().filter(move |event| event["pid"] == rank + 1 && event["ph"] == phase)
    }

    /// Tracks of a rank by their names.
    pub(crate) fn tracks(&self, rank: usize) -> BTreeMap<String, Vec<Slice>> {
        let named = self.events(rank, "M").filter(|event| event["name"] == "thread_name");
        let slice = |event: &Value| {
            let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
            assert!(ts >= 0.0 && dur >= 0.0, "{event}");
            Slice {
                name: event["name"].as_str().unwrap().to_owned(),
                step: event["args"]["step"].as_u64().unwrap(),
                bytes: event["args"]["bytes"].as_u64(),
                begin: ts,
                end: ts + dur,
            }
        };
        let of_track = |event: &Value| {
            let slices = self.events(rank, "X").filter(|slice| slice["tid"] == event["tid"]).map(slice);
            (event["args"]["name"].as_str().unwrap().to_owned(), slices.collect())
        };
        named.map(of_track).collect()
    }

    /// Bytes of the buckets of each step, each begun and ended.
    pub(crate) fn bucket_bytes(&self, rank: usize) -> BTreeMap<u64, u64> {
        let id = |event: &Value| event["id2"]["local"].as_str().unwrap().to_owned();
        let ends: BTreeMap<_, _> =
            self.events(rank, "e").map(|event| (id(event), event["ts"].as_f64().unwrap())).collect();
        let mut bytes = BTreeMap::new();
        for event in self.events(rank, "b") {
            let end = ends[&id(event)];
            assert!(event["ts"].as_f64().unwrap() <= end, "{event} ends at {end}");
            *bytes.entry(event["args"]["step"].as_u64().unwrap()).or_default() +=
                event["args"]["bytes"].as_u64().unwrap();
        }
        assert_eq!(ends.len(), self.events(rank, "b").count());
        bytes
    }

    /// The steps that a track has slices of, in order.
    #[track_caller]
    pub(crate) fn steps(track: &[Slice]) -> Vec<u64> {
        let steps = track.iter().filter(|slice| slice.name == format!("step {}", slice.step));
        steps.map(|slice| slice.step).collect()
    }

    /// Checks that two slices of a track are one within the other, or one after the other.
    #[track_caller]
    pub(crate) fn assert_nests(track: &[Slice]) {
        let mut slices = track.to_vec();
        slices.sort_by(|a, b| a.begin.total_cmp(&b.begin).then(b.end.total_cmp(&a.end)));
        let mut around: Vec<&Slice> = Vec::new();
        for slice in &slices {
            while around.last().is_some_and(|outer| outer.end <= slice.begin + ROUNDING) {
                around.pop();
            }
            if let Some(outer) = around.last() {
                assert!(slice.end <= outer.end + ROUNDING, "{slice:?} overlaps {outer:?}");
            }
            around.push(slice);
        }
    }
}

/// Bytes of gradients and sums that each of two ranks sends in a step: the size of the buffer.
pub(crate) fn gradient_bytes(config: &Path) -> u64 {
    let args = ["describe", config.to_str().unwrap(), "--world-size", "2", "--device", "cpu", "--json"];
    let described: Value = serde_json::from_str(&run_ok(single(&args)).stdout).unwrap();
    described["traffic"][0]["exchange"].as_u64().unwrap_or_else(|| panic!("{described}"))
}

#[test]
fn a_trace_holds_all_ranks_and_steps_and_changes_no_bit() {
    let plain = train(2, CONFIG, &["--device", "cpu", "--threads", "1"]);
    let traced = train(2, CONFIG, &["--device", "cpu", "--threads", "1", "--trace", "5..24"]);
    assert!(same_bits(&plain.weights(), &traced.weights()));
    let trace = Trace::read(&traced.out().join("traces/steps-5-24.json"));
    let metadata = trace.metadata();
    assert_eq!((&metadata["first_step"], &metadata["world_size"]), (&5.into(), &2.into()));
    let clock = &metadata["clocks"][1];
    let error = clock["error_us"].as_f64().unwrap();
    assert!(error > 0.0 && error < 1e5 && clock["offset_us"].is_f64(), "{metadata}");
    let all: Vec<u64> = (5..=24).collect();
    let want = gradient_bytes(&traced.out().join("config.toml"));
    for rank in 0..2 {
        let tracks = trace.tracks(rank);
        tracks.values().for_each(|track| Trace::assert_nests(track));
        let host = &tracks["training thread"];
        assert_eq!(Trace::steps(host), all);
        for name in ["data wait", "take rows", "forward", "backward", "update"] {
            let steps: Vec<u64> =
                host.iter().filter(|slice| slice.name == name).map(|slice| slice.step).collect();
            assert_eq!(steps, all, "{name}");
        }
        for name in ["evaluation", "checkpoint"] {
            assert!(host.iter().any(|slice| slice.name == name), "no {name}");
        }
        assert!(tracks["exchange"].iter().any(|slice| slice.name == "wait"), "{:?}", tracks["exchange"]);
        let bytes = trace.bucket_bytes(rank);
        assert_eq!(bytes.keys().copied().collect::<Vec<_>>(), all);
        assert!(bytes.values().all(|of_step| *of_step == want), "{bytes:?}, expected {want}");
    }
}

#[test]
fn a_rank_alone_is_traced_too_and_a_run_that_ends_early_ends_its_trace() {
    let args = ["--device", "cpu", "--threads", "1", "--trace", "10..100", "--set", "train.steps=15"];
    let config = CONFIG.replace("epochs = 2\n", "");
    let run = train(1, &config, &args);
    let trace = Trace::read(&run.out().join("traces/steps-10-15.json"));
    let tracks = trace.tracks(0);
    assert_eq!(Trace::steps(&tracks["training thread"]), (10..=15).collect::<Vec<_>>());
    assert!(!tracks.contains_key("exchange"));
}

#[test]
fn a_bad_range_is_refused() {
    let refused = run_line(Path::new("."), "train --trace 20..10");
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stderr.contains("hint: for example --trace 10..20"), "{}", refused.stderr);
}
