//! The ranks that are left after a loss agree which of them saves, and wait for it.
//!
//! Each offers the state that it holds, as soon as its training thread has left the collective that hangs. The rank that reports the loss
//! chooses the lowest one of the newest step, and another one if that fails. Ranks that hold shards save together, once. All end when it
//! says so.
//!
//! On GPUs a rank leaves a collective by an abort, which lets the kernels of other ranks run on with undefined sums. So each stops its
//! updates first and says so, and none aborts before all have; what a rank holds that was late is not saved. A state in
//! host memory that was complete before is not reached by an abort.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::SeqCst;
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
/// Ranks that keep the weights of the best evaluation, from 0 on.
const BEST_KEEPERS: usize = 2;
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
    /// Chooses who saves, on the rank that reports, and waits for it; the others wait for the word that it is over. Returns the rank that completed the checkpoint, and its step.
    ///
    /// - `heard`: frames that have arrived since its report
    /// - `lost`: ranks that can't offer anything
    ///
    /// # Errors
    /// [`Unsaved`], if none has saved.
    pub(super) fn lead(mut self, heard: Vec<Frame>, lost: &[usize]) -> Result<(usize, u64), Unsaved> {
        let since = Instant::now();
        let mut lost: BTreeSet<usize> = lost.iter().copied().collect();
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
                        return Err(unsaved);
                    }
                    Kind::Withdraws => {
                        lost.insert(rank);
                        alive.remove(&rank);
                    }
                    Kind::Closed if aborts_at.is_none() => drop(closed.insert(rank)),
                    Kind::Offer => {
                        offers.insert(rank, Offer::from_text(&text));
                    }
                    Kind::Saved if is_led_by(&save, rank) && text.is_empty() => {
                        give_up(&mut save, &mut offers)
                    }
                    Kind::Saved if is_led_by(&save, rank) => is_saved = true,
                    Kind::Saved if text.is_empty() => self.lose(rank, &mut save, &mut offers),
                    _ => {}
                }
            }
            let takes_part = save.as_ref().is_some_and(|save| save.ranks.contains(&self.rank));
            match self.progress.survivor().is_saved().filter(|_| takes_part) {
                Some(true) => is_saved |= is_led_by(&save, self.rank),
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
            let lost_in_save = save.iter().flat_map(|save| &save.ranks).find(|rank| !alive.contains(rank));
            if let Some(&rank) = lost_in_save {
                self.lose(rank, &mut save, &mut offers);
            }
            if save.is_none() && !is_saved {
                let all_have = alive.iter().all(|rank| offers.contains_key(rank));
                // Of ranks that hold shards, all are needed, also one that a busy host lets wait.
                let has_shards = self.progress.survivor().is_in_host_memory()
                    || offers.values().flatten().any(|offer| offer.copy_of.is_some());
                let step_wait = self.step_wait.min(self.limit / 2);
                let offers_until = if has_shards { self.limit / 2 } else { self.step_wait };
                // A rank that computes notices the loss late.
                let is_late = |rank: usize| alive.contains(&rank) && !offers.contains_key(&rank);
                let may_have_best = (0..BEST_KEEPERS).any(is_late) && since.elapsed() < step_wait;
                let lacks_best = |save: &SaveAfterLoss| {
                    offers.get(&save.lead()).is_some_and(|offer| offer.is_some_and(|offer| offer.lacks_best))
                };
                // The newest state may need the copy of a rank that is late.
                let newest = offers.values().flatten().map(|offer| offer.last).max();
                let may_be_newer = |save: &SaveAfterLoss| {
                    let is_older = offers.values().flatten().any(|offer| offer.before.is_some())
                        && newest.is_some_and(|newest| save.step < newest);
                    is_older && since.elapsed() < step_wait
                };
                match SaveAfterLoss::from_offers(&offers, self.world_size) {
                    Ok(chosen)
                        if all_have
                            || aborts_at.is_some_and(offers_wait)
                                && !(may_have_best && lacks_best(&chosen))
                                && !may_be_newer(&chosen) =>
                    {
                        self.choose(&chosen);
                        save = Some(chosen);
                    }
                    Err(lost) if all_have || since.elapsed() >= offers_until => {
                        let n = self.world_size;
                        let copies =
                            offers.iter().filter_map(|(rank, offer)| Some((*rank, (*offer)?.copy_of?)));
                        let distance = copies.map(|(rank, of)| (rank + n - of) % n).next().unwrap_or(1);
                        let holders = |shard: usize| [shard, (shard + distance) % n];
                        let is_lost =
                            |shard: &usize| !holders(*shard).iter().any(|rank| alive.contains(rank));
                        unsaved = lost.filter(is_lost).map_or(Unsaved::NoState, Unsaved::Shard);
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
        save.filter(|_| is_saved).map(|save| (save.lead(), save.step)).ok_or(unsaved)
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
                    Kind::Saved => {
                        is_over = true;
                        // Unless all have saved, the other ranks of the save will not come.
                        self.progress.survivor().loss_in_save().store(true, SeqCst);
                    }
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

    /// One of the ranks that save together is lost, or has failed. The one that completes the checkpoint gives up if it is this one.
    fn lose(
        &self,
        rank: usize,
        save: &mut Option<SaveAfterLoss>,
        offers: &mut BTreeMap<usize, Option<Offer>>,
    ) {
        if !save.as_ref().is_some_and(|save| save.ranks.contains(&rank)) {
            return;
        }
        if is_led_by(save, self.rank) {
            self.progress.survivor().loss_in_save().store(true, SeqCst);
        } else {
            give_up(save, offers);
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const TOKEN: Token = *b"the job's token.";
    const STEP: u64 = 9;

    fn link() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Link::new(listener.accept().unwrap().0).unwrap(), other)
    }

    /// Leads as rank `own` of three, linked to the rank `other`, which has offered `heard` already. `train` is the training thread.
    fn lead(
        [own, other, lost]: [usize; 3],
        heard: Option<Offer>,
        limit: Duration,
        train: impl FnOnce(&Progress, TcpStream) + Send,
    ) -> Result<(usize, u64), Unsaved> {
        let progress = Progress::new();
        progress.survivor().set_limit(Some(limit));
        let (to_other, of_other) = link();
        let text = heard.map(Offer::to_text);
        let heard =
            text.map(|text| Frame { kind: Kind::Offer, rank: other, standing: progress.standing(), text });
        std::thread::scope(|scope| {
            scope.spawn(|| train(&progress, of_other));
            let survivors = Survivors {
                rank: own,
                world_size: 3,
                token: &TOKEN,
                links: &mut BTreeMap::from([(other, to_other)]),
                progress: &progress,
                step_wait: Duration::from_secs(20),
                aborts: false,
                limit,
            };
            let saved = survivors.lead(heard.into_iter().collect(), &[lost]);
            // A thread that still waits need not do so for longer.
            progress.survivor().choose(SaveAfterLoss { step: 0, ranks: Vec::new(), lacks_weights: false });
            saved
        })
    }

    fn shards(rank: usize) -> Offer {
        Offer { copy_of: Some((rank + 2) % 3), ..Offer::whole(STEP) }
    }

    #[test]
    fn a_rank_that_may_hold_the_best_weights_is_waited_for() {
        let saved = lead(
            [1, 2, 0],
            Some(Offer { lacks_best: true, ..Offer::whole(STEP) }),
            Duration::from_secs(60),
            |progress, of_other| {
                std::thread::sleep(OFFERS_WAIT + Duration::from_millis(300));
                let save = progress.survivor().offer(Some(Offer::whole(STEP)));
                progress.survivor().end(save.is_some());
                drop(of_other);
            },
        );
        assert_eq!(saved, Ok((1, STEP)));
    }

    #[test]
    fn a_rank_that_is_lost_in_a_save_is_not_waited_for() {
        let saved = lead([0, 1, 2], Some(shards(1)), Duration::from_secs(60), |progress, of_other| {
            let save = progress.survivor().offer(Some(shards(0))).unwrap();
            assert_eq!(save.ranks, [0, 1]);
            let loss = progress.survivor().loss_in_save();
            assert!(!loss.load(SeqCst));
            drop(of_other);
            let since = Instant::now();
            while !loss.load(SeqCst) && since.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(PAUSE);
            }
            progress.survivor().end(!loss.load(SeqCst));
        });
        assert_eq!(saved, Err(Unsaved::NoState));
    }

    /// The other rank, which holds the copy of the lost one's shard after a newer step, is late.
    #[test]
    fn a_newer_state_is_waited_for() {
        let kept = |rank: usize| Offer { before: Some(STEP - 5), has_weights: false, ..shards(rank) };
        let saved = lead([1, 2, 0], Some(kept(2)), Duration::from_secs(60), |progress, of_other| {
            std::thread::sleep(OFFERS_WAIT + Duration::from_millis(300));
            let save = progress.survivor().offer(Some(kept(1)));
            progress.survivor().end(save.is_some_and(|save| save.ranks == [1, 2]));
            drop(of_other);
        });
        assert_eq!(saved, Ok((1, STEP)));
    }

    #[test]
    fn the_shard_of_a_rank_that_is_late_is_not_lost() {
        let saved = lead([0, 1, 2], None, Duration::from_millis(400), |progress, _of_other| {
            progress.survivor().offer(Some(shards(0)));
        });
        assert_eq!(saved, Err(Unsaved::NoState));
    }
}
