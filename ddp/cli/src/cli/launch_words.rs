//! The flags of `launch` as other launchers write them, and the place where they end and the run begins.

use std::ffi::OsString;

use clap::{Arg, Command};
use ddp::config::nearest;

/// Flags for the number of ranks and for the hosts by their names in other launchers.
const RANKS: &str = "np nproc nproc-per-node num-processes num-procs gpus num-gpus n-gpus gpus-per-node nprocs world-size devices \
                     num-devices n ntasks";
const HOSTS: &str = "hostfile machinefile host hostlist host-file hosts-file f H";

/// The words after `launch`, with its own names of flags and with `--` before the run.
///
/// - `command`: `launch`
/// - `program`: the program, whose global flags it has too
pub(super) fn launch_words(command: &Command, program: &Command, words: &[OsString]) -> Vec<OsString> {
    let globals = program.get_arguments().filter(|arg| arg.is_global_set());
    let arguments: Vec<&Arg> = command.get_arguments().chain(globals).collect();
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let text = word.to_str().unwrap_or_default();
        let (typed, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let name = typed.trim_start_matches('-').replace('_', "-");
        let is_flag = text.starts_with('-') && !name.is_empty();
        let is_named = |names: &str| is_flag && names.split(' ').any(|other| other == name);
        let of_letter = name.chars().next().filter(|_| is_flag && !text.starts_with("--"));
        let own = arguments.iter().find(|arg| match of_letter {
            Some(letter) => arg.get_short() == Some(letter) && !is_named(RANKS),
            None => is_flag && arg.get_long() == Some(name.as_str()),
        });
        let next = || words.get(at + 1).cloned();
        if is_named(RANKS) || is_named(HOSTS) {
            let Some(value) = value.map(OsString::from).or_else(next) else { break };
            at += usize::from(!text.contains('='));
            // The words of torchrun for all GPUs.
            let is_all = ["gpu", "all", "-1"].iter().any(|all| value == *all);
            out.push(if is_named(RANKS) { "-n" } else { "--hosts" }.into());
            out.push(if is_named(RANKS) && is_all { "auto".into() } else { value });
        } else if let Some(own) = own {
            out.push(if of_letter.is_some() {
                word.clone()
            } else {
                text.replacen(typed, &format!("--{name}"), 1).into()
            });
            let is_apart = value.is_none() && (of_letter.is_none() || name.chars().count() == 1);
            if own.get_action().takes_values() && is_apart {
                out.extend(next());
                at += 1;
            }
        } else if is_named("h help V version") {
            out.push(word.clone());
        } else {
            let longs = arguments.iter().filter_map(|arg| arg.get_long());
            let is_mistyped = is_flag && nearest(&name, longs).is_some();
            if text != "--" && !is_mistyped {
                out.push("--".into());
            }
            break;
        }
        at += 1;
    }
    let mut rest = words.get(at..).unwrap_or_default();
    if let Some((dashes, run)) = rest.split_first().filter(|(word, _)| *word == "--") {
        out.push(dashes.clone());
        rest = run;
    }
    // As after mpirun.
    if let Some((_, run)) = rest.split_first().filter(|(word, _)| *word == "ddp-train") {
        rest = run;
    }
    out.extend_from_slice(rest);
    out
}
