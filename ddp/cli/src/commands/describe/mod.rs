//! `ddp-train describe`: layers, FLOPs and memory of a run, for any number of ranks, without training.

use std::fmt::Write as _;

use ddp::config::{Config, Loss, ZeroStage};
use ddp::cost::memory_plan::{MemoryKind, MemoryPlan, RankPlan};
use ddp::cost::step_traffic::StepTraffic;
use ddp::data::{LabelVocabulary, Loaded};
use ddp::model;
use ddp::model::ModelSpec;
use ddp::report::metrics::json_line;
use ddp::report::units;
use ddp::train::setup;
use ddp_comm::World;
use ddp_kernels::Device;
use ddp_kernels::cuda::Gpu;
use serde::Serialize;

use crate::cli::DescribeArgs;
use crate::commands::bare_table::load_config;
use crate::commands::train::join_share;
use crate::error::{Error, Result};
use crate::exit::Stop;
use crate::report::stdout::{print_result, table};

/// Prints the description of the run, on rank 0.
///
/// # Errors
/// [`ddp::Error::Config`], [`ddp::Error::Data`], and the errors that would keep the run from training.
pub fn describe(world: &World, args: &DescribeArgs) -> Result<(), Stop> {
    // As training does: its loader has buffers for each.
    join_share(world, None)?;
    let mut overrides = args.run.overrides();
    overrides.sets.extend(args.zero.map(|zero| format!("comm.zero={zero}")));
    let config = load_config(world, &args.run, &overrides, None)?;
    let data = ddp_tables::load(&config, world)?;
    let config = world.collective_result(data.resolve(config).map_err(Error::from))?;
    let world_size = args.world_size.unwrap_or(world.world_size());
    let report = world.collective_result(Report::new(&config, &data, world_size, device(&args.device)))?;
    let printed = match world.rank().0 {
        0 => print_result(&if args.json { json_line(&report) } else { report.to_text() }),
        _ => Ok(()),
    };
    Ok(world.collective_result(printed)?)
}

/// The device to describe: the first GPU for `cuda`, even if there is none.
fn device(request: &str) -> Device {
    match request {
        "cpu" => Device::Cpu,
        "auto" if Gpu::count() == 0 => Device::Cpu,
        _ => Device::Cuda(request.strip_prefix("cuda:").and_then(|index| index.parse().ok()).unwrap_or(0)),
    }
}

/// Description of a run; one JSON object.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    name: String,
    /// Task of the model.
    task: &'static str,
    /// Reason for the task, where the targets decided on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_reason: Option<String>,
    /// Labels of the classes, in the order of the outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<LabelVocabulary>,
    /// Task, loss and targets of each head, for a model of several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    heads: Vec<String>,
    /// Name of the loss.
    loss: &'static str,
    device: &'static str,
    precision: &'static str,
    world_size: usize,
    /// `comm.zero` of the config.
    zero: u8,
    global_rows: usize,
    /// Rows of the largest forward pass of a rank.
    max_pass_rows: usize,
    /// One line per layer, in forward order.
    layers: Vec<String>,
    parameters: Vec<Parameter>,
    n_parameters: usize,
    flop: Flop,
    memory: Vec<Memory>,
    /// Bytes that a rank reads and writes in a step, one entry per ZeRO stage.
    traffic: Vec<StepTraffic>,
}

#[derive(Debug, Serialize)]
struct Parameter {
    name: String,
    shape: Vec<usize>,
    n_parameters: usize,
}

/// FLOPs of the matmuls; a multiply-add counts 2.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(crate) struct Flop {
    /// Forward, per row: 2 per weight.
    forward_a_row: usize,
    /// Backward, per row: 4 per weight, 2 in the first layer if its input needs no gradient.
    backward_a_row: usize,
    /// Forward and backward, per optimizer step over all ranks.
    a_step: usize,
}

/// Memory of a rank under one ZeRO stage.
#[derive(Debug, Serialize)]
struct Memory {
    zero: u8,
    bytes: Vec<Bytes>,
    device_bytes: usize,
    total_bytes: usize,
    /// Optional scratch on the device, in no total.
    optional_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Bytes {
    what: &'static str,
    /// `device` where the model computes, else `host`.
    place: &'static str,
    bytes: usize,
}

impl Report {
    /// Describes a run of `config` on these rows and `world_size` ranks.
    ///
    /// # Errors
    /// See [`RankPlan::new`].
    pub(crate) fn new(config: &Config, data: &Loaded, world_size: usize, device: Device) -> Result<Self> {
        let spec = setup::model_spec(config, data);
        let plan = RankPlan::new(config, data, &spec, world_size, device)?;
        let global_rows = plan.global_rows();
        let params = plan.layout();
        let parameters = params.forward_order().into_iter().map(|slot| Parameter {
            name: slot.name.clone(),
            shape: slot.dims.clone(),
            n_parameters: slot.numel(),
        });
        Ok(Report {
            name: config.name.clone(),
            task: config.data.task.name(),
            task_reason: data.task_choice.as_ref().map(|choice| choice.reason.clone()),
            labels: data.labels().cloned(),
            heads: data.head_lines(&config.loss),
            loss: config.loss.name(),
            device: if device == Device::Cpu { "cpu" } else { "cuda" },
            precision: config.train.precision.name(),
            world_size,
            zero: config.comm.zero.number(),
            global_rows,
            max_pass_rows: plan.partition.max_rows,
            layers: model::layers::from_spec(&spec).iter().map(|layer| layer.describe()).collect(),
            parameters: parameters.collect(),
            n_parameters: params.n_params(),
            flop: Flop::new(&spec, global_rows),
            memory: ZeroStage::ALL.map(|zero| Memory::new(&RankPlan { zero, ..plan.clone() })).into(),
            traffic: ZeroStage::ALL.map(|zero| StepTraffic::new(&RankPlan { zero, ..plan.clone() })).into(),
        })
    }

    /// Formats the description as text.
    fn to_text(&self) -> String {
        let mut rows: Vec<Vec<String>> = self.parameters.iter().map(Parameter::cells).collect();
        rows.push(vec!["total".to_owned(), String::new(), grouped(self.n_parameters)]);
        let reason = self.task_reason.as_ref().map_or(String::new(), |reason| format!(", {reason}"));
        let mut text = format!("task: {}{reason}\n", self.task);
        if let Some(labels) = &self.labels {
            let order = if self.loss == Loss::Ordinal.name() { " in order, the lowest first" } else { "" };
            let _ = writeln!(text, "{} classes{order}: {}", labels.len(), labels.summary());
        }
        self.heads.iter().for_each(|head| text += &format!("head {head}\n"));
        let _ = write!(text, "layers: {}\n\n", self.layers.join("; "));
        text += &table(&["<parameter", "<shape", "elements"], &rows);
        let Flop { forward_a_row, backward_a_row, a_step } = self.flop;
        let _ = writeln!(
            text,
            "\nFLOPs per row: {} forward, {} backward; per step of {} rows: {}",
            grouped(forward_a_row),
            grouped(backward_a_row),
            grouped(self.global_rows),
            grouped(a_step),
        );
        let _ = writeln!(
            text,
            "\nMiB on rank 0 of {}, on {} in {}, up to {} rows per batch; the config sets comm.zero = {}\n",
            self.world_size,
            self.device,
            self.precision,
            grouped(self.max_pass_rows),
            self.zero,
        );
        let kinds = &self.memory[0].bytes;
        let cells = |what: &str, place: &str, bytes: &dyn Fn(&Memory) -> usize| {
            let figures = self.memory.iter().map(|memory| mib(bytes(memory)));
            [what.to_owned(), place.to_owned()].into_iter().chain(figures).collect::<Vec<_>>()
        };
        let mut rows: Vec<_> = kinds
            .iter()
            .enumerate()
            .map(|(index, kind)| cells(kind.what, kind.place, &|memory| memory.bytes[index].bytes))
            .collect();
        rows.push(cells("total", "device", &|memory| memory.device_bytes));
        rows.push(cells("", "host", &|memory| memory.total_bytes - memory.device_bytes));
        text += &table(&["<memory", "<where", "zero 0", "zero 1", "zero 2"], &rows);
        let optional = self.memory[0].optional_bytes;
        if optional > 0 {
            let _ = writeln!(
                text,
                "\noptional: {} MiB of scratch on the device, allocated only if it makes steps faster and 256 MiB are free",
                mib(optional)
            );
        }
        text += "\nMiB moved per step by rank 0, each operand once, as if nothing were cached\n\n";
        let kinds = self.traffic[0].kinds().into_iter().enumerate();
        let rows = kinds.map(|(index, (name, place, _))| {
            let figures = self.traffic.iter().map(|traffic| mib(traffic.kinds()[index].2));
            [name.to_owned(), place.to_owned()].into_iter().chain(figures).collect::<Vec<_>>()
        });
        text += &table(&["<moved", "<where", "zero 0", "zero 1", "zero 2"], &rows.collect::<Vec<_>>());
        text
    }
}

impl Parameter {
    fn cells(&self) -> Vec<String> {
        let shape: Vec<_> = self.shape.iter().map(usize::to_string).collect();
        vec![self.name.clone(), shape.join(" x "), grouped(self.n_parameters)]
    }
}

impl Flop {
    /// FLOPs of this model; a step has `global_rows` rows.
    pub(crate) fn new(spec: &ModelSpec, global_rows: usize) -> Self {
        let model::Flop { forward: forward_a_row, backward: backward_a_row } =
            model::Flop::per_row(&model::layers::from_spec(spec));
        Flop { forward_a_row, backward_a_row, a_step: (forward_a_row + backward_a_row) * global_rows }
    }
}

impl Memory {
    fn new(rank: &RankPlan<'_>) -> Self {
        let plan = MemoryPlan::new(rank);
        let bytes = MemoryKind::ALL.map(|kind| Bytes {
            what: kind.name(),
            place: if kind.memory_use().is_some() { "device" } else { "host" },
            bytes: plan.of(kind),
        });
        Memory {
            zero: rank.zero.number(),
            bytes: bytes.into(),
            device_bytes: plan.on_device(),
            total_bytes: plan.total(),
            optional_bytes: plan.optional,
        }
    }
}

/// Formats bytes in MiB.
pub(super) fn mib(bytes: usize) -> String {
    format!("{:.3}", bytes as f64 / f64::from(1 << 20))
}

/// Formats a number with commas between thousands.
pub(super) fn grouped(number: usize) -> String {
    units::grouped(number as u64)
}

#[cfg(test)]
mod tests {
    use ddp::model::EmbeddingSpec;
    use ddp_kernels::ops::Activation;

    use super::*;

    fn report(sets: &[&str], world_size: usize, device: Device) -> Report {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(None, &sets).unwrap();
        let data = ddp_tables::load(&config, &World::single()).unwrap();
        Report::new(&config, &data, world_size, device).unwrap()
    }

    #[test]
    fn reports_parameters_flops_and_memory() {
        let text = report(&["train.batch_size=8"], 4, Device::Cpu).to_text();
        for part in [
            "parameter        shape     elements\n",
            "\nlayers.0.weight  128 x 64     8,192\n",
            "\nlayers.2.bias    10              10\n",
            "\ntotal                        17,226\n",
            "\nFLOPs per row: 34,048 forward, 51,712 backward; per step of 32 rows: 2,744,320\n",
            "\nMiB on rank 0 of 4, on cpu in f32, up to 90 rows per batch; the config sets comm.zero = 0\n",
            "\nmemory           where   zero 0  zero 1  zero 2\n",
            "\noptimizer        device   0.131   0.033   0.033\n",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn reports_the_layers_of_a_list() {
        let sets = ["model.kind=swiglu", "model.hidden=[24]", "model.dropout=0.1", "train.batch_size=8"];
        let text = report(&sets, 1, Device::Cpu).to_text();
        for part in [
            "\nlayers: linear 64 -> 24; skip begins; rms norm; linear 24 -> 64; swiglu; dropout 0.1; linear 32 -> 24; \
             dropout 0.1; plus the value where the skip began; rms norm; linear 24 -> 10\n",
            "\nnorms.0.weight   24             24\n",
            "\nlayers.1.weight  64 x 24     1,536\n",
            "\nlayers.2.weight  24 x 32       768\n",
            "\nFLOPs per row: 8,160 forward, 13,248 backward;",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn an_impossible_run_is_refused() {
        let refused = |sets: &[&str], world_size: usize, device: Device| {
            let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
            let config = Config::load(None, &sets).unwrap();
            let data = ddp_tables::load(&config, &World::single()).unwrap();
            Report::new(&config, &data, world_size, device).expect_err("refused").to_string()
        };
        for (sets, world_size, want) in [
            (&["train.deterministic=world"][..], 16, "16 ranks, but `train.micro_shards` splits"),
            (&[], 1439, "builtin:digits: 1438 training rows, fewer than the 1439 ranks"),
            (&["train.deterministic=world", "comm.zero=2"], 2, "`train.deterministic = \"world\"` sums"),
            (
                &["comm.dtype=bf16", "comm.zero=2"],
                2,
                "`comm.zero = 2` reduces gradients in every micro-batch",
            ),
            (&["optimizer.groups=[{match=\"layer.*\"}]"], 2, "no parameter matches \"layer.*\""),
            (
                &["schedule.kind=wsd", "schedule.warmup_steps=4", "schedule.decay_steps=4", "train.steps=5"],
                2,
                "the schedule \"wsd\" takes 4 + 4 steps",
            ),
        ] {
            let message = refused(sets, world_size, Device::Cuda(0));
            assert!(message.contains(want), "no {want:?} in {message}");
        }
    }

    #[test]
    fn zero_shards_state_and_gradients() {
        for device in [Device::Cpu, Device::Cuda(0)] {
            let sets = ["data.eval=none", "train.ema_decay=0.9", "comm.zero=1", "comm.bucket_mib=0.001"];
            let small = report(&sets, 4, device);
            assert_eq!(small.zero, 1);
            let of = |zero: usize, what: &str| {
                small.memory[zero].bytes.iter().find(|bytes| bytes.what == what).unwrap().bytes
            };
            // Each rank gathers the average, and keeps the weights that it replaces, for evaluations and the model's file.
            let gathered = of(0, "average") / 3 * 2;
            for (what, gathered) in [("optimizer", 0), ("average", gathered)] {
                // The ranks' shards are padded to cache lines of each layer.
                let (whole, part) = (of(0, what) - gathered, of(1, what) - gathered);
                assert!(part * 4 >= whole && part * 4 <= whole + whole / 20, "{what}: {part} of {whole}");
            }
            assert_eq!(of(0, "activations"), of(1, "activations"));
            let layers = format!("model.hidden=[{}]", ["64"; 40].join(","));
            // In registered memory each bucket would have whole steps of 2 MiB.
            let deep = [sets.as_slice(), &[layers.as_str(), "comm.register_buffers=off"]].concat();
            let deep = report(&deep, 4, device);
            let gradients = |zero: usize| deep.memory[zero].bytes[MemoryKind::Gradients as usize].bytes;
            // A quarter, and two buckets of a layer each.
            let want = gradients(0) / 4 + 2 * gradients(0) / 41;
            assert!(gradients(2).abs_diff(want) < want / 20, "{} of {}", gradients(2), gradients(0));
        }
    }

    #[test]
    fn embeddings_need_the_gradient_of_the_first_input() {
        let spec = ModelSpec::plain(&[10, 20, 3], Activation::Relu);
        let flop = Flop::new(&spec, 7);
        assert_eq!((flop.forward_a_row, flop.backward_a_row), (2 * 260, 2 * 260 + 2 * 60));
        assert_eq!(flop.a_step, 7 * (4 * 260 + 120));
        let embedding = EmbeddingSpec { name: "zip".to_owned(), n_codes: 100, dim: 4 };
        let flop = Flop::new(&spec.with_embeddings(vec![embedding]), 1);
        // Nine numbers and the four of the table.
        let n_weights = 13 * 20 + 60;
        assert_eq!((flop.forward_a_row, flop.backward_a_row), (2 * n_weights, 4 * n_weights));
    }
}
