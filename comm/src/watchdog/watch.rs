//! The watchdog's thread: sends heartbeats, receives the others', and ends the process when a rank is lost.
//!
//! It calls neither MPI nor CUDA and never blocks on a connection, so it works while the rank's own thread hangs.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use super::certificate::{Certificate, Identity, paragraph};
use super::connect::deputy;
use super::frame::{Frame, Kind};
use super::link::Link;
use super::monitor::{Cause, Finding, Monitor, VERDICT_WAIT};
use super::place::{RankPlace, places};
use super::survivors::{Survivors, Unsaved};
use super::{LossReport, flight};
use crate::end_job::LastWords;
use crate::lifeline;
use crate::operations::Operation;
use crate::phase::Phase;
use crate::progress::Progress;
use crate::stderr::write_stderr;
use crate::token::Token;

/// Most connections that have not said which rank they are, besides one of each rank.
const MAX_STRANGERS: usize = 16;
/// Time for which a connection may be silent where there are too many: the first frame of a rank follows at once.
const SILENT_WAIT: Duration = Duration::from_millis(100);
/// Time that a connection may take to identify its rank.
const HELLO_WAIT: Duration = Duration::from_secs(2);
/// Time for which the ranks wait for each other's goodbye.
const GOODBYE_WAIT: Duration = Duration::from_secs(3);
/// Time for which a rank may take to leave its step after a loss, if its steps are short.
const SHORTEST_STEP_WAIT: Duration = Duration::from_secs(2);
/// Time for which GPUs may take to stop their updates, abort their communicators and end their work.
const ABORT_WAIT: Duration = Duration::from_secs(10);
/// Time that a rank which has withdrawn may take to end the job, once the others have saved.
const WITHDRAWN_WAIT: Duration = Duration::from_secs(5);
/// The longest pause of the thread.
const MAX_TICK: Duration = Duration::from_millis(250);

/// A request to the thread.
#[derive(Debug)]
pub(super) enum Command {
    /// This rank has connected to another.
    Join(usize, TcpStream),
    /// All ranks have connected: no further connection is accepted.
    StopListening,
    /// This rank announces a failure; answered when it is sent.
    Fail(String, Sender<()>),
    /// This rank ends as it should; answered when the others know.
    Leave(Sender<()>),
    /// Somebody asks for the places of the ranks.
    Places(Sender<Vec<RankPlace>>),
}

/// The word of a rank that reports.
struct Verdict {
    leader: usize,
    text: String,
    /// Whether the rank that the others end without ends the job itself.
    is_withdrawal: bool,
}

/// State of the thread.
pub(super) struct Watch {
    pub(super) rank: usize,
    pub(super) token: Token,
    pub(super) identities: Vec<Identity>,
    pub(super) interval: Duration,
    pub(super) progress: Arc<Progress>,
    pub(super) monitor: Monitor,
    pub(super) listener: Option<TcpListener>,
    pub(super) commands: Receiver<Command>,
    /// Readable when there are commands.
    pub(super) bell: UnixStream,
    pub(super) exit_code: i32,
    pub(super) report: Box<dyn LossReport>,
    pub(super) links: BTreeMap<usize, Link>,
    pub(super) strangers: Vec<(Link, Instant)>,
    /// Since when this rank has been ending; it judges the others no longer. Whom to tell that they know.
    pub(super) leaving: Option<(Instant, Sender<()>)>,
    /// Whether this rank has announced a failure.
    pub(super) has_failed: bool,
    /// When it has said that it withdraws.
    pub(super) withdrawn_at: Option<Instant>,
}

impl Watch {
    /// Runs until this rank has left.
    pub(super) fn run(mut self) {
        let tick = (self.interval / 2).min(MAX_TICK);
        let (mut sent, mut has_told): (Option<Instant>, bool) = (None, false);
        let mut before = Instant::now();
        loop {
            self.wait(tick);
            let now = Instant::now();
            if now - before > tick + self.interval {
                self.monitor.reset(now);
            }
            before = now;
            self.obey(now);
            self.accept(now);
            if let Some(Verdict { leader, text, is_withdrawal }) = self.hear(now) {
                let limit = self.progress.lose();
                let lines: String = self.progress.operations().into_iter().map(Operation::to_line).collect();
                self.broadcast(Kind::Operations, &lines);
                flight::flush(&mut self.links);
                let certificate = Certificate { text, ..self.certificate() };
                return self.end(certificate, limit, is_withdrawal.then_some(leader), |survivors| {
                    survivors.follow(leader);
                    Err(Unsaved::NoState)
                });
            }
            self.withdraw(now);
            self.progress.looked();
            if sent.is_none_or(|sent| now - sent >= self.interval) {
                self.broadcast(Kind::Heartbeat, "");
                sent = Some(now);
            }
            if self.progress.aborts_alone() && !has_told {
                has_told = true;
                self.broadcast(Kind::AbortsAlone, "");
            }
            self.links.values_mut().for_each(Link::flush);
            if let Some((since, done)) = &self.leaving {
                if self.monitor.peers.is_empty() || now - *since > GOODBYE_WAIT {
                    self.progress.left();
                    let _ = done.send(());
                    return;
                }
            } else if !self.has_failed
                && let Some(finding) = self.judge(now)
            {
                let limit = self.progress.lose();
                let text = paragraph(&finding, &self.monitor, self.rank, &self.identities, now);
                let first = finding.ranks.first().copied().unwrap_or(self.rank);
                let withdrawn = (finding.cause == Cause::Withdrew).then_some(first);
                self.broadcast(if withdrawn.is_some() { Kind::Withdrawal } else { Kind::Verdict }, &text);
                let lost = if withdrawn.is_some() { Vec::new() } else { finding.ranks };
                let lost: Vec<_> = lost.into_iter().chain(self.monitor.without_state()).collect();
                let step = match self.monitor.peers.get(&first) {
                    Some(peer) => peer.standing.as_ref().map(|standing| standing.step),
                    None => Some(self.progress.standing().step),
                };
                let step = step.filter(|step| *step > 0);
                let (own, n) = ((self.rank, self.progress.operations()), self.identities.len());
                let (flight, heard) = flight::gather(&mut self.links, &self.token, n, own, &lost);
                let certificate =
                    Certificate { reports: Some(first), text, step, flight, ..self.certificate() };
                // A rank that has failed may have aborted its communicator before the others stopped their updates, and all must be asked.
                let is_sure = !self.progress.aborts_alone()
                    && self.monitor.peers.values().all(|peer| peer.failing.is_none() && !peer.aborts_alone)
                    && self.monitor.peers.len() + 1 == self.identities.len();
                return self.end(certificate, limit, withdrawn, |survivors| {
                    if is_sure || !survivors.aborts {
                        survivors.lead(heard, &lost)
                    } else {
                        Err(Unsaved::NoState)
                    }
                });
            }
        }
    }

    /// Judges the others, and this rank, if it has withdrawn and nobody says so.
    fn judge(&mut self, now: Instant) -> Option<Finding> {
        let found = self.monitor.judge(self.progress.standing(), now);
        let wait = if self.rank == 0 { Duration::ZERO } else { VERDICT_WAIT };
        // Others than these two are not connected to all.
        let leaders = [0, deputy(&self.identities)];
        let leads = leaders.contains(&self.rank) || leaders.iter().all(|leader| self.monitor.is_out(*leader));
        let is_due = leads && self.withdrawn_at.is_some_and(|since| now - since >= wait);
        let own = || Finding { cause: Cause::Withdrew, ranks: vec![self.rank], since: Duration::ZERO };
        found.or_else(|| is_due.then(own))
    }

    /// Tells the others once that this rank withdraws; lets it end where it waits for them and none of those who lead a save is left.
    fn withdraw(&mut self, now: Instant) {
        let progress = self.progress.clone();
        let Some(withdrawal) = progress.withdrawal() else { return };
        if self.withdrawn_at.is_none() {
            self.withdrawn_at = Some(now);
            self.has_failed = !withdrawal.holds_state;
            let kind = if withdrawal.holds_state { Kind::StopsToSave } else { Kind::Withdraws };
            self.broadcast(kind, &withdrawal.error);
        }
        let mut leaders = [0, deputy(&self.identities)].into_iter().filter(|leader| *leader != self.rank);
        if self.has_failed && leaders.all(|leader| self.monitor.is_out(leader)) {
            self.progress.release();
        }
    }

    /// Waits for bytes, commands or connections.
    fn wait(&self, tick: Duration) {
        let entry = |fd: RawFd, events: i16| libc::pollfd { fd, events, revents: 0 };
        // Once this rank leaves, nobody may hold the other end of the bell any more.
        let bell = self.leaving.is_none().then_some(&self.bell);
        let mut entries: Vec<_> = bell.iter().map(|bell| entry(bell.as_raw_fd(), libc::POLLIN)).collect();
        let listener = self.listener.as_ref().filter(|_| !self.is_full());
        entries.extend(listener.iter().map(|listener| entry(listener.as_raw_fd(), libc::POLLIN)));
        let links = self.links.values().chain(self.strangers.iter().map(|(link, _)| link));
        entries.extend(
            links.map(|link| {
                entry(link.fd(), libc::POLLIN | if link.is_waiting() { libc::POLLOUT } else { 0 })
            }),
        );
        // SAFETY: the array is writable for its length; what is readable is found by reading.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, tick.as_millis() as i32) };
    }

    fn obey(&mut self, now: Instant) {
        let _ = self.bell.read(&mut [0; 64]);
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                // The world is gone, and this rank with it.
                Err(TryRecvError::Disconnected) if self.leaving.is_none() => {
                    Command::Leave(mpsc::channel().0)
                }
                Err(_) => return,
            };
            match command {
                Command::Join(rank, stream) => {
                    if let Ok(link) = Link::new(stream) {
                        self.monitor.join(rank, now);
                        self.links.insert(rank, link);
                    }
                }
                Command::StopListening => {
                    self.listener = None;
                    self.strangers.clear();
                }
                Command::Fail(error, done) => {
                    self.has_failed = true;
                    self.broadcast(Kind::Failing, &error);
                    let _ = done.send(());
                }
                Command::Leave(done) => {
                    self.broadcast(Kind::Goodbye, "");
                    self.leaving = Some((now, done));
                }
                Command::Places(answer) => {
                    let own = (self.rank, self.progress.standing());
                    let _ = answer.send(places(&self.identities, &self.monitor, own, now));
                }
            }
        }
    }

    /// Whether further connections have to wait until earlier ones say which rank they are, or have been silent for too long.
    fn is_full(&self) -> bool {
        self.strangers.len() >= self.identities.len() + MAX_STRANGERS
    }

    /// Accepts connections, and makes ranks of those that know the token. Whatever else connects is dropped.
    fn accept(&mut self, now: Instant) {
        if self.is_full() {
            self.welcome(now);
            self.strangers.retain(|(_, since)| now - *since < SILENT_WAIT);
        }
        while !self.is_full()
            && let Some(listener) = &self.listener
        {
            match listener.accept() {
                Ok((stream, _)) => self.strangers.extend(Link::new(stream).map(|link| (link, now))),
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                    write_stderr(&format!(
                        "warning: the watchdog of rank {} can't watch all ranks: {error}\n",
                        self.rank
                    ));
                    self.listener = None;
                }
                Err(_) => break,
            }
            if self.is_full() {
                self.welcome(now);
            }
        }
        self.welcome(now);
    }

    /// Makes ranks of the connections that know the token.
    fn welcome(&mut self, now: Instant) {
        let world_size = self.identities.len();
        for (mut link, since) in std::mem::take(&mut self.strangers) {
            let received = link.receive();
            match link.next(&self.token, world_size) {
                // One that has closed its connection meanwhile connects anew.
                Ok(Some(hello))
                    if received.is_ok() && hello.kind == Kind::Hello && hello.rank != self.rank =>
                {
                    link.send(&self.frame(Kind::Welcome, ""));
                    self.links.insert(hello.rank, link);
                    self.monitor.join(hello.rank, now);
                    self.monitor.hear(hello, now);
                }
                Ok(None) if received.is_ok() && now - since < HELLO_WAIT => {
                    self.strangers.push((link, since))
                }
                _ => {}
            }
        }
    }

    /// Reads what the others have sent; returns a verdict, if there is one.
    fn hear(&mut self, now: Instant) -> Option<Verdict> {
        let world_size = self.identities.len();
        let waits_for_save = self.has_failed && self.withdrawn_at.is_some();
        let goodbye = self.frame(Kind::Goodbye, "");
        let mut verdict = None;
        let mut closed = Vec::new();
        for (rank, link) in &mut self.links {
            let mut received = link.receive();
            loop {
                match link.next(&self.token, world_size) {
                    Ok(Some(frame)) if frame.rank == *rank => {
                        match frame.kind {
                            Kind::Verdict | Kind::Withdrawal => {
                                let (text, is_withdrawal) =
                                    (frame.text.clone(), frame.kind == Kind::Withdrawal);
                                verdict = Some(Verdict { leader: *rank, text, is_withdrawal });
                            }
                            Kind::Abort if waits_for_save => self.progress.survivor().let_abort(),
                            Kind::Saved if waits_for_save => self.progress.release(),
                            // The answer to it, where this rank has not said it yet.
                            Kind::Goodbye if self.leaving.is_none() => link.send(&goodbye),
                            _ => {}
                        }
                        self.monitor.hear(frame, now);
                    }
                    Ok(None) => break,
                    _ => {
                        received = Err(super::link::Closed);
                        break;
                    }
                }
            }
            if received.is_err() {
                closed.push(*rank);
            }
        }
        for rank in closed {
            self.links.remove(&rank);
            self.monitor.close(rank, now);
        }
        verdict.filter(|_| self.leaving.is_none() && !self.has_failed)
    }

    /// Sends a frame to all linked ranks.
    fn broadcast(&mut self, kind: Kind, text: &str) {
        let bytes = self.frame(kind, text);
        self.links.values_mut().for_each(|link| link.send(&bytes));
    }

    fn frame(&self, kind: Kind, text: &str) -> Vec<u8> {
        let standing = self.progress.standing();
        Frame { kind, rank: self.rank, standing, text: text.to_owned() }.encode(&self.token)
    }

    fn certificate(&self) -> Certificate {
        Certificate {
            reports: None,
            text: String::new(),
            step: None,
            device: self.progress.standing().device,
            last_operations: self.progress.last_operations(),
            flight: Vec::new(),
        }
    }

    /// Writes the certificate, lets a rank save within `limit` where there is something to save, and ends this process.
    ///
    /// - `withdrawn`: after a withdrawal, the rank whose end this one waits for: that one on the rank that reports, else the one that reports
    fn end(
        mut self,
        certificate: Certificate,
        limit: Option<Duration>,
        withdrawn: Option<usize>,
        save: impl FnOnce(Survivors<'_>) -> Result<(usize, u64), Unsaved>,
    ) {
        let is_over = self.frame(Kind::Saved, "");
        let report = self.report;
        let reports = certificate.reports.is_some();
        let mut message = reports.then(|| report.message(&certificate));
        // A rank that has withdrawn reports itself.
        let withheld = message.take_if(|_| withdrawn.is_some());
        let record =
            Certificate { reports: certificate.reports.filter(|_| withdrawn.is_none()), ..certificate };
        let mut words = LastWords::say(message, move || report.record(&record));
        if let Some(limit) = limit {
            lifeline::stand_back();
            let is_in_host_memory = self.progress.survivor().is_in_host_memory();
            let aborts = self.progress.standing().device.starts_with("cuda");
            // Elsewhere than in a step nothing says how long it takes.
            let step_wait = match self.progress.phase() {
                Phase::Step if aborts => ABORT_WAIT + 2 * self.monitor.step_time(),
                Phase::Step => SHORTEST_STEP_WAIT.max(2 * self.monitor.step_time()),
                _ => limit,
            };
            let saved = save(Survivors {
                rank: self.rank,
                world_size: self.identities.len(),
                token: &self.token,
                links: &mut self.links,
                progress: &self.progress,
                step_wait,
                aborts,
                limit,
            });
            words.wait();
            if reports {
                let text = match saved {
                    Ok((rank, step)) => {
                        let lost = if is_in_host_memory {
                            "the newest that the ranks held copies of"
                        } else {
                            "no complete step is lost"
                        };
                        format!("rank {rank} has saved the state after step {step}: {lost}")
                    }
                    Err(Unsaved::Shard(rank)) => format!(
                        "the optimizer state of rank {rank} is lost, and its copy too: the newest checkpoint counts"
                    ),
                    Err(Unsaved::NoState) => {
                        "no later state was saved: the newest checkpoint counts".to_owned()
                    }
                };
                write_stderr(&format!("[rank {} {}] {text}\n", self.rank, self.identities[self.rank].host));
            }
        }
        if reports {
            self.links.values_mut().for_each(|link| link.send(&is_over));
            flight::flush(&mut self.links);
        }
        // It may have a checkpoint of its own to complete.
        let withdrawn_wait = WITHDRAWN_WAIT.max(limit.unwrap_or_default());
        if withdrawn.is_some() && self.withdrawn_at.is_some() {
            // The training thread reports, and ends the job.
            self.progress.release();
            std::thread::sleep(withdrawn_wait);
        }
        if let Some(rank) = withdrawn
            && !self.links.remove(&rank).is_some_and(|link| link.closes_within(withdrawn_wait))
            && let Some(message) = withheld
        {
            words = LastWords::say(Some(message), || {});
        }
        words.end(self.exit_code)
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
