//! ZeRO: ranks that hold only their shards of the training state train like ranks that hold all of it, in less memory, and send
//! no more bytes than an all-reduce.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::made_up::gpus::{gpus, most_gpus, on_gpus, world_sizes};
use crate::made_up::{Setup, Trained, assert_close};
use ddp::config::precision::Precision;
use ddp::config::{CommDtype, LayerConfig, ModelConfig, OptimizerKind, ZeroStage};
use ddp::data::Dataset;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, Shuffle};
use ddp::model::ModelSpec;
use ddp::optim::loss_scaler::LossScalerConfig;
use ddp::train::TrainError;
use ddp::train::trainer::{GraphMode, StepRequest, Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, Traffic, World, threads};
use ddp_kernels::Device;

const STAGES: [ZeroStage; 2] = [ZeroStage::Optimizer, ZeroStage::Gradients];

fn with_zero(setup: &Setup, zero: ZeroStage) -> Setup {
    Setup { options: TrainerOptions { zero, ..setup.options }, ..setup.clone() }
}

fn unclipped(setup: Setup) -> Setup {
    Setup { options: TrainerOptions { clip_grad_norm: 0.0, ..setup.options }, ..setup }
}

#[test]
fn ranks_with_parts_of_the_state_train_as_one_rank_with_all_of_it() {
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW, OptimizerKind::Lion] {
        for setup in [Setup::usual(), Setup::embedded()] {
            let setup = Setup { optimizer, ema_decay: 0.9, ..setup };
            let alone = setup.train_on(1);
            for zero in STAGES {
                for world_size in 1..=5 {
                    let trained = with_zero(&setup, zero).train_on(world_size);
                    assert_close(&format!("{optimizer}, {zero:?}, {world_size} ranks"), &trained, &alone);
                    let (got, want) = (trained.averaged.unwrap(), alone.averaged.as_ref().unwrap());
                    assert_eq!(got.len(), want.len());
                    for (got, want) in got.into_iter().zip(want) {
                        let (got, want) = (f32::from_bits(got), f32::from_bits(*want));
                        // Same tolerance as for the weights that it averages.
                        assert!((got - want).abs() <= 1e-5, "{got} against {want}");
                    }
                }
            }
        }
    }
}

/// Sums are taken in rank order on any rank, and an element's update is the same on every rank. So without clipping, whose norm
/// is summed in parts, ZeRO-1 gives the same bits as a plain run for any bucket boundaries.
#[test]
fn the_first_stage_changes_no_bit() {
    for world_size in [2, 3, 5] {
        for n_micro in [1, 2] {
            let setup = Setup { n_micro, ema_decay: 0.9, ..unclipped(Setup::usual()) };
            let plain = setup.train_on(world_size);
            for bucket_bytes in [1, 1500, 25 << 20] {
                for overlap in [true, false] {
                    let mut sharded = with_zero(&setup, ZeroStage::Optimizer);
                    sharded.options = TrainerOptions { bucket_bytes, overlap, ..sharded.options };
                    let sharded = sharded.train_on(world_size);
                    let bits = |trained: &Trained| {
                        (trained.weights.clone(), trained.averaged.clone(), trained.losses.clone())
                    };
                    assert!(
                        bits(&sharded) == bits(&plain),
                        "{world_size} ranks, {bucket_bytes} bytes, {overlap}"
                    );
                }
            }
        }
    }
}

/// With one micro-batch there is nothing to accumulate, so both stages give the same bits. With several, they add up in different
/// orders, for any buckets.
#[test]
fn the_second_stage_depends_on_no_bucket() {
    for world_size in [2, 3] {
        let one_pass = Setup { n_micro: 1, ..Setup::usual() };
        let [first, second] = STAGES.map(|zero| with_zero(&one_pass, zero).train_on(world_size));
        assert!(first == second, "{world_size} ranks");
        let setup = with_zero(&unclipped(Setup::embedded()), ZeroStage::Gradients);
        let usual = setup.train_on(world_size);
        for bucket_bytes in [1, 4000, 25 << 20] {
            for overlap in [true, false] {
                let options = TrainerOptions { bucket_bytes, overlap, ..setup.options };
                let trained = Setup { options, ..setup.clone() }.train_on(world_size);
                assert!(
                    trained.weights == usual.weights,
                    "{world_size} ranks, {bucket_bytes} bytes, {overlap}"
                );
            }
        }
    }
}

/// For every way of dividing the state, the shards that ranks store cover all of it, and a run resumed from them is the same run.
#[test]
fn state_is_stored_and_restored_piece_by_piece() {
    for world_size in [1, 3] {
        for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
            let optimizers = [OptimizerKind::AdamW, OptimizerKind::Lion];
            for (optimizer, divide_update_from) in
                optimizers.map(|kind| [(kind, 1), (kind, usize::MAX)]).concat()
            {
                let mut setup = with_zero(&Setup { optimizer, ema_decay: 0.8, ..Setup::usual() }, zero);
                setup.options.divide_update_from = divide_update_from;
                let whole = setup.train_on(world_size);
                for step in [1, 5, 12] {
                    let restarted = Setup { restart_after: Some(step), ..setup.clone() }.train_on(world_size);
                    assert!(
                        restarted == whole,
                        "{optimizer}, {zero:?}, {world_size} ranks, divided from {divide_update_from}, step {step}"
                    );
                }
            }
        }
    }
}

/// Number of elements of each state tensor, and the bytes that a step sends, on each rank.
pub(crate) fn one_step(setup: &Setup, world_size: usize) -> Vec<(usize, usize, Traffic)> {
    let rows: Arc<dyn Dataset> = setup.rows();
    threads::run(world_size, |world| {
        let device = if setup.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
        world.connect_device(device, DeviceOptions::default()).unwrap();
        let mut trainer = setup.trainer(&world, device);
        let plan = BatchPlan {
            partition: PartitionKind::Ranks { n_micro: setup.n_micro },
            seed: 3,
            ..BatchPlan::new(setup.global_rows)
        };
        let plan = match setup.options.micro_shards {
            Some(n_shards) => BatchPlan { partition: PartitionKind::MicroShards { n_shards }, ..plan },
            None => plan,
        };
        let mut loader = DataLoader::new(
            &world,
            rows.clone(),
            &BatchPlan { n_epochs: Some(1), ..plan },
            LoaderOptions::new(device),
        )
        .unwrap();
        let before = world.tensor_group().traffic();
        trainer.step(&mut loader.next_step().unwrap().unwrap(), StepRequest::default()).unwrap();
        trainer.outcome(true).unwrap().unwrap();
        let traffic = world.tensor_group().traffic().since(&before);
        // The bytes that the trainer reports as sent; the group rounds once for all buckets together.
        let told = trainer.exchange_bytes(setup.n_micro).sent;
        assert!(told.abs_diff(traffic.bytes_sent()) <= 2, "{told} against {traffic:?}");
        let lens: Vec<_> = trainer.state().into_iter().map(|(_, tensor)| tensor.numel()).collect();
        assert!(lens.iter().all(|&len| len == lens[0]));
        (lens[0], trainer.model().layout().flat_len(), traffic)
    })
}

#[test]
fn a_rank_holds_its_share_of_the_state_and_sends_what_a_ring_does() {
    holds_its_share_and_sends_what_a_ring_does(&unclipped(Setup::embedded()), 4);
}

/// Batch norms gather moments in each forward pass and sums in each backward pass, besides the gradients.
#[test]
fn what_batch_norms_gather_is_counted() {
    let usual = Setup::usual();
    let batch_norm = LayerConfig::BatchNorm { eps: 1e-5, momentum: 0.1 }.once();
    let linear = |n| LayerConfig::Linear { out_features: n, activation: None, bias: true }.once();
    let layers = vec![linear(7), batch_norm.clone(), linear(5), batch_norm];
    let [n_features, n_outputs] = [usual.spec.n_features(), usual.spec.n_outputs()];
    let spec = ModelSpec::new(&ModelConfig::from_layers(layers, true), n_features, n_outputs);
    for world_size in [2, 3] {
        for n_micro in [1, 3] {
            let setup = Setup { spec: spec.clone(), n_micro, ..unclipped(usual.clone()) };
            // Compares the trainer's report with the measured traffic.
            let [(_, _, traffic), ..] = one_step(&setup, world_size)[..] else { unreachable!() };
            assert_eq!(traffic.n_all_gathers as usize, 4 * n_micro, "{traffic:?}");
        }
    }
}

fn holds_its_share_and_sends_what_a_ring_does(setup: &Setup, max_world_size: usize) {
    for world_size in 2..=max_world_size {
        let setup = Setup { n_micro: 1, ..setup.clone() };
        let (_, plain_len, plain) = one_step(&setup, world_size)[0];
        assert!(
            plain.n_reduce_scatters == 0 && plain.n_all_gathers == 0 && plain.n_all_reduces > 1,
            "{plain:?}"
        );
        let ring = |len: usize| (2 * 4 * (world_size - 1) * len / world_size) as u64;
        for zero in STAGES {
            for (state_len, flat_len, traffic) in one_step(&with_zero(&setup, zero), world_size) {
                assert_eq!(state_len * world_size, flat_len);
                assert!(traffic.n_reduce_scatters > 1 && traffic.n_reduce_scatters == traffic.n_all_gathers);
                assert_eq!(traffic.n_all_reduces, 1, "that of the step's sums");
                let padding = flat_len - plain_len;
                assert!(padding <= traffic.n_all_gathers as usize * world_size * 16, "{padding} elements");
                // The 16 elements of sums are in both.
                assert_eq!(traffic.bytes_sent(), ring(flat_len + 16));
                assert_eq!(plain.bytes_sent(), ring(plain_len + 16));
            }
        }
        // The second stage reduces in every micro-batch.
        let both = STAGES
            .map(|zero| one_step(&with_zero(&Setup { n_micro: 3, ..setup.clone() }, zero), world_size)[0].2);
        assert_eq!(both[1].n_reduce_scatters, 3 * both[0].n_reduce_scatters);
        assert_eq!(both[1].n_all_gathers, both[0].n_all_gathers);
    }
}

/// The exchange along the tree costs more than a ring all-reduce, and the trainer reports how much.
#[test]
fn the_fixed_tree_sends_what_it_says() {
    for zero in [ZeroStage::Off, ZeroStage::Optimizer] {
        for world_size in [1, 2, 3, 4] {
            let mut setup = with_zero(&unclipped(Setup::embedded()), zero);
            setup.options.micro_shards = Some(8);
            one_step(&setup, world_size);
        }
    }
}

/// A scale so large that gradients overflow: steps are skipped until it is small enough, and none of the skipped steps is
/// counted.
#[test]
fn a_loss_scale_recovers_from_an_overflow() {
    // Squares are summed in f32, whose range ends at 2^128.
    let scaling = LossScalerConfig { init_scale: 2f64.powi(70), ..LossScalerConfig::default() };
    for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
        for (world_size, divide_update_from, clip_grad_norm) in
            [(1, 1, 0.7), (3, 1, 0.0), (2, usize::MAX, 0.7)]
        {
            let mut setup = with_zero(&Setup { ema_decay: 0.5, ..Setup::usual() }, zero);
            setup.options = TrainerOptions { divide_update_from, clip_grad_norm, ..setup.options };
            let plain = setup.train_on(world_size);
            setup.options.loss_scaling = Some(LossScalerConfig { init_scale: 1024.0, ..scaling });
            let scaled = setup.train_on(world_size);
            // Scaling by a power of two causes no rounding.
            assert!(scaled == plain, "{zero:?}, {world_size} ranks: a scale of 1024 changes the run");
            setup.options.loss_scaling = Some(scaling);
            // The rows of a skipped step are not visited again.
            let overflowed = Setup { n_epochs: 8, ..setup }.train_on(world_size);
            assert!((1..20).contains(&overflowed.n_skipped), "{}", overflowed.n_skipped);
            let n_skipped = overflowed.n_skipped as usize;
            assert!(overflowed.grad_norms[..n_skipped].iter().all(|norm| !norm.is_finite()));
            assert!(overflowed.grad_norms[n_skipped..].iter().all(|norm| norm.is_finite()));
            assert!(overflowed.losses.last().unwrap() < &overflowed.losses[0], "it trains");
        }
    }
}

/// Two epochs of these rows on the CPU.
fn two_epochs(setup: &Setup, world: &World, rows: Arc<dyn Dataset>) -> DataLoader {
    let plan = BatchPlan { seed: 3, n_epochs: Some(2), ..setup.plan() };
    DataLoader::new(world, rows, &plan, LoaderOptions::new(Device::Cpu)).unwrap()
}

/// Holds also for the bf16 copy that matmuls read: evaluating the average changes no later bit.
#[test]
fn evaluating_the_average_between_steps_changes_no_bit() {
    for precision in [Precision::F32, Precision::Bf16] {
        let setup = with_zero(&Setup { ema_decay: 0.9, precision, ..Setup::usual() }, ZeroStage::Optimizer);
        let rows: Arc<dyn Dataset> = setup.rows();
        let train = |looks: bool| {
            threads::run(2, |world| {
                let mut trainer = setup.trainer(&world, Device::Cpu);
                let mut loader = two_epochs(&setup, &world, rows.clone());
                let mut losses = Vec::new();
                while let Some(mut step) = loader.next_step().unwrap() {
                    losses.push(trainer.step_and_wait(&mut step, false).unwrap().sums.mean());
                    if looks {
                        trainer.with_averaged(|_, _| Ok(())).unwrap();
                    }
                }
                (losses, trainer.model().weights().to_vec::<f32>().unwrap())
            })
        };
        assert!(train(true) == train(false), "{precision:?}");
    }
}

#[test]
fn gpus_with_parts_of_the_state_train_as_one_cpu_rank_does() {
    let Some(_gpus) = gpus(2) else { return };
    let optimizers = [OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion];
    for (index, optimizer) in optimizers.into_iter().enumerate() {
        let setup = Setup { optimizer, ema_decay: 0.9, ..Setup::embedded() };
        let cpu = setup.train_on(1);
        for zero in STAGES {
            for world_size in world_sizes(index, 1) {
                let setup = with_zero(&setup, zero);
                let what = format!("{optimizer}, {zero:?}, {world_size} GPUs");
                let eager = on_gpus(&setup, GraphMode::Off).train_on(world_size);
                assert_close(&what, &eager, &cpu);
                let mut graph = on_gpus(&setup, GraphMode::On).train_on(world_size);
                assert_eq!(std::mem::take(&mut graph.n_graphs), 2, "{what}");
                assert!(graph == eager, "{what}: a graph gives another result");
            }
        }
    }
}

#[test]
fn a_gpu_holds_its_share_of_the_state_and_sends_what_a_ring_does() {
    let Some(_gpus) = gpus(2) else { return };
    let setup = on_gpus(&unclipped(Setup::embedded()), GraphMode::Off);
    holds_its_share_and_sends_what_a_ring_does(&setup, most_gpus());
}

/// In bf16 the copy for matmuls is rounded from the gathered weights: all ranks hold the same copy, which `train_on` checks.
#[test]
fn gpus_take_short_formats_with_the_first_stage() {
    let Some(_gpus) = gpus(2) else { return };
    let setup = Setup { precision: Precision::Bf16, ..unclipped(Setup::usual()) };
    let plain = on_gpus(&setup, GraphMode::Auto);
    let mut sharded = with_zero(&plain, ZeroStage::Optimizer);
    assert!(sharded.train_on(2).weights == plain.train_on(2).weights);
    sharded.options.comm_dtype = CommDtype::Bf16;
    let rounded = sharded.train_on(2);
    let plain = Setup { options: TrainerOptions { comm_dtype: CommDtype::Bf16, ..plain.options }, ..plain };
    assert!(rounded.weights == plain.train_on(2).weights, "buckets in bf16");
}

/// Matmuls round gradients in the same way as the pass over f32 gradients, which still rounds the gradients that no matmul
/// computes.
#[test]
fn gpu_matmuls_that_write_gradients_in_bf16_give_the_bits_of_rounded_ones() {
    let Some(_gpus) = gpus(2) else { return };
    for setup in [Setup::usual(), Setup::embedded(), Setup::listed()] {
        for zero in [ZeroStage::Off, ZeroStage::Optimizer] {
            let mut setup =
                with_zero(&Setup { precision: Precision::Bf16, n_micro: 1, ..setup.clone() }, zero);
            setup.options.comm_dtype = CommDtype::Bf16;
            let rounded = on_gpus(&setup, GraphMode::Auto).train_on(2);
            setup.options.has_one_micro_batch = true;
            for graph in [GraphMode::Auto, GraphMode::Off] {
                let written = on_gpus(&setup, graph).train_on(2);
                assert!(written.weights == rounded.weights, "weights with {zero:?}");
                assert_eq!((&written.losses, &written.grad_norms), (&rounded.losses, &rounded.grad_norms));
            }
        }
    }
}

/// The evaluation at the end of a run reads the weights gathered in the short format, and a restart reads the master weights.
#[test]
fn gpus_that_gather_weights_in_short_formats_train_to_the_bits_of_a_gather_in_f32() {
    let Some(_gpus) = gpus(3) else { return };
    let forms = [
        (Precision::Bf16, ZeroStage::Optimizer, 2),
        (Precision::Bf16, ZeroStage::Gradients, 3),
        (Precision::F16, ZeroStage::Optimizer, 3),
    ];
    // Each form with the usual layers, and each kind of layer with one form.
    let cases =
        [(Setup::usual(), &forms[..]), (Setup::listed(), &forms[1..2]), (Setup::embedded(), &forms[..1])];
    for (setup, forms) in cases {
        for &(precision, zero, n_ranks) in forms {
            let setup = Setup { precision, ema_decay: 0.9, restart_after: Some(4), ..setup.clone() };
            for graph in [GraphMode::Auto, GraphMode::Off] {
                let mut setup = on_gpus(&with_zero(&setup, zero), graph);
                let single = setup.train_on(n_ranks);
                setup.options.gathers_short_weights = true;
                let short = setup.train_on(n_ranks);
                assert!(short == single, "{precision:?}, {zero:?}, {graph:?}");
                let bytes = setup.bytes_sent(n_ranks);
                setup.options.gathers_short_weights = false;
                assert!(bytes < setup.bytes_sent(n_ranks));
            }
        }
    }
}

/// Weights of which a rank holds only shards can't be read as the weights of a model.
#[test]
fn gpus_read_no_weights_before_they_are_gathered() {
    let Some(_gpus) = gpus(2) else { return };
    let mut setup = on_gpus(
        &with_zero(&Setup { precision: Precision::Bf16, ..Setup::usual() }, ZeroStage::Optimizer),
        GraphMode::Off,
    );
    setup.options.gathers_short_weights = true;
    let rows: Arc<dyn Dataset> = setup.rows();
    threads::run(2, |world| {
        let device = Device::Cuda(world.rank().0 as u32);
        world.connect_device(device, DeviceOptions::default()).unwrap();
        let mut trainer = setup.trainer(&world, device);
        trainer.model().weights();
        let plan = BatchPlan {
            partition: PartitionKind::Ranks { n_micro: setup.n_micro },
            shuffle: Shuffle::Off,
            ..BatchPlan::new(setup.global_rows)
        };
        let mut loader = DataLoader::new(&world, rows.clone(), &plan, LoaderOptions::new(device)).unwrap();
        trainer.step_and_wait(&mut loader.next_step().unwrap().unwrap(), false).unwrap();
        let read = |trainer: &Trainer<'_>| {
            let read = || trainer.model().weights().numel();
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(read))
        };
        assert!(read(&trainer).is_err());
        trainer.gather_weights().unwrap();
        assert!(read(&trainer).is_ok());
        world.close().unwrap();
    });
}

#[test]
fn gpus_refuse_gradients_in_bf16_of_two_micro_batches() {
    let Some(_gpus) = gpus(2) else { return };
    let mut setup = Setup { precision: Precision::Bf16, ..Setup::usual() };
    setup.options =
        TrainerOptions { comm_dtype: CommDtype::Bf16, has_one_micro_batch: true, ..setup.options };
    let result = std::panic::catch_unwind(|| on_gpus(&setup, GraphMode::Auto).train_on(2));
    let panic = result.expect_err("the run ends in an error");
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("OneMicroBatchOnly"), "{text}");
}

#[test]
fn a_gpu_skips_steps_that_overflow() {
    let Some(_gpus) = gpus(1) else { return };
    for clip_grad_norm in [0.0, 0.7] {
        for graph in [GraphMode::Off, GraphMode::On] {
            let mut setup = on_gpus(&Setup { ema_decay: 0.5, ..Setup::usual() }, graph);
            setup.options.clip_grad_norm = clip_grad_norm;
            let plain = setup.train_on(1);
            let scaling = LossScalerConfig { init_scale: 1024.0, ..LossScalerConfig::default() };
            setup.options.loss_scaling = Some(scaling);
            let scaled = setup.train_on(1);
            assert!(
                (&scaled.weights, &scaled.losses) == (&plain.weights, &plain.losses),
                "a scale of 1024 changes the run"
            );
            setup.options.loss_scaling = Some(LossScalerConfig { init_scale: 2f64.powi(70), ..scaling });
            setup.n_epochs = 8;
            let overflowed = setup.train_on(1);
            assert!((1..20).contains(&overflowed.n_skipped), "{}", overflowed.n_skipped);
            assert!(
                overflowed.grad_norms[overflowed.n_skipped as usize..].iter().all(|norm| norm.is_finite())
            );
            assert!(overflowed.losses.last().unwrap() < &overflowed.losses[0], "it trains");
        }
    }
}

/// The average replaces the weights during an evaluation, and is removed completely afterward.
#[test]
fn evaluating_the_average_leaves_the_weights_as_they_were() {
    for zero in [ZeroStage::Off, ZeroStage::Optimizer] {
        let setup = with_zero(&Setup { ema_decay: 0.9, ..Setup::usual() }, zero);
        let rows: Arc<dyn Dataset> = setup.rows();
        threads::run(2, |world| {
            let mut trainer = setup.trainer(&world, Device::Cpu);
            let bits = |weights: &ddp_kernels::Tensor| -> Vec<u32> {
                weights.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
            };
            let initial = bits(trainer.model().weights());
            assert!(bits(trainer.averaged_weights().unwrap().unwrap()) == initial, "no step, no average");
            let mut loader = two_epochs(&setup, &world, rows.clone());
            while let Some(mut step) = loader.next_step().unwrap() {
                trainer.step(&mut step, StepRequest::default()).unwrap();
            }
            let weights = bits(trainer.model().weights());
            let averaged = bits(trainer.averaged_weights().unwrap().unwrap());
            assert!(averaged != weights && averaged != initial);
            let seen = trainer.with_averaged(|model, _| Ok(bits(model.weights()))).unwrap();
            assert!(seen == averaged && bits(trainer.model().weights()) == weights);
            // Also if the evaluation fails.
            let failed = trainer.with_averaged(|_, _| Err::<(), _>(TrainError::BatchOverflows));
            assert!(failed.is_err() && bits(trainer.model().weights()) == weights);
        });
    }
}
