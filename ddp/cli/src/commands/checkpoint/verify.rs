//! `ddp-train checkpoint verify`: reads every byte and reports the proven properties.

use ddp::checkpoint::{CheckpointError, Fault, Marker, step_name};
use ddp::data::order::epoch_proof::Proved;
use ddp::report::metrics::json_line;
use ddp::report::units::mib;
use serde::Serialize;

use super::{Named, all_at, print_result};
use crate::cli::CheckpointVerifyArgs;
use crate::error::Result;
use crate::report::log::Log;

/// Result of verifying one checkpoint.
#[derive(Debug, Serialize)]
struct VerifyReport {
    checkpoint: String,
    ok: bool,
    n_files: usize,
    size_bytes: u64,
    /// Fault of the checkpoint's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// Proof of the rows that the epochs used.
    #[serde(skip_serializing_if = "Option::is_none")]
    proved: Option<Proved>,
    /// Faults of the epochs, one per line.
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs_fault: Option<String>,
}

impl VerifyReport {
    fn new(named: &Named) -> Self {
        let mut report = VerifyReport {
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
            Err(fault) => return VerifyReport { fault: Some(fault.to_string()), ..report },
        };
        let manifest = checkpoint.manifest();
        (report.n_files, report.size_bytes) = (manifest.files.len() + 1, manifest.n_bytes());
        report.fault = checkpoint.verify().err().map(|fault| fault.to_string());
        match checkpoint.verify_epochs() {
            Ok(proved) => report.proved = Some(proved),
            Err(fault) => report.epochs_fault = Some(fault),
        }
        report.ok = report.fault.is_none() && report.epochs_fault.is_none();
        report
    }

    fn lines(&self) -> String {
        let VerifyReport { checkpoint, n_files, size_bytes, fault, proved, epochs_fault, .. } = self;
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
pub(super) fn verify(log: &Log, args: &CheckpointVerifyArgs) -> Result<()> {
    let (checkpoints, store) = all_at(&args.path)?;
    let mut n_bad = 0;
    for named in &checkpoints {
        let reading = log.terminal().show_busy(format!("reading {}", named.name));
        let report = VerifyReport::new(named);
        drop(reading);
        n_bad += usize::from(!report.ok);
        print_result(&if args.json { json_line(&report) } else { report.lines() })?;
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
