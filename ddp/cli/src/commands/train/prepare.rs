//! Prepares a run: (checkpoint ->) config -> world -> device -> data -> model.
//!
//! Each part is local work that ends in one exchange: the ranks vote whether it succeeded everywhere, and compare what must be the
//! same on all of them.

use std::collections::HashMap;

use ddp::config::gpu_features::without_all;
use ddp::config::{
    CommDtype, Config, DataConfig, Determinism, EvalSource, HeadConfig, Overrides, ShortForm, Task,
};
use ddp::cost::memory_plan::{MemoryPlan, RankPlan, keeps_rows_on_device};
use ddp::data::{EmbeddingSpec, LabelVocabulary, Loaded};
use ddp::host_memory::container_share;
use ddp::model::ModelSpec;
use ddp::model::file::ModelFile;
use ddp::optim::run_schedule::RunSchedule;
use ddp::report::notes::warn_of_all_ranks;
use ddp::train::resume::Resumed;
use ddp::train::setup;
use ddp::train::setup::BatchPartition;
use ddp::train::trainer::{GraphMode, Trainer};
use ddp_comm::{DeviceChoice, World};
use ddp_kernels::Device;
use ddp_kernels::cpu::threads;
use ddp_tables::fit::preprocess::Preprocessor;
use ddp_tables::load::Fitted;
use ddp_tables::predict;
use ddp_tables::predict::SavedModel;
use toml::Value;
use tracing::{Level, Span, debug, enabled, info, warn};

use super::banner::{self, Banner};
use super::container::{self, warn_of_container_limit};
use super::outputs::{check_file_system, check_out, is_complete};
use super::pin_device::{self, Pinning, check_graph, pin_device};
use crate::cli::TrainArgs;
use crate::commands::self_check::{self, StartCheck};
use crate::commands::watchdog::{self, Watched};
use crate::commands::{bare_table, warn_if_quick_build};
use crate::error::command::CommandError;
use crate::error::{Error, ModelCommand, Result};
use crate::exit::Stop;
use crate::report::log::Log;
use crate::report::stdout::print_result;

/// A run that is checked on all ranks and ready to train; nothing is written yet.
pub(crate) struct Run<'w> {
    pub(crate) world: &'w World,
    pub(super) log: &'w Log,
    pub(super) args: &'w TrainArgs,
    pub(crate) device: Device,
    pub(crate) data: Loaded,
    pub(crate) plan: Plan,
}

/// Config, model, partition and schedule of the run on this world.
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(super) spec: ModelSpec,
    pub(crate) partition: BatchPartition,
    pub(crate) schedule: RunSchedule,
}

/// The rest of what the trainer of a [`Run`] is built from.
pub(crate) struct Ready {
    choice: DeviceChoice,
    graph: GraphMode,
    start: Start,
    resumed: Option<Resumed>,
}

/// Where the weights come from, if not from the seed or a checkpoint, and the preprocessing that comes with them.
struct Start {
    /// The model of `--init-from`.
    init_from: Option<ModelFile>,
    /// Conversion of the rows of the checkpoint to resume from, or of `--init-from`.
    fitted: Option<Preprocessor>,
}

impl<'w> Run<'w> {
    /// Loads config and data, agrees on them with the other ranks, builds the model, and announces the run. Returns also the
    /// trainer, and the checkpoint that it was restored from.
    pub(crate) fn prepare(
        world: &'w World,
        log: &'w Log,
        args: &'w TrainArgs,
        watched: Watched,
    ) -> Result<(Self, Trainer<'w>, Option<Resumed>), Stop> {
        let (run, ready) = Self::load(world, log, args, watched)?;
        world.collective_result(run.plan.check_container(&run.data, run.device))?;
        let trainer = run.plan.trainer(world, &run.data, run.device, &ready, args);
        let mut trainer = world.collective_result(trainer)?;
        let Ready { choice, start, resumed, .. } = ready;
        let resumed = match resumed {
            Some(resumed) => Some(resumed.restore(world, &run.plan.config, &run.data, &mut trainer)?),
            None => None,
        };
        world.collective_result(run.announce(&trainer, &choice))?;
        run.note_start(&start, resumed.is_some());
        Ok((run, trainer, resumed))
    }

    /// Loads config and data and agrees on them with the other ranks; allocates no model.
    pub(crate) fn load(
        world: &'w World,
        log: &'w Log,
        args: &'w TrainArgs,
        watched: Watched,
    ) -> Result<(Self, Ready), Stop> {
        let resumed = Resumed::find(world, args.resume.as_ref(), args.out.as_deref())?;
        let config = load_config(world, log, args, resumed.as_ref())?;
        let config = decided(world, args, config, resumed.as_ref());
        let config = world.agreed_result(config, |(config, check)| config_entries(args, config, check))?;
        let (config, check) = config;
        if is_complete(world, args, &config, resumed.as_ref())? {
            return Err(Stop::Reported(0));
        }
        watchdog::start(world, log, &config.watchdog, watched)?;
        Span::current().record("run_name", &config.name);

        let choice = pin_device(world, &args.device, pinning(args, &config))?;
        world.watchdog().set_device(&choice.device.to_string());
        world.collective_result(check_file_system(world, args, resumed.as_ref()))?;
        warn_of_container_limit(world, &config.data);
        // Before the data is read, which may take long.
        let is_possible = config.train.precision.ensure_on(choice.device).map_err(Error::from);
        world.collective_result(is_possible)?;
        let mut graph = args.graph_mode();
        if !args.dry_run {
            let without = self_check::at_first_start(world, &check, &config, choice.device)?;
            graph = pin_device::turn_off_named(choice.device, &without, graph)?;
            pin_device::try_launches(world, choice.device)?;
        }
        let start = Start::new(world, args, choice.device, resumed.as_ref())?;
        let config =
            if resumed.is_none() { world.collective_result(start.as_in_model(config))? } else { config };
        let data = start.load_data(world, log, args, &config, resumed.as_ref())?;
        let plan = Plan::new(world, args, config, &data, resumed.as_ref());
        let plan = world.agreed_result(plan, Plan::entries)?;
        let run = Run { world, log, args, device: choice.device, data, plan };
        Ok((run, Ready { choice, graph, start, resumed }))
    }

    /// Reports the run: one line, or all of it at level debug. A dry run prints its config to stdout, and the rest on stderr.
    fn announce(&self, trainer: &Trainer<'_>, choice: &DeviceChoice) -> Result<()> {
        let Run { world, args, device, data, plan, .. } = self;
        let Plan { config, spec, partition, .. } = plan;
        if args.dry_run {
            check_out(world, args)?;
        }
        data.notes().iter().for_each(|note| info!("{note}"));
        let banner = Banner { world, config, data, spec, partition, trainer };
        info!("{}", banner.line(choice, args.share_gpu));
        banner::alone(world, *device, args).iter().for_each(|line| info!("{line}"));
        pin_device::log_features(config, args, trainer, world, *device);
        ddp_tables::open::folder::notes_on_folders(&config.data.train, &config.data.eval)
            .iter()
            .for_each(|note| info!("{note}"));
        // Evaluation rows of the same source have the same columns.
        let of_eval = data.eval.as_ref().filter(|eval| eval.source() != data.train.source());
        for rows in std::iter::once(&data.train).chain(of_eval) {
            rows.layout().left_out.iter().for_each(|note| info!("{}: {note}", rows.source()));
        }
        match &choice.reason {
            Some(why) if expects_gpu() => {
                info!("--device auto chose the CPU: {}\nhint: {}", why.reason, why.hint)
            }
            Some(why) => debug!("--device auto chose the CPU: {}", why.reason),
            None => {}
        }
        if args.dry_run {
            let toml = config.to_toml();
            if args.json {
                info!("{toml}");
            } else if world.rank().0 == 0 && !args.quiet {
                print_result(&toml)?;
            }
            info!("{}", banner.details());
        } else if enabled!(Level::DEBUG) {
            debug!("config of the run:\n{}", config.to_toml().trim_end());
            debug!("data, model and exchange of the run:\n{}", banner.details());
        }
        Ok(())
    }

    /// Reports what a user may not expect of the run's start.
    fn note_start(&self, start: &Start, is_resumed: bool) {
        let Run { world, args, device, data, plan: Plan { config, .. }, .. } = self;
        data.warnings.iter().for_each(|warning| warn!("{warning}"));
        if !is_resumed {
            let warnings = config.without_effect();
            warnings.iter().for_each(|warning| warn_of_all_ranks(world.rank().0, warning));
        }
        if !data.train.source().starts_with("builtin:") {
            warn_if_quick_build(world);
        }
        banner::target_scale(data).iter().for_each(|line| info!("{line}"));
        if let (Some(file), Some(named)) = (&start.init_from, &args.init_from) {
            if file.path() != named {
                info!("initial weights: {}", file.path().display());
            }
            if start.fitted.is_some() && !is_resumed {
                info!(
                    "preprocessing of the rows is that of {}; --refit-preprocessing fits it to the training rows",
                    named.display()
                );
            }
        }
        let replaced = config.train.precision.replaced_on(*device).ok().flatten();
        replaced.iter().for_each(|warning| warn_of_all_ranks(world.rank().0, warning));
        if *device == Device::Cpu && config.comm.dtype != CommDtype::F32 {
            let message = format!(
                "comm.dtype = \"{}\" applies to gradients between GPUs; on the CPU they travel as f32",
                config.comm.dtype
            );
            warn_of_all_ranks(world.rank().0, &message);
        }
        banner::left_out_metrics(config, data)
            .into_iter()
            .chain(banner::alphabetical_orders(config, data))
            .for_each(|warning| warn_of_all_ranks(world.rank().0, &warning));
        if config.data.eval == EvalSource::Unset && !is_resumed {
            info!("no rows are held out for evaluation: --eval-fraction 0.2 evaluates on a fifth of them");
        }
    }
}

/// Whether the machine, or the image of the container, is one for NVIDIA's GPUs.
fn expects_gpu() -> bool {
    let names = |name| std::env::var(name).is_ok_and(|value| !["", "void", "none", "-1"].contains(&&*value));
    ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"].into_iter().any(names)
        || ["/dev/nvidiactl", "/proc/driver/nvidia"].iter().any(|path| std::path::Path::new(path).exists())
}

/// Loads the config of the file, of a bare table or of the resumed run, and applies the flags to it. Collective.
fn load_config(
    world: &World,
    log: &Log,
    args: &TrainArgs,
    resumed: Option<&Resumed>,
) -> Result<Config, Stop> {
    let mut overrides = args.overrides();
    // What is set by name comes after it.
    overrides.sets.splice(0..0, args.safe.then(without_all).into_iter().flatten());
    let short = |key, flag, raw: String, value| ShortForm { key, flag, raw, value };
    overrides.shorts.extend(
        args.comm_dtype
            .map(|dtype| short("comm.dtype", "--comm-dtype", dtype.to_string(), Value::from(dtype.name()))),
    );
    let keeps = resumed.filter(|_| args.keep_schedule).map(Resumed::schedule_steps).transpose();
    let keeps = world.collective_result(keeps.map_err(Error::from))?;
    overrides.shorts.extend(keeps.map(|steps| {
        short("train.schedule_steps", "--keep-schedule", String::new(), Value::from(steps as i64))
    }));
    let Some(resumed) = resumed else {
        let mut run = args.run.clone();
        // Otherwise the initial model decides how rows are read.
        run.plain |= args.init_from.is_some() && !args.refit_preprocessing;
        return bare_table::load_config(world, &run, &overrides, Some(log.terminal()));
    };
    Ok(world.collective_result(config_to_resume(args, &overrides, resumed))?)
}

/// The config of the resumed run, or of the file that it is resumed with.
fn config_to_resume(args: &TrainArgs, overrides: &Overrides, resumed: &Resumed) -> Result<Config> {
    let saved = resumed.config(&Overrides::default())?;
    let config = match args.run.file() {
        Some(file) => as_read_for(Config::load_with(Some(file), overrides)?, &saved.data)?,
        None => resumed.config(&bare_table::to_resume(&args.run, overrides.clone(), &saved))?,
    };
    // The targets have decided when the run began.
    let is_decided = config.data.auto_task && !saved.data.auto_task;
    Ok(if is_decided { config.decided(saved.data.task)? } else { config })
}

/// The config with another one's settings for missing values and categories, unless a file or a flag gives them.
fn as_read_for(mut config: Config, of: &DataConfig) -> Result<Config> {
    let given: Vec<_> = config.given_keys().into_iter().map(|(section, key, _)| (section, key)).collect();
    let marks = Value::from(of.missing_values.clone()).to_string();
    let settings = [("missing", of.missing.name()), ("encode", of.encode.name()), ("missing_values", &marks)];
    for (key, value) in settings {
        if !given.contains(&("data", key)) {
            config = config.with_setting(&format!("data.{key}={value}"))?;
        }
    }
    Ok(config)
}

/// The config with its rows to evaluate on, checked against that of the resumed run.
fn decided(
    world: &World,
    args: &TrainArgs,
    mut config: Config,
    resumed: Option<&Resumed>,
) -> Result<(Config, StartCheck)> {
    ddp_tables::split::own_eval::resolve_eval(&mut config.data)?;
    config.check_unset_eval()?;
    if let Some(resumed) = resumed {
        resumed.check_config(&config, world.world_size())?;
    }
    Ok((config, StartCheck::new(&args.check, args.graph_mode())?))
}

/// Settings on which the ranks agree.
fn config_entries(args: &TrainArgs, config: &Config, check: &StartCheck) -> Vec<(String, String)> {
    let mut entries = config.agreement_entries();
    entries.push(("--dry-run".to_owned(), args.dry_run.to_string()));
    entries.push(("--trace".to_owned(), format!("{:?}", args.trace)));
    entries.push(check.entry());
    entries
}

fn pinning(args: &TrainArgs, config: &Config) -> Pinning {
    let pinning = Pinning {
        share_gpu: args.share_gpu,
        deterministic: config.train.deterministic != Determinism::Off,
        overlap: config.comm.overlap,
        n_threads: args.threads,
        bind: args.bind,
        register_buffers: config.comm.register_buffers,
        without: config.train.gpu_without.clone(),
        trial_timeout: Some(args.check.limit.limit()),
    };
    if args.safe { pinning.without_features() } else { pinning }
}

/// Refuses a model whose outputs have other targets than `config`, or the same ones in another order: weights would meet the wrong targets.
fn check_outputs(file: &ModelFile, config: &Config) -> Result<()> {
    // A file of another program does not say, or in words that this one does not know.
    let Ok(info) = file.info() else { return Ok(()) };
    let Ok(Config { data: saved, .. }) = Config::from_saved(&info.config, file.path()) else { return Ok(()) };
    let (path, data) = (file.path().to_owned(), &config.data);
    let refuse = |reason: String| Err(CommandError::OtherOutputs { path: path.clone(), reason }.into());
    if [&saved, data].iter().all(|of| of.heads.is_empty() && !of.auto_task) && data.task != saved.task {
        return refuse(format!("it is a model for {}, and this run is for {}", saved.task, data.task));
    }
    let (of_model, of_run) = (outputs(&saved), outputs(data));
    for (index, ((_, of_model), (_, of_run))) in of_model.iter().zip(&of_run).enumerate() {
        if let (Some(of_model), Some(of_run)) = (of_model, of_run)
            && of_model != of_run
        {
            return refuse(format!(
                "its target {} is for {of_model}, and this run's for {of_run}",
                index + 1
            ));
        }
    }
    let names =
        |outputs: Vec<(String, Option<Task>)>| outputs.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    match moved(&names(of_model), &names(of_run)) {
        Some(reason) => refuse(reason),
        None => Ok(()),
    }
}

/// Target columns in the order of the outputs, each with its task where that is known.
fn outputs(data: &DataConfig) -> Vec<(String, Option<Task>)> {
    if data.heads.is_empty() {
        let task = (!data.auto_task).then_some(data.task);
        return data.target.iter().map(|column| (column.clone(), task)).collect();
    }
    let of_head = |head: &HeadConfig| {
        head.target.iter().map(|column| (column.clone(), Some(head.task))).collect::<Vec<_>>()
    };
    data.heads.iter().flat_map(of_head).collect()
}

/// Refuses a model that has a class of the rows in another place.
fn check_labels(file: &ModelFile, data: &Loaded) -> Result<()> {
    let Ok(info) = file.info() else { return Ok(()) };
    let of_model = info
        .preprocessor
        .labels
        .iter()
        .chain(info.preprocessor.heads.iter().filter_map(|head| head.labels.as_ref()));
    let layout = data.train.layout();
    let of_heads = layout.targets.heads().iter().filter_map(|head| head.labels.as_ref());
    for (of_model, of_run) in of_model.zip(layout.labels.iter().chain(of_heads)) {
        let names =
            |labels: &LabelVocabulary| labels.labels().map(|label| label.to_string()).collect::<Vec<_>>();
        if let Some(reason) = moved(&names(of_model), &names(of_run)) {
            return Err(CommandError::OtherOutputs { path: file.path().to_owned(), reason }.into());
        }
    }
    Ok(())
}

/// Says which of the names of a model's outputs has another place among those of this run.
fn moved(of_model: &[String], of_run: &[String]) -> Option<String> {
    const SHOWN: usize = 8;
    let places: HashMap<&String, usize> = of_run.iter().enumerate().map(|(at, name)| (name, at)).collect();
    let is_moved = |(at, name): &(usize, &String)| places.get(name).is_some_and(|to| to != at);
    let (_, name) = of_model.iter().enumerate().find(is_moved)?;
    let more = if of_model.len() > SHOWN { ", ..." } else { "" };
    let order = of_model[..of_model.len().min(SHOWN)].join(", ");
    Some(format!("\"{name}\" has another place in it: {order}{more}"))
}

impl Start {
    /// Reads the model of `--init-from`: a file, or the one of a run or checkpoint folder. The ranks agree on it, and on the
    /// preprocessing, which decides how rows are read. Collective.
    fn new(world: &World, args: &TrainArgs, device: Device, resumed: Option<&Resumed>) -> Result<Self, Stop> {
        // A run that resumes has its own weights.
        let path = args.init_from.as_deref().filter(|_| resumed.is_none());
        let is_active = path.map(|path| predict::is_active(world, path)).transpose();
        let is_active = is_active.map_err(Error::from)?.unwrap_or(false);
        let start = || -> Result<Self> {
            check_graph(args.graph_mode(), device)?;
            let init_from = path.map(|path| SavedModel::initial(path, is_active)).transpose()?;
            let fitted = match (resumed, &init_from) {
                // Damage is found when the checkpoint is restored.
                (Some(resumed), _) => {
                    let info = resumed.model_info().ok();
                    info.and_then(|info| Preprocessor::from_model(&info.preprocessor, "".as_ref()).ok())
                }
                // A file of another program has none.
                (None, Some(file)) if !args.refit_preprocessing => {
                    let info = file.info().ok();
                    info.map(|info| Preprocessor::from_model(&info.preprocessor, file.path())).transpose()?
                }
                (None, _) => None,
            };
            Ok(Start { init_from, fitted })
        };
        Ok(world.agreed_result(start(), |start| start.entries(args))?)
    }

    /// Returns the config [as read for](as_read_for) the initial model.
    fn as_in_model(&self, config: Config) -> Result<Config> {
        let Some(file) = self.init_from.as_ref().filter(|_| self.fitted.is_some()) else { return Ok(config) };
        let saved = file.info().ok().and_then(|info| Config::from_saved(&info.config, file.path()).ok());
        saved.map_or(Ok(config.clone()), |saved| as_read_for(config, &saved.data))
    }

    fn entries(&self, args: &TrainArgs) -> Vec<(String, String)> {
        let hex = |fingerprint: Option<u64>| fingerprint.map_or("none".to_owned(), |of| format!("{of:016x}"));
        let fitted = self.fitted.as_ref().map(|fitted| fitted.to_saved().fingerprint());
        let entries = [
            ("--init-from (fingerprint)", hex(self.init_from.as_ref().map(ModelFile::fingerprint))),
            ("--new-head", args.new_head.to_string()),
            ("preprocessing that is kept (fingerprint)", hex(fitted)),
        ];
        entries.map(|(key, value)| (key.to_owned(), value)).to_vec()
    }

    /// Loads the rows, as the model expects them where it is known. Collective.
    fn load_data(
        &self,
        world: &World,
        log: &Log,
        args: &TrainArgs,
        config: &Config,
        resumed: Option<&Resumed>,
    ) -> Result<Loaded, Stop> {
        if let Some(file) = self.init_from.as_ref().filter(|_| !args.new_head) {
            world.collective_result(check_outputs(file, config))?;
        }
        let of_resumed = resumed.map(|resumed| resumed.config_of_data(config));
        let loading = || log.terminal().show_busy(format!("loading {}", config.data.train));
        let _loading = args.progress.may_have_bar().then(loading);
        let fitted = self.fitted.as_ref().map(|fitted| match resumed {
            Some(_) => Fitted::Resumed(fitted),
            None if args.new_head => Fitted::InitialFeatures(fitted),
            None => Fitted::Initial(fitted),
        });
        let keeps_labels = matches!(fitted, Some(Fitted::Initial(_)));
        let data = ddp_tables::load_with(of_resumed.as_ref().unwrap_or(config), world, fitted);
        Ok(data.map_err(|stop| {
            stop.map(|error| {
                if keeps_labels {
                    Error::from_model_data(error, ModelCommand::InitFrom)
                } else {
                    error.into()
                }
            })
        })?)
    }
}

impl Plan {
    /// Checks that config and data continue the resumed run, and that they fit each other and the world.
    fn new(
        world: &World,
        args: &TrainArgs,
        config: Config,
        data: &Loaded,
        resumed: Option<&Resumed>,
    ) -> Result<Self> {
        if let Some(resumed) = resumed {
            resumed.check_data(&config, data)?;
            if !args.allow_batchnorm_change {
                resumed.check_batch_norm(&config, world.world_size())?;
            }
        }
        let is_open = config.loss.is_balanced() || config.data.auto_task;
        let config = data.resolve(config)?;
        if let Some(resumed) = resumed.filter(|_| is_open) {
            resumed.check_config(&config, world.world_size())?;
        }
        Self::of(world, config, data, resumed.map(|resumed| resumed.state().global_rows as usize))
    }

    /// The plan of a resolved config. A resumed run keeps its `global_rows`.
    pub(crate) fn of(
        world: &World,
        config: Config,
        data: &Loaded,
        global_rows: Option<usize>,
    ) -> Result<Self> {
        let partition = BatchPartition::new(&config, world, data, global_rows)?;
        let schedule = setup::schedule(&config, data.train.len(), partition.global_rows)?;
        Ok(Plan { spec: setup::model_spec(&config, data), config, partition, schedule })
    }

    /// Memory of this rank on `device`.
    pub(crate) fn memory(&self, data: &Loaded, device: Device) -> Result<MemoryPlan> {
        let Plan { config, spec, partition, .. } = self;
        Ok(MemoryPlan::new(&RankPlan {
            config,
            data,
            spec,
            partition: *partition,
            zero: config.comm.zero,
            device,
            keeps_rows_on_device: keeps_rows_on_device(config, data, device)?,
            n_threads: threads::current(),
        }))
    }

    /// The model, of which the layers come from the config, on which the ranks agree already.
    fn entries(&self) -> Vec<(String, String)> {
        let ModelSpec { dims, embeddings, .. } = &self.spec;
        let entries = [
            (
                "widths of the model's layers",
                dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
            ),
            (
                "embeddings of the model",
                embeddings.iter().map(EmbeddingSpec::words).collect::<Vec<_>>().join(", "),
            ),
        ];
        entries.map(|(key, value)| (key.to_owned(), value)).to_vec()
    }

    /// Builds model and trainer, with the weights of the seed or of `--init-from`. Collective.
    pub(crate) fn trainer<'w>(
        &self,
        world: &'w World,
        data: &Loaded,
        device: Device,
        ready: &Ready,
        args: &TrainArgs,
    ) -> Result<Trainer<'w>> {
        let mut trainer = setup::trainer(world, ready.graph, &self.config, data, &self.partition, device)?;
        if let Some(file) = &ready.start.init_from {
            if !args.new_head {
                check_outputs(file, &self.config)?;
                check_labels(file, data)?;
            }
            setup::init_from(&mut trainer, file, args.new_head)?;
        }
        Ok(trainer)
    }

    /// Checks that the memory of this rank fits its share of the container, before it is allocated.
    ///
    /// # Errors
    /// [`CommandError::ContainerTooSmall`](crate::error::command::CommandError::ContainerTooSmall)
    pub(crate) fn check_container(&self, data: &Loaded, device: Device) -> Result<()> {
        let Some(allowed) = container_share() else { return Ok(()) };
        Ok(container::check(&self.memory(data, device)?, device, allowed)?)
    }
}
