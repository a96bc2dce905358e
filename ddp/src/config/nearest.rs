//! The nearest known name to one that was probably mistyped.

/// The candidate nearest to `word`, at most a third of the word's length in edits away.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= (word.chars().count() / 3).clamp(1, 4))
        .map(|(_, candidate)| candidate)
}
