//! Parameter groups: learning rate, schedule and weight decay of each range of the flat buffers, and the parameters whose update
//! depends on all of their elements.
//!
//! ```
//! use ddp::nn::{Activation, ModelSpec, ParamLayout};
//! use ddp::optim::{OptimizerConfig, OptimizerKind, ParamGroup, ParamGroups};
//!
//! let layout = ParamLayout::new(&ModelSpec::plain(&[3, 20, 2], Activation::Relu));
//! let biases = ParamGroup { pattern: "*.bias".to_owned(), lr_scale: 2.0, weight_decay: Some(0.0), schedule: None };
//! let config = OptimizerConfig { groups: vec![biases], ..OptimizerConfig::new(OptimizerKind::AdamW, 0.1) };
//! let groups = ParamGroups::new(&config, &layout)?;
//!
//! let bias = layout.find("layers.0.bias").expect("the layer has a bias").range();
//! let (_, settings) = groups.within(bias).next().expect("each parameter has settings");
//! assert_eq!((settings.lr_scale, settings.weight_decay), (2.0, 0.0));
//! # Ok::<(), ddp::optim::OptimError>(())
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

use ddp_kernels::ops::{NewtonSchulzMemory, WholeNeed};

use crate::config::{OptimizerConfig, ParamGroup};
use crate::model::{ParamEntry, ParamKind, ParamLayout};
use crate::optim::error::{OptimError, Result};

/// Settings of each element of the flat buffers, as consecutive segments.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamGroups {
    segments: Vec<Segment>,
    /// Parameters that are updated as a whole, by [`Segment::whole`].
    whole: Vec<WholeParameter>,
}

/// A parameter whose update depends on all of its elements: every one for LAMB, hidden weight matrices for Muon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeParameter {
    /// Range of its elements in the flat buffers.
    pub range: Range<usize>,
    /// Shape of the matrix, if Muon updates it as one.
    pub matrix: Option<[usize; 2]>,
}

/// Adjacent elements with the same settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// End in the flat buffers; the segment starts at the end of the previous one.
    pub end: usize,
    /// Factor of the learning rate.
    pub lr_scale: f64,
    /// Weight decay of the group, or the config's default.
    pub weight_decay: f64,
    /// Schedule of the learning rate as an index among the groups with a schedule; `None` for the schedule of the run.
    pub schedule: Option<usize>,
    /// Index in [`ParamGroups::whole`], if the segment is a parameter whose update depends on all of its elements.
    pub whole: Option<usize>,
}

impl ParamGroups {
    /// Resolves the settings that `config` gives to the parameters of `layout`. The first group whose pattern matches a name
    /// applies; a group without a weight decay leaves it to `decay_bias_norm`. The gap after a parameter has its settings,
    /// and adjacent elements with equal settings form one segment.
    ///
    /// # Errors
    /// [`OptimError::NoSuchParameter`] if a pattern matches no name, [`OptimError::HiddenGroup`] if earlier groups match all of its names.
    pub fn new(config: &OptimizerConfig, layout: &ParamLayout) -> Result<Self> {
        if let Some((name, expected, got)) = config.fault() {
            return Err(OptimError::Setting { name, expected, got });
        }
        let groups: Vec<_> = config.groups.iter().map(|group| (group, pattern(group))).collect();
        let names = || layout.forward_order().into_iter().map(|entry| entry.name.clone());
        if let Some((group, _)) =
            groups.iter().find(|(_, pattern)| !names().any(|name| pattern.matches(&name)))
        {
            let names = names().collect::<Vec<_>>().join(", ");
            return Err(OptimError::NoSuchParameter { pattern: group.pattern.clone(), names });
        }
        for (index, (group, of_group)) in groups.iter().enumerate() {
            let own: Vec<_> = names().filter(|name| of_group.matches(name)).collect();
            let first = |name: &String| groups.iter().position(|(_, pattern)| pattern.matches(name));
            if own.iter().all(|name| first(name) < Some(index)) {
                let takers: BTreeSet<_> = own.iter().filter_map(first).collect();
                let takers: Vec<_> =
                    takers.into_iter().map(|taker| format!("\"{}\"", groups[taker].0.pattern)).collect();
                return Err(OptimError::HiddenGroup {
                    pattern: group.pattern.clone(),
                    earlier: takers.join(", "),
                    names: own.join(", "),
                });
            }
        }
        let mut segments: Vec<Segment> = Vec::new();
        let mut whole = Vec::new();
        let need = config.kind.whole_need();
        let last_layer =
            layout.entries().iter().filter(|entry| is_matrix(entry)).map(|entry| entry.layer).max();
        for (index, entry) in layout.entries().iter().enumerate() {
            let matched = groups.iter().position(|(_, pattern)| pattern.matches(&entry.name));
            let group = matched.map(|index| groups[index].0);
            let matrix =
                (need == Some(WholeNeed::Directions) && is_matrix(entry) && Some(entry.layer) < last_layer)
                    .then(|| [entry.dims[0], entry.dims[1]]);
            let is_whole = need == Some(WholeNeed::Norms) || matrix.is_some();
            let is_of_adamw = need == Some(WholeNeed::Directions) && matrix.is_none();
            let adamw_scale = if is_of_adamw { config.adamw_lr / config.lr } else { 1.0 };
            let with_schedule = |groups: &[(&ParamGroup, glob::Pattern)]| {
                groups.iter().filter(|(group, _)| group.schedule.is_some()).count()
            };
            let segment = Segment {
                end: layout.entries().get(index + 1).map_or(layout.flat_len(), |next| next.start),
                lr_scale: if entry.is_frozen {
                    0.0
                } else {
                    adamw_scale * group.map_or(1.0, |group| group.lr_scale)
                },
                weight_decay: group.and_then(|group| group.weight_decay).unwrap_or(default_decay(
                    config,
                    entry,
                    is_of_adamw,
                )),
                schedule: matched
                    .filter(|index| groups[*index].0.schedule.is_some())
                    .map(|index| with_schedule(&groups[..index])),
                whole: is_whole.then_some(whole.len()),
            };
            if is_whole {
                whole.push(WholeParameter { range: entry.range(), matrix });
            }
            match segments.last_mut() {
                Some(last) if *last == (Segment { end: last.end, ..segment }) => last.end = segment.end,
                _ => segments.push(segment),
            }
        }
        Ok(ParamGroups { segments, whole })
    }

    /// One segment over a whole flat buffer, with the settings that `config` gives to weights; for buffers without names.
    pub fn uniform(config: &OptimizerConfig, flat_len: usize) -> Self {
        let is_whole = config.kind.whole_need() == Some(WholeNeed::Norms);
        let whole = is_whole.then_some(WholeParameter { range: 0..flat_len, matrix: None });
        let segment = Segment {
            end: flat_len,
            lr_scale: 1.0,
            weight_decay: config.weight_decay,
            schedule: None,
            whole: is_whole.then_some(0),
        };
        ParamGroups { segments: vec![segment], whole: whole.into_iter().collect() }
    }

    /// The parameters whose update depends on all of their elements, in the order of the flat buffers.
    pub fn whole(&self) -> &[WholeParameter] {
        &self.whole
    }

    /// Whether any matrix is orthogonalized.
    pub fn has_matrices(&self) -> bool {
        self.whole.iter().any(|whole| whole.matrix.is_some())
    }

    /// Number of elements (f32) of the workspace that orthogonalizing the largest matrix needs; 0 if there is none.
    pub(crate) fn workspace_len(&self) -> usize {
        let matrices = self.whole.iter().filter_map(|whole| whole.matrix);
        matrices.map(|[rows, cols]| NewtonSchulzMemory::len(rows, cols)).max().unwrap_or(0)
    }

    /// Number of elements (f64) of the norms of whole parameters: two for each (LAMB), or two for all matrices together (Muon).
    pub(crate) fn norms_len(&self) -> usize {
        if self.has_matrices() { 2 } else { 2 * self.whole.len() }
    }

    /// The segments in the order of the flat buffers.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Splits `range` at the segments, in order, with their settings.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Segment)> + '_ {
        let first = self.segments.partition_point(|segment| segment.end <= range.start);
        let mut start = range.start;
        self.segments[first..].iter().map_while(move |segment| {
            let part = start..segment.end.min(range.end);
            start = part.end;
            (!part.is_empty()).then_some((part, *segment))
        })
    }
}

impl Segment {
    /// Whether one update serves both: they differ by numbers that it takes for each.
    pub(super) fn joins(&self, other: &Segment) -> bool {
        self.whole.is_none() && other.whole.is_none() && self.schedule == other.schedule
    }
}

/// The group's pattern. What is none, such as `[0`, stands for the parameter of this name; only programs give such patterns.
fn pattern(group: &ParamGroup) -> glob::Pattern {
    let name = || glob::Pattern::new(&glob::Pattern::escape(&group.pattern));
    glob::Pattern::new(&group.pattern).or_else(|_| name()).expect("an escaped text is a pattern")
}

/// Whether the parameter is the weight of a linear layer.
fn is_matrix(entry: &ParamEntry) -> bool {
    entry.kind == ParamKind::Weight && entry.dims.len() == 2
}

/// Weight decay of a parameter whose group sets none.
fn default_decay(config: &OptimizerConfig, entry: &ParamEntry, is_of_adamw: bool) -> f64 {
    match entry.kind {
        ParamKind::Bias | ParamKind::NormWeight | ParamKind::NormBias if !config.decay_bias_norm => 0.0,
        _ if is_of_adamw => config.adamw_weight_decay,
        _ => config.weight_decay,
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::Activation;
    use proptest::prelude::*;

    use super::*;
    use crate::config::OptimizerKind;
    use crate::model::ModelSpec;

    fn layout() -> ParamLayout {
        let spec = ModelSpec { layer_norm: true, ..ModelSpec::plain(&[3, 20, 4, 2], Activation::Relu) };
        ParamLayout::new(&spec)
    }

    fn group(pattern: &str, lr_scale: f64, weight_decay: Option<f64>) -> ParamGroup {
        ParamGroup { pattern: pattern.to_owned(), lr_scale, weight_decay, schedule: None }
    }

    fn groups_of(config: &OptimizerConfig) -> Result<ParamGroups> {
        ParamGroups::new(config, &layout())
    }

    /// Factor of the learning rate and weight decay of each parameter, by name.
    fn settings(groups: &ParamGroups) -> Vec<(String, f64, f64)> {
        let of = |entry: &ParamEntry| {
            let parts: Vec<_> = groups.within(entry.range()).collect();
            assert_eq!(parts.len(), 1, "{} has one setting", entry.name);
            assert_eq!(parts[0].0, entry.range());
            (entry.name.clone(), parts[0].1.lr_scale, parts[0].1.weight_decay)
        };
        layout().forward_order().into_iter().map(of).collect()
    }

    #[test]
    fn without_groups_there_is_one_segment() {
        let usual = OptimizerConfig::new(OptimizerKind::AdamW, 0.1);
        let config = OptimizerConfig { decay_bias_norm: true, ..usual };
        let groups = groups_of(&config).unwrap();
        assert_eq!(groups, ParamGroups::uniform(&config, layout().flat_len()));
        assert_eq!(groups.segments().len(), 1);
    }

    #[test]
    fn biases_and_norms_can_go_without_decay_and_the_first_group_that_matches_counts() {
        let config = OptimizerConfig {
            weight_decay: 0.5,
            decay_bias_norm: false,
            groups: vec![
                group("layers.1.bias", 2.0, Some(0.25)),
                group("layers.?.*", 3.0, None),
                group("norms.1.*", 4.0, Some(0.125)),
            ],
            ..OptimizerConfig::new(OptimizerKind::AdamW, 0.1)
        };
        let want = [
            ("layers.0.weight", 3.0, 0.5),
            ("layers.0.bias", 3.0, 0.0),
            ("norms.0.weight", 1.0, 0.0),
            ("norms.0.bias", 1.0, 0.0),
            ("layers.1.weight", 3.0, 0.5),
            ("layers.1.bias", 2.0, 0.25),
            ("norms.1.weight", 4.0, 0.125),
            ("norms.1.bias", 4.0, 0.125),
            ("layers.2.weight", 3.0, 0.5),
            ("layers.2.bias", 3.0, 0.0),
        ];
        let want = want.map(|(name, lr_scale, decay)| (name.to_owned(), lr_scale, decay));
        assert_eq!(settings(&groups_of(&config).unwrap()), want);
    }

    #[test]
    fn muon_takes_the_hidden_matrices_and_adamw_the_rest() {
        let config = OptimizerConfig {
            adamw_lr: 0.025,
            decay_bias_norm: true,
            groups: vec![group("layers.1.*", 3.0, None)],
            ..OptimizerConfig::new(OptimizerKind::Muon, 0.1)
        };
        let groups = groups_of(&config).unwrap();
        let matrices: Vec<_> = groups.whole().iter().map(|whole| whole.matrix.unwrap()).collect();
        // In the order of the backward pass.
        assert_eq!(matrices, [[4, 20], [20, 3]]);
        for whole in groups.whole() {
            let parts: Vec<_> = groups.within(whole.range.clone()).collect();
            assert_eq!(parts.len(), 1);
            assert_eq!(groups.whole()[parts[0].1.whole.unwrap()], *whole);
        }
        let want = [
            ("layers.0.weight", 1.0, 0.1),
            ("layers.0.bias", 0.25, 0.01),
            ("norms.0.weight", 0.25, 0.01),
            ("norms.0.bias", 0.25, 0.01),
            ("layers.1.weight", 3.0, 0.1),
            ("layers.1.bias", 0.75, 0.01),
            ("norms.1.weight", 0.25, 0.01),
            ("norms.1.bias", 0.25, 0.01),
            ("layers.2.weight", 0.25, 0.01),
            ("layers.2.bias", 0.25, 0.01),
        ];
        assert_eq!(settings(&groups), want.map(|(name, lr, decay)| (name.to_owned(), lr, decay)));
    }

    #[test]
    fn lamb_takes_each_parameter_as_a_whole() {
        let groups = groups_of(&OptimizerConfig::new(OptimizerKind::Lamb, 0.1)).unwrap();
        let ranges: Vec<_> = groups.whole().iter().map(|whole| whole.range.clone()).collect();
        assert_eq!(ranges, layout().entries().iter().map(ParamEntry::range).collect::<Vec<_>>());
        assert_eq!(groups.segments().len(), ranges.len());
    }

    #[test]
    fn a_pattern_that_matches_nothing_reports_the_names() {
        let config = OptimizerConfig {
            groups: vec![group("layers.0.*", 1.0, None), group("layer.1.*", 1.0, None)],
            ..OptimizerConfig::new(OptimizerKind::Sgd, 0.1)
        };
        let message = ddp_kernels::hint::with_hint(&groups_of(&config).unwrap_err());
        for part in ["\"layer.1.*\"", "layers.0.weight, layers.0.bias, norms.0.weight"] {
            assert!(message.contains(part), "no {part} in: {message}");
        }
    }

    #[test]
    fn a_hidden_group_reports_the_earlier_ones() {
        let groups = |patterns: &[&str]| {
            groups_of(&OptimizerConfig {
                groups: patterns.iter().map(|pattern| group(pattern, 1.0, None)).collect(),
                ..OptimizerConfig::new(OptimizerKind::Sgd, 0.1)
            })
        };
        let message =
            ddp_kernels::hint::with_hint(&groups(&["layers.*", "norms.*", "layers.0.*"]).unwrap_err());
        let want = "`optimizer.groups`: \"layers.0.*\" applies to no parameter: the earlier \"layers.*\" matches all of its parameters \
                    (layers.0.weight, layers.0.bias)\nhint: ";
        assert!(message.starts_with(want), "{message}");
        // No single earlier group hides it.
        let message = groups(&["layers.?.bias", "layers.*", "*.1.*", "layers.1.*"]).unwrap_err().to_string();
        assert!(
            message.contains(
                "\"layers.1.*\" applies to no parameter: the earlier \"layers.?.bias\", \"layers.*\" matches"
            ),
            "{message}"
        );
        // A group that still gets a parameter is not hidden.
        groups(&["layers.0.*", "layers.*", "*"]).unwrap();
    }

    proptest! {
        #[test]
        fn parts_of_a_range_cover_it_in_order(
            patterns in prop::collection::vec(
                prop::sample::select(vec!["*", "layers.*", "*.bias", "norms.0.weight", "layers.1.weight"]), 0..4
            ),
            decay_bias_norm: bool,
            ends in (0usize..200, 0usize..200),
        ) {
            let numbered = |(i, pattern): (usize, &&str)| group(pattern, 1.0 + i as f64, None);
            let config = OptimizerConfig {
                decay_bias_norm,
                groups: patterns.iter().enumerate().map(numbered).collect(),
                ..OptimizerConfig::new(OptimizerKind::AdamW, 0.1)
            };
            let groups = groups_of(&config);
            prop_assume!(!matches!(groups, Err(OptimError::HiddenGroup { .. })));
            let groups = groups.unwrap();
            let flat_len = layout().flat_len();
            prop_assert_eq!(groups.segments().last().unwrap().end, flat_len);
            prop_assert!(groups.segments().is_sorted_by(|a, b| a.end < b.end));
            let range = ends.0.min(ends.1).min(flat_len)..ends.0.max(ends.1).min(flat_len);
            let parts: Vec<_> = groups.within(range.clone()).collect();
            let covered: Vec<_> = parts.iter().flat_map(|(part, _)| part.clone()).collect();
            prop_assert_eq!(covered, range.collect::<Vec<_>>());
            prop_assert!(parts.windows(2).all(|two| two[0].1 != two[1].1), "{:?}", parts);
        }
    }
}
