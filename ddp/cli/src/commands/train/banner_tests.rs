use ddp::exchange::bucket_plan::TAIL_ELEMENTS;
use ddp::model::{LossHead, Network};
use ddp::optim::optimizer::Optimizer;
use ddp::optim::param_groups::ParamGroups;
use ddp::train::setup;
use ddp::train::trainer::{GraphMode, TrainerOptions};
use ddp_comm::threads::run;
use ddp_kernels::ops::Activation;

use super::*;

/// Calls `check` with the banner of a run of `sets` on the built-in digits.
fn with_banner<R>(
    world: &World,
    sets: &[&str],
    embeddings: Vec<EmbeddingSpec>,
    check: impl FnOnce(&Banner<'_>) -> R,
) -> R {
    with_options(world, sets, embeddings, |_| {}, check)
}

fn with_options<R>(
    world: &World,
    sets: &[&str],
    embeddings: Vec<EmbeddingSpec>,
    change: impl FnOnce(&mut TrainerOptions),
    check: impl FnOnce(&Banner<'_>) -> R,
) -> R {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::load(None, &sets).unwrap();
    let data = ddp_tables::load(&config, world).unwrap();
    let spec = ModelSpec::new(&config.model, 64, 10).with_embeddings(embeddings);
    let partition = BatchPartition::new(&config, world, &data, None).unwrap();
    let mut options = setup::trainer_options(&config, &partition, GraphMode::default());
    change(&mut options);
    let layout = options.layout(&spec, world.world_size());
    let groups = ParamGroups::new(&config.optimizer, &layout).unwrap();
    let state_len = options.state_len(world, &layout);
    let precision = config.train.precision;
    let model =
        Network::with_layout(spec.clone(), layout, partition.max_rows, Device::Cpu, precision).unwrap();
    let optimizer = Optimizer::new(&config.optimizer, groups, state_len, Device::Cpu).unwrap();
    let loss = LossHead::new(&config.loss, Device::Cpu).unwrap();
    let trainer = Trainer::new(world, model, loss, optimizer, options).unwrap();
    check(&Banner {
        world,
        config: &config,
        data: &data,
        spec: &spec,
        partition: &partition,
        trainer: &trainer,
    })
}

fn cpu() -> DeviceChoice {
    DeviceChoice { device: Device::Cpu, reason: None }
}

#[test]
fn small_and_large_numbers_keep_their_digits() {
    let of = [0.0, 12.5, -0.01, 1.25e-7, 2e12].map(significant);
    assert_eq!(of, ["0.000000", "12.500000", "-0.010000", "1.250000e-7", "2.000000e12"]);
}

#[test]
fn only_an_unexpected_cpu_is_explained() {
    let words = |has_driver| {
        let (reason, hint) = ("no compiler".into(), "install it".into());
        let why = Unavailable { reason, hint, has_driver, is_fault: false };
        unused_gpu(&DeviceChoice { device: Device::Cpu, reason: Some(why) })
    };
    let told = "no GPU is used: no compiler; to use one: install it";
    assert_eq!([words(false), words(true)], [None, Some(told.to_owned())]);
}

#[test]
fn reports_every_layer() {
    let sets = ["model.dropout=0.5", "model.norm=layer", "train.batch_size=8"];
    let (text, line) = with_banner(&World::single(), &sets, Vec::new(), |banner| {
        (banner.details(), banner.line(&cpu(), false))
    });
    for part in [
        "train  builtin:digits: 1438 rows x 64 features, 10 classes",
        "eval   builtin:digits: 359 rows",
        "0      64 -> 128        8576  layer norm, relu, dropout 0.5\n",
        "2      64 -> 10          650  output\n",
        "8 rows per step in 1 micro-batch per rank\nexchange: none, 1 rank",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(line.starts_with("digits: 1,438 rows and 359 for evaluation, 64-128-64-10 layers"));
    assert!(line.contains("1 rank on cpu"), "{line}");
}

#[test]
fn reports_every_layer_of_a_list() {
    let sets = ["model.layers=[{kind=\"glu\",out_features=24},{kind=\"rms_norm\",repeat=2}]"];
    let (text, line) = with_banner(&World::single(), &sets, Vec::new(), |banner| {
        (banner.details(), banner.line(&cpu(), false))
    });
    let part = "\n\nlayer            parameters\n\
        linear 64 -> 48        3120\n\
        swiglu                    0\n\
        rms norm                 24\n\
        rms norm                 24\n\
        linear 24 -> 10         250\n";
    assert!(text.contains(part), "{text}");
    assert!(line.contains(", 64-24-10 layers (3,418 parameters)"), "{line}");
}

#[test]
fn reports_every_embedding() {
    let embedding = |name: &str, n_codes| EmbeddingSpec { name: name.to_owned(), n_codes, dim: 3 };
    let embeddings = vec![embedding("zip", 70_001), embedding("day of the week", 8)];
    let (text, line) = with_banner(&World::single(), &[], embeddings, |banner| {
        (banner.details(), banner.line(&cpu(), false))
    });
    for part in [
        "\n\nembedding        codes x width  parameters\n",
        "\nzip              70001 x 3          210003\n",
        "\nday of the week  8 x 3                  24\n\nlayer ",
        "\n0      68 -> 128        8832  relu\n",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(line.contains(", 2 embeddings, 68-128-64-10 layers ("), "{line}");
}

/// The exchange of two ranks, as rank 0 reports it, with the elements of the flat buffer and of the tail after it.
fn exchange_of_two(sets: &[&str], change: impl Fn(&mut TrainerOptions) + Sync) -> (String, usize) {
    let of_rank = |world: World| {
        with_options(&world, sets, Vec::new(), &change, |banner| {
            assert!(banner.details().contains(&banner.exchange()));
            (banner.exchange(), banner.trainer.model().layout().flat_len())
        })
    };
    run(2, of_rank).swap_remove(0)
}

/// Bytes of so many elements of f32, as the banner writes them.
fn sent(n_elements: usize) -> String {
    format!("; {:.3} MiB sent per rank and step", mib(4 * n_elements as u64))
}

#[test]
fn buckets_are_all_reduced() {
    let (text, flat_len) = exchange_of_two(&["comm.bucket_mib=0.01"], |_| {});
    assert!(text.starts_with("all-reduce of gradients in ") && text.contains(" buckets; "), "{text}");
    // Of two ranks each sends half of the buffer to reduce it, and half to gather it.
    assert!(text.ends_with(&sent(flat_len + TAIL_ELEMENTS)), "{text}");
}

#[test]
fn zero_1_reduces_to_the_owners_and_gathers_weights() {
    let (text, flat_len) = exchange_of_two(&["comm.zero=1", "train.grad_accum_steps=3"], |_| {});
    assert!(text.starts_with("reduce-scatter of gradients in 1 bucket, all-gather of weights; "), "{text}");
    assert!(text.ends_with(&sent(flat_len + TAIL_ELEMENTS)), "{text}");
}

#[test]
fn zero_2_reduces_in_every_micro_batch() {
    let (text, flat_len) = exchange_of_two(&["comm.zero=2", "train.grad_accum_steps=3"], |_| {});
    let want =
        "reduce-scatter of gradients in 1 bucket per micro-batch (3 per step), all-gather of weights; ";
    assert!(text.starts_with(want), "{text}");
    assert!(text.ends_with(&sent(2 * flat_len + TAIL_ELEMENTS)), "{text}");
}

#[test]
fn micro_shards_are_gathered_for_the_fixed_tree() {
    let sets = ["train.deterministic=world", "train.micro_shards=8"];
    let (text, flat_len) = exchange_of_two(&sets, |_| {});
    let sums = "all-gather of partial sums of 8 micro-shards for a fixed tree";
    assert!(text.starts_with(&format!("{sums}; ")), "{text}");
    // Each rank has four leaves, which come to one subtree.
    assert!(text.ends_with(&sent(flat_len + TAIL_ELEMENTS)), "{text}");
    let (text, flat_len) = exchange_of_two(&[&sets[..], &["comm.zero=1"]].concat(), |_| {});
    assert!(text.starts_with(&format!("{sums}, all-gather of weights; ")), "{text}");
    assert!(text.ends_with(&sent(flat_len + TAIL_ELEMENTS + flat_len / 2)), "{text}");
    let alone = with_banner(&World::single(), &sets, Vec::new(), |banner| banner.exchange());
    assert_eq!(alone, "none, 1 rank adds up 8 micro-shards along a fixed tree");
}

#[test]
fn ranks_that_share_memory_divide_a_large_update() {
    let (text, flat_len) = exchange_of_two(&[], |options| options.divide_update_from = 0);
    let want =
        "reduce-scatter of gradients and all-gather of weights in 1 block; each rank updates its shard; ";
    assert!(text.starts_with(want), "{text}");
    assert!(text.ends_with(&sent(flat_len + TAIL_ELEMENTS)), "{text}");
}

#[test]
fn residuals_are_reported_where_they_are() {
    let spec = ModelSpec {
        dims: vec![4, 8, 8, 2],
        activation: Activation::Gelu,
        layer_norm: false,
        dropout: 0.0,
        residual: true,
        bias: true,
        embeddings: Vec::new(),
        layers: Vec::new(),
    };
    let after: Vec<_> = (0..3).map(|layer| after(&spec, layer)).collect();
    assert_eq!(after, ["gelu", "gelu, plus its input", "output"]);
}

#[test]
fn gpus_of_a_run_are_named() {
    assert_eq!(gpus_words(1, 1, 3, 8, false), " on cuda:3");
    assert_eq!(gpus_words(2, 2, 0, 2, false), ", one GPU each: cuda:0 and 1");
    assert_eq!(gpus_words(8, 8, 0, 8, false), ", one GPU each: cuda:0 to 7");
    // The launcher shows one to each rank, or there are other hosts.
    assert_eq!(gpus_words(2, 2, 0, 1, false), ", one GPU each");
    assert_eq!(gpus_words(16, 0, 0, 8, false), ", one GPU each");
    assert_eq!(gpus_words(2, 2, 0, 1, true), " that share cuda:0");
    assert_eq!(gpus_words(4, 4, 0, 2, true), " that share 2 GPUs");
}
