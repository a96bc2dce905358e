//! `ddp-train checkpoint verify`: reads every byte and reports what is proved.

use serde::Serialize;

use super::{Named, all_at, print_result};
use crate::checkpoint::{CheckpointError, Fault, Marker, step_name};
use crate::cli::CheckpointVerifyArgs;
use crate::data::order::epoch_proof::Proved;
use crate::error::Result;
use crate::report::metrics::json_line;
use crate::report::units::mib;

/// Result of verifying one checkpoint.
#[derive(Debug, Serialize)]
struct Verdict {
    checkpoint: String,
    ok: bool,
    n_files: usize,
    size_bytes: u64,
    /// Fault of its files.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// Proof of the rows that its epochs used.
    #[serde(skip_serializing_if = "Option::is_none")]
    proved: Option<Proved>,
    /// Faults of its epochs, one per line.
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs_fault: Option<String>,
}

impl Verdict {
    fn new(named: &Named) -> Self {
        let mut verdict = Verdict {
            checkpoint: named.name.clone(),
            ok: false,
            n_files: 0,
            size_bytes: 0,
            fault: None,
            proved: None,
            epochs_fault: None,
        };
        let checkpoint = match &named.checkpoint {
            Ok(checkpoint) => checkpoint,
            Err(fault) => return Verdict { fault: Some(fault.to_string()), ..verdict },
        };
        let manifest = checkpoint.manifest();
        (verdict.n_files, verdict.size_bytes) = (manifest.files.len() + 1, manifest.n_bytes());
        verdict.fault = checkpoint.verify().err().map(|fault| fault.to_string());
        match checkpoint.verify_epochs() {
            Ok(proved) => verdict.proved = Some(proved),
            Err(fault) => verdict.epochs_fault = Some(fault),
        }
        verdict.ok = verdict.fault.is_none() && verdict.epochs_fault.is_none();
        verdict
    }

    fn lines(&self) -> String {
        let Verdict { checkpoint, n_files, size_bytes, fault, proved, epochs_fault, .. } = self;
        let bytes = match fault {
            Some(fault) => format!("BROKEN: {fault}"),
            None => format!("all {n_files} files ({}) match their checksums", mib(*size_bytes)),
        };
        let mut lines = format!("{checkpoint}: {bytes}\n");
        for line in epochs_fault.iter().flat_map(|fault| fault.lines()) {
            lines += &format!("  WRONG: {line}\n");
        }
        if let Some(proved) = proved {
            lines += &format!("  {proved}\n");
        }
        lines
    }
}

/// Verifies the checkpoints.
pub(super) fn verify(args: &CheckpointVerifyArgs) -> Result<()> {
    let (checkpoints, store) = all_at(&args.path)?;
    let mut n_bad = 0;
    for named in &checkpoints {
        let verdict = Verdict::new(named);
        n_bad += usize::from(!verdict.ok);
        print_result(&if args.json { json_line(&verdict) } else { verdict.lines() })?;
    }
    // For information only: resuming checks the checkpoints themselves.
    for marker in [Marker::Latest, Marker::Best] {
        let Some(name) = store.marked(marker) else { continue };
        let is_there = store.steps()?.into_iter().any(|step| step_name(step) == name);
        if !is_there && !args.json {
            print_result(&format!("{}: {}\n", marker.name(), Fault::NamesNothing { name }))?;
        }
    }
    if n_bad > 0 {
        return Err(CheckpointError::VerifyFailed { n_bad, n: checkpoints.len() }.into());
    }
    Ok(())
}
