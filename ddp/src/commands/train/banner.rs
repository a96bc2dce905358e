//! What is about to run, in words: one line always, the whole of it with `--verbose` and `--dry-run`.

use std::fmt::Write as _;

use ddp_comm::{DeviceChoice, World};
use ddp_kernels::Device;
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::Gpu;

use crate::config::{Config, Determinism};
use crate::data::loader::Loader;
use crate::data::order::partition::PartitionKind;
use crate::data::{Loaded, Summary};
use crate::data_parallel::buckets::BucketPlan;
use crate::data_parallel::shard_plan::ShardPlan;
use crate::model::{EmbeddingSpec, Mlp, ModelSpec};
use crate::train::setup::BatchPartition;
use crate::train::trainer::{ExchangeBytes, Trainer, TrainerOptions};

/// The run in one line: rows, widths, ranks, device.
pub(crate) fn line(
    world: &World,
    config: &Config,
    data: &Loaded,
    (model, spec): (&Mlp, &ModelSpec),
    device: &DeviceChoice,
) -> String {
    let widths: Vec<_> = spec.dims.iter().map(ToString::to_string).collect();
    let embeddings = match spec.embeddings.len() {
        0 => String::new(),
        n => format!("{}, ", count(n, "embedding")),
    };
    let eval = data.eval.as_ref().map_or(String::new(), |eval| format!(" and {} for evaluation", eval.len()));
    format!(
        "{}: {} rows{eval}, {embeddings}{} layers ({} parameters), {} on {}, {} each",
        config.name,
        data.train.len(),
        widths.join("-"),
        model.layout().n_params(),
        count(world.world_size(), "rank"),
        device_words(device),
        count(threads::current(), "thread"),
    )
}

/// What it costs that a run gives the same bits each time; nothing where it costs nothing.
pub(crate) fn determinism(config: &Config, cuts: &BatchPartition, trainer: &Trainer<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if config.train.deterministic == Determinism::Off {
        return lines;
    }
    if let PartitionKind::MicroShards { n_shards } = cuts.train.kind {
        let own = cuts.train.own_micro_shards().len();
        let ExchangeBytes { sent, all_reduce } = trainer.exchange_bytes(own);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        lines.push(format!(
            "deterministic over any number of ranks: {n_shards} passes a step, {own} of them here; a rank sends {:.1} MiB a step, \
             {:.1} MiB otherwise",
            mib(sent),
            mib(all_reduce),
        ));
    }
    if trainer.model().device() != Device::Cpu {
        lines.push(
            "deterministic on GPUs: products and NCCL leave out what may add up in another order; bench step with and without \
             --deterministic measures what that costs here"
                .to_owned(),
        );
    }
    lines
}

/// Where rows wait for their step, and who makes them ready; nothing where the step itself takes them out of memory.
pub(crate) fn loading(loader: &Loader) -> Option<String> {
    match (loader.is_on_gpu(), loader.n_threads()) {
        (true, _) => Some("rows: all on the GPU, where batches are gathered".to_owned()),
        (false, 0) => None,
        (false, n) => Some(format!("rows: on the host, made ready by {} a rank", count(n, "thread"))),
    }
}

/// The device, by its model's name where it is a GPU, and why it is none where one was hoped for.
fn device_words(choice: &DeviceChoice) -> String {
    match (choice.device, &choice.reason) {
        (Device::Cuda(index), _) => match Gpu::get(index) {
            Ok(gpu) => format!("{} ({})", choice.device, gpu.info().name),
            Err(_) => choice.device.to_string(),
        },
        (Device::Cpu, Some(reason)) => format!("cpu ({reason})"),
        (Device::Cpu, None) => "cpu".to_owned(),
    }
}

/// The data, each embedding and layer, and how gradients travel.
pub(crate) fn details(
    world: &World,
    config: &Config,
    data: &Loaded,
    (model, spec): (&Mlp, &ModelSpec),
) -> String {
    let mut text = format!("train  {}", Summary(&*data.train));
    if let Some(eval) = &data.eval {
        let _ = write!(text, "\neval   {}", Summary(&**eval));
    }
    text += &tables(spec);
    text += "\n\nlayer    in -> out          parameters  then\n";
    for layer in 0..spec.n_layers() {
        let (i, o) = spec.in_out(layer);
        let n_params: usize = [format!("layers.{layer}."), format!("norms.{layer}.")]
            .iter()
            .flat_map(|prefix| ["weight", "bias"].map(|name| format!("{prefix}{name}")))
            .filter_map(|name| model.layout().find(&name))
            .map(|slot| slot.numel())
            .sum();
        let widths = format!("{i} -> {o}");
        let then = after(spec, layer);
        let _ = writeln!(text, "{layer:<8} {widths:<18} {n_params:>10}  {then}");
    }
    let global_rows = config.train.global_rows(world.world_size()).unwrap_or(0);
    let _ = write!(
        text,
        "\n{} a step in {} a rank; {} by \"{}\"",
        count(global_rows.min(data.train.len()), "row"),
        count(config.train.grad_accum_steps, "micro-batch"),
        exchange(world, config, model),
        world.tensor_group().transport(),
    );
    text
}

/// The embeddings, a line each.
fn tables(spec: &ModelSpec) -> String {
    let embeddings = &spec.embeddings;
    let mut text = String::new();
    let width = embeddings.iter().map(|e| e.name.chars().count()).max().unwrap_or(0).max(9);
    for (index, embedding) in embeddings.iter().enumerate() {
        if index == 0 {
            let _ = write!(text, "\n\n{:<width$} {:<17} parameters", "embedding", "codes x width");
        }
        let EmbeddingSpec { name, n_codes, dim } = embedding;
        let _ = write!(text, "\n{name:<width$} {:<17} {:>10}", format!("{n_codes} x {dim}"), n_codes * dim);
    }
    text
}

/// How gradients and weights travel between the ranks.
fn exchange(world: &World, config: &Config, model: &Mlp) -> String {
    let layout = model.layout();
    let updates = ShardPlan::new(world, layout.flat_len(), TrainerOptions::default().divide_update_from);
    if updates.is_divided() {
        return format!(
            "each rank reduces and updates its part of {}",
            count(updates.blocks().len(), "block")
        );
    }
    let buckets = BucketPlan::new(layout, config.comm.bucket_bytes());
    format!("gradients in {}", count(buckets.lens().len(), "bucket"))
}

/// What follows the linear layer.
fn after(spec: &ModelSpec, layer: usize) -> String {
    if !spec.is_hidden(layer) {
        return "output".to_owned();
    }
    let mut parts = Vec::new();
    if spec.layer_norm {
        parts.push("layer norm".to_owned());
    }
    parts.push(spec.activation.to_string());
    if spec.dropout > 0.0 {
        parts.push(format!("dropout {}", spec.dropout));
    }
    if spec.has_residual(layer) {
        parts.push("plus its input".to_owned());
    }
    parts.join(", ")
}

fn count(n: usize, what: &str) -> String {
    match (n, what.ends_with("ch")) {
        (1, _) => format!("1 {what}"),
        (_, true) => format!("{n} {what}es"),
        (_, false) => format!("{n} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;

    use super::*;
    use crate::config::precision::Precision;
    use crate::data;

    #[test]
    fn tells_every_layer() {
        let sets = ["model.dropout=0.5", "model.norm=layer", "train.batch_size=8"];
        let config = Config::load(None, &sets.map(str::to_owned)).unwrap();
        let data = data::load(&config, &World::single()).unwrap();
        let spec = ModelSpec::new(&config.model, 64, 10);
        let model = Mlp::new(spec.clone(), 8, Device::Cpu, Precision::F32).unwrap();
        let world = World::single();
        let text = details(&world, &config, &data, (&model, &spec));
        for part in [
            "train  builtin:digits: 1438 rows x 64 features, 10 classes",
            "eval   builtin:digits: 359 rows",
            "0        64 -> 128                8576  layer norm, relu, dropout 0.5\n",
            "2        64 -> 10                  650  output\n",
            "8 rows a step in 1 micro-batch a rank; gradients in 1 bucket by \"single\"",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let choice = DeviceChoice { device: Device::Cpu, reason: None };
        let line = line(&world, &config, &data, (&model, &spec), &choice);
        assert!(line.starts_with("digits: 1438 rows and 359 for evaluation, 64-128-64-10 layers"));
        assert!(line.contains("1 rank on cpu"), "{line}");
    }

    #[test]
    fn tells_every_embedding() {
        let config = Config::load(None, &[]).unwrap();
        let data = data::load(&config, &World::single()).unwrap();
        let embedding = |name: &str, n_codes| EmbeddingSpec { name: name.to_owned(), n_codes, dim: 3 };
        let embeddings = vec![embedding("zip", 70_001), embedding("day of the week", 8)];
        let spec = ModelSpec::new(&config.model, 64, 10).with_embeddings(embeddings);
        let model = Mlp::new(spec.clone(), 8, Device::Cpu, Precision::F32).unwrap();
        let text = details(&World::single(), &config, &data, (&model, &spec));
        for part in [
            "\n\nembedding       codes x width     parameters\n",
            "\nzip             70001 x 3             210003\n",
            "\nday of the week 8 x 3                     24\n\nlayer ",
            "\n0        68 -> 128                8832  relu\n",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let choice = DeviceChoice { device: Device::Cpu, reason: None };
        let line = line(&World::single(), &config, &data, (&model, &spec), &choice);
        assert!(line.contains(", 2 embeddings, 68-128-64-10 layers ("), "{line}");
    }

    #[test]
    fn a_divided_update_is_told() {
        let config = Config::load(None, &[]).unwrap();
        let told = ddp_comm::threads::run(2, |world| {
            let model = |width| {
                let spec = ModelSpec::plain(&[width, width], Activation::Relu);
                Mlp::new(spec, 1, Device::Cpu, Precision::F32).unwrap()
            };
            [exchange(&world, &config, &model(16)), exchange(&world, &config, &model(2900))]
        });
        for [small, large] in told {
            assert_eq!(small, "gradients in 1 bucket");
            assert!(large.starts_with("each rank reduces and updates its part of 1"), "{large}");
        }
    }

    #[test]
    fn residuals_are_told_where_they_are() {
        let spec = ModelSpec {
            dims: vec![4, 8, 8, 2],
            activation: Activation::Gelu,
            layer_norm: false,
            dropout: 0.0,
            residual: true,
            bias: true,
            embeddings: Vec::new(),
        };
        let after: Vec<_> = (0..3).map(|layer| after(&spec, layer)).collect();
        assert_eq!(after, ["gelu", "gelu, plus its input", "output"]);
    }
}
