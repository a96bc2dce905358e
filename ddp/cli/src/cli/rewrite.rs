//! A pass over the words of a command line before clap parses them: flags of other programs and keys of the config written as flags
//! become words of this program, and several values after one flag become one value. A flag of the command itself is left as it is.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, Command};
use ddp::config::key::{Key, Kind};
use ddp::config::{find_key, is_section, keys_for_flag, settings_for_value};
use ddp_tables::open::files::pattern_of;

use super::launch_words::launch_words;
use super::other_names::{Meaning, meanings_of, name_of_letter};
use super::predict::FILE_KEYS;
use super::run_config::{is_rows, names_run};

/// Flags that may have several values, each after a blank.
const LISTS: [&str; 7] = ["target", "drop", "categorical", "hidden", "metrics", "keep", "world"];
/// Keys that have short flags of the same name.
const SHORT: &str = "data.eval data.eval_fraction data.target data.labels data.drop data.categorical data.task model.hidden \
                     train.epochs optimizer.lr train.batch_size train.global_batch_size";
/// The words of a command line, and what was made of them.
pub(super) struct Rewritten {
    /// The words, including the program's name.
    pub(super) words: Vec<OsString>,
    /// Meanings of the words of other programs, such as `--seed 3 sets train.seed`.
    pub(super) taken: Vec<String>,
}

/// Rewrites the words of a command line of `program`.
pub(super) fn rewrite(words: Vec<OsString>, program: &Command) -> Rewritten {
    let (command, n_before) = command_of(program, &words);
    let mut pass =
        Pass { program, command, out: words[..n_before].to_vec(), taken: Vec::new(), places: Vec::new() };
    let rest = &words[n_before..];
    if command.get_name() == "launch" {
        pass.out.extend(launch_words(command, program, rest));
    } else {
        pass.words(rest);
    }
    Rewritten { words: pass.out, taken: pass.taken }
}

/// The innermost subcommand that `words` name, and the number of words up to it.
pub(super) fn command_of<'a>(program: &'a Command, words: &[OsString]) -> (&'a Command, usize) {
    let (mut command, mut n_before) = (program, 1.min(words.len()));
    for (index, word) in words.iter().enumerate().skip(1) {
        if !command.has_subcommands() {
            break;
        }
        if let Some(inner) = command.find_subcommand(word) {
            (command, n_before) = (inner, index + 1);
        }
    }
    (command, n_before)
}

/// The arguments of `command`, and those of all commands of `program`.
pub(super) fn arguments<'a>(command: &'a Command, program: &'a Command) -> impl Iterator<Item = &'a Arg> {
    command.get_arguments().chain(program.get_arguments().filter(|arg| arg.is_global_set()))
}

/// The argument of the flag `--long`, or of its alias.
pub(super) fn find_argument<'a>(command: &'a Command, program: &'a Command, long: &str) -> Option<&'a Arg> {
    let is = |arg: &&Arg| {
        arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|names| names.contains(&long))
    };
    arguments(command, program).find(is)
}

/// Whether `command` has the flag `--long`.
pub(super) fn has_flag(command: &Command, long: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some(long))
}

/// Whether `command` takes the config of a run.
pub(super) fn takes_run(command: &Command) -> bool {
    has_flag(command, "epochs")
}

/// Whether `command` can set the key of `set`: those of `data` set only its section, and those for a model how its rows are written.
pub(super) fn sets(command: &Command, set: &str) -> bool {
    let key = set.split('=').next().unwrap_or(set);
    match command.get_name() {
        "predict" | "eval" => FILE_KEYS.contains(&key),
        _ => has_flag(command, "set") && (takes_run(command) || key.starts_with("data.")),
    }
}

/// The keys of the config that are meant by a flag of this name.
pub(super) fn keys_of(name: &str) -> Vec<&'static Key> {
    let keys = keys_for_flag(name);
    // The name of a run is its folder's.
    keys.into_iter()
        .filter(|key| !matches!(key.kind, Kind::Text) || !key.section().is_empty() || name == "name")
        .collect()
}

struct Pass<'a> {
    program: &'a Command,
    command: &'a Command,
    out: Vec<OsString>,
    taken: Vec<String>,
    /// Indices in `out` of arguments without a flag.
    places: Vec<usize>,
}

impl Pass<'_> {
    fn words(&mut self, words: &[OsString]) {
        let mut at = 0;
        while at < words.len() {
            let rest = &words[at + 1..];
            let Some(word) = words[at].to_str() else {
                self.push(&words[at]);
                at += 1;
                continue;
            };
            if word == "--" {
                self.out.extend_from_slice(&words[at..]);
                break;
            }
            at += 1 + if let Some(flag) = word.strip_prefix("--") {
                let (name, value) = split_value(flag);
                self.flag(word, name, value, rest)
            } else if word.starts_with('-') && word.len() > 1 && word.parse::<f64>().is_err() {
                self.letter(word, rest)
            } else {
                self.place(word)
            };
        }
        self.name_places();
    }

    fn push(&mut self, word: impl Into<OsString>) {
        self.out.push(word.into());
    }

    /// Takes a flag of two dashes; returns the number of further words that belong to it.
    fn flag(&mut self, word: &str, name: &str, value: Option<&str>, rest: &[OsString]) -> usize {
        let dashed = name.replace('_', "-");
        let known = self.argument(name).or_else(|| self.argument(&dashed)).cloned();
        if let Some(arg) = known {
            let long = arg.get_long().unwrap_or(name).to_owned();
            let long = if self.argument(name).is_some() { name.to_owned() } else { long };
            return self.known(&arg, &long, value, rest);
        }
        if let Some(n) = self.foreign(word, &dashed, value, rest) {
            return n;
        }
        self.push(word);
        0
    }

    /// Takes a flag of one letter, or a long one with one dash.
    fn letter(&mut self, word: &str, rest: &[OsString]) -> usize {
        let name = word.trim_start_matches('-');
        let mut letters = name.chars();
        let first = letters.next().unwrap_or('-');
        let is_known = |letter: char| {
            letter == 'h' || letter == 'V' || self.arguments().any(|arg| arg.get_short() == Some(letter))
        };
        if name.chars().all(is_known) {
            self.push(word);
            return 0;
        }
        let (long, value) = split_value(name);
        let taken = if long.chars().count() > 1 {
            let dashed = long.replace('_', "-");
            match self.argument(&dashed).cloned() {
                Some(arg) => Some(self.known(&arg, &dashed, value, rest)),
                None => self.foreign(word, &dashed, value, rest),
            }
        } else {
            name_of_letter(first).and_then(|long| match self.argument(long).cloned() {
                Some(arg) => Some(self.known(&arg, long, value, rest)),
                None => self.foreign(word, long, value, rest),
            })
        };
        taken.unwrap_or_else(|| {
            self.push(word);
            0
        })
    }

    fn arguments(&self) -> impl Iterator<Item = &Arg> {
        arguments(self.command, self.program)
    }

    fn argument(&self, long: &str) -> Option<&Arg> {
        find_argument(self.command, self.program, long)
    }

    /// Takes a flag of the command, with its value as typed, and further values of a list.
    fn known(&mut self, arg: &Arg, long: &str, value: Option<&str>, rest: &[OsString]) -> usize {
        let flag = format!("--{long}");
        if !arg.get_action().takes_values() {
            match value.map(str::to_lowercase).as_deref() {
                None | Some("true") => self.push(flag),
                Some("false") => {}
                Some(value) => self.push(format!("{flag}={value}")),
            }
            return 0;
        }
        let next = rest.first().and_then(|next| next.to_str());
        if arg.is_require_equals_set() && value.is_none() {
            // Its value may be missing: only a number, which is no run, is one.
            let n = next.filter(|next| next.parse::<u64>().is_ok());
            self.push(n.map_or(flag.clone(), |n| format!("{flag}={n}")));
            return usize::from(n.is_some());
        }
        // A path that is no UTF-8 is a path.
        if long == "resume" && (value.is_some() || rest.first().is_none_or(|next| next.to_str().is_some())) {
            let is_latest = |typed: &str| {
                ["latest", "last", "true", "newest", "yes", "True"].contains(&typed)
                    && !Path::new(typed).exists()
            };
            let typed = value.or(next).filter(|typed| !typed.starts_with('-'));
            if typed.is_none_or(is_latest) {
                let words = typed.map_or(flag.clone(), |typed| format!("{flag} {typed}"));
                self.note(&words, &format!("is {flag} auto"));
                self.out.extend(["--resume", "auto"].map(OsString::from));
                return usize::from(value.is_none() && typed.is_some());
            }
        }
        let Some(typed) = value.map(OsString::from).or_else(|| rest.first().cloned()) else {
            self.push(flag);
            return 0;
        };
        let n_taken = usize::from(value.is_none());
        let Some(text) = typed.to_str() else {
            self.out.extend([flag.into(), typed]);
            return n_taken;
        };
        if long == "set"
            && find_key(text).is_some()
            && let Some(next) = rest.get(n_taken).and_then(|next| next.to_str()).filter(|next| is_value(next))
        {
            self.set(text, next);
            return n_taken + 1;
        }
        if long == "task"
            && let Some([("data.task", task)]) = settings_for_value("data.task", text).as_deref()
        {
            self.note(&format!("{flag} {text}"), &format!("is {flag} {task}"));
            self.out.extend([flag, (*task).to_owned()].map(OsString::from));
            return n_taken;
        }
        let more = || rest[n_taken..].iter().map_while(|word| word.to_str().filter(|word| is_value(word)));
        if LISTS.contains(&long) {
            let is_number = long == "hidden" || long == "world";
            let more: Vec<_> = more()
                .take_while(|word| {
                    !names_run(Path::new(word)) && !word.contains('=') && !Path::new(word).exists()
                })
                .take_while(|word| !is_number || word.trim_end_matches(',').parse::<u64>().is_ok())
                .collect();
            let values = [&[text], more.as_slice()].concat();
            if is_number {
                self.out.extend([flag, values.join(",").replace(",,", ",")].map(OsString::from));
            } else {
                let each = values.iter().flat_map(|value| [flag.clone(), (*value).to_owned()]);
                self.out.extend(each.map(OsString::from));
            }
            return n_taken + more.len();
        }
        if long == "data" || long == "eval" {
            let files: Vec<_> = more().take_while(|word| is_rows(Path::new(word))).collect();
            if let Some(pattern) = pattern(&[&[text], files.as_slice()].concat()) {
                self.note(&format!("{flag} with {} files", files.len() + 1), &format!("reads {pattern}"));
                self.out.extend([flag, pattern].map(OsString::from));
                return n_taken + files.len();
            }
        }
        match value {
            Some(value) => self.push(format!("{flag}={value}")),
            None => self.out.extend([flag.into(), typed]),
        }
        n_taken
    }

    /// Takes a flag that the command does not know, if it has one meaning here and its value fits.
    fn foreign(&mut self, word: &str, name: &str, value: Option<&str>, rest: &[OsString]) -> Option<usize> {
        let keys = keys_of(name);
        if let [key] = keys.as_slice()
            && (key.name == name.replace('-', "_") || key.short_name() == name.replace('-', "_"))
            && let Some(n) = self.key(word, key, value, rest)
        {
            return Some(n);
        }
        if let Some(key) = negated(name).filter(|key| sets(self.command, key.name) && value.is_none()) {
            self.note(word, &format!("sets {}=false", key.name));
            self.set(key.name, "false");
            return Some(0);
        }
        let mut has_tip = false;
        for meaning in meanings_of(name) {
            has_tip |= matches!(meaning, Meaning::Tip(_));
            if let Some(n) = self.meaning(word, meaning, value, rest) {
                return Some(n);
            }
        }
        match keys.as_slice() {
            [key] if !has_tip => self.key(word, key, value, rest),
            _ => None,
        }
    }

    fn meaning(
        &mut self,
        word: &str,
        meaning: Meaning,
        value: Option<&str>,
        rest: &[OsString],
    ) -> Option<usize> {
        let next = rest.first().and_then(|next| next.to_str());
        let typed = value.or(next.filter(|next| is_value(next)));
        let before = word.split('=').next().unwrap_or(word);
        match meaning {
            Meaning::Key(name) => self.key(word, find_key(name)?, value, rest),
            Meaning::Set(set) if sets(self.command, set) => {
                self.switch(before, typed, value.is_none(), &format!("sets {set}"), &["--set", set])
            }
            Meaning::Flag(flag) => {
                let arg = self.argument(flag.strip_prefix("--")?)?.clone();
                let typed = typed?;
                let typed = if flag == "--device" { device(typed)? } else { typed.to_owned() };
                self.note(&format!("{before} {}", value.or(next)?), &format!("is {flag} {typed}"));
                let n = self.known(
                    &arg,
                    flag.strip_prefix("--")?,
                    Some(&typed),
                    &rest[usize::from(value.is_none())..],
                );
                Some(n + usize::from(value.is_none()))
            }
            Meaning::Words(words) => {
                let first = words.split(' ').next()?;
                if first != "-vv" {
                    self.argument(first.strip_prefix("--")?)?;
                }
                let each: Vec<_> = words.split(' ').collect();
                self.switch(before, typed, value.is_none(), &format!("is {words}"), &each)
            }
            _ => None,
        }
    }

    /// Takes a flag without a value, or with a truth value: `--fp16 true` is `--fp16`, and `--fp16 false` changes nothing.
    fn switch(
        &mut self,
        before: &str,
        typed: Option<&str>,
        is_apart: bool,
        meaning: &str,
        words: &[&str],
    ) -> Option<usize> {
        let n_taken = match typed.map(str::to_lowercase).as_deref() {
            Some("false" | "0" | "no") => return Some(usize::from(is_apart)),
            Some("true" | "1" | "yes") => usize::from(is_apart),
            _ => is_apart.then_some(0)?,
        };
        self.note(before, meaning);
        self.out.extend(words.iter().map(OsString::from));
        Some(n_taken)
    }

    /// Takes a flag as a key of the config, if the value fits.
    fn key(&mut self, word: &str, key: &Key, value: Option<&str>, rest: &[OsString]) -> Option<usize> {
        let before = word.split('=').next().unwrap_or(word);
        let next = rest.first().and_then(|next| next.to_str()).filter(|next| is_value(next));
        let short = key.short_name().replace('_', "-");
        if SHORT.split(' ').any(|name| name == key.name)
            && let Some(arg) = self.argument(&short).cloned()
        {
            let typed = value.or(next).filter(|typed| {
                key.as_toml(typed).is_some() || settings_for_value(key.name, typed).is_some()
            })?;
            self.note(&format!("{before} {typed}"), &format!("is --{short} {typed}"));
            let n_taken = usize::from(value.is_none());
            return Some(n_taken + self.known(&arg, &short, Some(typed), &rest[n_taken..]));
        }
        if !sets(self.command, key.name) {
            return None;
        }
        let is_switch = matches!(key.kind, Kind::Bool | Kind::BoolOr(_));
        let Some(typed) = value.or(next).filter(|typed| !is_switch || key.as_toml(typed).is_some()) else {
            if !is_switch || value.is_some() {
                return None;
            }
            self.note(before, &format!("sets {}=true", key.name));
            self.set(key.name, "true");
            return Some(0);
        };
        let n_taken = usize::from(value.is_none());
        // Further values of a list, each after a blank.
        let fits = |word: &&str| match key.kind {
            Kind::Counts { .. } | Kind::Numbers { .. } | Kind::NumbersOr(..) => word.parse::<f64>().is_ok(),
            Kind::Texts { .. } | Kind::AnyTexts => !names_run(Path::new(word)) && !word.contains('='),
            _ => false,
        };
        let more = rest[n_taken..].iter().map_while(|word| word.to_str().filter(|word| is_value(word)));
        let more: Vec<_> = more.take_while(fits).take_while(|_| !typed.starts_with('[')).collect();
        if let Some(settings) = settings_for_value(key.name, typed).filter(|_| more.is_empty()) {
            let settings: Vec<_> = settings
                .iter()
                .filter_map(|(name, value)| Some((*name, find_key(name)?.as_toml(value)?)))
                .collect();
            let words = settings.iter().map(|(name, value)| format!("{name}={value}"));
            self.note(
                &format!("{before} {typed}"),
                &format!("sets {}", words.collect::<Vec<_>>().join(" and ")),
            );
            settings.iter().for_each(|(name, value)| self.set(name, value));
            return Some(n_taken);
        }
        let named = |item: &str| match settings_for_value(key.name, item).as_deref() {
            Some([(name, value)]) if *name == key.name => (*value).to_owned(),
            _ => item.to_owned(),
        };
        let joined = typed.split(',').chain(more.iter().copied()).map(named).collect::<Vec<_>>().join(",");
        let toml = key.as_toml(&joined)?;
        let is_same = toml.trim_matches(['"', '[', ']']) == typed || !more.is_empty();
        let set = if is_same { key.name.to_owned() } else { format!("{}={toml}", key.name) };
        let typed = [&[typed], more.as_slice()].concat().join(" ");
        self.note(&format!("{before} {typed}"), &format!("sets {set}"));
        self.set(key.name, &toml);
        Some(n_taken + more.len())
    }

    /// Takes an argument without a flag.
    fn place(&mut self, word: &str) -> usize {
        if let Some((name, value)) = word.split_once('=')
            && takes_run(self.command)
            && !Path::new(word).exists()
        {
            let keys = keys_of(name);
            let key = match keys.as_slice() {
                [key] => Some(key.name),
                _ => None,
            };
            let section = name.split_once('.').map(|(section, _)| section);
            if let Some(name) = key.or_else(|| section.is_some_and(is_section).then_some(name)) {
                self.note(word, &format!("is --set {name}={value}"));
                self.set(name, value);
                return 0;
            }
        }
        self.places.push(self.out.len());
        self.push(word);
        0
    }

    /// Gives arguments without a flag the flags that they stand for: the model and rows of `eval` and `predict`, and several files of
    /// training rows.
    fn name_places(&mut self) {
        let words: Vec<_> =
            self.places.iter().filter_map(|at| self.out[*at].to_str().map(str::to_owned)).collect();
        if words.len() != self.places.len() || words.is_empty() {
            return;
        }
        let is_given = |flag: &str| {
            self.out.iter().any(|word| word.to_str().is_some_and(|word| split_value(word).0 == flag))
        };
        let mut words = words.as_slice();
        let mut named = Vec::new();
        if has_flag(self.command, "checkpoint") && self.command.get_positionals().next().is_none() {
            if !is_given("--checkpoint") {
                named.extend(["--checkpoint".to_owned(), words[0].clone()]);
                words = &words[1..];
                // More models predict together.
                while self.command.get_name() == "predict"
                    && words.first().is_some_and(|word| is_run(Path::new(word)))
                {
                    named.extend(["--checkpoint".to_owned(), words[0].clone()]);
                    words = &words[1..];
                }
            }
            if !is_given("--data") && !words.is_empty() {
                let Some(rows) = one_or_pattern(words) else { return };
                named.extend(["--data".to_owned(), rows]);
                words = &[];
            }
            if !words.is_empty() {
                return;
            }
        } else if words.len() > 1 && takes_run(self.command) && !is_given("--data") {
            let files: Vec<_> = words.iter().map(String::as_str).collect();
            if !files.iter().all(|file| is_rows(Path::new(file))) {
                return;
            }
            let Some(pattern) = pattern(&files) else { return };
            self.note(&format!("{} files", files.len()), &format!("are --data {pattern}"));
            named.extend(["--data".to_owned(), pattern]);
        } else {
            return;
        }
        for at in self.places.drain(..).rev() {
            self.out.remove(at);
        }
        self.out.extend(named.into_iter().map(OsString::from));
    }

    fn set(&mut self, key: &str, value: &str) {
        self.out.extend(["--set".to_owned(), format!("{key}={value}")].map(OsString::from));
    }

    fn note(&mut self, typed: &str, meaning: &str) {
        self.taken.push(format!("{typed} {meaning}"));
    }
}

/// Whether a path is the folder of a run or of a sweep.
fn is_run(path: &Path) -> bool {
    ["config.toml", "sweep.json"].iter().any(|file| path.join(file).is_file())
}

/// A flag and the value after its equals sign.
fn split_value(flag: &str) -> (&str, Option<&str>) {
    flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)))
}

/// Whether a word can be a value: no flag, but perhaps a negative number.
pub(super) fn is_value(word: &str) -> bool {
    !word.starts_with('-') || word == "-" || word.parse::<f64>().is_ok()
}

/// The key that `--no-NAME` switches off.
fn negated(name: &str) -> Option<&'static Key> {
    let keys = keys_of(name.strip_prefix("no-")?);
    match keys.as_slice() {
        [key] if matches!(key.kind, Kind::Bool | Kind::BoolOr(_)) => Some(key),
        _ => None,
    }
}

/// The device that other programs call `gpu` or `0`.
fn device(typed: &str) -> Option<String> {
    let typed = typed.to_lowercase();
    match typed.as_str() {
        "gpu" => Some("cuda".to_owned()),
        "cuda" | "cpu" | "auto" => Some(typed),
        index => {
            index.strip_prefix("cuda:").unwrap_or(index).parse::<u32>().ok().map(|n| format!("cuda:{n}"))
        }
    }
}

/// The pattern for several files of rows. Not for a file of training rows beside one of others.
fn pattern(files: &[&str]) -> Option<String> {
    let is_for = |file: &&&str, side: &str| {
        Path::new(file).file_stem().is_some_and(|stem| stem.to_string_lossy().to_lowercase().contains(side))
    };
    let has = |side: &str| files.iter().any(|file| is_for(&file, side));
    if files.len() < 2 || has("train") && ["test", "val", "eval", "dev"].into_iter().any(has) {
        return None;
    }
    pattern_of(files)
}

fn one_or_pattern(files: &[String]) -> Option<String> {
    match files {
        [one] => Some(one.clone()),
        several => pattern_of(&several.iter().map(String::as_str).collect::<Vec<_>>()),
    }
}
