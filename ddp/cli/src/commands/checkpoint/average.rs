//! `ddp-train checkpoint average`: arithmetic mean of weights, accumulated in f64.

use std::collections::HashSet;
use std::path::Path;

use ddp::checkpoint::{Checkpoint, CheckpointError};

use super::weights::{Named, Weights, check_out};
use super::{all_at, one_at, print_result};
use crate::cli::CheckpointAverageArgs;
use crate::error::Result;

/// Averages the weights and writes the result.
pub(super) fn average(args: &CheckpointAverageArgs) -> Result<()> {
    check_out(&args.out, args.overwrite)?;
    let checkpoints = match (args.last, args.paths.as_slice()) {
        (Some(last), [path]) => newest(path, last)?,
        (Some(_), paths) => return Err(CheckpointError::LastOfSeveral { n: paths.len() }.into()),
        (None, paths) => paths.iter().map(|path| one_at(path)).collect::<Result<Vec<_>>>()?,
    };
    check_several(&checkpoints)?;
    let mut mean = Weights::load(&checkpoints[0], args.weights)?;
    let mut sums: Vec<Vec<f64>> =
        mean.parameters.iter().map(|p| p.values.iter().map(|&value| f64::from(value)).collect()).collect();
    for checkpoint in &checkpoints[1..] {
        let weights = Weights::load(checkpoint, args.weights)?;
        check_same(checkpoint, &mean, &weights)?;
        for (sums, Named { name, .. }) in sums.iter_mut().zip(&mean.parameters) {
            let same = weights.parameters.iter().find(|parameter| parameter.name == *name);
            let values = same.map_or(&[][..], |parameter| &parameter.values);
            sums.iter_mut().zip(values).for_each(|(sum, &value)| *sum += f64::from(value));
        }
        mean.origin += &format!(", {}", weights.origin);
    }
    let n = checkpoints.len() as f64;
    for (parameter, sums) in mean.parameters.iter_mut().zip(sums) {
        parameter.values = sums.into_iter().map(|sum| (sum / n) as f32).collect();
    }
    mean.origin = format!("mean of {}: {}", checkpoints.len(), mean.origin);
    mean.write(&args.out)?;
    Ok(print_result(&format!("wrote the {} to {}\n", mean.origin, args.out.display()))?)
}

/// Lists of a run's checkpoints that are read before it is told that there are too few.
const TRIES: usize = 5;

/// Returns the `last` newest verified checkpoints of `path`, newest first.
fn newest(path: &Path, last: usize) -> Result<Vec<Checkpoint>> {
    let mut good = Vec::new();
    for _ in 0..TRIES {
        let (all, store) = all_at(path)?;
        let mut is_any_gone = false;
        good.clear();
        for named in all.into_iter().rev() {
            let is_good = named.checkpoint.as_ref().is_ok_and(|checkpoint| checkpoint.verify().is_ok());
            // A run in progress may delete some while others are read.
            is_any_gone |= named.is_gone(&store);
            good.extend(named.checkpoint.ok().filter(|_| is_good));
            if good.len() == last {
                return Ok(good);
            }
        }
        if !is_any_gone {
            break;
        }
    }
    let path = path.to_owned();
    Err(CheckpointError::TooFew { path, got: good.len(), expected: last }.into())
}

/// Checks that there are at least two checkpoints and none is named twice.
fn check_several(checkpoints: &[Checkpoint]) -> Result<()> {
    if let [one] = checkpoints {
        return Err(CheckpointError::TooFewToAverage { path: one.path().to_owned() }.into());
    }
    let mut seen = HashSet::new();
    for checkpoint in checkpoints {
        let path = checkpoint.path();
        if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.to_owned())) {
            return Err(CheckpointError::Twice { path: path.to_owned() }.into());
        }
    }
    Ok(())
}

/// Checks that both checkpoints have the same parameters, normalization of the features and scale of the targets.
fn check_same(checkpoint: &Checkpoint, first: &Weights, other: &Weights) -> Result<()> {
    let mut differences = Vec::new();
    let find =
        |of: &Weights, name: &str| of.parameters.iter().find(|p| p.name == name).map(|p| p.dims.clone());
    for Named { name, dims, .. } in &first.parameters {
        match find(other, name) {
            None => differences.push(format!("{name} {dims:?} is missing")),
            Some(here) if here != *dims => differences.push(format!("{name} is {here:?}, expected {dims:?}")),
            Some(_) => {}
        }
    }
    let extra = other.parameters.iter().filter(|p| find(first, &p.name).is_none());
    differences.extend(extra.map(|p| format!("{} {:?} is not in the first checkpoint", p.name, p.dims)));
    if first.labels() != other.labels() {
        differences.push("its classes have other labels".to_owned());
    } else if !first.has_columns_of(other) {
        differences.push("its columns, their categories or its heads differ".to_owned());
    }
    if first.others != other.others {
        differences.push("its normalization of the features or scale of the targets differs".to_owned());
    }
    if differences.is_empty() {
        return Ok(());
    }
    let (path, differences) = (checkpoint.path().to_owned(), differences.join("\n  "));
    Err(CheckpointError::OtherModel { path, differences }.into())
}
