//! Output of the virtual GPU: findings, notes and the banner.
//!
//! A *finding* is a mistake that would cause wrong data, a crash or a hang on a real GPU. It is written to stderr and, as one
//! line, to a file of this process in the folder `VGPU_FINDINGS`, in a single write, so that it survives a crash
//! right after. A *note* is everything else that is worth a line, such as a refused feature or a requested fault.

use crate::abi::lock;
use crate::config::CONFIG;
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

/// After this many different findings a process reports no more, because later ones follow from the first.
const MOST_FINDINGS: usize = 50;

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Reports a mistake of the client. The same text is reported only once per process.
pub(crate) fn report(what: &str) {
    let what = what.replace('\n', " ");
    // Held until the line is written, because a second thread with the same text may abort the process right after.
    let mut said = lock(&SAID);
    let said = said.get_or_insert_default();
    if said.len() >= MOST_FINDINGS || !said.insert(what.clone()) {
        return;
    }
    say(&format!("FINDING: {what}"));
    let Some(folder) = std::env::var_os("VGPU_FINDINGS") else { return };
    let path = Path::new(&folder).join(std::process::id().to_string());
    let line = format!("[rank {}] {what}\n", CONFIG.rank);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    if let Err(e) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        say(&format!("cannot keep the finding in {}: {e}", path.display()));
    }
}

/// Reports something that is not a mistake.
pub(crate) fn note(what: &str) {
    say(&format!("note: {what}"));
}

/// Prints one line at the first `cuInit` of the first rank, so that no measurement is mistaken for one on hardware.
pub(crate) fn banner() {
    if CONFIG.rank == 0 && std::env::var_os("VGPU_QUIET").is_none() {
        let mode = match (CONFIG.fuzz, CONFIG.check) {
            (0, false) => String::new(),
            (0, true) => ", check".into(),
            (seed, check) => format!(", fuzz {seed}{}", if check { ", check" } else { "" }),
        };
        say(&format!(
            "{} VIRTUAL devices that compute on the CPU{mode}: no speed here means anything",
            CONFIG.devices()
        ));
    }
}

/// Prints one line on stderr in a single write, so that lines of several ranks don't mix.
pub(crate) fn say(what: &str) {
    let line = format!("vgpu[rank {}]: {what}\n", CONFIG.rank);
    // If stderr is closed, nobody can be informed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
