//! State that ranks hold after the loss of another one, and the ranks that save it together.

use std::collections::{BTreeMap, BTreeSet};

/// State that a rank holds after the loss of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The rank can hold the state after each of the steps `first..=last`.
    pub first: u64,
    /// The last one, which is at most one more.
    pub last: u64,
    /// An earlier step whose state it holds too, where states are kept in host memory.
    pub before: Option<u64>,
    /// None for a rank that holds everything; else it holds its own shard, and a copy of the shard of this rank.
    pub copy_of: Option<usize>,
    /// Whether it has all weights after the step `first`.
    pub has_weights: bool,
    /// Whether it lacks the weights of the best evaluation, which differ from the step's weights; the first two ranks keep them.
    pub lacks_best: bool,
}

impl Offer {
    /// The offer of a rank that holds everything after `step`.
    pub fn whole(step: u64) -> Self {
        Offer { first: step, last: step, before: None, copy_of: None, has_weights: true, lacks_best: false }
    }

    /// The steps after which the rank can hold the state.
    fn steps(&self) -> impl Iterator<Item = u64> + use<> {
        (self.first..=self.last).chain(self.before)
    }

    pub(crate) fn to_text(self) -> String {
        let Offer { first, last, before, copy_of, has_weights, lacks_best } = self;
        let before = before.map_or("none".to_owned(), |step| step.to_string());
        let copy_of = copy_of.map_or("all".to_owned(), |rank| rank.to_string());
        let weights = if has_weights { "weights" } else { "shards" };
        format!("{first} {last} {before} {copy_of} {weights} {}", if lacks_best { "without" } else { "best" })
    }

    /// Reads the text of [`Offer::to_text`]; `None` for any other.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [first, last, before, copy_of, has_weights, best] = words[..] else { return None };
        let before = if before == "none" { None } else { Some(before.parse().ok()?) };
        let copy_of = if copy_of == "all" { None } else { Some(copy_of.parse().ok()?) };
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        let (has_weights, lacks_best) = (has_weights == "weights", best == "without");
        Some(Offer { first, last, before, copy_of, has_weights, lacks_best })
    }
}

/// The save after the loss of a rank, as each rank that takes part in it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveAfterLoss {
    /// The step whose state is saved.
    pub step: u64,
    /// The ranks that save it, each its shard; first the one that completes the checkpoint.
    pub ranks: Vec<usize>,
    /// Whether that one lacks weights, which the others pass on.
    pub lacks_weights: bool,
}

impl SaveAfterLoss {
    /// Chooses who saves the newest state that the ranks hold, together if none has all of it.
    ///
    /// # Errors
    /// The first rank whose shard no rank holds, if there is one, else `None`.
    pub(crate) fn from_offers(
        offers: &BTreeMap<usize, Option<Offer>>,
        world_size: usize,
    ) -> Result<Self, Option<usize>> {
        let known = || offers.iter().filter_map(|(rank, offer)| Some((*rank, (*offer)?)));
        let whole = known().filter(|(_, offer)| offer.copy_of.is_none());
        if let Some((rank, offer)) = whole.min_by_key(|(rank, offer)| (std::cmp::Reverse(offer.last), *rank))
        {
            return Ok(SaveAfterLoss { step: offer.last, ranks: vec![rank], lacks_weights: false });
        }
        let steps: BTreeSet<u64> = known().flat_map(|(_, offer)| offer.steps()).collect();
        let mut unheld = None;
        for step in steps.into_iter().rev() {
            let able = || known().filter(|(_, offer)| offer.steps().any(|of| of == step));
            let is_held =
                |shard: usize| able().any(|(rank, offer)| rank == shard || offer.copy_of == Some(shard));
            unheld = (0..world_size).find(|shard| !is_held(*shard));
            if unheld.is_none() {
                // The lowest one may have more than the others: the weights of the best evaluation.
                let (ranks, able): (Vec<usize>, Vec<Offer>) = able().unzip();
                let lacks_weights = !able[0].has_weights || able[0].first != step;
                return Ok(SaveAfterLoss { step, ranks, lacks_weights });
            }
        }
        Err(unheld)
    }

    /// The rank that completes the checkpoint.
    pub(crate) fn lead(&self) -> usize {
        self.ranks[0]
    }

    pub(crate) fn to_text(&self) -> String {
        let ranks: Vec<_> = self.ranks.iter().map(ToString::to_string).collect();
        let weights = if self.lacks_weights { "shards" } else { "weights" };
        format!("{} {weights} {}", self.step, ranks.join(","))
    }

    /// Reads the text of [`SaveAfterLoss::to_text`]; `None` for any other.
    pub(crate) fn from_text(text: &str, world_size: usize) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [step, weights, ranks] = words[..] else { return None };
        let ranks: Option<Vec<usize>> = ranks.split(',').map(|rank| rank.parse().ok()).collect();
        let ranks = ranks.filter(|ranks| ranks.iter().all(|rank| *rank < world_size))?;
        Some(SaveAfterLoss { step: step.parse().ok()?, ranks, lacks_weights: weights == "shards" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(
        offers: &[(usize, Option<Offer>)],
        world_size: usize,
    ) -> Result<(u64, Vec<usize>, bool), Option<usize>> {
        let save = SaveAfterLoss::from_offers(&offers.iter().copied().collect(), world_size)?;
        assert_eq!(SaveAfterLoss::from_text(&save.to_text(), world_size).as_ref(), Some(&save));
        assert!(
            offers
                .iter()
                .flat_map(|(_, offer)| offer)
                .all(|offer| { Offer::from_text(&offer.to_text()) == Some(*offer) })
        );
        Ok((save.step, save.ranks, save.lacks_weights))
    }

    fn shard(rank: usize, n: usize, first: u64, last: u64, has_weights: bool) -> (usize, Option<Offer>) {
        (
            rank,
            Some(Offer {
                copy_of: Some((rank + n - 1) % n),
                last,
                has_weights,
                lacks_best: rank > 1,
                ..Offer::whole(first)
            }),
        )
    }

    /// A rank with states in host memory, whose copies are those of the rank `distance` before it.
    fn kept(
        rank: usize,
        [n, distance]: [usize; 2],
        last: u64,
        before: Option<u64>,
    ) -> (usize, Option<Offer>) {
        let copy_of = Some((rank + n - distance) % n);
        (rank, Some(Offer { before, copy_of, has_weights: false, ..Offer::whole(last) }))
    }

    #[test]
    fn the_lowest_rank_of_the_newest_whole_state_saves_alone() {
        let whole = |rank: usize, step| (rank, Some(Offer::whole(step)));
        assert_eq!(chosen(&[whole(1, 8), whole(2, 9), whole(3, 9)], 4), Ok((9, vec![2], false)));
        assert_eq!(chosen(&[(1, None), whole(2, 8)], 3), Ok((8, vec![2], false)));
        assert_eq!(chosen(&[(1, None)], 2), Err(None));
        assert_eq!(chosen(&[], 2), Err(None));
    }

    #[test]
    fn ranks_with_copies_save_the_newest_step_that_all_can_reach() {
        let between = |rank| shard(rank, 4, 9, 9, true);
        assert_eq!(chosen(&[between(0), between(2), between(3)], 4), Ok((9, vec![0, 2, 3], false)));
        // One has updated all of its shards, the others can.
        let offers = [shard(0, 4, 10, 10, false), shard(2, 4, 9, 10, true), shard(3, 4, 9, 10, true)];
        assert_eq!(chosen(&offers, 4), Ok((10, vec![0, 2, 3], true)));
        // The lowest has the gathered weights.
        let offers = [shard(0, 4, 10, 10, true), shard(2, 4, 10, 10, false), shard(3, 4, 9, 10, true)];
        assert_eq!(chosen(&offers, 4), Ok((10, vec![0, 2, 3], false)));
        // One lacks gradients, so that none has updated anything.
        let offers = [shard(0, 4, 9, 10, true), shard(2, 4, 9, 9, true), shard(3, 4, 9, 10, true)];
        assert_eq!(chosen(&offers, 4), Ok((9, vec![0, 2, 3], false)));
    }

    #[test]
    fn a_shard_without_a_holder_is_named() {
        let of = |rank| shard(rank, 4, 9, 9, true);
        assert_eq!(chosen(&[of(0), of(3)], 4), Err(Some(1)), "ranks 1 and 2 are lost");
        assert_eq!(chosen(&[of(0), of(2)], 4), Ok((9, vec![0, 2], false)), "ranks 1 and 3 are lost");
        assert_eq!(chosen(&[of(1), (2, None), of(3)], 4), Ok((9, vec![1, 3], false)));
        assert_eq!(chosen(&[of(1), of(2), (3, None)], 4), Err(Some(3)), "ranks 0 and 3 hold nothing");
    }

    #[test]
    fn ranks_with_states_in_host_memory_save_the_newest_one_that_they_hold_together() {
        let of = |rank, last, before| kept(rank, [4, 1], last, before);
        let both = |rank| of(rank, 40, Some(20));
        assert_eq!(chosen(&[both(0), both(2), both(3)], 4), Ok((40, vec![0, 2, 3], true)));
        // The copy of rank 1's shard had not arrived.
        assert_eq!(chosen(&[both(0), of(2, 20, None), both(3)], 4), Ok((20, vec![0, 2, 3], true)));
        // Two had not arrived of shards that their owners hold.
        let others = [of(0, 20, Some(0)), both(1), of(2, 20, Some(0)), both(3)];
        assert_eq!(chosen(&others, 4), Ok((40, vec![1, 3], true)));
        assert_eq!(chosen(&[both(0), both(3)], 4), Err(Some(1)), "ranks 1 and 2 are lost");
        // Ranks 2 and 3 were those of another host.
        let of_hosts = |rank| kept(rank, [4, 2], 40, Some(20));
        assert_eq!(chosen(&[of_hosts(0), of_hosts(1)], 4), Ok((40, vec![0, 1], true)));
    }

    #[test]
    fn other_texts_are_no_offers() {
        for text in [
            "",
            "7",
            "7 8",
            "7 8 none all weights",
            "7 8 none x weights best",
            "a 8 none all weights best",
            "7 8 a all weights best",
            "7 8 none all weights best more",
        ] {
            assert_eq!(Offer::from_text(text), None, "{text}");
        }
        for text in ["", "7", "7 weights", "7 weights 4", "7 weights 1,x", "x weights 1"] {
            assert_eq!(SaveAfterLoss::from_text(text, 4), None, "{text}");
        }
    }
}
