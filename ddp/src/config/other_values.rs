//! Values by their names in other programs, such as `16-mixed` for f16: the command line takes them, and errors name the right ones.

const ROWS: &str = include_str!("other_values.txt");

/// A key, the values of other programs, and the settings that mean the same, key by value.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, Vec<(&'static str, &'static str)>)> {
    ROWS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (row, settings) = line.split_once(" = ")?;
        let (key, values) = row.split_once(": ")?;
        let words: Vec<_> = settings.split(' ').collect();
        Some((key, values, words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()))
    })
}

/// A value as it is compared: lower case, without separators.
pub(super) fn squashed(typed: &str) -> String {
    let typed = typed.strip_prefix("torch.").unwrap_or(typed);
    typed.chars().filter(|c| !"-_ ".contains(*c)).flat_map(char::to_lowercase).collect()
}

/// The settings, key by value, that the value `typed` of another program means for `key`.
pub fn settings_for_value(key: &str, typed: &str) -> Option<Vec<(&'static str, &'static str)>> {
    let typed = squashed(typed);
    let means = |values: &str| values.split(' ').any(|value| value == typed);
    rows().find(|(of, values, _)| *of == key && means(values)).map(|(.., settings)| settings)
}

/// A hint that names what the value of another program means for `key`.
pub(super) fn value_hint(key: &str, typed: &str) -> Option<String> {
    Some(match settings_for_value(key, typed)?.as_slice() {
        [(of, value)] if *of == key => format!("did you mean \"{value}\"?"),
        settings => {
            let words = settings.iter().map(|(key, value)| match value.parse::<f64>() {
                Ok(_) => format!("{key} = {value}"),
                Err(_) => format!("{key} = \"{value}\""),
            });
            format!("write {}", words.collect::<Vec<_>>().join(" and "))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::key::Kind;
    use super::super::{Config, keys};
    use super::*;

    #[test]
    fn all_rows_name_keys_and_values_that_exist() {
        for (of, names, settings) in rows() {
            let key = keys().find(|key| key.name == of).unwrap_or_else(|| panic!("no key {of}"));
            for name in names.split(' ') {
                assert_eq!(squashed(name), name, "{of}: as it is compared");
                if let Kind::OneOf(own) = key.kind {
                    assert!(own.iter().all(|own| squashed(own) != name), "{of} knows {name}");
                }
            }
            assert!(!settings.is_empty(), "{of}: {names}");
            for (of, value) in settings {
                let key = keys().find(|key| key.name == of).unwrap();
                assert!(key.as_toml(value).is_some(), "{of}={value}");
            }
        }
    }

    #[test]
    fn errors_name_the_value() {
        let hint =
            |set: &str| ddp_kernels::hint::with_hint(&Config::load(None, &[set.to_owned()]).expect_err(set));
        assert!(hint("train.precision=16-mixed").contains("did you mean \"f16\"?"));
        assert!(hint("data.task=multiclass").contains("did you mean \"classification\"?"));
        for set in ["loss.kind=mae", "loss.kind=l1"] {
            let hint = hint(set);
            assert!(hint.contains("write loss.kind = \"quantile\" and loss.quantile = 0.5"), "{hint}");
        }
        assert!(hint("loss.kind=binary:logistic").contains("data.task = \"classification\""));
    }
}
