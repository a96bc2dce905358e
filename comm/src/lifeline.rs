//! Ends the ranks of a job together where no MPI does it: each rank has a connection to rank 0, and a thread that listens there.
//!
//! A rank that ends the job asks the others to end with the same status. A rank whose connection closes without a word has died: the
//! others end too, unless the watchdog, which knows more of it, ends them first. A rank that ends as it should waits for the others,
//! as in `MPI_Finalize`.
//!
//! A message has eight bytes: its kind, and an exit status.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ddp_kernels::cpu::start_thread::start_thread;

use crate::stderr::write_stderr;

/// Time that the watchdog has to report a rank that died: it ends a process within 1.3 s.
const WATCHDOG_WAIT: Duration = Duration::from_secs(2);
/// Time limit of a write, so that a rank that ends does not wait for one that is frozen.
const WRITE_WAIT: Duration = Duration::from_millis(300);
/// Time limit for the rest of a message.
const READ_WAIT: Duration = Duration::from_secs(1);

/// The rank asks the others to end with a status.
const END: u32 = 1;
/// The rank leaves; from rank 0: all ranks leave.
const LEAVE: u32 = 2;

/// The connections of this process, which is at most one rank.
static LIFELINE: OnceLock<Arc<Lifeline>> = OnceLock::new();

/// Another rank, and the connection to it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: usize,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) stream: TcpStream,
}

struct Lifeline {
    rank: usize,
    host: String,
    /// All other ranks on rank 0; rank 0 on the others.
    peers: Vec<Peer>,
    lost_exit_code: i32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    has_left: bool,
    /// Ranks that have left, of `peers`.
    peers_left: Vec<bool>,
    /// Whether this rank may end.
    is_over: bool,
    /// Whether the watchdog ends the process.
    stands_back: bool,
}

/// Starts the thread of rank `rank` on `host`; a job that has lost a rank ends with `lost_exit_code`.
///
/// # Errors
/// The system's error.
pub(crate) fn start(rank: usize, host: &str, peers: Vec<Peer>, lost_exit_code: i32) -> io::Result<()> {
    for peer in &peers {
        peer.stream.set_write_timeout(Some(WRITE_WAIT))?;
        peer.stream.set_read_timeout(Some(READ_WAIT))?;
    }
    let state = State { peers_left: vec![false; peers.len()], ..State::default() };
    let lifeline = Arc::new(Lifeline {
        rank,
        host: host.to_owned(),
        peers,
        lost_exit_code,
        state: Mutex::new(state),
        changed: Condvar::new(),
    });
    if LIFELINE.set(lifeline.clone()).is_err() {
        return Err(io::Error::other("this process has joined other ranks before"));
    }
    start_thread("lifeline", move || lifeline.watch()).map(drop)
}

/// From now on the watchdog alone ends this process where a rank is lost: it lets a rank save before.
pub(crate) fn stand_back() {
    if let Some(lifeline) = LIFELINE.get() {
        lifeline.state().stands_back = true;
    }
}

/// Asks the other ranks to end with this status, for a rank that a signal ends. Does nothing where ranks did not join without MPI: their
/// launcher then ends them.
pub fn end_others(exit_code: i32) {
    if let Some(lifeline) = LIFELINE.get()
        && !lifeline.state().has_left
    {
        lifeline.send_to_all(END, exit_code);
    }
}

/// Leaves the job: from now on the end of this process is not a loss. With `waits`, returns when all ranks have left.
pub(crate) fn leave(waits: bool) {
    let Some(lifeline) = LIFELINE.get() else { return };
    let mut state = lifeline.state();
    state.has_left = true;
    if lifeline.rank == 0 && waits {
        lifeline.settle(&mut state);
    } else {
        lifeline.send_to_all(LEAVE, 0);
    }
    if waits {
        let is_waiting = |state: &mut State| !state.is_over;
        drop(lifeline.changed.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Lifeline {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait of all ranks once each of them has left. On rank 0.
    fn settle(&self, state: &mut State) {
        if state.has_left && state.peers_left.iter().all(|left| *left) && !state.is_over {
            self.send_to_all(LEAVE, 0);
            state.is_over = true;
            self.changed.notify_all();
        }
    }

    fn send_to_all(&self, kind: u32, exit_code: i32) {
        self.send_except(usize::MAX, kind, exit_code);
    }

    /// Sends to all but one of the peers. A rank that does not take it has ended, or is reported by the watchdog.
    fn send_except(&self, index: usize, kind: u32, exit_code: i32) {
        let mut message = [0; 8];
        message[..4].copy_from_slice(&kind.to_le_bytes());
        message[4..].copy_from_slice(&exit_code.to_le_bytes());
        for (_, peer) in self.peers.iter().enumerate().filter(|(other, _)| *other != index) {
            let _ = (&peer.stream).write_all(&message);
        }
    }

    /// The next message of a peer; an error if the connection has closed.
    fn receive(&self, index: usize) -> io::Result<(u32, i32)> {
        let mut message = [0; 8];
        (&self.peers[index].stream).read_exact(&mut message)?;
        let word = |at: usize| [message[at], message[at + 1], message[at + 2], message[at + 3]];
        Ok((u32::from_le_bytes(word(0)), i32::from_le_bytes(word(4))))
    }

    /// Runs until all ranks have left or the process ends.
    fn watch(&self) {
        let mut open: Vec<usize> = (0..self.peers.len()).collect();
        let mut lost: Option<(usize, Instant)> = None;
        while !open.is_empty() || lost.is_some() {
            let limit = lost.map(|(_, since)| WATCHDOG_WAIT.saturating_sub(since.elapsed()));
            for index in self.readable(&open, limit) {
                match self.receive(index) {
                    Ok((END, exit_code)) => {
                        self.send_except(index, END, exit_code);
                        end_process(exit_code);
                    }
                    Ok((LEAVE, _)) => self.note_left(index),
                    // Bytes that no rank sends, or the end of the connection.
                    _ => {
                        open.retain(|other| *other != index);
                        if !self.state().peers_left[index] && lost.is_none() {
                            lost = Some((index, Instant::now()));
                        }
                    }
                }
            }
            if let Some((index, since)) = lost
                && since.elapsed() >= WATCHDOG_WAIT
            {
                if self.state().stands_back {
                    return;
                }
                self.end_without(index);
            }
        }
    }

    fn note_left(&self, index: usize) {
        let mut state = self.state();
        state.peers_left[index] = true;
        if self.rank == 0 {
            self.settle(&mut state);
        } else {
            // Rank 0 says it for all.
            state.is_over = true;
            self.changed.notify_all();
        }
    }

    /// The peers, of `open`, that have sent something or closed their connection, after waiting for them up to `limit`.
    fn readable(&self, open: &[usize], limit: Option<Duration>) -> Vec<usize> {
        let entry = |index: &usize| libc::pollfd {
            fd: self.peers[*index].stream.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut entries: Vec<_> = open.iter().map(entry).collect();
        let limit_ms = limit.map_or(-1, |limit| limit.as_millis() as i32 + 1);
        // SAFETY: the array is writable for its length.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, limit_ms) };
        open.iter().zip(&entries).filter(|(_, entry)| entry.revents != 0).map(|(index, _)| *index).collect()
    }

    /// Ends the job because the watchdog has not: it was not started yet, or this command has none. Rank 0 reports, or rank 1 if rank 0
    /// is lost.
    fn end_without(&self, index: usize) -> ! {
        let Lifeline { rank: own, host: own_host, .. } = self;
        let Peer { rank, host, pid, .. } = &self.peers[index];
        if *own < 2 {
            write_stderr(&format!(
                "[rank {own} {own_host}] error: rank {rank} (host {host}, pid {pid}) died: its connection closed without a goodbye; the \
                 other ranks end\nhint: see the last lines of that rank; the system's log (dmesg) names processes that it has killed for memory\n"
            ));
        }
        self.send_to_all(END, self.lost_exit_code);
        end_process(self.lost_exit_code)
    }
}

fn end_process(exit_code: i32) -> ! {
    // SAFETY: ends the process without running anything else of it.
    unsafe { libc::_exit(exit_code) }
}
