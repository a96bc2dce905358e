//! The file of a trace, in the trace-event format that Perfetto and Chrome open.
//!
//! Source: "Trace Event Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU; Perfetto docs, "External trace
//! formats".

use std::ops::RangeInclusive;

use ddp_comm::Track;
use serde_json::{Value, json};

use super::clocks::{Clock, Clocks};
use super::rank_trace::{RankTrace, SentSlice};

/// The trace of all ranks as a JSON object. Times are in µs of rank 0's clock, from the begin of the first slice.
pub(super) fn chrome_trace(ranks: &[RankTrace], clocks: &Clocks, steps: &RangeInclusive<u64>) -> Value {
    let begins = ranks.iter().zip(&clocks.0).flat_map(|(rank, clock)| {
        rank.slices.iter().map(|(_, _, _, begin_ns, ..)| clock.on_rank_0(*begin_ns))
    });
    let first_ns = begins.fold(f64::INFINITY, f64::min);
    let mut events = Vec::new();
    for (number, (rank, clock)) in ranks.iter().zip(&clocks.0).enumerate() {
        let meta = |name: &str, track: usize, args: Value| {
            let (pid, tid) = (pid_of(number), tid_of(number, track));
            json!({ "ph": "M", "pid": pid, "tid": tid, "name": name, "args": args })
        };
        let name = format!("rank {number} ({}, {})", rank.host, rank.device);
        events.push(meta("process_name", 0, json!({ "name": name })));
        events.push(meta("process_sort_index", 0, json!({ "sort_index": number })));
        for (index, track) in Track::ALL.into_iter().enumerate() {
            if track != Track::Bucket && rank.slices.iter().any(|slice| usize::from(slice.0) == index) {
                events.push(meta("thread_name", index, json!({ "name": track_name(track) })));
                events.push(meta("thread_sort_index", index, json!({ "sort_index": index })));
            }
        }
        let micros = |ns: u64| ((clock.on_rank_0(ns) - first_ns).max(0.0)).round() / 1e3;
        for (id, slice) in rank.slices.iter().enumerate() {
            events.extend(events_of(number, id, slice, micros));
        }
    }
    let of_clock = |(rank, (trace, clock)): (usize, (&RankTrace, &Clock))| {
        json!({
            "rank": rank,
            "offset_us": clock.offset_ns() / 1e3,
            "error_us": clock.error_ns / 1e3,
            "device_error_us": trace.device_error_s.map(|error| error * 1e6),
        })
    };
    let clocks: Vec<_> = ranks.iter().zip(&clocks.0).enumerate().map(of_clock).collect();
    json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "first_step": steps.start(),
            "last_step": steps.end(),
            "world_size": ranks.len(),
            "clocks": clocks,
        },
        "traceEvents": events,
    })
}

/// One complete event, or the begin and the end of a bucket in flight, which overlap others.
fn events_of(rank: usize, id: usize, slice: &SentSlice, micros: impl Fn(u64) -> f64) -> Vec<Value> {
    let (index, name, step, begin_ns, end_ns, n_bytes) = slice;
    let Some(track) = Track::ALL.get(usize::from(*index)) else { return Vec::new() };
    let (pid, tid) = (pid_of(rank), tid_of(rank, usize::from(*index)));
    let (begin, end) = (micros(*begin_ns), micros(*end_ns));
    let mut args = json!({ "step": step });
    if let Some(n_bytes) = n_bytes {
        args["bytes"] = json!(n_bytes);
    }
    let category = track_name(*track);
    if *track != Track::Bucket {
        // Rounded alike, so that a slice ends where the one around it ends.
        let dur = ((end - begin) * 1e3).round() / 1e3;
        return vec![json!({
            "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": dur, "args": args,
        })];
    }
    let event = |phase: &str, ts: f64, args: &Value| {
        json!({
            "ph": phase, "cat": category, "name": format!("bucket: {name}"), "pid": pid, "tid": tid,
            "id2": { "local": format!("{id:#x}") }, "ts": ts, "args": args,
        })
    };
    vec![event("b", begin, &args), event("e", end, &json!({}))]
}

/// Number of a rank's process: 0 is the system's idle process to Perfetto.
fn pid_of(rank: usize) -> usize {
    rank + 1
}

/// Number of a rank's track as a thread: Perfetto takes threads of one number for one, also in different processes, and that of its
/// process for the main thread.
fn tid_of(rank: usize, track: usize) -> usize {
    1_000_000 + rank * Track::ALL.len() + track
}

fn track_name(track: Track) -> &'static str {
    match track {
        Track::Host => "training thread",
        Track::Exchange => "exchange",
        Track::Bucket => "buckets",
        Track::Compute => "GPU compute stream",
        Track::Communication => "GPU communication stream",
    }
}
