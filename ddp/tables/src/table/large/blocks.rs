//! Rows of Parquet files that exceed the memory, decoded one row group at a time.

use std::io;
use std::ops::Range;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use ddp::config::{DataConfig, Task};
use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::{Dataset, RowLayout, TargetLayout};
use ddp::data::datasets::resident::TargetSlice;
use ddp::data::error::Result;
use ddp::data::parallel;
use ddp::data::vocabulary::Vocabulary;
use ddp::storage::fingerprint::Fingerprint;
use ddp_comm::{HostSlots, Taken};

use crate::error::TableError;
use crate::formats::arrays::reader::SplitSide;
use crate::formats::table::batch_source::{BatchSource as _, Batches};
use crate::formats::table::parquet::{ParquetFile, malformed};
use crate::shared_types::SharedTypes;
use crate::source::{ClassLabels, KnownFeatures, SourceSpec};
use crate::table::batches::{BatchRows, Casts, Columns, batch_rows};
use crate::table::columns::Role;
use crate::table::large::cache::Cache;
use crate::table::large::group_rows::GroupRows;
use crate::table::rows::{TableRows, TargetCells};

/// Longest wait for a sign of life of a rank that decodes a group: it may be lost.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Rows of Parquet files.
#[derive(Debug)]
pub(super) struct ParquetRows {
    shared: Arc<Shared>,
    /// Threads that decode announced groups; started by the first announcement.
    ahead: Mutex<Vec<JoinHandle<()>>>,
}

/// State shared by the thread that decodes ahead and the threads that gather.
#[derive(Debug)]
struct Shared {
    files: Vec<(ParquetFile, Columns)>,
    groups: Vec<Group>,
    /// End of each group, in rows.
    ends: Vec<usize>,
    layout: RowLayout,
    vocabularies: Vec<Vocabulary>,
    data: DataConfig,
    side: SplitSide,
    source: String,
    types: SharedTypes,
    cache: Cache<GroupRows>,
    /// A slot per group, where the ranks of the host share what they decode.
    slots: Option<HostSlots>,
    /// Groups that this rank has decoded.
    #[cfg(test)]
    n_decoded: AtomicUsize,
}

/// A row group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    file: usize,
    index: usize,
    pub(super) n_rows: usize,
}

/// The row groups of all files, without empty ones.
pub(super) fn groups_of(files: &[(ParquetFile, Columns)]) -> Vec<Group> {
    let groups = files.iter().enumerate().flat_map(|(file, (of, _))| {
        of.group_rows.iter().enumerate().map(move |(index, &n_rows)| Group { file, index, n_rows })
    });
    groups.filter(|group| group.n_rows > 0).collect()
}

/// `batches` of the columns `roots` in the types that all files have in common.
pub(super) fn cast(
    file: &ParquetFile,
    types: Option<&SharedTypes>,
    batches: Batches,
    roots: &[usize],
) -> Batches {
    match types.and_then(|types| Casts::new(&file.path, file.schema(), types)) {
        Some(casts) => casts.apply(batches, roots),
        None => batches,
    }
}

/// Most bytes of a decoded row, with the exact values that f32 rounds.
pub(super) fn decoded_row_bytes(files: &[(ParquetFile, Columns)], layout: &RowLayout) -> usize {
    let n_wide = |(_, columns): &(ParquetFile, Columns)| {
        let n_wide_targets = match layout.targets {
            TargetLayout::Classes { .. } => 0,
            TargetLayout::Values { .. } | TargetLayout::Heads { .. } => columns.n_wide_targets(),
        };
        // Values in the names of folders are numbers of any size.
        columns.n_wide_features() + n_wide_targets + columns.plan.partitions.len()
    };
    layout.row_bytes() + files.iter().map(n_wide).max().unwrap_or(0) * size_of::<f64>()
}

impl ParquetRows {
    /// Rows of `files`, whose `layout` is known; a decode needs `scratch_bytes` in addition to its rows.
    pub(super) fn new(
        files: Vec<(ParquetFile, Columns)>,
        layout: RowLayout,
        scratch_bytes: usize,
        spec: &SourceSpec<'_>,
    ) -> Self {
        let groups = groups_of(&files);
        let mut ends = Vec::with_capacity(groups.len());
        let mut n_rows = 0;
        for group in &groups {
            n_rows += group.n_rows;
            ends.push(n_rows);
        }
        let row_bytes = decoded_row_bytes(&files, &layout);
        let costs = groups.iter().map(|group| group.n_rows * row_bytes).collect();
        let budget = usize::try_from(spec.memory_bytes).unwrap_or(usize::MAX);
        let mut shared = Shared {
            vocabularies: layout.categories.iter().map(|category| category.vocabulary.clone()).collect(),
            cache: Cache::new(costs, scratch_bytes, budget),
            data: decided(spec.data, &layout),
            side: spec.side,
            source: spec.source.to_owned(),
            types: spec.types.cloned().unwrap_or_default(),
            files,
            groups,
            ends,
            layout,
            slots: None,
            #[cfg(test)]
            n_decoded: AtomicUsize::new(0),
        };
        shared.slots = spec.slots.and_then(|host| {
            let n_columns = shared.layout.n_features() + shared.layout.targets.n_outputs();
            let slot_bytes = |group: &Group| GroupRows::slot_bytes(group.n_rows, row_bytes, n_columns);
            let sizes: Vec<u64> = shared.groups.iter().map(slot_bytes).collect();
            host.slots(shared.fingerprint(), &sizes)
        });
        ParquetRows { shared: Arc::new(shared), ahead: Mutex::new(Vec::new()) }
    }

    /// Groups that this rank has decoded.
    #[cfg(test)]
    pub(super) fn n_decoded(&self) -> usize {
        self.shared.n_decoded.load(Ordering::Relaxed)
    }

    /// Most bytes that were held at a time.
    #[cfg(test)]
    pub(super) fn peak_bytes(&self) -> usize {
        self.shared.cache.peak_bytes()
    }
}

impl Shared {
    /// The number of the group that holds a row.
    fn group_of(&self, row: usize) -> usize {
        self.ends.partition_point(|&end| end <= row)
    }

    fn start_of(&self, group: usize) -> usize {
        self.ends[group] - self.groups[group].n_rows
    }

    /// Calls `take` for each of `rows` with its position among them, its decoded group and its number in the group.
    fn for_each(&self, rows: &[usize], mut take: impl FnMut(usize, &GroupRows, usize)) -> Result<()> {
        let mut places: Vec<(usize, usize)> =
            rows.iter().enumerate().map(|(place, &row)| (self.group_of(row), place)).collect();
        places.sort_unstable();
        let mut wanted: Vec<usize> = places.iter().map(|(group, _)| *group).collect();
        wanted.dedup();
        self.begin_with_own(&mut wanted);
        while let Some(of_group) = self.cache.take(&mut wanted, |group| self.load(group))? {
            let group = of_group.group;
            let start = self.start_of(group);
            let from = places.partition_point(|(other, _)| *other < group);
            for &(_, place) in places[from..].iter().take_while(|(other, _)| *other == group) {
                take(place, &of_group, rows[place] - start);
            }
            if !of_group.is_intact() {
                let source = io::Error::other("the system could not load memory that the ranks share");
                return Err(TableError::HostMemory { source }.into());
            }
        }
        Ok(())
    }

    /// Lets each rank of the host begin with other groups, so that they decode different ones.
    fn begin_with_own(&self, groups: &mut [usize]) {
        if let Some([own, n_ranks]) = self.slots.as_ref().map(HostSlots::place) {
            groups.rotate_left(groups.len() * own / n_ranks);
        }
    }

    /// The rows of a group: those that another rank of the host has decoded, or decoded now.
    fn load(&self, group: usize) -> Result<GroupRows> {
        let taken = self.slots.as_ref().map(|slots| slots.take(group, MAX_WAIT));
        match taken {
            Some(Taken::Filled(slot)) => {
                if let Some(rows) = GroupRows::from_slot(slot) {
                    return Ok(rows);
                }
            }
            Some(Taken::Empty(slot)) => {
                let rows = self.decode(group, false, || slot.beat())?;
                if let Some(rows) = GroupRows::share(rows, slot) {
                    return Ok(rows);
                }
            }
            Some(Taken::Never) | None => {}
        }
        Ok(GroupRows::Own(Box::new(self.decode(group, false, || ())?)))
    }

    fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint::default();
        hash.number(self.ends.last().copied().unwrap_or(0) as u64);
        self.layout.features.iter().for_each(|name| hash.text(name));
        for vocabulary in &self.vocabularies {
            vocabulary.values().iter().for_each(|value| hash.text(value));
        }
        self.layout.targets.add_to(&mut hash);
        self.files.iter().for_each(|(file, _)| file.add_to(&mut hash));
        hash.finish()
    }

    /// Decodes the rows of a group, or only their targets; calls `beat` after each batch.
    fn decode(&self, group: usize, only_targets: bool, beat: impl Fn()) -> Result<TableRows> {
        let Group { file, index, n_rows } = self.groups[group];
        let (file, columns) = &self.files[file];
        let names = &self.layout.features;
        let classes = self.layout.labels.as_ref().map_or(ClassLabels::AsStored, ClassLabels::Known);
        let known = KnownFeatures {
            vocabularies: &self.vocabularies,
            kinds: &self.layout.kinds,
            ..KnownFeatures::from_shards(names, &self.source)
        };
        let train = SourceSpec::train(&self.data);
        let spec = SourceSpec { classes, features: Some(known), side: self.side, ..train };
        let mut rows = TableRows::new(&columns.plan, &spec);
        let mut columns = columns.clone();
        if only_targets {
            rows.n_features = 0;
            columns.needed.retain(|column| matches!(column.roles[0], Role::Target(_)));
            columns.plan.partitions.retain(|partition| matches!(partition.role, Role::Target(_)));
        }
        rows.reserve(n_rows);
        let selection = columns.selection(batch_rows(&columns));
        let batches = file.read_groups(&selection, index..index + 1)?;
        let batches = cast(file, Some(&self.types), batches, &selection.roots);
        let mut reader = BatchRows::new(&file.path, columns, batches, file.first_row(index));
        let mut left = n_rows;
        while left > 0 {
            match reader.read(&mut rows, left)? {
                0 => break,
                n => left -= n,
            }
            beat();
        }
        #[cfg(test)]
        self.n_decoded.fetch_add(1, Ordering::Relaxed);
        if rows.n_rows != n_rows {
            let reason = format!("row group {index} has {} rows, and its footer says {n_rows}", rows.n_rows);
            return Err(malformed(&file.path, reason).into());
        }
        Ok(rows)
    }
}

impl Dataset for ParquetRows {
    fn len(&self) -> usize {
        self.shared.ends.last().copied().unwrap_or(0)
    }

    fn layout(&self) -> &RowLayout {
        &self.shared.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        let layout = &self.shared.layout;
        let width = layout.n_features();
        let x = out.x.into_slice::<f32>(OP, "x")?;
        let mut weights = out.weights.map(|weights| weights.into_slice::<f32>(OP, "weights")).transpose()?;
        let mut targets = match &layout.targets {
            TargetLayout::Classes { .. } => Out::Labels(out.targets.into_slice::<i64>(OP, "targets")?),
            TargetLayout::Values { .. } | TargetLayout::Heads { .. } => {
                Out::Values(out.targets.into_slice::<f32>(OP, "targets")?, layout.targets.n_outputs())
            }
        };
        self.shared.for_each(rows, |place, of_group, row| {
            x[place * width..][..width].copy_from_slice(&of_group.features()[row * width..][..width]);
            targets.put(place, of_group.targets(), row);
            if let (Some(out), Some(weights)) = (&mut weights, of_group.weights()) {
                out[place] = weights[row];
            }
        })
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        if self.shared.files[0].1.n_wide_features() == 0 {
            return Ok(false);
        }
        let width = self.shared.layout.n_features();
        self.shared.for_each(rows, |place, of_group, row| {
            let out = &mut out[place * width..][..width];
            of_group.differences(row, origin, out);
        })?;
        Ok(true)
    }

    fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        if self.shared.files[0].1.n_wide_targets() == 0 {
            return Ok(false);
        }
        let width = self.shared.layout.targets.n_outputs();
        self.shared.for_each(rows, |place, of_group, row| {
            let out = &mut out[place * width..][..width];
            of_group.target_differences(row, origin, out);
        })?;
        Ok(true)
    }

    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
        let shared = &*self.shared;
        let mut at = rows.start;
        while at < rows.end {
            let group = shared.group_of(at);
            let (start, end) = (shared.start_of(group), shared.ends[group].min(rows.end));
            let of_group = shared.decode(group, true, || ())?;
            let TargetCells::Classes(labels) = &of_group.targets else { panic!("targets are classes") };
            let labels = labels.integers().expect("labels of known classes");
            out[at - rows.start..end - rows.start].copy_from_slice(&labels[at - start..end - start]);
            at = end;
        }
        Ok(())
    }

    fn block_ends(&self) -> Option<&[usize]> {
        Some(&self.shared.ends)
    }

    fn prefetch(&self, rows: &[Range<usize>]) {
        let shared = &self.shared;
        let of_range = |rows: &Range<usize>| shared.group_of(rows.start)..shared.group_of(rows.end - 1) + 1;
        let mut groups: Vec<usize> = Vec::new();
        for rows in rows.iter().filter(|rows| !rows.is_empty()) {
            groups.extend(of_range(rows));
        }
        shared.begin_with_own(&mut groups);
        shared.cache.expect(groups);
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        while ahead.len() < parallel::n_threads() {
            let shared = shared.clone();
            let work = move || shared.cache.work_ahead(|group| shared.load(group));
            match Builder::new().name("parquet".to_owned()).spawn(work) {
                Ok(thread) => ahead.push(thread),
                // Without threads, rows are decoded when they are needed.
                Err(_) => break,
            }
        }
    }

    fn advice(&self) -> Option<String> {
        Some("an array of the rows (numpy.save), which is read without decoding".to_owned())
    }

    fn fingerprint(&self) -> Result<u64> {
        Ok(self.shared.fingerprint())
    }

    fn source(&self) -> &str {
        &self.shared.source
    }
}

impl Drop for ParquetRows {
    fn drop(&mut self) {
        self.shared.cache.close();
        for thread in self.ahead.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // Its panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// The config with the decision on the task.
fn decided(data: &DataConfig, layout: &RowLayout) -> DataConfig {
    let mut data = data.clone();
    if let Some(choice) = &layout.task_choice {
        (data.task, data.auto_task) = (choice.task, false);
    } else if matches!(layout.targets, TargetLayout::Values { .. }) && data.task == Task::Classification {
        // Labels that are only looked at may be numbers with fractions.
        data.task = Task::Regression;
    }
    data
}

/// Destination of targets.
enum Out<'a> {
    Labels(&'a mut [i64]),
    /// So many a row.
    Values(&'a mut [f32], usize),
}

impl Out<'_> {
    /// Copies the targets of row `row` to `place`.
    fn put(&mut self, place: usize, from: TargetSlice<'_>, row: usize) {
        match (self, from) {
            (Out::Labels(out), TargetSlice::Labels(labels)) => out[place] = labels[row],
            (Out::Values(out, n_targets), TargetSlice::Values(values)) => {
                let n_targets = *n_targets;
                out[place * n_targets..][..n_targets]
                    .copy_from_slice(&values[row * n_targets..][..n_targets]);
            }
            _ => unreachable!("rows are decoded for the targets of the layout"),
        }
    }
}
