//! Messages of the supervisor about an attempt that has ended or does not start.

use ddp::exit_code;
use ddp::host_memory::{MEMORY_HINT, MemoryLimit};

use crate::decision::{Ended, Reason, SIGNALED};
use crate::hosts::{Host, names};
use crate::run_watch::Newest;

/// The name that ranks have which this program starts itself, in place of their launcher's.
pub(crate) const ITSELF: &str = "the job";
/// The highest signal number.
const LAST_SIGNAL: i32 = 64;

/// The restart that follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Restart<'a> {
    pub(crate) number: usize,
    pub(crate) max: usize,
    pub(crate) newest: Newest,
    pub(crate) n_ranks: usize,
    pub(crate) hosts: &'a [Host],
    pub(crate) wait_s: u64,
}

/// Describes the end of the job: "mpirun ended with status 137 (SIGKILL); the run reported status 75 (a rank was lost)".
pub(crate) fn ended(launcher: &str, ended: Ended, reported: Option<u8>) -> String {
    let text = match ended {
        Ended::Code(code) => format!("{launcher} ended with status {code}{}", meaning(code)),
        Ended::Signal(signal) => format!("{launcher} was ended by {}", signal_name(signal)),
        Ended::Idle => format!("{launcher} started no rank and was killed"),
        Ended::Frozen => format!("{launcher} was killed, since a process of the job was frozen (SIGSTOP)"),
        Ended::Hung => format!("{launcher} did not end after its ranks and was killed"),
        Ended::Interrupted => format!("{launcher} was ended at once"),
    };
    match reported.map(i32::from) {
        Some(code) if ended != Ended::Code(code) => {
            format!("{text}; the run reported status {code}{}", meaning(code))
        }
        _ => text,
    }
}

/// Reports a job whose ranks have not joined after `seconds`; `n_ranks` of them run on this host.
pub(crate) fn not_started(launcher: &str, seconds: usize, n_ranks: usize, held: &[String]) -> String {
    let text = match n_ranks {
        0 => format!("{launcher} has started no rank on this host for {seconds} s"),
        1 => format!("1 rank runs on this host, and the ranks have not joined for {seconds} s"),
        _ => format!("{n_ranks} ranks run on this host, and the ranks have not joined for {seconds} s"),
    };
    format!("{text}{}", last_lines(launcher, held))
}

/// Reports a job that ended before its ranks had joined.
pub(crate) fn failed_to_start(how: &str, launcher: &str, held: &[String]) -> String {
    format!("{how}; its ranks had not joined{}", last_lines(launcher, held))
}

/// The line in which a launcher says that this host has no room or no right for its files, if one of its own last lines does.
pub(crate) fn shortage(held: &[String]) -> Option<&str> {
    const WORDS: [&str; 4] =
        ["No space left on device", "not enough space", "Read-only file system", "Permission denied"];
    let line = held.iter().find(|line| WORDS.iter().any(|word| line.contains(word)))?;
    Some(line.trim())
}

/// Reports that the ranks are started again without the launcher, which has ended because of `cause`.
pub(crate) fn without_launcher(how: &str, launcher: &str, cause: &str) -> String {
    format!("{how} ({cause}); this program starts the ranks without {launcher}, as with --launcher env")
}

/// The launcher's own last lines, and what to try.
fn last_lines(launcher: &str, held: &[String]) -> String {
    if launcher == ITSELF {
        return "\nhint: see the messages above; the ranks join at a port of the loopback interface"
            .to_owned();
    }
    let lines: String = held.iter().map(|line| format!("\n  | {line}")).collect();
    let lines = if held.is_empty() { lines } else { format!("; its last lines:{lines}") };
    // Set by this program itself: see `ddp_comm::World::before_threads`.
    let is_own = |name: &str| name == "OMPI_MCA_mpi_yield_when_idle";
    let is_setting = |name: &String| {
        let prefixes = ["OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_"];
        prefixes.iter().any(|prefix| name.starts_with(prefix)) && !is_own(name)
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut settings: Vec<String> = names.filter(is_setting).collect();
    settings.sort();
    let settings = match &settings[..] {
        [] => "its settings (`~/.openmpi/mca-params.conf`)".to_owned(),
        set => format!("its settings in the environment ({})", set.join(", ")),
    };
    format!(
        "{lines}\nhint: check {settings}; try `mpirun -n 2 hostname` with the same --host, and connections between the hosts; \
         on one host, --launcher env does without it"
    )
}

/// The line that announces a restart.
pub(crate) fn restart(how: &str, next: &Restart<'_>) -> String {
    let Restart { number, max, n_ranks, wait_s, .. } = *next;
    let step = match next.newest {
        Newest::Step(step) => format!("from step {step}"),
        Newest::Unusable => "with --resume auto".to_owned(),
        Newest::Nothing => "from the beginning".to_owned(),
    };
    let ranks = if n_ranks == 1 { "1 rank".to_owned() } else { format!("{n_ranks} ranks") };
    let hosts = if next.hosts.is_empty() { "this host".to_owned() } else { names(next.hosts) };
    let when = if wait_s == 0 { "at once".to_owned() } else { format!("in {wait_s} s") };
    format!("{how}; restart {number} of {max} {step} on {ranks} of {hosts} {when}")
}

/// Explains why there is no restart, for the reasons that the run does not report itself.
///
/// - `resume`: the words that continue the run
pub(crate) fn given_up(
    how: &str,
    reason: Reason,
    n_restarts: usize,
    newest: Newest,
    memory: Option<MemoryLimit>,
    resume: &str,
) -> Option<String> {
    let (step, follows) = match newest {
        Newest::Step(step) => (format!("the newest checkpoint is of step {step}"), "continues from it"),
        Newest::Unusable => ("no checkpoint can be used".to_owned(), "reports why"),
        Newest::Nothing => ("there is no checkpoint".to_owned(), "starts over"),
    };
    let resume = format!("the same command with {resume} {follows}");
    match reason {
        Reason::Complete | Reason::Stopped | Reason::Interrupted | Reason::Permanent => None,
        Reason::Memory => {
            let limit = memory.map_or_else(String::new, |limit| format!(" ({limit})"));
            Some(format!(
                "{how}; a rank was killed for memory{limit}; {step}\nhint: {MEMORY_HINT}; then {resume}"
            ))
        }
        Reason::LostWhileStopping => Some(format!("{how} before it had saved; {step}\nhint: {resume}")),
        Reason::NoProgress => Some(format!(
            "{how}; gave up after restart {n_restarts}, which saved no new checkpoint; {step}\n\
             hint: see the messages above; if the run was on its way, save more often with `checkpoint.every_steps`"
        )),
        Reason::NoRestartsLeft => Some(format!(
            "{how}; gave up after {n_restarts} restarts (--max-restarts); {step}\nhint: {resume}"
        )),
    }
}

/// Meaning of an exit status, in parentheses.
fn meaning(code: i32) -> String {
    let text = match u8::try_from(code) {
        Ok(exit_code::DONE) => "but the run is not complete",
        Ok(exit_code::RESTARTABLE) => "a rank was lost",
        Ok(exit_code::SAVED) => "it was stopped and saved",
        _ if (SIGNALED + 1..=SIGNALED + LAST_SIGNAL).contains(&code) => {
            return format!(" ({})", signal_name(code - SIGNALED));
        }
        _ => return String::new(),
    };
    format!(" ({text})")
}

pub(crate) fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_ended_and_what_follows() {
        let how = ended("mpirun", Ended::Code(137), Some(75));
        assert_eq!(
            how,
            "mpirun ended with status 137 (SIGKILL); the run reported status 75 (a rank was lost)"
        );
        assert_eq!(
            ended("mpirun", Ended::Code(75), Some(75)),
            "mpirun ended with status 75 (a rank was lost)"
        );
        assert_eq!(
            ended("srun", Ended::Code(0), None),
            "srun ended with status 0 (but the run is not complete)"
        );
        assert_eq!(ended("mpirun", Ended::Code(213), None), "mpirun ended with status 213");
        assert_eq!(ended("mpirun", Ended::Signal(9), None), "mpirun was ended by SIGKILL");
        let hosts =
            [Host { name: "a".to_owned(), slots: Some(2) }, Host { name: "b".to_owned(), slots: None }];
        let next =
            Restart { number: 1, max: 3, newest: Newest::Step(40), n_ranks: 3, hosts: &hosts, wait_s: 1 };
        assert_eq!(restart("x", &next), "x; restart 1 of 3 from step 40 on 3 ranks of a, b in 1 s");
        let next = Restart { newest: Newest::Nothing, n_ranks: 1, hosts: &[], wait_s: 0, ..next };
        assert_eq!(
            restart("x", &next),
            "x; restart 1 of 3 from the beginning on 1 rank of this host at once"
        );
    }

    #[test]
    fn a_job_that_does_not_start_shows_the_launchers_lines() {
        let held = ["No component plm.".to_owned(), "Host: a".to_owned()];
        let text = failed_to_start("mpirun ended with status 1", "mpirun", &held);
        let start = "mpirun ended with status 1; its ranks had not joined; its last lines:\n  | No component plm.\n  | Host: a\nhint: ";
        assert!(text.starts_with(start), "{text}");
        let text = not_started("mpirun", 20, 0, &[]);
        assert!(text.starts_with("mpirun has started no rank on this host for 20 s\nhint: check "), "{text}");
        assert!(not_started("mpirun", 20, 2, &[]).starts_with("2 ranks run on this host, and"));
        let text = failed_to_start("the job ended with status 1", "the job", &[]);
        assert!(!text.contains("mpirun"), "{text}");
    }

    const AUTO: &str = "--resume auto";

    #[test]
    fn a_hint_names_the_words_that_continue_the_run() {
        let end = |newest| {
            let text =
                given_up("x", Reason::NoRestartsLeft, 3, newest, None, "--out o --resume auto").unwrap();
            text.split_once("(--max-restarts); ").unwrap().1.to_owned()
        };
        let hint = "hint: the same command with --out o --resume auto";
        assert_eq!(
            end(Newest::Step(7)),
            format!("the newest checkpoint is of step 7\n{hint} continues from it")
        );
        assert_eq!(end(Newest::Unusable), format!("no checkpoint can be used\n{hint} reports why"));
        assert_eq!(end(Newest::Nothing), format!("there is no checkpoint\n{hint} starts over"));
    }

    #[test]
    fn only_the_supervisors_own_reasons_are_said() {
        assert_eq!(given_up("x", Reason::Permanent, 0, Newest::Nothing, None, AUTO), None);
        let limit = MemoryLimit { bytes: 40 << 20, is_container: true };
        let text = given_up("x", Reason::Memory, 0, Newest::Nothing, Some(limit), AUTO).unwrap();
        let start = "x; a rank was killed for memory (limit 40 MiB); there is no checkpoint\nhint: lower ";
        assert!(text.starts_with(start), "{text}");
        let text = given_up("x", Reason::NoProgress, 2, Newest::Step(7), None, AUTO).unwrap();
        assert!(
            text.starts_with("x; gave up after restart 2") && text.contains("of step 7\nhint: "),
            "{text}"
        );
        assert!(
            given_up("x", Reason::NoRestartsLeft, 3, Newest::Nothing, None, AUTO)
                .unwrap()
                .contains("there is no checkpoint")
        );
    }
}
