//! Checks that all ranks hold the same settings, such as config, model layout, data and build.

use crate::fnv1a::fnv1a_128;
use crate::{CommError, Failure, Result, World};

impl World {
    /// Checks that all ranks hold the same list of keys and values, in the same order. Collective; waits for all ranks.
    ///
    /// Ranks exchange a hash first, and the entries only if one hash differs.
    ///
    /// # Errors
    /// [`CommError::Disagreement`] on every rank, with the first rank that differs from rank 0 and the first key that differs;
    /// the errors of [`Group::all_gather`](crate::Group::all_gather).
    pub fn agree(&self, entries: &[(String, String)]) -> Result<()> {
        let bytes = encode(entries);
        let hashes = self.group().all_gather_bytes(&fnv1a_128(&bytes).to_le_bytes())?;
        self.compare(&bytes, &hashes)
    }

    /// Returns `result` if it is `Ok` on all ranks and they hold the same `entries` of it: [`World::collective_result`] and
    /// [`World::agree`] in one exchange. Collective; waits for all ranks.
    ///
    /// # Errors
    /// See [`World::collective_result`]; a disagreement is a failure of all ranks.
    pub fn agreed_result<T, E: From<CommError>>(
        &self,
        result: std::result::Result<T, E>,
        entries: impl FnOnce(&T) -> Vec<(String, String)>,
    ) -> std::result::Result<T, Failure<E>> {
        let bytes = result.as_ref().ok().map(|value| encode(&entries(value)));
        // A rank that failed has no hash.
        let hash = bytes.as_ref().map_or(Vec::new(), |bytes| fnv1a_128(bytes).to_le_bytes().to_vec());
        let hashes = self.group().all_gather_bytes(&hash).map_err(Failure::Comm)?;
        let value = self.result_of_all(result, self.world_size(), |rank| hashes[rank].is_empty())?;
        match self.compare(&bytes.unwrap_or_default(), &hashes) {
            Ok(()) => Ok(value),
            Err(error @ CommError::Disagreement { .. }) => {
                let reports = self.rank().0 == 0;
                Err(Failure::Here { error: error.into(), reports, on_all_ranks: true })
            }
            Err(error) => Err(Failure::Comm(error)),
        }
    }

    /// Compares the entries of all ranks by their hashes; `bytes` are those of this rank. Collective if they differ.
    fn compare(&self, bytes: &[u8], hashes: &[Vec<u8>]) -> Result<()> {
        let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) else {
            return Ok(());
        };
        let all = self.group().all_gather_bytes(bytes)?;
        let hosts = self.group().all_gather_bytes(self.hostname().as_bytes())?;
        let (key, got, expected) = first_difference(&decode(&all[rank]), &decode(&all[0]));
        let host = String::from_utf8_lossy(&hosts[rank]).into_owned();
        Err(CommError::Disagreement { key, rank, host, got, expected })
    }
}

/// The key, the value in `theirs` and the value in `reference` of the first entry that differs.
fn first_difference(theirs: &[(String, String)], reference: &[(String, String)]) -> (String, String, String) {
    let quoted = |value: &str| format!("'{value}'");
    let absent = || "nothing".to_owned();
    let differing = theirs.iter().zip(reference).find(|(a, b)| a != b);
    match differing {
        Some(((key, got), (expected_key, expected))) if key == expected_key => {
            (key.clone(), quoted(got), quoted(expected))
        }
        Some((_, (key, expected))) => {
            let got = theirs.iter().find(|entry| entry.0 == *key);
            let got = got.map_or_else(absent, |entry| quoted(&entry.1));
            (key.clone(), got, quoted(expected))
        }
        None => match (theirs.get(reference.len()), reference.get(theirs.len())) {
            (Some((key, got)), _) => (key.clone(), quoted(got), absent()),
            (None, Some((key, expected))) => (key.clone(), absent(), quoted(expected)),
            (None, None) => ("an entry that cannot be named".to_owned(), absent(), absent()),
        },
    }
}

/// Encodes the lists, each string after its length, so that different lists have different bytes.
fn encode(entries: &[(String, String)]) -> Vec<u8> {
    let texts = entries.iter().flat_map(|(key, value)| [key, value]);
    texts.flat_map(|text| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()).collect()
}

fn decode(mut bytes: &[u8]) -> Vec<(String, String)> {
    let mut text = || {
        let (len, rest) = bytes.split_first_chunk::<8>()?;
        let (text, rest) = rest.split_at_checked(u64::from_le_bytes(*len) as usize)?;
        bytes = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    std::iter::from_fn(|| Some((text()?, text()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn entries(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    /// The message on all 3 ranks if rank 1 alone holds `theirs`.
    fn disagreement(common: &[(&str, &str)], theirs: &[(&str, &str)]) -> String {
        let errors = threads::run(3, |world| {
            let mine = if world.rank().0 == 1 { theirs } else { common };
            world.agree(&entries(mine)).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        errors[0].clone()
    }

    #[test]
    fn equal_lists_agree() {
        let same = entries(&[("seed", "7"), ("model.hidden", "[128, 64]")]);
        assert!(threads::run(3, |world| world.agree(&same)).iter().all(Result::is_ok));
        assert!(threads::run(2, |world| world.agree(&[])).iter().all(Result::is_ok));
        World::single().agree(&same).unwrap();
    }

    #[test]
    fn a_difference_names_rank_key_and_values_everywhere() {
        let message = disagreement(&[("a", "1"), ("seed", "7")], &[("a", "1"), ("seed", "8")]);
        assert!(
            message.contains("rank 1") && message.contains("'seed': '8' there, '7' on rank 0"),
            "{message}"
        );
    }

    #[test]
    fn a_failure_goes_before_a_difference() {
        let outcomes = |own: fn(usize) -> Result<usize>| {
            threads::run(3, |world| {
                let entries = |value: &usize| entries(&[("seed", &value.to_string())]);
                world.agreed_result(own(world.rank().0), entries)
            })
        };
        assert_eq!(outcomes(|_| Ok(7)), [Ok(7), Ok(7), Ok(7)]);
        fn broken() -> CommError {
            CommError::FailedElsewhere { rank: 9, operation: "test", text: String::new() }
        }
        let failed = outcomes(|rank| if rank == 1 { Err(broken()) } else { Ok(rank) });
        let here = Failure::Here { error: broken(), reports: true, on_all_ranks: false };
        assert_eq!(
            failed,
            [Err(Failure::Elsewhere { rank: 1 }), Err(here), Err(Failure::Elsewhere { rank: 1 })]
        );
        for (rank, outcome) in outcomes(Ok).into_iter().enumerate() {
            let Err(Failure::Here { error, reports, on_all_ranks: true }) = outcome else {
                panic!("{outcome:?}")
            };
            assert!(error.to_string().contains("'seed': '1' there, '0' on rank 0"), "{error}");
            assert_eq!(reports, rank == 0);
        }
    }

    #[test]
    fn missing_and_added_keys_are_differences() {
        let message = disagreement(&[("a", "1"), ("b", "2")], &[("b", "2")]);
        assert!(message.contains("'a': nothing there, '1' on rank 0"), "{message}");
        let message = disagreement(&[("a", "1")], &[("a", "1"), ("b", "2")]);
        assert!(message.contains("'b': '2' there, nothing on rank 0"), "{message}");
        let message = disagreement(&[("a", "1"), ("b", "2")], &[("a", "1")]);
        assert!(message.contains("'b': nothing there, '2' on rank 0"), "{message}");
    }

    #[test]
    fn boundaries_between_texts_count() {
        assert_ne!(encode(&entries(&[("ab", "c")])), encode(&entries(&[("a", "bc")])));
        let list = entries(&[("", ""), ("k\0", "ü")]);
        assert_eq!(decode(&encode(&list)), list);
    }
}
