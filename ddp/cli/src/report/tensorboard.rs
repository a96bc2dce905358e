//! Event files of TensorBoard, as `log.tensorboard` requests them: the numbers of a run's events as scalars, in `tb/` of its folder.
//!
//! A file is a sequence of TFRecords: the length as u64, its masked CRC-32C, the record, its masked CRC-32C, all little-endian. Records
//! are messages `Event` of protocol buffers. Source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto,
//! tensorflow/core/framework/summary.proto.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crc::{CRC_32_ISCSI, Crc};
use ddp::report::metrics::{Event, EventObserver};
use ddp::run_folder::folder::TENSORBOARD;
use ddp::storage::user_file::open_unlinked;
use prost::Message as _;
use serde_json::Value;
use tracing::warn;

/// Begin of the files' names, by which TensorBoard finds them.
const PREFIX: &str = "events.out.tfevents.";

const CRC_32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Writes scalars to a new event file. A failure is reported once and ends the file.
#[derive(Debug)]
pub(crate) struct EventFile {
    path: PathBuf,
    file: Option<File>,
}

impl EventFile {
    /// Begins a file for a run in the folder `run`: for a new run after those of an earlier one are deleted, for a run resumed after
    /// step `resumed` next to them. TensorBoard then drops what they hold of later steps.
    pub(crate) fn begin(run: &Path, host: &str, resumed: Option<u64>) -> Self {
        let now = now_s();
        let path = run.join(TENSORBOARD).join(format!("{PREFIX}{now:.0}.{host}.{}", std::process::id()));
        let mut events = EventFile { path, file: None };
        let opened = events.open(resumed.is_none()).map(|file| events.file = Some(file));
        events.check(opened);
        events.write(Record { file_version: Some("brain.Event:2".to_owned()), ..Record::at(0) });
        if let Some(step) = resumed {
            let session_log = Some(SessionLog { status: SessionLog::START });
            events.write(Record { session_log, ..Record::at(step + 1) });
        }
        events
    }

    fn open(&self, is_new: bool) -> io::Result<File> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        if is_new {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                    fs::remove_file(entry.path())?;
                }
            }
        }
        open_unlinked(OpenOptions::new().append(true).create(true), &self.path)
    }

    fn check(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.file = None;
            warn!("can't write `{}`: {error}; the run continues without it", self.path.display());
        }
    }

    fn write(&mut self, record: Record) {
        if let Some(file) = &mut self.file {
            let written = file.write_all(&framed(&record.encode_to_vec()));
            self.check(written);
        }
    }
}

impl EventObserver for EventFile {
    fn event(&mut self, event: &Event) {
        let (step, group) = match event {
            Event::Step(event) => (event.step, "step"),
            Event::Epoch(event) => (event.step, "epoch"),
            Event::Eval(event) => (event.step, "epoch"),
            _ => return,
        };
        let mut value = Vec::new();
        if let Ok(fields) = serde_json::to_value(event) {
            add_scalars(group, &fields, &mut value);
        }
        self.write(Record { summary: Some(Summary { value }), ..Record::at(step) });
    }
}

/// Adds the numbers of an event: `eval_loss` as `eval/loss`, that of a head as `eval/HEAD/loss`, others under `group`.
fn add_scalars(group: &str, fields: &Value, scalars: &mut Vec<Scalar>) {
    for (key, value) in fields.as_object().into_iter().flatten() {
        let split = ["eval", "train", "last"]
            .iter()
            .find_map(|of| Some((*of, key.strip_prefix(of)?.strip_prefix('_')?)));
        match (value, split) {
            (Value::Number(_), _) if key == "step" || key == "epoch" => {}
            (Value::Number(number), split) => {
                let (of, name) = split.unwrap_or((group, key));
                let of = if group.starts_with("eval/") { group } else { of };
                let simple_value = number.as_f64().unwrap_or(f64::NAN) as f32;
                scalars.push(Scalar { tag: format!("{of}/{name}"), simple_value });
            }
            (Value::Object(heads), Some(("eval", "heads"))) => {
                heads.iter().for_each(|(head, fields)| add_scalars(&format!("eval/{head}"), fields, scalars));
            }
            (fields @ Value::Object(_), None) => add_scalars(key, fields, scalars),
            _ => {}
        }
    }
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// A record in its frame.
fn framed(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), record, &masked_crc(record)].concat()
}

fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    CRC_32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// The message `Event`.
#[derive(Clone, PartialEq, prost::Message)]
struct Record {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

impl Record {
    fn at(step: u64) -> Self {
        Record { wall_time: now_s(), step: i64::try_from(step).unwrap_or(i64::MAX), ..Record::default() }
    }
}

/// The message `Summary`.
#[derive(Clone, PartialEq, prost::Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

/// The message `Summary.Value`.
#[derive(Clone, PartialEq, prost::Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

/// The message `SessionLog`.
#[derive(Clone, PartialEq, prost::Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

impl SessionLog {
    /// The steps from here on begin anew.
    const START: i32 = 1;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn records_are_framed_as_tensorflow_frames_them() {
        // Written by `tensorboard.summary.writer.record_writer.RecordWriter` (tensorboard 2.21).
        assert_eq!(framed(b"abc"), [3, 0, 0, 0, 0, 0, 0, 0, 176, 153, 73, 14, 97, 98, 99, 110, 87, 241, 33]);
    }

    #[test]
    fn numbers_become_scalars() {
        let event = json!({"event": "epoch", "step": 9, "epoch": 2, "train_loss": 0.5, "eval_loss": 0.25, "eval_r2": null,
            "eval_heads": {"a b": {"eval_mae": 2.0}}, "time": {"forward": 1.5}});
        let mut scalars = Vec::new();
        add_scalars("epoch", &event, &mut scalars);
        let scalars: Vec<_> =
            scalars.iter().map(|scalar| (scalar.tag.as_str(), scalar.simple_value)).collect();
        let expected =
            [("eval/a b/mae", 2.0), ("eval/loss", 0.25), ("time/forward", 1.5), ("train/loss", 0.5)];
        assert_eq!(scalars, expected);
    }
}
