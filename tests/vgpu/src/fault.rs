//! Faults on request: `VGPU_FAIL`, a comma-separated list of rules.
//!
//! A rule is a name, optionally a colon and a number, word or `key=value`, and further `key=value` pairs:
//! `malloc:3`, `nodevice`, `ecc:7,rank=1`, `nccl:step=5,rank=1`. A piece that has `=` but no colon belongs to the
//! rule before it. A rule with `rank=N` applies only to the process of that rank. README.md lists the names.

use crate::abi::lock;
use crate::config::CONFIG;
use crate::report::note;
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex};

/// One rule that applies to this process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rule {
    pub(crate) name: String,
    /// The number after the colon, as in "the third".
    pub(crate) at: Option<u64>,
    /// The word after the colon, if it is neither a number nor `key=value`.
    pub(crate) word: Option<String>,
    pub(crate) values: BTreeMap<String, String>,
}

impl Rule {
    /// The number after `key=`.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.values.get(key)?.parse().ok()
    }
}

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let mine = |rule: &Rule| rule.number("rank").is_none_or(|rank| rank == CONFIG.rank);
    parse(&std::env::var("VGPU_FAIL").unwrap_or_default()).into_iter().filter(mine).collect()
});

/// The first rule with this name for this process.
pub(crate) fn rule(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}

/// Whether the driver refuses this feature: `refuse:pool`.
pub(crate) fn refuses(feature: &str) -> bool {
    RULES.iter().any(|rule| rule.name == "refuse" && rule.word.as_deref() == Some(feature))
}

/// Whether what this kernel, or `matmul`, computes must be wrong.
pub(crate) fn is_wrong(name: &str) -> bool {
    RULES.iter().any(|rule| rule.name == "wrong" && rule.word.as_deref() == Some(name))
}

/// Never returns if work of this kind must not end: `hangs:epilogue`.
pub(crate) fn hang_on_request(kind: &str) {
    if RULES.iter().any(|rule| rule.name == "hangs" && rule.word.as_deref() == Some(kind)) {
        note(&format!("fault on request: hangs:{kind}"));
        loop {
            std::thread::park();
        }
    }
}

/// Counts one occurrence of the event `name`; returns true if this is the occurrence that must fail.
pub(crate) fn due(name: &'static str) -> bool {
    if !RULES.iter().any(|rule| rule.name == name) {
        return false;
    }
    static SEEN: Mutex<Option<HashMap<&'static str, u64>>> = Mutex::new(None);
    let count = {
        let mut seen = lock(&SEEN);
        let count = seen.get_or_insert_default().entry(name).or_default();
        *count += 1;
        *count
    };
    let due = RULES.iter().any(|rule| rule.name == name && rule.at.unwrap_or(1) == count);
    if due {
        note(&format!("fault on request: {name}:{count}"));
    }
    due
}

/// All rules in `text`, for any rank.
pub(crate) fn parse(text: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for piece in text.split(',').map(str::trim).filter(|piece| !piece.is_empty()) {
        let (name, first) = match (piece.split_once(':'), rules.last_mut()) {
            (Some((name, first)), _) => (name, Some(first)),
            (None, Some(rule)) if piece.contains('=') => {
                add(rule, piece);
                continue;
            }
            (None, _) => (piece, None),
        };
        let mut rule = Rule { name: name.into(), ..Rule::default() };
        if let Some(first) = first {
            add(&mut rule, first);
        }
        rules.push(rule);
    }
    rules
}

fn add(rule: &mut Rule, value: &str) {
    if let Some((key, value)) = value.split_once('=') {
        rule.values.insert(key.into(), value.into());
    } else if let Ok(number) = value.parse() {
        rule.at = Some(number);
    } else {
        rule.word = Some(value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn values_without_a_colon_belong_to_the_rule_before_them() {
        let rules = parse("nodevice, malloc:3,nccl:step=5,rank=1,nccl:init,ecc:7");
        let names: Vec<_> = rules.iter().map(|r| &r.name[..]).collect();
        assert_eq!(names, ["nodevice", "malloc", "nccl", "nccl", "ecc"]);
        assert_eq!(rules[1].at, Some(3));
        assert_eq!((rules[2].number("step"), rules[2].number("rank")), (Some(5), Some(1)));
        assert_eq!(rules[3].word.as_deref(), Some("init"));
        assert_eq!((rules[4].at, rules[4].number("rank")), (Some(7), None));
    }
}
