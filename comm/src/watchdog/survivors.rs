//! The ranks that are left after a loss agree which of them saves, and wait for it.
//!
//! Each offers the state that it holds, as soon as its training thread has left the collective that hangs. The rank that reports the loss
//! chooses the lowest one of the newest step, and another one if that fails. Ranks that hold shards save together, once. All end when it
//! says so.
//!
//! On GPUs a rank leaves a collective by an abort, which lets the kernels of other ranks run on with undefined sums. So each stops its
//! updates first and says so, and none aborts before all have; what a rank holds that was late is not saved.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::frame::{Frame, Kind};
use super::link::Link;
use crate::offer::{Offer, SaveAfterLoss};
use crate::progress::Progress;
use crate::token::Token;

/// Time for which the first offers wait for the others, from when they may abort on.
const OFFERS_WAIT: Duration = Duration::from_secs(1);
/// Time for which the GPUs of all ranks may take to stop their updates.
const CLOSED_WAIT: Duration = Duration::from_secs(2);
/// Time for the word that ends the wait to arrive.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Reason why no rank has saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsaved {
    /// None could.
    NoState,
    /// The shard of this rank is lost, and its copy too.
    Shard(usize),
}

/// One rank after a loss.
pub(super) struct Survivors<'a> {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) token: &'a Token,
    pub(super) links: &'a mut BTreeMap<usize, Link>,
    pub(super) progress: &'a Progress,
    /// Longest time until a rank can leave its step.
    pub(super) step_wait: Duration,
    /// Whether ranks abort communicators of GPUs.
    pub(super) aborts: bool,
    /// Longest time for the save.
    pub(super) limit: Duration,
}

impl Survivors<'_> {
    /// Chooses who saves, on the rank that reports, and waits for it. Returns the rank that completed the checkpoint, and its step.
    ///
    /// - `heard`: frames that have arrived since its report
    /// - `lost`: ranks that can't offer anything
    ///
    /// # Errors
    /// [`Unsaved`], if none has saved.
    pub(super) fn lead(mut self, heard: Vec<Frame>, lost: &[usize]) -> Result<(usize, u64), Unsaved> {
        let since = Instant::now();
        let mut alive: BTreeSet<usize> =
            self.links.keys().copied().filter(|rank| !lost.contains(rank)).collect();
        alive.insert(self.rank);
        let mut offers: BTreeMap<usize, Option<Offer>> = BTreeMap::new();
        let (mut save, mut is_saved): (Option<SaveAfterLoss>, bool) = (None, false);
        let mut unsaved = Unsaved::NoState;
        let mut frames = heard;
        // Ranks whose updates are stopped, and when the abort was allowed.
        let (mut closed, mut aborts_at) = (BTreeSet::new(), (!self.aborts).then_some(since));
        while !is_saved && since.elapsed() < self.limit {
            for Frame { kind, rank, text, .. } in frames {
                match kind {
                    // It aborted its communicator before the others had stopped their updates.
                    Kind::AbortsAlone | Kind::Failing if self.aborts && !lost.contains(&rank) => {
                        self.end_all();
                        return Err(unsaved);
                    }
                    Kind::Closed if aborts_at.is_none() => drop(closed.insert(rank)),
                    Kind::Offer => {
                        offers.insert(rank, Offer::from_text(&text));
                    }
                    Kind::Saved if is_led_by(&save, rank) && text.is_empty() => {
                        give_up(&mut save, &mut offers)
                    }
                    Kind::Saved => is_saved |= is_led_by(&save, rank),
                    _ => {}
                }
            }
            match self.progress.survivor().is_saved().filter(|_| is_led_by(&save, self.rank)) {
                Some(true) => is_saved = true,
                Some(false) => give_up(&mut save, &mut offers),
                None => self.progress.survivor().offered().iter().for_each(|offer| {
                    offers.entry(self.rank).or_insert(*offer);
                }),
            }
            if aborts_at.is_none() {
                closed.extend(self.progress.survivor().is_closed().then_some(self.rank));
                if alive.iter().all(|rank| closed.contains(rank)) || since.elapsed() >= CLOSED_WAIT {
                    aborts_at = Some(Instant::now());
                    self.send_to_all(Kind::Abort, "");
                    if closed.contains(&self.rank) {
                        self.progress.survivor().let_abort();
                    }
                }
            }
            let offers_wait = |at: Instant| at.elapsed() >= OFFERS_WAIT;
            offers.retain(|rank, _| alive.contains(rank));
            if self.aborts {
                offers
                    .iter_mut()
                    .filter(|(rank, _)| !closed.contains(rank))
                    .for_each(|(_, offer)| *offer = None);
            }
            if save.as_ref().is_some_and(|save| !alive.contains(&save.lead())) {
                give_up(&mut save, &mut offers);
            }
            if save.is_none() && !is_saved {
                let all_have = alive.iter().all(|rank| offers.contains_key(rank));
                // Of ranks that hold shards, all are needed, also one that a busy host lets wait.
                let has_shards = offers.values().flatten().any(|offer| offer.copy_of.is_some());
                let offers_until = if has_shards { self.limit / 2 } else { self.step_wait };
                match SaveAfterLoss::of_offers(&offers, self.world_size) {
                    Ok(chosen) if all_have || aborts_at.is_some_and(offers_wait) => {
                        self.choose(&chosen);
                        save = Some(chosen);
                    }
                    Err(lost) if all_have || since.elapsed() >= offers_until => {
                        unsaved = lost.map_or(Unsaved::NoState, Unsaved::Shard);
                        break;
                    }
                    _ => {}
                }
            }
            std::thread::sleep(PAUSE);
            let (received, closed) = self.receive();
            frames = received;
            alive.retain(|rank| !closed.contains(rank));
        }
        self.send_to_all(Kind::Saved, "");
        save.filter(|_| is_saved).map(|save| (save.lead(), save.step)).ok_or(unsaved)
    }

    /// Ends all ranks without a save.
    pub(super) fn end_all(mut self) {
        self.send_to_all(Kind::Saved, "");
    }

    /// Offers this rank's state to the rank `leader`, and saves it if that one says so. Returns when the rank may end.
    pub(super) fn follow(mut self, leader: usize) {
        let since = Instant::now();
        let (mut has_offered, mut is_chosen, mut is_over) = (false, false, false);
        let mut has_closed = false;
        // What this rank has begun it completes, whatever becomes of the others.
        while (!is_over || is_chosen) && since.elapsed() < self.limit + LAST_WORD {
            if self.progress.survivor().is_closed() && !has_closed {
                has_closed = true;
                self.send(leader, Kind::Closed, "");
            }
            if let Some(offer) = self.progress.survivor().offered().filter(|_| !has_offered) {
                has_offered = true;
                self.send(leader, Kind::Offer, &offer.map_or_else(String::new, Offer::to_text));
            }
            std::thread::sleep(PAUSE);
            let (frames, _) = self.receive();
            for frame in frames.iter().filter(|frame| frame.rank == leader) {
                match frame.kind {
                    Kind::Save if has_offered && !is_chosen => {
                        let Some(save) = SaveAfterLoss::from_text(&frame.text, self.world_size) else {
                            continue;
                        };
                        is_chosen = true;
                        self.progress.survivor().choose(save);
                    }
                    Kind::Saved => is_over = true,
                    // One that stopped its updates later has not waited for the others.
                    Kind::Abort if has_closed => self.progress.survivor().let_abort(),
                    _ => {}
                }
            }
            if let Some(is_saved) = self.progress.survivor().is_saved().filter(|_| is_chosen) {
                is_chosen = false;
                self.send(leader, Kind::Saved, if is_saved { "yes" } else { "" });
            }
            is_over |= !self.links.contains_key(&leader);
        }
    }

    fn choose(&mut self, save: &SaveAfterLoss) {
        for &rank in &save.ranks {
            if rank == self.rank {
                self.progress.survivor().choose(save.clone());
            } else {
                self.send(rank, Kind::Save, &save.to_text());
            }
        }
    }

    fn frame(&self, kind: Kind, text: &str) -> Vec<u8> {
        let standing = self.progress.standing();
        Frame { kind, rank: self.rank, standing, text: text.to_owned() }.encode(self.token)
    }

    fn send(&mut self, rank: usize, kind: Kind, text: &str) {
        let bytes = self.frame(kind, text);
        self.links.get_mut(&rank).into_iter().for_each(|link| link.send(&bytes));
    }

    fn send_to_all(&mut self, kind: Kind, text: &str) {
        let bytes = self.frame(kind, text);
        self.links.values_mut().for_each(|link| link.send(&bytes));
        super::flight::flush(self.links);
    }

    /// The frames that have arrived, and the ranks that have closed their connection.
    fn receive(&mut self) -> (Vec<Frame>, Vec<usize>) {
        let (mut frames, mut closed) = (Vec::new(), Vec::new());
        for (rank, link) in self.links.iter_mut() {
            link.flush();
            let mut is_closed = link.receive().is_err();
            loop {
                match link.next(self.token, self.world_size) {
                    Ok(Some(frame)) if frame.rank == *rank => frames.push(frame),
                    Ok(None) => break,
                    _ => {
                        is_closed = true;
                        break;
                    }
                }
            }
            if is_closed {
                closed.push(*rank);
            }
        }
        closed.iter().for_each(|rank| drop(self.links.remove(rank)));
        (frames, closed)
    }
}

fn is_led_by(save: &Option<SaveAfterLoss>, rank: usize) -> bool {
    save.as_ref().is_some_and(|save| save.lead() == rank)
}

/// The save has failed: none of its ranks has anything left to save.
fn give_up(save: &mut Option<SaveAfterLoss>, offers: &mut BTreeMap<usize, Option<Offer>>) {
    offers.extend(save.take().iter().flat_map(|save| &save.ranks).map(|rank| (*rank, None)));
}
