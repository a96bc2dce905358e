//! Fastest choice for each matmul: the algorithm among the candidates of cuBLASLt, and the form, from everything fused to separate
//! parts. Chosen by `timing.rs` of `matmul/`, kept on disk, and exchanged as lines of text.
//!
//! A choice is an index into a list of options, with a fingerprint of that list: with another version of the library or on another
//! GPU the options differ, and the choice is dropped. So nothing that a file says reaches the library.

use std::collections::{HashMap, HashSet};

use super::problem::{AlignedTo, Conditions, Epilogue, Key, Matmul};
use crate::DType;
use crate::base::matmul_mode::MatmulMode;
use crate::cuda::cache;

/// First part of the name of the choices on disk: changes with the format of a line.
const FORMAT: &[u8] = b"matmul choices 3";
/// Maximum number of choices on disk; a run of a deep network has a few hundred.
const MAX_STORED: usize = 20_000;

/// Subject of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::cuda) enum Subject {
    /// The algorithm of a matmul with its epilogue.
    Algorithm,
    /// One of [`Epilogue::forms`], of which the key has the first.
    Form,
    /// The place of a step's update ([`Key::for_update`]).
    Update,
    /// The factors of a product in [`MatmulMode::F32x3`]: whole, multiplied in f32, or split.
    Factors,
}

/// The fastest of several options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cuda) struct Choice {
    pub(in crate::cuda) index: usize,
    /// Number of options.
    pub(in crate::cuda) n: usize,
    /// Fingerprint of the options.
    pub(in crate::cuda) among: u64,
    /// Time of the chosen one, µs.
    pub(in crate::cuda) us: f64,
    /// Time of the first one, µs.
    pub(in crate::cuda) first_us: f64,
}

type About = (Subject, Key);

/// The choices of a device.
#[derive(Debug, Default)]
pub(in crate::cuda) struct Choices {
    in_use: HashMap<About, Choice>,
    /// Keys whose options were examined, with nothing to choose from.
    settled: HashSet<About>,
    /// From the disk, until something asks for them; None before they are read.
    stored: Option<HashMap<About, Choice>>,
    /// Whether some in use are not known to be on disk.
    has_unsaved: bool,
    /// Device time that measurements have taken, µs.
    pub(in crate::cuda) spent_us: f64,
}

impl Choices {
    /// The choice in use.
    pub(in crate::cuda) fn get(&self, subject: Subject, key: &Key) -> Option<Choice> {
        self.in_use.get(&(subject, *key)).copied()
    }

    /// Whether the options must be looked at: to compare them with those of a choice that was taken over, or to choose.
    pub(in crate::cuda) fn is_open(&self, subject: Subject, key: &Key, is_choosing: bool) -> bool {
        let about = (subject, *key);
        !self.settled.contains(&about) && (is_choosing || self.in_use.contains_key(&about))
    }

    /// Drops a choice among other options than these; while choosing, takes one from the disk, where they have this name. Returns
    /// whether a choice is in use, which then holds.
    pub(in crate::cuda) fn recall(
        &mut self,
        subject: Subject,
        key: &Key,
        among: u64,
        place: Option<&[String]>,
    ) -> bool {
        let about = (subject, *key);
        if self.in_use.get(&about).is_some_and(|choice| choice.among != among) {
            self.in_use.remove(&about);
        }
        if let Some(place) = place.filter(|_| !self.in_use.contains_key(&about)) {
            let stored = self.stored.get_or_insert_with(|| read(place));
            if let Some(choice) = stored.get(&about).filter(|choice| choice.among == among) {
                self.in_use.insert(about, *choice);
            }
        }
        let holds = self.in_use.contains_key(&about);
        if holds {
            self.settled.insert(about);
        }
        holds
    }

    /// Takes a choice into use; None if there was nothing to choose.
    pub(in crate::cuda) fn settle(&mut self, subject: Subject, key: &Key, choice: Option<Choice>) {
        let about = (subject, *key);
        self.settled.insert(about);
        if let Some(choice) = choice {
            self.in_use.insert(about, choice);
            self.has_unsaved = true;
        }
    }

    /// Adds the choices in use to those on disk, unless all of them come from there. A failure only makes the next start slower.
    pub(in crate::cuda) fn store(&mut self, place: &[String]) {
        if !std::mem::take(&mut self.has_unsaved) {
            return;
        }
        let Some(cache) = cache::Cache::for_user() else { return };
        let mut all = read(place);
        if all.len() > MAX_STORED {
            all.clear();
        }
        all.extend(self.in_use.iter().map(|(about, choice)| (*about, *choice)));
        cache.write(&entry(place), text(&all).as_bytes());
        self.stored = Some(all);
    }

    /// The choices in use, one per line, sorted.
    pub(in crate::cuda) fn export(&self) -> String {
        text(&self.in_use)
    }

    /// Takes over the choices of these lines, replacing existing ones; of two for the same key, the first counts. Returns the keys whose algorithm
    /// changes. Lines of another format are skipped.
    pub(in crate::cuda) fn import(&mut self, text: &str) -> Vec<Key> {
        let (mut seen, mut changed) = (HashSet::new(), Vec::new());
        for (about, choice) in text.lines().filter_map(parse) {
            if !seen.insert(about) {
                continue;
            }
            let before = self.in_use.insert(about, choice);
            let is_same =
                before.is_some_and(|before| (before.index, before.among) == (choice.index, choice.among));
            if is_same {
                continue;
            }
            self.settled.remove(&about);
            self.has_unsaved = true;
            if about.0 == Subject::Algorithm {
                changed.push(about.1);
            }
        }
        changed
    }

    /// The choices in use, in words and times.
    pub(in crate::cuda) fn all(&self) -> Vec<MatmulChoice> {
        let mut all: Vec<(&About, &Choice)> = self.in_use.iter().collect();
        all.sort_by_cached_key(|(about, choice)| line(about, choice));
        all.into_iter().map(|(about, choice)| MatmulChoice::new(about, choice)).collect()
    }
}

/// A choice by time, for reports.
#[derive(Debug, Clone, PartialEq)]
pub struct MatmulChoice {
    /// The matmul: epilogue, shape `m x n x k`, operands and their format.
    pub matmul: String,
    /// Describes it: `algorithm 3 of 8`, or the form in place of its epilogue.
    pub chosen: String,
    /// Time of the chosen one, µs.
    pub us: f64,
    /// Time of the first answer of cuBLASLt's heuristic, or of the first form, µs.
    pub first_us: f64,
}

impl MatmulChoice {
    fn new((subject, key): &About, choice: &Choice) -> Self {
        let m = key.matmul;
        let (rows, of) = (rows_name(&m), (transposes(&m), format_name(&m)));
        let next_to = match key.conditions.n_free {
            0 => String::new(),
            n_free => format!(" on {n_free} multiprocessors"),
        };
        let matmul = match subject {
            Subject::Update => format!("update of {} weights after {} rows", m.n, m.m),
            _ => format!("{:?} {rows}x{}x{} {} {}{next_to}", m.epilogue, m.n, m.k, of.0, of.1),
        };
        let chosen = match subject {
            Subject::Algorithm => format!("algorithm {} of {}", choice.index + 1, choice.n),
            Subject::Form => match m.epilogue.forms().get(choice.index) {
                Some(form) if *form == m.epilogue => "fused".to_owned(),
                None | Some(Epilogue::None) => "its parts".to_owned(),
                Some(form) => format!("{form:?} and the other parts"),
            },
            Subject::Update => format!("place {} of {}", choice.index + 1, choice.n),
            Subject::Factors => if choice.index == 0 { "f32" } else { "split factors" }.to_owned(),
        };
        MatmulChoice { matmul, chosen, us: choice.us, first_us: choice.first_us }
    }
}

fn entry(place: &[String]) -> cache::Key {
    let parts: Vec<&[u8]> = std::iter::once(FORMAT).chain(place.iter().map(String::as_bytes)).collect();
    cache::Key::new(&parts)
}

fn read(place: &[String]) -> HashMap<About, Choice> {
    let bytes = cache::Cache::for_user().and_then(|cache| cache.read(&entry(place))).unwrap_or_default();
    String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect()
}

fn text(choices: &HashMap<About, Choice>) -> String {
    let mut lines: Vec<String> = choices.iter().map(|(about, choice)| line(about, choice)).collect();
    lines.sort_unstable();
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

pub(in crate::cuda) fn transposes(matmul: &Matmul) -> String {
    [matmul.transpose_a, matmul.transpose_b]
        .map(|is_transposed| if is_transposed { 'T' } else { 'N' })
        .iter()
        .collect()
}

/// The rows of the result, after the number of products where there are several: `8*64`.
pub(in crate::cuda) fn rows_name(matmul: &Matmul) -> String {
    match matmul.batch {
        1 => matmul.m.to_string(),
        batch => format!("{batch}*{}", matmul.m),
    }
}

fn format_name(matmul: &Matmul) -> String {
    format!("{}>{}{}", matmul.inputs, matmul.output, matmul.mode.suffix())
}

/// Subject, epilogue, shape, transposes, dtypes, mode, alignments, free multiprocessors, index, number and fingerprint of the options, times in µs.
fn line((subject, key): &About, choice: &Choice) -> String {
    let Key { matmul: m, aligned_to, conditions } = key;
    let n_free = conditions.n_free;
    let AlignedTo { a, b, c, bias, aux } = aligned_to;
    let Choice { index, n, among, us, first_us } = choice;
    let Matmul { inputs, output, mode, epilogue, .. } = m;
    format!(
        "{subject:?} {epilogue:?} {} {} {} {} {inputs} {output} {mode:?} {a} {b} {c} {bias} {aux} {n_free} {index} {n} {among:016x} \
         {us:.2} {first_us:.2}",
        rows_name(m),
        m.n,
        m.k,
        transposes(m),
    )
}

fn parse(line: &str) -> Option<(About, Choice)> {
    let fields: [&str; 20] = line.split_ascii_whitespace().collect::<Vec<_>>().try_into().ok()?;
    let [subject, epilogue, m, n, k, transposed, inputs, output, mode, a, b, c, bias, aux, rest @ ..] =
        fields;
    let [n_free, index, n_options, among, us, first_us] = rest;
    let number = |text: &str| text.parse::<usize>().ok();
    let alignment = |text: &str| text.parse().ok();
    let dtype = |name: &str| DType::ALL.iter().copied().find(|dtype| dtype.name() == name);
    let (transpose_a, transpose_b) = match transposed {
        "NN" => (false, false),
        "NT" => (false, true),
        "TN" => (true, false),
        "TT" => (true, true),
        _ => return None,
    };
    let (batch, m) = m.split_once('*').unwrap_or(("1", m));
    let matmul = Matmul {
        batch: number(batch)?,
        m: number(m)?,
        n: number(n)?,
        k: number(k)?,
        transpose_a,
        transpose_b,
        inputs: dtype(inputs)?,
        output: dtype(output)?,
        mode: MatmulMode::ALL.into_iter().find(|known| format!("{known:?}") == mode)?,
        epilogue: Epilogue::ALL.into_iter().find(|known| format!("{known:?}") == epilogue)?,
    };
    let aligned_to = AlignedTo {
        a: alignment(a)?,
        b: alignment(b)?,
        c: alignment(c)?,
        bias: alignment(bias)?,
        aux: alignment(aux)?,
    };
    let subject = match subject {
        "Algorithm" => Subject::Algorithm,
        "Form" => Subject::Form,
        "Update" => Subject::Update,
        "Factors" => Subject::Factors,
        _ => return None,
    };
    let choice = Choice {
        index: number(index)?,
        n: number(n_options)?,
        among: u64::from_str_radix(among, 16).ok()?,
        us: us.parse().ok()?,
        first_us: first_us.parse().ok()?,
    };
    // Only what is not deterministic is chosen by time.
    let conditions = Conditions { is_deterministic: false, n_free: n_free.parse().ok()? };
    let key = Key { matmul, aligned_to, conditions };
    (choice.index < choice.n).then_some(((subject, key), choice))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(m: usize, epilogue: Epilogue) -> Key {
        let (inputs, output, mode) = (DType::BF16, DType::F32, MatmulMode::Tf32);
        let matmul = Matmul {
            batch: 1,
            m,
            n: 128,
            k: 64,
            transpose_a: true,
            transpose_b: false,
            inputs,
            output,
            mode,
            epilogue,
        };
        let aligned_to = AlignedTo { a: 256, b: 16, c: 4, bias: 64, aux: 256 };
        let conditions = Conditions { n_free: (m % 3 * 58) as u32, ..Conditions::default() };
        Key { matmul, aligned_to, conditions }
    }

    fn choice(index: usize) -> Choice {
        Choice { index, n: 8, among: 0x0123_4567_89ab_cdef, us: 3.25, first_us: 4.5 }
    }

    #[test]
    fn choices_survive_their_text_and_other_lines_are_skipped() {
        let mut choices = Choices::default();
        for (m, epilogue) in (1..).zip(Epilogue::ALL) {
            choices.settle(Subject::Algorithm, &key(m, epilogue), Some(choice(m % 8)));
            choices.settle(Subject::Form, &key(m, epilogue), Some(choice(0)));
        }
        let mut split = key(3, Epilogue::None);
        split.matmul.mode = MatmulMode::F32x3;
        choices.settle(Subject::Factors, &split, Some(choice(1)));
        let text = choices.export();
        let mut back = Choices::default();
        assert_eq!(back.import(&text).len(), Epilogue::ALL.len());
        assert_eq!((back.export(), back.in_use), (text.clone(), choices.in_use));
        let mut none = Choices::default();
        for line in text.lines() {
            for changed in [
                line.replace("TN", "XX"),
                line.replace(" 8 ", " 0 "),
                format!("{line} 1"),
                line[5..].to_owned(),
            ] {
                assert_eq!(none.import(&changed), [], "{changed}");
            }
        }
        assert!(none.in_use.is_empty());
    }

    #[test]
    fn the_first_of_two_lines_is_taken_over_and_replaces_an_own_choice() {
        let key = key(32, Epilogue::Bias);
        let text = |index| {
            let mut choices = Choices::default();
            choices.settle(Subject::Algorithm, &key, Some(choice(index)));
            choices.export()
        };
        let mut own = Choices::default();
        own.settle(Subject::Algorithm, &key, Some(choice(1)));
        assert_eq!(own.import(&(text(2) + &text(3))), [key]);
        assert_eq!(own.get(Subject::Algorithm, &key), Some(choice(2)));
        assert_eq!(own.import(&text(2)), [], "nothing changes");
    }
}
