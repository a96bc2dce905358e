//! Warning about a quick build (launch/build --quick).

use ddp_comm::World;
use tracing::warn;

/// Warns on rank 0 that this program is a quick build, if it is one.
pub(super) fn warn_if_quick_build(world: &World) {
    if env!("DDP_TRAIN_IS_QUICK") == "true" && world.rank().0 == 0 {
        warn!(
            "this program is a quick build, which reads tables and trains small networks slowly\n\
             hint: ./launch/build optimizes it"
        );
    }
}
