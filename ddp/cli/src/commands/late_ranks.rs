//! Names the ranks that rank 0 waits for, whatever it does: a job in which nothing happens says why.

use std::thread;
use std::time::Duration;

use ddp_comm::World;
use ddp_comm::watchdog::RankPlace;
use tracing::info;

/// Time for which rank 0 waits in a collective before the others are named.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the ranks are looked at.
const POLL: Duration = Duration::from_secs(1);
/// Most ranks that are named.
const MAX_NAMED: usize = 4;

/// Starts the thread that names late ranks, on rank 0; it ends with the watchdog.
pub(super) fn name_late_ranks(world: &World) {
    if world.rank().0 > 0 || world.world_size() == 1 {
        return;
    }
    let watchdog = world.watchdog().clone();
    let watch = move || {
        let mut named = None;
        while let Some(places) = watchdog.places() {
            let late = waiting(&places);
            if late != named {
                late.iter().for_each(|late| info!("{late}"));
                named = late;
            }
            thread::sleep(POLL);
        }
    };
    // Without the thread nothing is named.
    let _ = thread::Builder::new().name("late ranks".to_owned()).spawn(watch);
}

/// Names the ranks that have not entered the collective in which rank 0 waits, such as
/// `waiting for 3 of 8 ranks: 5 node2, 6 node2, 7 node2`; `None` if it waits for none.
fn waiting(places: &[RankPlace]) -> Option<String> {
    let own = places.first().filter(|own| own.is_inside && own.still >= PATIENCE)?;
    let late: Vec<String> = places
        .iter()
        .filter(|place| place.phase.is_some() && place.n_collectives < own.n_collectives)
        .map(|place| format!("{} {}", place.rank, place.host))
        .collect();
    let named = late.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = if late.len() > MAX_NAMED { ", ..." } else { "" };
    (!late.is_empty()).then(|| format!("waiting for {} of {} ranks: {named}{more}", late.len(), places.len()))
}

#[cfg(test)]
mod tests {
    use ddp_comm::Phase;

    use super::*;

    #[test]
    fn ranks_that_have_not_come_are_named() {
        let at = |rank: usize, n_collectives: u64| RankPlace {
            rank,
            host: format!("node{}", rank / 4),
            phase: Some(Phase::Start),
            n_collectives,
            is_inside: true,
            still: PATIENCE,
            ..RankPlace::default()
        };
        let mut places: Vec<_> = (0..8).map(|rank| at(rank, 7)).collect();
        assert_eq!(waiting(&places), None);
        places[2].n_collectives = 6;
        places[5].n_collectives = 5;
        assert_eq!(waiting(&places).unwrap(), "waiting for 2 of 8 ranks: 2 node0, 5 node1");
        places[1..].iter_mut().for_each(|place| place.n_collectives = 0);
        assert_eq!(
            waiting(&places).unwrap(),
            "waiting for 7 of 8 ranks: 1 node0, 2 node0, 3 node0, 4 node1, ..."
        );
        // Rank 0 is at work, or has waited for a moment only.
        for of in
            [RankPlace { is_inside: false, ..at(0, 7) }, RankPlace { still: Duration::ZERO, ..at(0, 7) }]
        {
            places[0] = of;
            assert_eq!(waiting(&places), None);
        }
    }
}
