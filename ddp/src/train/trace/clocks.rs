//! The offsets of the ranks' clocks, with their errors, from collectives.
//!
//! No rank leaves a barrier before all have entered it. So if rank 0 enters at `e_0` and leaves at `l_0`, and rank `r` at `e_r` and `l_r`, each
//! by its own clock, the offset `o_r` of clock `r` satisfies `e_r - l_0 <= o_r <= l_r - e_0`. The tightest bounds of several barriers
//! count. It is measured at both ends of a trace; in between it is a straight line.

use ddp_comm::World;
use serde::{Deserialize, Serialize};

use crate::train::error::Result;

/// Barriers of a measurement.
const N_BARRIERS: usize = 16;

/// Times at which a rank entered and left barriers, on its own clock, in ns.
pub(super) type Barriers = Vec<(u64, u64)>;

/// One measurement of a rank's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Readings(pub(super) Barriers);

impl Readings {
    /// Enters barriers with the other ranks. Collective.
    pub(super) fn take(world: &World) -> Result<Self> {
        let recorder = world.recorder();
        let barrier = || -> Result<(u64, u64)> {
            let entered = recorder.now_ns();
            world.group().barrier()?;
            Ok((entered, recorder.now_ns()))
        };
        Ok(Readings((0..N_BARRIERS).map(|_| barrier()).collect::<Result<_>>()?))
    }

    /// When the measurement ended.
    fn at(&self) -> u64 {
        self.0.last().map_or(0, |(_, left)| *left)
    }

    /// Offset of this clock from that of `first`, and its largest error, in ns.
    fn offset_from(&self, first: &Readings) -> (f64, f64) {
        let pairs = || self.0.iter().zip(&first.0);
        let least = pairs().map(|((entered, _), (_, left))| *entered as f64 - *left as f64);
        let most = pairs().map(|((_, left), (entered, _))| *left as f64 - *entered as f64);
        let (least, most) = (least.fold(f64::NEG_INFINITY, f64::max), most.fold(f64::INFINITY, f64::min));
        ((least + most) / 2.0, ((most - least) / 2.0).max(0.0))
    }
}

/// Offset of a rank's clock: subtract it from the rank's times to get times of rank 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clock {
    /// Offset at a time of this clock.
    at: [(f64, f64); 2],
    /// Largest error of the offsets, in ns.
    pub(super) error_ns: f64,
}

impl Clock {
    /// A time of this clock as one of rank 0, in ns.
    pub(super) fn on_rank_0(&self, ns: u64) -> f64 {
        let [(begin, first), (end, last)] = self.at;
        let share = if end > begin { (ns as f64 - begin) / (end - begin) } else { 0.0 };
        ns as f64 - (first + share * (last - first))
    }

    /// The offset at the begin of the trace, in ns.
    pub(super) fn offset_ns(&self) -> f64 {
        self.at[0].1
    }
}

/// The clocks of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Clocks(pub(super) Vec<Clock>);

impl Clocks {
    /// Aligns the clocks of all ranks by their measurements at the begin and at the end.
    pub(super) fn align(ranks: &[&[Readings; 2]]) -> Self {
        let of_rank = |(rank, readings): (usize, &&[Readings; 2])| {
            let measured = |index: usize| {
                let (offset, error) =
                    if rank == 0 { (0.0, 0.0) } else { readings[index].offset_from(&ranks[0][index]) };
                ((readings[index].at() as f64, offset), error)
            };
            let ((begin, first), (end, last)) = (measured(0), measured(1));
            Clock { at: [begin, end], error_ns: first.max(last) }
        };
        Clocks(ranks.iter().enumerate().map(of_rank).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Barriers of two ranks: rank 1's clock is ahead by `offset`, and each comes late at times.
    fn barriers(start: u64, offset: u64) -> [Readings; 2] {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for index in 0..16_u64 {
            let entered = start + index * 1_000;
            let (late_0, late_1) = (index % 3 * 100, index % 5 * 70);
            let all = entered + late_0.max(late_1);
            first.push((entered + late_0, all + 30));
            second.push((entered + late_1 + offset, all + 45 + offset));
        }
        [Readings(first), Readings(second)]
    }

    #[test]
    fn offset_and_drift_of_a_clock_are_found_within_the_error() {
        let (begin, end) = (barriers(10_000, 5_000_000), barriers(1_000_010_000, 5_004_000));
        let ranks = [[begin[0].clone(), end[0].clone()], [begin[1].clone(), end[1].clone()]];
        let Clocks(clocks) = Clocks::align(&ranks.iter().collect::<Vec<_>>());
        assert_eq!((clocks[0].on_rank_0(123), clocks[0].error_ns), (123.0, 0.0));
        let clock = &clocks[1];
        assert!(clock.error_ns > 0.0 && clock.error_ns < 100.0, "{clock:?}");
        for (at, want) in
            [(5_025_000, 25_000.0), (1_005_029_000, 1_000_025_000.0), (505_027_000, 500_025_000.0)]
        {
            let got = clock.on_rank_0(at);
            assert!((got - want).abs() <= clock.error_ns, "{got}, expected {want} within {}", clock.error_ns);
        }
        assert!((clock.offset_ns() - 5e6).abs() <= clock.error_ns, "{clock:?}");
    }
}
