//! Gradients and weights in memory that NCCL reads and writes in place: a run ends with the same bits as one in ordinary memory.

use ddp::config::precision::Precision;
use ddp::config::{CommDtype, ZeroStage};
use ddp::train::trainer::{GraphMode, TrainerOptions};
use ddp_comm::RegisterBuffers;

use crate::made_up::Setup;
use crate::made_up::gpus::{gpus, on_gpus};

#[test]
fn registered_buffers_change_no_bit() {
    let usual = |zero| {
        let options = TrainerOptions { zero, ..Setup::usual().options };
        Setup { options, ..Setup::usual() }
    };
    // Each stage and each kind of buffer: flat gradients, bf16 gradients, the two buffers of ZeRO 2, weights in f32 and in bf16.
    let mut setups: Vec<_> = [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients].map(usual).into();
    for zero in [ZeroStage::Off, ZeroStage::Optimizer] {
        let mut setup = usual(zero);
        setup.precision = Precision::Bf16;
        setup.n_micro = 1;
        setup.options.comm_dtype = CommDtype::Bf16;
        setup.options.has_one_micro_batch = true;
        setup.options.gathers_short_weights = zero != ZeroStage::Off;
        setups.push(setup);
    }
    for (setup, n_ranks) in setups.into_iter().zip([2, 3, 2, 3, 2]) {
        let Some(_gpus) = gpus(n_ranks) else { return };
        for graph in [GraphMode::Off, GraphMode::On] {
            let of = |register_buffers| {
                let setup = Setup { register_buffers, ..on_gpus(&setup, graph) };
                setup.train_on(n_ranks)
            };
            let registered = of(RegisterBuffers::On);
            let what = format!("{:?}, {:?}, graphs {graph:?}", setup.options.zero, setup.precision);
            assert!(registered == of(RegisterBuffers::Off), "{what}: other bits");
        }
    }
}
