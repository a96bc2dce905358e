//! Patterns of names: `part-*.csv`, and lists such as `{a,b}.csv`.

/// Whether `source` names files by a pattern: `part-*.csv`, or `{a,b}.csv` for a list.
pub(crate) fn is_pattern(source: &str) -> bool {
    source.contains(['*', '?', '[']) || braces(source).is_some()
}

/// The text before the first list in braces, the list, and the text after it.
pub(super) fn braces(source: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = source.split_once('{')?;
    let (names, after) = rest.split_once('}')?;
    names.contains(',').then_some((before, names, after))
}

/// The patterns without lists that a pattern stands for.
#[cfg(feature = "stores")]
pub(super) fn without_lists(pattern: &str) -> Vec<String> {
    let Some((before, names, after)) = braces(pattern) else { return vec![pattern.to_owned()] };
    names.split(',').flat_map(|name| without_lists(&format!("{before}{name}{after}"))).collect()
}

#[cfg(all(test, feature = "stores"))]
mod tests {
    use super::*;

    #[test]
    fn lists_are_written_out() {
        assert_eq!(without_lists("x{a,b}-{1,2}.csv"), ["xa-1.csv", "xa-2.csv", "xb-1.csv", "xb-2.csv"]);
        assert_eq!(without_lists("{a}.csv"), ["{a}.csv"]);
    }
}
