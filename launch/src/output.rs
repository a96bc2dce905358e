//! The output of a launcher, or of ranks, copied to that of this process.
//!
//! The launcher never writes to the user's pipes itself: mpirun ends the job when a reader dies, and this process goes on without it.
//! Open MPI's own lines, blocks between two rows of dashes, are held back. They explain a job that did not start; after a rank that
//! failed they repeat what it said. (`mpirun --quiet` would leave them out in both cases.)

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, PipeReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Variable with the line that the first rank of each host writes to stderr once the ranks have joined; `launch` removes it.
pub const JOINED: &str = "DDP_LAUNCH_JOINED";
/// Number of lines held back that are kept.
const N_KEPT: usize = 60;
/// Number of lines after which a block without end is not one.
const N_BLOCK: usize = 60;
/// Minimum number of dashes around a block.
const N_DASHES: usize = 60;
/// Number of bytes after which a line without end is copied.
const MAX_LINE: u64 = 1 << 16;

/// The output of a job that is being copied.
#[derive(Debug)]
pub(crate) struct Output {
    shared: Arc<Shared>,
    copied: Receiver<()>,
}

#[derive(Debug, Default)]
struct Shared {
    has_joined: AtomicBool,
    has_said: AtomicBool,
    held: Mutex<VecDeque<String>>,
}

impl Output {
    /// Starts to copy the outputs of a job, whose ranks report with the line `joined` that they have joined. With `has_blocks`, the
    /// launcher is Open MPI.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(crate) fn copy(
        stdout: PipeReader,
        stderr: PipeReader,
        joined: &str,
        has_blocks: bool,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (copying, copied) = mpsc::channel();
        spawn("stdout", copying.clone(), move || copy_bytes(stdout))?;
        let (to, joined) = (shared.clone(), joined.to_owned());
        spawn("stderr", copying, move || copy_lines(stderr, &to, &joined, has_blocks))?;
        Ok(Output { shared, copied })
    }

    /// Whether the ranks have joined.
    pub(crate) fn has_joined(&self) -> bool {
        self.shared.has_joined.load(Ordering::Acquire)
    }

    /// Whether the launcher or a rank has written to stderr.
    pub(crate) fn has_said(&self) -> bool {
        self.shared.has_said.load(Ordering::Acquire)
    }

    /// The launcher's own last lines that were held back.
    pub(crate) fn held(&self) -> Vec<String> {
        self.shared.held().iter().cloned().collect()
    }

    /// Waits until everything is copied, at most for `limit`: a user who reads nothing does not keep the job from its end.
    pub(crate) fn wait(&self, limit: Duration) {
        let started = Instant::now();
        // Each thread drops its sender when it ends, and sends nothing.
        let _ = self.copied.recv_timeout(limit.saturating_sub(started.elapsed()));
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end();
        if line.trim_start_matches('-').is_empty() {
            return;
        }
        let mut held = self.held();
        held.push_back(line.to_owned());
        if held.len() > N_KEPT {
            held.pop_front();
        }
    }
}

/// Starts a thread that holds `copying` while it copies.
fn spawn(name: &str, copying: Sender<()>, copy: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        let _copying = copying;
        copy();
    };
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

fn copy_bytes(mut from: impl Read) {
    let mut buffer = [0; 1 << 13];
    let mut to = Reader::new(io::stdout());
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => to.write(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn copy_lines(from: impl Read, shared: &Shared, joined: &str, has_blocks: bool) {
    let mut from = BufReader::new(from);
    let mut to = Reader::new(io::stderr());
    let mut blocks = Blocks::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(n) if n > 0 => {}
            _ => break,
        }
        if line.trim_ascii_end() == joined.as_bytes() {
            shared.has_joined.store(true, Ordering::Release);
            continue;
        }
        shared.has_said.store(true, Ordering::Release);
        let copied = if has_blocks { blocks.outside(&line) } else { Some(line.clone()) };
        match copied {
            Some(text) => to.write(&text),
            None => shared.hold(&line),
        }
    }
    // A block without end is not one.
    to.write(&std::mem::take(&mut blocks.block));
}

/// The reader of this process's output, which may be gone.
struct Reader<W> {
    output: W,
    is_gone: bool,
}

impl<W: Write> Reader<W> {
    fn new(output: W) -> Self {
        Reader { output, is_gone: false }
    }

    fn write(&mut self, bytes: &[u8]) {
        if !self.is_gone && !bytes.is_empty() {
            let written = self.output.write_all(bytes).and_then(|()| self.output.flush());
            self.is_gone = written.is_err();
        }
    }
}

/// Separates the blocks of Open MPI from all other lines.
#[derive(Debug, Default)]
struct Blocks {
    /// The lines of a block whose end was not seen yet.
    block: Vec<u8>,
    n_lines: usize,
}

impl Blocks {
    /// The bytes to copy after `line` was read; `None` if it belongs to a block.
    fn outside(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        let text = line.trim_ascii_end();
        let is_border = text.len() >= N_DASHES && text.iter().all(|byte| *byte == b'-');
        let is_inside = !self.block.is_empty();
        if !is_inside && !is_border {
            return if is_remark(text) { None } else { Some(line.to_vec()) };
        }
        if is_inside && is_of_rank(text) {
            return Some(line.to_vec());
        }
        self.block.extend_from_slice(line);
        self.n_lines += 1;
        let is_whole = is_inside && is_border;
        let is_too_long = self.n_lines > N_BLOCK;
        if !is_whole && !is_too_long {
            return None;
        }
        self.n_lines = 0;
        let block = std::mem::take(&mut self.block);
        is_too_long.then_some(block)
    }
}

/// Whether Open MPI says in a line of its own that it passes a signal on, or counts the blocks that it has left out.
fn is_remark(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    let of_launcher = line.split_once(": ").is_some_and(|(name, text)| {
        ["mpirun", "mpiexec", "prterun"].contains(&name) && text.starts_with("Forwarding signal ")
    });
    let of_blocks = line.starts_with('[')
        && (line.contains("more process has sent help message")
            || line.contains("more processes have sent help message")
            || line.contains("\"orte_base_help_aggregate\""));
    of_launcher || of_blocks
}

/// Whether a line within a block is certainly a rank's, as two processes may write at once.
fn is_of_rank(line: &[u8]) -> bool {
    [&b"error: "[..], b"warning: ", b"hint: ", b"[rank ", b"step ", b"epoch "]
        .iter()
        .any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BORDER: &str = "--------------------------------------------------------------------------\n";

    /// The copied text.
    fn copied(text: &str) -> String {
        let mut blocks = Blocks::default();
        let mut out: Vec<u8> =
            text.split_inclusive('\n').filter_map(|line| blocks.outside(line.as_bytes())).flatten().collect();
        out.extend(blocks.block);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn blocks_of_open_mpi_are_held_back() {
        let block =
            format!("{BORDER}mpirun noticed that process rank 1\n\nexited on signal 9 (Killed).\n{BORDER}");
        assert_eq!(copied(&format!("step 1\n{block}{block}step 2\n")), "step 1\nstep 2\n");
        assert_eq!(
            copied("a - b\n-----\n[host:1] *** Signal: 11\n"),
            "a - b\n-----\n[host:1] *** Signal: 11\n"
        );
        let counted = "[vm:28947] 1 more process has sent help message help-mpi.txt / x\n";
        assert_eq!(copied(counted), "");
        assert_eq!(copied("mpirun: Forwarding signal 10 to job\n"), "");
    }

    #[test]
    fn lines_of_ranks_are_never_lost() {
        assert_eq!(copied(&format!("{BORDER}text\nerror: disk full\n{BORDER}")), "error: disk full\n");
        let open = format!("{BORDER}text\nmore\n");
        assert_eq!(copied(&open), open, "a block without end");
        let long = format!("{BORDER}{}", "text\n".repeat(2 * N_BLOCK));
        assert_eq!(copied(&long), long, "a block that is too long");
    }

    #[test]
    fn a_reader_that_is_gone_is_no_error() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut reader = Reader::new(Closed);
        reader.write(b"text");
        assert!(reader.is_gone);
        reader.write(b"text");
    }

    #[test]
    fn the_line_of_the_ranks_is_not_copied() {
        let shared = Shared::default();
        copy_lines(&b"joined x\n"[..], &shared, "joined x", true);
        assert!(shared.has_joined.load(Ordering::Acquire));
        copy_lines(format!("{BORDER}No component plm.\n{BORDER}").as_bytes(), &shared, "", true);
        assert_eq!(shared.held()[0], "No component plm.");
    }
}
