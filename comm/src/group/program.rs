//! Compares the programs of all ranks, before anything else that their builds must have in common; different builds are refused.
//!
//! The exchange itself must stay as it is, so that a later build recognizes this one, and the other way round.

use crate::fnv1a::fnv1a_128;
use crate::rank::ranks_text;
use crate::{CommError, Result};

/// Marks the words of a rank that names its program. In an earlier build the first word is the id of a process, which is smaller.
const MAGIC: i64 = i64::from_le_bytes(*b"program\0");
/// Words of the strings that are exchanged where programs differ.
const TEXT_WORDS: usize = 48;
/// Longest name of a program in an error, in bytes; the rest of the words is the host's.
const NAME_BYTES: usize = 256;
/// Hosts that an error names per program.
const MAX_HOSTS: usize = 4;
/// Name of an earlier build, which sends none.
const UNNAMED: &str = "an earlier version, without a name";

/// Checks that all ranks run the program `name`. Collective.
///
/// - `gather`: gathers the same number of words from every rank, in rank order
///
/// # Errors
/// [`CommError::DifferentPrograms`] on every rank that has this check.
pub(super) fn agree(
    mut gather: impl FnMut(&[i64]) -> Result<Vec<i64>>,
    rank: usize,
    name: &str,
    host: &str,
) -> Result<()> {
    let hash = fnv1a_128(name.as_bytes());
    let all = gather(&[MAGIC, name.len() as i64, hash as i64, (hash >> 64) as i64])?;
    let ranks: Vec<_> = all.chunks(4).collect();
    if ranks.iter().all(|words| *words == ranks[0]) {
        return Ok(());
    }
    let names_itself = |words: &&[i64]| words[0] == MAGIC;
    let programs = if ranks.iter().all(names_itself) {
        let texts = gather(&to_words(name, host))?;
        texts.chunks(TEXT_WORDS).map(from_words).collect()
    } else {
        // An earlier build does not take part in a further exchange.
        let named = ranks.iter().map(|words| match *words {
            words if words == [MAGIC, name.len() as i64, hash as i64, (hash >> 64) as i64] => name,
            words if names_itself(&words) => "another version",
            _ => UNNAMED,
        });
        named.map(|name| (name.to_owned(), String::new())).collect::<Vec<_>>()
    };
    Err(CommError::DifferentPrograms { rank, programs: by_program(&programs) })
}

/// A line per program with its ranks and hosts, in the order of their first ranks.
fn by_program(programs: &[(String, String)]) -> String {
    let mut lines: Vec<(&str, Vec<usize>, Vec<&str>)> = Vec::new();
    for (rank, (name, host)) in programs.iter().enumerate() {
        let known = lines.iter().position(|line| line.0 == name);
        let index = known.unwrap_or_else(|| {
            lines.push((name, Vec::new(), Vec::new()));
            lines.len() - 1
        });
        let (_, ranks, hosts) = &mut lines[index];
        ranks.push(rank);
        if !host.is_empty() && !hosts.contains(&host.as_str()) {
            hosts.push(host);
        }
    }
    let line = |(name, ranks, hosts): &(&str, Vec<usize>, Vec<&str>)| {
        let more = hosts.get(MAX_HOSTS..).filter(|more| !more.is_empty());
        let more = more.map_or_else(String::new, |more| format!(" and {} more", more.len()));
        let place = match hosts[..hosts.len().min(MAX_HOSTS)].join(", ") {
            none if none.is_empty() => none,
            some => format!(" ({some}{more})"),
        };
        format!("\n  {}{place}: {name}", ranks_text(ranks))
    };
    lines.iter().map(line).collect()
}

fn to_words(name: &str, host: &str) -> [i64; TEXT_WORDS] {
    let mut bytes = [0; TEXT_WORDS * 8];
    let (to_name, to_host) = bytes.split_at_mut(NAME_BYTES);
    for (to, text) in [(to_name, name), (to_host, host)] {
        let len = text.len().min(to.len());
        to[..len].copy_from_slice(&text.as_bytes()[..len]);
    }
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|index| i64::from_le_bytes(words[index]))
}

fn from_words(words: &[i64]) -> (String, String) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = |bytes: &[u8]| {
        let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    };
    (text(&bytes[..NAME_BYTES]), text(&bytes[NAME_BYTES..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_listed_with_their_ranks_and_hosts() {
        let rank = |name: &str, host: &str| (name.to_owned(), host.to_owned());
        let text = by_program(&[rank("1.0", "a"), rank("1.1", "b"), rank("1.0", "a"), rank("1.0", "c")]);
        assert_eq!(text, "\n  ranks 0, 2 to 3 (a, c): 1.0\n  rank 1 (b): 1.1");
        let many: Vec<_> = (0..9).map(|host| rank("1.0", &format!("n{host}"))).collect();
        assert_eq!(by_program(&many), "\n  ranks 0 to 8 (n0, n1, n2, n3 and 5 more): 1.0");
        assert_eq!(by_program(&[rank("1.0", ""), rank("2", "")]), "\n  rank 0: 1.0\n  rank 1: 2");
    }

    #[test]
    fn texts_travel_as_words_and_long_ones_are_cut() {
        assert_eq!(from_words(&to_words("ddp-train 1.0", "näh")), ("ddp-train 1.0".into(), "näh".into()));
        let (name, host) = from_words(&to_words(&"n".repeat(999), &"h".repeat(999)));
        assert_eq!((name.len(), host.len()), (NAME_BYTES, TEXT_WORDS * 8 - NAME_BYTES));
    }
}
