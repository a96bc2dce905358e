//! Finds the known name nearest to one that was probably mistyped.

/// The candidate nearest to `word`, at most a third of the word's length in edits away. Leading parts that both names share do
/// not count: `eval_f1` is not near `eval_r2`. If there is none, a candidate whose first parts equal the word: `eval_f1_macro`.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Longest name that anybody mistypes: distances take time by the product of the lengths.
    const MAX_BYTES: usize = 200;
    if word.len() > MAX_BYTES {
        return None;
    }
    let lower = word.to_lowercase();
    let n_chars = lower.chars().count();
    let mut best: Option<(usize, &str)> = None;
    let mut longer = None;
    for candidate in candidates {
        let other = candidate.to_lowercase();
        let (ours, theirs) = without_shared_parts(&lower, &other);
        let distance = strsim::damerau_levenshtein(ours, theirs);
        // Words that share no letter are not near.
        let is_near =
            distance <= (ours.chars().count() / 3).clamp(1, 4) && (distance < n_chars || distance == 0);
        if is_near && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
        let rest = other.strip_prefix(&lower).filter(|_| !lower.is_empty());
        if longer.is_none() && rest.is_some_and(|rest| rest.starts_with(SEPARATORS)) {
            longer = Some(candidate);
        }
    }
    best.map(|(_, candidate)| candidate).or(longer)
}

/// The name that a user most likely meant: one that begins or ends with the word, else the nearest one.
pub(super) fn similar<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let continues =
        |name: &str| word.len() > 1 && name.strip_prefix(word).is_some_and(|rest| rest.starts_with('_'));
    let ends = |name: &str| word.len() > 1 && name.strip_suffix(word).is_some_and(|rest| rest.ends_with('_'));
    let find = |fits: &dyn Fn(&str) -> bool| names.iter().copied().find(|name| fits(name));
    find(&continues).or_else(|| find(&ends)).or_else(|| nearest(word, names.iter().copied()))
}

/// Characters that separate the parts of a name.
const SEPARATORS: [char; 3] = ['.', '_', '-'];

/// Both names without the leading parts that they share.
fn without_shared_parts<'a>(a: &'a str, b: &'a str) -> (&'a str, &'a str) {
    let shared = a.char_indices().zip(b.chars()).take_while(|((_, a), b)| a == b);
    let end = shared
        .filter(|((_, c), _)| SEPARATORS.contains(c))
        .last()
        .map_or(0, |((at, c), _)| at + c.len_utf8());
    (&a[end..], &b[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_parts_do_not_make_names_near() {
        let near = |word| nearest(word, ["eval_loss", "eval_accuracy", "eval_r2"].into_iter());
        assert_eq!(near("eval_los"), Some("eval_loss"));
        assert_eq!(near("eval_acuracy"), Some("eval_accuracy"));
        assert_eq!(near("val_loss"), Some("eval_loss"));
        assert_eq!((near("eval_f1"), near("eval_mae")), (None, None));
        assert_eq!(nearest("eval_f1", ["eval_r2", "eval_f1_macro"].into_iter()), Some("eval_f1_macro"));
        assert_eq!(nearest("", ["a", ".b"].into_iter()), None);
        assert_eq!(nearest("größe_x", ["größe_y"].into_iter()), Some("größe_y"));
    }

    #[test]
    fn a_letter_is_near_to_itself_only() {
        assert_eq!(nearest("z", ["a", "b", "y"].into_iter()), None);
        assert_eq!(nearest("Y", ["a", "b", "y"].into_iter()), Some("y"));
        assert_eq!(nearest("x2", ["a", "x1"].into_iter()), Some("x1"));
    }
}
