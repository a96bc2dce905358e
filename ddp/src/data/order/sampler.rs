//! Orders of rows of a program's own.

use std::fmt::Debug;

use ddp_kernels::KeyedPermutation;

/// An order of the rows of each epoch.
///
/// All ranks must compute the same one: a rank takes its shard of each global batch of this order.
///
/// ```
/// use ddp::data::Sampler;
///
/// /// Every second row, from the end.
/// #[derive(Debug)]
/// struct Backwards {
///     n_rows: usize,
/// }
///
/// impl Sampler for Backwards {
///     fn rows(&self, _epoch: u64) -> Vec<usize> {
///         (0..self.n_rows).rev().step_by(2).collect()
///     }
/// }
/// assert_eq!(Backwards { n_rows: 6 }.rows(0), [5, 3, 1]);
/// ```
///
/// Source: `torch.utils.data.Sampler`.
pub trait Sampler: Debug + Send + Sync {
    /// Numbers of the rows of epoch `epoch`, from 0, in order. As many in every epoch; a row may occur several times, or not at all.
    fn rows(&self, epoch: u64) -> Vec<usize>;
}

/// Groups of neighboring rows in a new order each epoch, the rows of a group in their own order: sequences whose steps are rows.
///
/// If the rows per rank and micro-batch are a multiple of the group, no group is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSampler {
    n_groups: usize,
    group_rows: usize,
    seed: u64,
}

impl GroupSampler {
    /// Groups of `group_rows` of `n_rows` rows.
    ///
    /// # Panics
    /// If the rows are not a whole number of groups.
    pub fn new(n_rows: usize, group_rows: usize, seed: u64) -> Self {
        assert!(
            group_rows > 0 && n_rows.is_multiple_of(group_rows),
            "{n_rows} rows are not a whole number of groups of {group_rows}"
        );
        GroupSampler { n_groups: n_rows / group_rows, group_rows, seed }
    }
}

impl Sampler for GroupSampler {
    fn rows(&self, epoch: u64) -> Vec<usize> {
        let order = KeyedPermutation::new(self.n_groups, self.seed, epoch);
        let starts = (0..self.n_groups).map(|place| order.index(place) * self.group_rows);
        starts.flat_map(|start| start..start + self.group_rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_whole_and_each_epoch_has_its_own_order() {
        let sampler = GroupSampler::new(60, 4, 7);
        let epochs = [0, 1].map(|epoch| sampler.rows(epoch));
        assert_ne!(epochs[0], epochs[1]);
        for rows in &epochs {
            assert!(
                rows.chunks(4).all(|group| group[0] % 4 == 0 && group.windows(2).all(|w| w[0] + 1 == w[1]))
            );
            let mut sorted = rows.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..60).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "10 rows are not a whole number of groups of 4")]
    fn rows_that_are_no_whole_groups_are_refused() {
        GroupSampler::new(10, 4, 0);
    }
}
