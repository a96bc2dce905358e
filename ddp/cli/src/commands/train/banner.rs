//! Report at the start of a run: always one line, all of it with `-v` and `--dry-run`.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use ddp::config::{Config, DataConfig, Determinism, EvalSource, Loss};
use ddp::data::loader::DataLoader;
use ddp::data::order::partition::PartitionKind;
use ddp::data::{Dataset, Label, LabelVocabulary, Loaded, Summary};
use ddp::model::{EmbeddingSpec, Layer, ModelSpec, layers};
use ddp::report::units::grouped;
use ddp::report::visible::shell_word;
use ddp::train::metrics::request::MetricRequest;
use ddp::train::setup::BatchPartition;
use ddp::train::trainer::{ExchangeBytes, Trainer};
use ddp_comm::{DeviceChoice, World};
use ddp_kernels::Device;
use ddp_kernels::cpu::threads;
use ddp_kernels::cuda::{Gpu, Unavailable};
use ddp_tables::split::own_eval::holds_eval_rows;

use crate::cli::TrainArgs;
use crate::report::stdout::{count, table};

/// The run to report.
#[derive(Clone, Copy)]
pub(crate) struct Banner<'a> {
    pub(crate) world: &'a World,
    pub(crate) config: &'a Config,
    pub(crate) data: &'a Loaded,
    pub(crate) spec: &'a ModelSpec,
    pub(crate) partition: &'a BatchPartition,
    pub(crate) trainer: &'a Trainer<'a>,
}

impl Banner<'_> {
    /// The run in one line: rows, widths, ranks, device.
    pub(crate) fn line(&self, device: &DeviceChoice, share_gpu: bool) -> String {
        let Banner { world, config, data, spec, trainer, .. } = *self;
        let widths: Vec<_> = spec.dims.iter().map(ToString::to_string).collect();
        let embeddings = match spec.embeddings.len() {
            0 => String::new(),
            n => format!("{}, ", count(n, "embedding")),
        };
        let eval = data
            .eval
            .as_ref()
            .map_or(String::new(), |eval| format!(" and {} for evaluation", whole(eval.len())));
        format!(
            "{}: {} rows{eval}, {embeddings}{} layers ({} parameters), {}, {} each",
            config.name,
            whole(data.train.len()),
            widths.join("-"),
            whole(trainer.model().layout().n_params()),
            place_words(world, device.device, share_gpu),
            count(threads::current(), "thread"),
        )
    }

    /// The data, each embedding and layer, and the exchange of gradients.
    pub(crate) fn details(&self) -> String {
        let Banner { world, data, spec, .. } = *self;
        let mut text = format!("train  {}", Summary(&*data.train));
        if let Some(eval) = &data.eval {
            let _ = write!(text, "\neval   {}", Summary(&**eval));
        }
        if let Some(labels) = data.labels() {
            let order = if self.config.loss == Loss::Ordinal { "in order, the lowest first: " } else { "" };
            let _ = write!(text, "\nclasses {order}{}", labels.summary());
        }
        for head in data.head_lines(&self.config.loss) {
            let _ = write!(text, "\nhead   {head}");
        }
        text += &tables(spec);
        text += &if spec.layers.is_empty() { self.linear_layers() } else { self.all_layers() };
        let global_rows = self.partition.global_rows.min(data.train.len());
        let batch = match self.partition.train.kind {
            PartitionKind::Ranks { n_micro } => format!("{} per rank", count(n_micro, "micro-batch")),
            PartitionKind::SharedMicroBatches { n_micro } => {
                format!("{} over all ranks", count(n_micro, "micro-batch"))
            }
            PartitionKind::MicroShards { n_shards } => {
                format!("{} over all ranks", count(n_shards, "micro-shard"))
            }
        };
        let _ = write!(
            text,
            "\n{} per step in {batch}\nexchange: {}",
            count(global_rows, "row"),
            self.exchange(),
        );
        if world.world_size() > 1 {
            let _ = write!(text, " over \"{}\"", world.tensor_group().transport());
        }
        text
    }

    /// The linear layers of a perceptron, each with the operations after it.
    fn linear_layers(&self) -> String {
        let (spec, layout) = (self.spec, self.trainer.model().layout());
        let row = |layer: usize| {
            let (i, o) = spec.in_out(layer);
            let n_params: usize = [format!("layers.{layer}."), format!("norms.{layer}.")]
                .iter()
                .flat_map(|prefix| ["weight", "bias"].map(|name| format!("{prefix}{name}")))
                .filter_map(|name| layout.find(&name))
                .map(|slot| slot.numel())
                .sum();
            vec![layer.to_string(), format!("{i} -> {o}"), n_params.to_string(), after(spec, layer)]
        };
        let rows: Vec<_> = (0..spec.n_layers()).map(row).collect();
        format!("\n\n{}", table(&["<layer", "<in -> out", "parameters", "<then"], &rows))
    }

    /// The layers of a model that lists them.
    fn all_layers(&self) -> String {
        let row = |layer: &dyn Layer| {
            let n_params: usize = layer.parameters().iter().map(|p| p.dims.iter().product::<usize>()).sum();
            vec![layer.describe(), n_params.to_string()]
        };
        let rows: Vec<_> = layers::from_spec(self.spec).iter().map(|layer| row(&**layer)).collect();
        format!("\n\n{}", table(&["<layer", "parameters"], &rows))
    }

    /// The collectives of a step, and the bytes that this rank sends in them.
    fn exchange(&self) -> String {
        let n_passes = match self.partition.train.kind {
            PartitionKind::Ranks { n_micro } | PartitionKind::SharedMicroBatches { n_micro } => n_micro,
            PartitionKind::MicroShards { .. } => self.partition.train.own_micro_shards().len(),
        };
        let collectives = self.trainer.exchange().describe(n_passes);
        if self.world.world_size() == 1 {
            return collectives;
        }
        let sent = mib(self.trainer.exchange_bytes(n_passes).sent);
        let every = self.config.comm.zero_copies_every_steps;
        let is_on_gpu = self.trainer.model().device() != Device::Cpu;
        let copies = if is_on_gpu && self.config.comm.zero_copies > 0 {
            format!("; shards copied to another rank's host memory every {}", count(every as usize, "step"))
        } else {
            String::new()
        };
        format!("{collectives}; {sent:.3} MiB sent per rank and step{copies}")
    }
}

/// Reports the cost of determinism; nothing where it is free.
pub(crate) fn determinism(config: &Config, partition: &BatchPartition, trainer: &Trainer<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if config.train.deterministic == Determinism::Off {
        return lines;
    }
    if let PartitionKind::MicroShards { n_shards } = partition.train.kind {
        let own = partition.train.own_micro_shards().len();
        let ExchangeBytes { sent, all_reduce } = trainer.exchange_bytes(own);
        lines.push(format!(
            "deterministic for any number of ranks: {n_shards} micro-shards per step, {own} of them on this rank; it sends {:.1} MiB per \
             step, {:.1} MiB with an all-reduce",
            mib(sent),
            mib(all_reduce),
        ));
    }
    if trainer.model().device() != Device::Cpu {
        lines.push(
            "deterministic on GPUs: matmuls and NCCL avoid algorithms whose order of summation varies; `ddp-train bench step` with and \
             without --deterministic measures the cost"
                .to_owned(),
        );
    }
    lines
}

/// Reports the units of losses where targets are standardized.
pub(crate) fn target_scale(data: &Loaded) -> Option<String> {
    let scale = data.preprocessor.target_scale.as_ref()?;
    let (shift, spread) = match (scale.shift.as_slice(), scale.scale.as_slice()) {
        ([shift], [spread]) => (significant(*shift), significant(*spread)),
        _ => ("its mean".to_owned(), "its standard deviation".to_owned()),
    };
    Some(format!(
        "targets are standardized, (target - {shift}) / {spread}: losses are in these units, other metrics and predictions in yours"
    ))
}

/// A number with six decimals, or with an exponent where they do not show it.
fn significant(value: f64) -> String {
    match value.abs() {
        0.0 | 1e-2..1e9 => format!("{value:.6}"),
        _ => format!("{value:.6e}"),
    }
}

/// Operations of a step below which its kernels take longer to launch than to compute: a step launches at least eight, of 4 to 6 us
/// each, in which one core of a CPU computes as much.
const LAUNCH_BOUND_FLOP: u64 = 5_000_000;

/// Reports a step on a GPU that is likely slower there than on the CPU.
pub(crate) fn launch_bound(
    world: &World,
    spec: &ModelSpec,
    partition: &BatchPartition,
    device: Device,
) -> Option<String> {
    let rows = partition.global_rows.div_ceil(world.world_size());
    let flop = spec.flop_per_row() * rows as u64;
    (device != Device::Cpu && flop < LAUNCH_BOUND_FLOP).then(|| {
        let mflop = flop as f64 * 1e-6;
        format!(
            "a step of {} computes {mflop:.1} MFLOP per GPU, which takes less time than launching its kernels\n\
             hint: a larger train.batch_size makes better use of the GPU; --device cpu is likely faster at this size",
            count(rows, "row"),
        )
    })
}

/// Warnings about metrics that the evaluations of the run leave out for its classes.
pub(crate) fn left_out_metrics(config: &Config, data: &Loaded) -> Vec<String> {
    let of_rows = |rows: &Arc<dyn Dataset>| {
        let [_, of_last] = config.metrics();
        let request = MetricRequest::new(config.data.task, of_last).in_units_of(&config.loss, rows.layout());
        request.left_out(rows.layout().targets.n_outputs())
    };
    data.eval.as_ref().map(of_rows).unwrap_or_default()
}

/// Warns of ordered classes whose order no setting states: texts are in alphabetical order.
pub(crate) fn alphabetical_orders(config: &Config, data: &Loaded) -> Vec<String> {
    let warning = |name: &str, labels: &LabelVocabulary, hint: &str| {
        const SHOWN: usize = 8;
        let texts: Vec<String> = labels
            .labels()
            .filter_map(|label| if let Label::Text(text) = label { Some(text) } else { None })
            .collect();
        // Labels such as "1 low" state it.
        let is_numbered = texts.iter().all(|text| text.starts_with(|first: char| first.is_ascii_digit()));
        let is_alphabetical = !is_numbered && texts.is_sorted();
        let names: Vec<String> = labels.labels().take(SHOWN).map(|label| format!("\"{label}\"")).collect();
        let order = names.join(" < ") + if labels.len() > SHOWN { " < ..." } else { "" };
        is_alphabetical.then(|| {
            format!(
                "the ordinal loss of {name} takes its labels in alphabetical order: {order}\nhint: {hint}"
            )
        })
    };
    match &config.loss {
        Loss::Ordinal if config.data.class_order.is_empty() => {
            let name = config.data.target.first().map_or("the labels", String::as_str);
            let hint = "state the order by data.class_order, the lowest first";
            data.labels().and_then(|labels| warning(name, labels, hint)).into_iter().collect()
        }
        Loss::Heads(losses) => {
            let heads = data.train.layout().targets.heads();
            let ordered = losses.iter().zip(heads).filter(|(of, _)| of.loss == Loss::Ordinal);
            let hint = "let labels begin with numbers, such as \"1 low\": a head has no order of its own";
            ordered.filter_map(|(_, head)| warning(&head.name, head.labels.as_deref()?, hint)).collect()
        }
        _ => Vec::new(),
    }
}

/// Warns of evaluation rows that are the training rows.
pub(crate) fn same_rows(data: &DataConfig) -> Option<String> {
    let EvalSource::Source(eval) = &data.eval else { return None };
    let file = |source: &str| Path::new(source).canonicalize().ok();
    let is_same = *eval == data.train || file(eval).is_some_and(|eval| file(&data.train) == Some(eval));
    // The rows of a built-in set are its test rows, as are those next to the training rows; labels of their own make other rows.
    let is_other = eval.starts_with("builtin:")
        || data.eval_labels.is_some() && data.eval_labels != data.labels
        || is_same && holds_eval_rows(data, None).unwrap_or(false);
    (is_same && !is_other).then(|| {
        format!(
            "data.eval is data.train, `{eval}`: evaluation says nothing about rows that the model has not seen\n\
             hint: use `data.eval_fraction = 0.2` instead, or name other rows"
        )
    })
}

/// Reports where the rows are kept and how many threads prepare them; nothing where a step reads them directly from memory.
pub(crate) fn loading(loader: &DataLoader) -> Option<String> {
    match (loader.is_on_gpu(), loader.n_threads()) {
        (true, _) if loader.is_copied_slowly() => Some(
            "rows: all on the GPU, which gathers the batches; they were copied through plain memory, since the host has no \
             page-locked memory left"
                .to_owned(),
        ),
        (true, _) => Some("rows: all on the GPU, which gathers the batches".to_owned()),
        (false, 0) => None,
        (false, n) => Some(format!("rows: on the host, prepared by {} per rank", count(n, "thread"))),
    }
}

fn whole(n: usize) -> String {
    grouped(n as u64)
}

/// The ranks and their devices, with the product name of a GPU.
fn place_words(world: &World, device: Device, share_gpu: bool) -> String {
    let ranks = count(world.world_size(), "rank");
    let Device::Cuda(index) = device else { return format!("{ranks} on cpu") };
    let name = Gpu::get(index).map_or(String::new(), |gpu| format!(" ({})", gpu.info().name));
    let n_here = if world.local_size() == world.world_size() { world.local_size() } else { 0 };
    let gpus = gpus_words(world.world_size(), n_here, index, Gpu::count(), share_gpu);
    format!("{ranks}{gpus}{name}")
}

/// The GPUs of a run: `on cuda:0` for one rank, `one GPU each: cuda:0 and 1` for two.
///
/// - `n_here`: the ranks of this host, if all are here, else 0
/// - `n_gpus`: the GPUs that this rank sees; a launcher may show one to each
fn gpus_words(world_size: usize, n_here: usize, index: u32, n_gpus: usize, share_gpu: bool) -> String {
    match (world_size, n_here) {
        (1, _) => format!(" on cuda:{index}"),
        _ if share_gpu && (n_gpus == 1 || n_gpus < n_here) => match n_gpus {
            1 => format!(" that share cuda:{index}"),
            n => format!(" that share {n} GPUs"),
        },
        (_, 2) if n_gpus >= 2 => ", one GPU each: cuda:0 and 1".to_owned(),
        (_, 3..) if n_gpus >= n_here => format!(", one GPU each: cuda:0 to {}", n_here - 1),
        _ => ", one GPU each".to_owned(),
    }
}

/// Reports a process that is alone in a job of several tasks, or next to GPUs that it leaves idle.
pub(crate) fn alone(world: &World, device: Device, args: &TrainArgs) -> Option<String> {
    if world.world_size() > 1 || world.launcher().is_some() {
        return None;
    }
    let run = args.run.run.as_ref().map_or("...".to_owned(), shell_word);
    let n_tasks = std::env::var("SLURM_NTASKS").ok().and_then(|n| n.trim().parse::<usize>().ok());
    if let Some(n_tasks) = n_tasks.filter(|n| *n > 1) {
        return Some(format!(
            "one process in a Slurm job of {n_tasks} tasks: `ddp-train launch -- {run}` or `srun ddp-train train {run}` starts a rank in each"
        ));
    }
    let n_gpus = Gpu::count();
    let is_chosen = args.device.contains(':');
    (device != Device::Cpu && n_gpus > 1 && !is_chosen)
        .then(|| format!("uses 1 of {n_gpus} GPUs; all of them: `ddp-train launch -- {run}`"))
}

/// Why `auto` chose the CPU although there is a driver, and the fix, in one line. A machine without a driver is as expected.
pub(crate) fn unused_gpu(choice: &DeviceChoice) -> Option<String> {
    let Unavailable { reason, hint, has_driver, .. } = choice.reason.as_ref()?;
    has_driver.then(|| format!("no GPU is used: {reason}; to use one: {hint}"))
}

/// The embeddings, one line each.
fn tables(spec: &ModelSpec) -> String {
    if spec.embeddings.is_empty() {
        return String::new();
    }
    let row = |EmbeddingSpec { name, n_codes, dim }: &EmbeddingSpec| {
        vec![name.clone(), format!("{n_codes} x {dim}"), (n_codes * dim).to_string()]
    };
    let rows: Vec<_> = spec.embeddings.iter().map(row).collect();
    format!("\n\n{}", table(&["<embedding", "<codes x width", "parameters"], &rows).trim_end())
}

/// The operations after a linear layer.
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

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
#[path = "banner_tests.rs"]
mod tests;
