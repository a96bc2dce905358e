//! The manifest of a checkpoint: model, run state, and the list of files with a checksum of each.
//!
//! Readable JSON. Its first field is the checksum of its own bytes, computed with zeros for that field's digits. It is written
//! last, so if it exists, all files were on disk before it.
//!
//! ```
//! use ddp::checkpoint::manifest::ManifestHead;
//! use ddp::checkpoint::{Fault, Manifest, Parameter, RunState};
//!
//! let head = ManifestHead {
//!     run_id: None,
//!     world_size: 2,
//!     data_fingerprint: "0".to_owned(),
//!     run: RunState { n_rows: 10, global_rows: 4, ..RunState::default() },
//!     parameters: vec![Parameter { name: "layers.0.weight".to_owned(), shape: vec![2, 3] }],
//!     state: Vec::new(),
//!     config: String::new(),
//! };
//! let weights = r#"{"name": "model.safetensors", "bytes": 0, "xxh3_128": "0123456789abcdef0123456789abcdef"}"#;
//! let mut bytes = Manifest::new(head, vec![serde_json::from_str(weights).unwrap()]).to_bytes();
//! assert_eq!(Manifest::from_bytes(&bytes)?.parameters[0].numel(), 6);
//!
//! // Any changed byte is noticed.
//! bytes.pop();
//! bytes.push(b' ');
//! assert!(matches!(Manifest::from_bytes(&bytes), Err(Fault::ManifestChanged)));
//! # Ok::<(), Fault>(())
//! ```

use std::collections::HashSet;
use std::path::{Component, Path};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::names::{FORMAT_VERSION, MANIFEST_FILE, MODEL_FILE, STATE_PREFIX, state_file};
use super::run_state::RunState;
use crate::run_folder::{run_id, time};
use crate::storage::checksum::{Checksum, N_DIGITS};
use crate::storage::fault::{FileEntry, FileFault};
use crate::storage::user_file::read_regular;

/// Largest manifest: one of 1,000 ranks and 10,000 parameters takes some 2 MB.
const MAX_BYTES: u64 = 256 << 20;
/// Most rows, steps, ranks or elements that a manifest may claim.
pub(crate) const MAX_COUNT: u64 = 1 << 52;
/// Text before the manifest's own checksum.
const CHECKSUM_FIELD: &[u8] = b"\"checksum\": \"";

/// Content of a checkpoint: model, run state and files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Checksum of the manifest's bytes, with zeros in this place. First, so that no text before it can look like it.
    checksum: String,
    /// `FORMAT_VERSION` of the program that wrote it.
    pub format_version: u64,
    /// Version and build of the program that wrote it.
    pub program: String,
    /// When it was written, UTC, as in RFC 3339.
    pub time: String,
    /// Host of rank 0.
    pub host: String,
    /// Id of the run; earlier versions wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Ranks of the run.
    pub world_size: usize,
    /// Hash of the training data, hexadecimal.
    pub data_fingerprint: String,
    /// State of the run.
    pub run: RunState,
    /// The model's parameters in the order of PyTorch's `state_dict`.
    pub parameters: Vec<Parameter>,
    /// Names of the state tensors of the optimizer, such as `m`, `v` and `ema`.
    pub state: Vec<String>,
    /// All other files of the checkpoint.
    pub files: Vec<FileEntry>,
    /// The resolved config, as TOML.
    pub config: String,
}

/// A parameter of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Name of the parameter, as in PyTorch.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Fields of a [`Manifest`] that do not come from the files.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestHead {
    /// Id of the run, also in its folder.
    pub run_id: Option<String>,
    /// Ranks of the run.
    pub world_size: usize,
    /// Hash of the training data, hexadecimal.
    pub data_fingerprint: String,
    /// State of the run.
    pub run: RunState,
    /// The model's parameters in the order of PyTorch's `state_dict`.
    pub parameters: Vec<Parameter>,
    /// Names of the state tensors.
    pub state: Vec<String>,
    /// The resolved config, as TOML.
    pub config: String,
}

impl Manifest {
    /// Creates a manifest with this program, host and time.
    pub fn new(head: ManifestHead, files: Vec<FileEntry>) -> Self {
        let ManifestHead { run_id, world_size, data_fingerprint, run, parameters, state, config } = head;
        Manifest {
            checksum: "0".repeat(N_DIGITS),
            format_version: FORMAT_VERSION,
            program: program(),
            time: rfc3339(SystemTime::now()),
            host: host(),
            run_id,
            world_size,
            data_fingerprint,
            run,
            parameters,
            state,
            files,
            config,
        }
    }

    /// The manifest's bytes, its checksum filled in.
    pub fn to_bytes(&self) -> Vec<u8> {
        let blank = Manifest { checksum: "0".repeat(N_DIGITS), ..self.clone() };
        let mut bytes = serde_json::to_vec_pretty(&blank).expect("plain numbers and texts under text keys");
        bytes.push(b'\n');
        let checksum = Checksum::of(&bytes);
        let at = checksum_at(&bytes).expect("the field was just written");
        bytes[at..at + N_DIGITS].copy_from_slice(checksum.as_str().as_bytes());
        bytes
    }

    /// Parses and verifies a manifest.
    ///
    /// # Errors
    /// A [`Fault`] for any changed byte.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Fault> {
        let at = checksum_at(bytes).ok_or(Fault::NoManifest)?;
        let mut blank = bytes.to_vec();
        blank[at..at + N_DIGITS].fill(b'0');
        if Checksum::of(&blank).as_str().as_bytes() != &bytes[at..at + N_DIGITS] {
            return Err(Fault::ManifestChanged);
        }
        // Before all other fields: those of a later version may differ.
        #[derive(Deserialize)]
        struct Version {
            format_version: u64,
        }
        let unreadable = |error: serde_json::Error| Fault::ManifestUnreadable { reason: error.to_string() };
        let Version { format_version } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format_version > FORMAT_VERSION {
            return Err(Fault::LaterFormat { format_version });
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(unreadable)?;
        manifest.check().map_err(|reason| Fault::ManifestUnreadable { reason })?;
        Ok(manifest)
    }

    /// Checks what no checkpoint has, once, so that numbers of a forged manifest neither overflow nor take for ever, its names stay in
    /// the folder, and its lists agree with each other.
    fn check(&self) -> Result<(), String> {
        let RunState { step, cursor, n_rows, global_rows, proof, .. } = &self.run;
        let mut counts = vec![
            ("world_size", self.world_size as u64, 1),
            ("run.step", *step, 0),
            ("run.cursor", *cursor, 0),
            ("run.n_rows", *n_rows, 1),
            ("run.global_rows", *global_rows, 1),
            ("run.epoch_loss.n_rows", self.run.epoch_loss.n_rows, 0),
            ("run.early_stopping.n_worse", self.run.early_stopping.n_worse, 0),
            ("run.early_stopping.n_reductions", self.run.early_stopping.n_reductions, 0),
            ("run.proof.current.count", proof.current.count, 0),
        ];
        if let Some(of) = &self.run.loss_scaler {
            counts.push(("run.loss_scaler.n_good_in_row", of.n_good_in_row, 0));
            counts.push(("run.loss_scaler.n_skipped_in_row", of.n_skipped_in_row, 0));
            counts.push(("run.loss_scaler.n_skipped", of.n_skipped, 0));
        }
        if let Some(best) = &self.run.best {
            counts.extend([("run.best.step", best.step, 0), ("run.best.epoch", best.epoch, 0)]);
        }
        counts.extend(self.run.left_out.iter().map(|of| ("run.left_out.step", of.step, 0)));
        counts.extend(self.files.iter().map(|file| ("files.bytes", file.bytes, 0)));
        for epochs in &proof.finished {
            counts.push(("run.proof.finished.first_epoch", epochs.first_epoch, 1));
            counts.push(("run.proof.finished.last_epoch", epochs.last_epoch, 1));
            counts.push(("run.proof.finished.rows.count", epochs.rows.count, 0));
        }
        if let Some((field, got, least)) =
            counts.into_iter().find(|(_, got, least)| !(*least..=MAX_COUNT).contains(got))
        {
            return Err(format!("`{field}` is {got}, expected {least} to {MAX_COUNT}"));
        }
        if let Some(id) = self.run_id.as_ref().filter(|id| !run_id::is_valid(id)) {
            return Err(format!("`run_id` is {id:?}, expected 32 hexadecimal digits"));
        }
        let mut numel = 0;
        for Parameter { name, shape } in &self.parameters {
            let own = shape.iter().try_fold(1, |numel: u64, dim| numel.checked_mul(*dim as u64));
            numel = match own.and_then(|own| own.checked_add(numel)) {
                Some(numel @ ..=MAX_COUNT) => numel,
                _ => return Err(format!("parameter \"{name}\" has the shape {shape:?}")),
            };
        }
        if let Some(contradiction) = self.run.course.contradiction() {
            return Err(format!("`run.course` contradicts itself: {contradiction}"));
        }
        let parameters = self.parameters.iter().map(|parameter| &parameter.name);
        let files = || self.files.iter().map(|file| &file.name);
        for (what, name) in [
            ("parameter", first_twice(parameters)),
            ("state", first_twice(self.state.iter())),
            ("file", first_twice(files())),
        ] {
            if let Some(name) = name {
                return Err(format!("it lists the {what} {name:?} twice"));
            }
        }
        if let Some(name) = files().find(|name| !is_file_name(name) || *name == MANIFEST_FILE) {
            return Err(format!("{name:?} is not the name of a file in its folder"));
        }
        if !files().any(|name| name == MODEL_FILE) {
            return Err(format!("it does not list {MODEL_FILE}"));
        }
        let shards: Vec<&String> = files().filter(|name| name.starts_with(STATE_PREFIX)).collect();
        let is_of_rank = |rank: usize| shards.contains(&&state_file(rank, shards.len()));
        if shards.len() > self.world_size || !(0..shards.len()).all(is_of_rank) {
            let n_ranks = self.world_size;
            return Err(format!("its files of optimizer state are not those of {n_ranks} ranks: {shards:?}"));
        }
        Ok(())
    }

    /// Reads and checks the manifest of the checkpoint in `folder`.
    ///
    /// # Errors
    /// The [`Fault`] that it finds.
    pub fn read(folder: &Path) -> Result<Self, Fault> {
        let path = folder.join(MANIFEST_FILE);
        let unreadable = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => FileFault::Missing { name: MANIFEST_FILE.to_owned() },
            _ => FileFault::Unreadable { name: MANIFEST_FILE.to_owned(), reason: error.to_string() },
        };
        let file = std::fs::metadata(&path).map_err(unreadable)?;
        if !file.is_file() || file.len() > MAX_BYTES {
            return Err(Fault::NoManifest);
        }
        Manifest::from_bytes(&read_regular(&path, MAX_BYTES).map_err(unreadable)?)
    }

    /// Bytes of the checkpoint's files, without the manifest.
    pub fn n_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}

/// The first name that comes twice.
fn first_twice<'a>(mut names: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut seen = HashSet::new();
    names.find(|name| !seen.insert(name.as_str()))
}

/// Whether `name` is one component, so that joined to a folder it stays there.
fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
}

/// Position of the manifest's own checksum.
fn checksum_at(bytes: &[u8]) -> Option<usize> {
    let at = memchr::memmem::find(bytes, CHECKSUM_FIELD)? + CHECKSUM_FIELD.len();
    (bytes.len() >= at + N_DIGITS).then_some(at)
}

fn program() -> String {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("ddp-train {} ({build}, {arch}-{os})", env!("CARGO_PKG_VERSION"))
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// `YYYY-MM-DDTHH:MM:SSZ`.
fn rfc3339(time: SystemTime) -> String {
    let [year, month, day, hour, minute, second] = time::utc_parts(time);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::checkpoint::run_state::{LeftOut, WhyLeftOut};

    fn manifest() -> Manifest {
        let head = ManifestHead {
            run_id: Some("0123456789abcdef".repeat(2)),
            world_size: 2,
            data_fingerprint: "00ff".to_owned(),
            run: RunState { step: 7, cursor: 70, n_rows: 30, global_rows: 10, ..RunState::default() },
            parameters: vec![Parameter { name: "layers.0.weight".to_owned(), shape: vec![2, 3] }],
            state: vec!["m".to_owned()],
            // A config that looks like the field that is sought.
            config: "name = '\"checksum\": \"00000000000000000000000000000000'\n".to_owned(),
        };
        let file = |name: &str| FileEntry { name: name.to_owned(), bytes: 3, xxh3_128: Checksum::of(b"abc") };
        Manifest::new(
            head,
            vec![file(MODEL_FILE), file(&state_file(0, 2)), file(&state_file(1, 2)), file("a")],
        )
    }

    #[test]
    fn round_trips_and_can_be_read_by_people() {
        let bytes = manifest().to_bytes();
        let back = Manifest::from_bytes(&bytes).unwrap();
        assert_eq!(Manifest { checksum: "0".repeat(N_DIGITS), ..back.clone() }, manifest_at(&back.time));
        assert_eq!(back.to_bytes(), bytes);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("\n  \"world_size\": 2,\n"), "{text}");
    }

    /// Its checksum is right: whoever forges a manifest computes that too.
    #[test]
    fn numbers_and_names_that_no_checkpoint_has_are_refused() {
        type Change = fn(&mut Manifest);
        let changes: [(&str, Change); 27] = [
            ("`world_size` is 0", |m| m.world_size = 0),
            ("`run.global_rows` is 0", |m| m.run.global_rows = 0),
            ("`run.n_rows` is 9223372036854775808", |m| m.run.n_rows = 1 << 63),
            ("`run.step` is 18446744073709551615", |m| m.run.step = u64::MAX),
            ("`run.cursor` is", |m| m.run.cursor = u64::MAX),
            ("`run.proof.current.count` is", |m| m.run.proof.current.count = u64::MAX),
            ("parameter \"layers.0.weight\" has the shape", |m| m.parameters[0].shape[0] = 1 << 52),
            ("\"../a\" is not the name of a file", |m| m.files[3].name = "../a".to_owned()),
            ("\"/etc/passwd\" is not the name", |m| m.files[3].name = "/etc/passwd".to_owned()),
            ("\"..\" is not the name", |m| m.files[3].name = "..".to_owned()),
            ("`run_id` is \"../x\"", |m| m.run_id = Some("../x".to_owned())),
            ("\"a/\" is not the name", |m| m.files[3].name = "a/".to_owned()),
            ("\"manifest.json\" is not the name", |m| m.files[3].name = MANIFEST_FILE.to_owned()),
            ("`files.bytes` is", |m| m.files[3].bytes = u64::MAX),
            ("lists the file \"model.safetensors\" twice", |m| m.files[3].name = MODEL_FILE.to_owned()),
            ("does not list model.safetensors", |m| drop(m.files.remove(0))),
            ("lists the parameter \"layers.0.weight\" twice", |m| m.parameters.push(m.parameters[0].clone())),
            ("lists the state \"m\" twice", |m| m.state.push("m".to_owned())),
            ("not those of 1 ranks: [\"optimizer-00000-of-00002", |m| m.world_size = 1),
            ("not those of 2 ranks: [\"optimizer-00001-of-00002", |m| drop(m.files.remove(1))),
            ("not those of 2 ranks", |m| m.files[1].name = "optimizer-0-of-2.safetensors".to_owned()),
            ("`run.epoch_loss.n_rows` is", |m| m.run.epoch_loss.n_rows = u64::MAX),
            ("`run.early_stopping.n_worse` is", |m| m.run.early_stopping.n_worse = u64::MAX),
            ("`run.early_stopping.n_reductions` is", |m| m.run.early_stopping.n_reductions = u64::MAX),
            ("`run.left_out.step` is", |m| {
                m.run.left_out = vec![LeftOut { step: u64::MAX, why: WhyLeftOut::Loss }];
            }),
            ("0 bins of 1 steps", |m| set_course(m, r#"{"first": 0.5, "bin_steps": 1, "bins": []}"#)),
            ("bin 0 is of 3 steps, expected 1 to 2", |m| {
                set_course(m, r#"{"first": 0.5, "bin_steps": 2, "bins": [[3, 1.5, 0.75]]}"#);
            }),
        ];
        for (part, change) in changes {
            let mut forged = manifest();
            change(&mut forged);
            let fault = Manifest::from_bytes(&forged.to_bytes()).unwrap_err().to_string();
            assert!(fault.contains(part), "{part}: {fault}");
        }
    }

    fn set_course(manifest: &mut Manifest, course: &str) {
        manifest.run.course = serde_json::from_str(course).unwrap();
    }

    fn manifest_at(time: &str) -> Manifest {
        Manifest { time: time.to_owned(), ..manifest() }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = manifest().to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::from_bytes(&changed).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Manifest::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
        }
        let longer = [&bytes[..], b"\n"].concat();
        assert!(matches!(Manifest::from_bytes(&longer), Err(Fault::ManifestChanged)));
    }

    #[test]
    fn later_format_is_distinguished_from_damage() {
        let later = Manifest { format_version: FORMAT_VERSION + 1, ..manifest() };
        let fault = Manifest::from_bytes(&later.to_bytes()).unwrap_err();
        assert!(matches!(fault, Fault::LaterFormat { format_version: 2 }), "{fault}");
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
    }
}
