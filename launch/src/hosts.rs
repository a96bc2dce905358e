//! Hosts of a job, as the user lists them, the number of ranks that each accepts, and the remote shell that reaches them.

use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::error::LaunchError;

/// Maximum size of a host file.
const MAX_HOSTS_BYTES: u64 = 1 << 20;

type Result<T> = std::result::Result<T, LaunchError>;

/// A host of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// Number of ranks that the host accepts; `None` if the user gives no number.
    pub(crate) slots: Option<usize>,
}

impl Host {
    /// Whether it is the host `own`, where this process runs.
    pub(crate) fn is_local(&self, own: &str) -> bool {
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        ["localhost", "127.0.0.1", "::1"].contains(&self.name.as_str()) || short(&self.name) == short(own)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Names of hosts for a message.
pub(crate) fn names(hosts: &[Host]) -> String {
    hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Reads the value of `--hosts`: the name of a file, or the list itself.
pub(crate) fn read(text: &str) -> Result<Vec<Host>> {
    let path = Path::new(text);
    let is_list = text.contains([',', ':']) || !path.exists();
    let hosts = if is_list && !path.is_file() {
        text.split(',').map(|word| entry(word, || "the list".to_owned())).collect::<Result<Vec<_>>>()?
    } else {
        let failed = |source| LaunchError::HostFile { path: path.to_owned(), source };
        let text = ddp::storage::user_file::read_regular(path, MAX_HOSTS_BYTES).map_err(failed)?;
        lines(&String::from_utf8_lossy(&text), path)?
    };
    if hosts.is_empty() {
        Err(LaunchError::BadHost { place: text.to_owned(), got: String::new() })
    } else {
        Ok(hosts)
    }
}

/// Reads the hosts of a file: `node1 slots=8` (Open MPI), `node1:8` (MPICH) or `node1`; comments start with `#`.
fn lines(text: &str, path: &Path) -> Result<Vec<Host>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let numbered = lines.enumerate().filter(|(_, line)| !line.is_empty());
    numbered.map(|(index, line)| entry(line, || format!("{} line {}", path.display(), index + 1))).collect()
}

fn entry(text: &str, place: impl Fn() -> String) -> Result<Host> {
    let bad = || LaunchError::BadHost { place: place(), got: text.trim().to_owned() };
    let mut words = text.split_whitespace();
    let first = words.next().ok_or_else(bad)?;
    let (name, mut slots) = match first.split_once(':') {
        Some((name, slots)) => (name, Some(slots)),
        None => (first, None),
    };
    for word in words {
        match word.split_once('=') {
            Some(("slots", number)) if slots.is_none() => slots = Some(number),
            // Of Open MPI's other keywords only this one is common, and --bind-to none makes it irrelevant.
            Some(("max_slots" | "max-slots", _)) => {}
            _ => return Err(bad()),
        }
    }
    let slots = slots.map(|slots| slots.parse().ok().filter(|n| (1..=1 << 20).contains(n)).ok_or_else(bad));
    // The remote shell would read a name that begins with a dash as an option.
    let is_plain = |c: char| c.is_alphanumeric() || "._-@".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
        return Err(bad());
    }
    Ok(Host { name: name.to_owned(), slots: slots.transpose()? })
}

/// Number of slots of all hosts; a host without a number counts as one.
pub(crate) fn n_slots(hosts: &[Host]) -> usize {
    hosts.iter().map(|host| host.slots.unwrap_or(1)).sum()
}

/// Time limit for a host to respond.
const TIMEOUT: Duration = Duration::from_secs(8);
/// BatchMode prevents hosts from asking for a password, because nobody would see the question.
const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=5";

/// The program that runs commands on other hosts: ssh, or the one that the launcher is configured to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agent(String);

impl Agent {
    /// The agent in Open MPI's environment variables; otherwise ssh.
    pub(crate) fn new(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let names = ["OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"];
        let set = names.iter().find_map(|name| lookup(name).filter(|value| !value.trim().is_empty()));
        Agent(set.unwrap_or_else(|| SSH.to_owned()))
    }

    /// Command line of the agent.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    fn command(&self, host: &Host, words: &[&str]) -> Command {
        let mut own = self.0.split_whitespace();
        let mut command = Command::new(own.next().unwrap_or("ssh"));
        command.args(own).arg(&host.name).args(words);
        command
    }

    /// Whether each of `hosts` responds; `own`, the host of this process, always does. Takes at most 8 s.
    pub(crate) fn answering(&self, hosts: &[Host], own: &str) -> Vec<bool> {
        let answers = |host: &Host| host.is_local(own) || output(self.command(host, &["true"])).is_some();
        std::thread::scope(|scope| {
            let probes: Vec<_> = hosts.iter().map(|host| scope.spawn(move || answers(host))).collect();
            probes.into_iter().map(|probe| probe.join().unwrap_or(false)).collect()
        })
    }

    /// Number of GPUs of `host`, as listed by `binary devices` there; `None` if it does not respond.
    pub(crate) fn n_gpus(&self, host: &Host, binary: &Path) -> Option<usize> {
        n_gpus(&output(self.command(host, &[binary.to_str()?, "devices", "--json"]))?)
    }
}

/// Number of GPUs in the output of `devices --json`.
fn n_gpus(output: &str) -> Option<usize> {
    let report: Value = serde_json::from_str(output).ok()?;
    Some(report.get("gpus")?.as_array()?.len())
}

/// Output of the command if it succeeds within the time limit.
fn output(command: Command) -> Option<String> {
    let answer = run_bounded(command, false, TIMEOUT).ok()?;
    answer.status.is_some_and(|status| status.success()).then_some(answer.text)
}

const POLL: Duration = Duration::from_millis(20);
/// Number of bytes of output that are kept.
const MAX_OUTPUT: usize = 1 << 20;
/// Time for the last output of a command that has ended. A process that it left behind may keep the pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// The end of a command.
#[derive(Debug)]
pub(crate) struct Answer {
    /// `None` if it did not end within the limit and was killed, with all processes of its group.
    pub(crate) status: Option<ExitStatus>,
    /// Its stdout, and its stderr too if that was not set.
    pub(crate) text: String,
}

/// Runs `command` for at most `limit`; `both` adds its stderr to the text.
///
/// # Errors
/// Errors of the operating system, such as for a program that does not exist.
pub(crate) fn run_bounded(mut command: Command, both: bool, limit: Duration) -> io::Result<Answer> {
    let (mut from, to) = io::pipe()?;
    command.stdin(Stdio::null()).process_group(0);
    command.stderr(if both { to.try_clone()?.into() } else { Stdio::null() });
    let started = Instant::now();
    let mut child = command.stdout(to).spawn()?;
    // It holds the pipe's other end.
    drop(command);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (reading, is_read) = mpsc::channel::<()>();
    let buffer = kept.clone();
    let read = move || {
        let _reading = reading;
        let mut bytes = [0; 1 << 12];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let mut kept = lock(&buffer);
            let n_kept = n.min(MAX_OUTPUT - kept.len());
            kept.extend_from_slice(&bytes[..n_kept]);
        }
    };
    let reader = std::thread::Builder::new().name("output".to_owned()).spawn(read);
    let status = if reader.is_ok() { end_of(&mut child, started, limit) } else { None };
    if let (None, Some(group)) = (status, Pid::from_raw(child.id().cast_signed())) {
        let _ = kill_process_group(group, Signal::KILL);
        let _ = child.wait();
    }
    reader?;
    // An error says that all was read.
    let _ = is_read.recv_timeout(LAST_OUTPUT);
    let text = String::from_utf8_lossy(&lock(&kept)).into_owned();
    Ok(Answer { status, text })
}

fn end_of(child: &mut Child, started: Instant, limit: Duration) -> Option<ExitStatus> {
    while started.elapsed() < limit {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) => std::thread::sleep(POLL),
            Err(_) => return None,
        }
    }
    None
}

fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: impl Into<Option<usize>>) -> Host {
        Host { name: name.to_owned(), slots: slots.into() }
    }

    #[test]
    fn lists_and_files_say_the_same() {
        assert_eq!(read("a:2,b:3").unwrap(), [host("a", 2), host("b", 3)]);
        assert_eq!(read("node1").unwrap(), [host("node1", None)]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "# two\na slots=2\n\nb:3 # the other\nc max_slots=4\n").unwrap();
        let hosts = read(file.to_str().unwrap()).unwrap();
        assert_eq!(hosts, [host("a", 2), host("b", 3), host("c", None)]);
        assert_eq!((n_slots(&hosts), names(&hosts).as_str()), (6, "a, b, c"));
    }

    #[test]
    fn what_is_no_host_is_refused_with_its_place() {
        for text in ["", "a,", "a:0", "a:x", "-oProxyCommand=x", "a b", "a;b"] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, LaunchError::BadHost { .. }), "{text}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "a slots=2\nb slot=2\n").unwrap();
        let error = read(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("hosts line 2") && error.contains("`b slot=2`"), "{error}");
    }

    #[test]
    fn this_host_is_known_by_its_names() {
        for name in ["localhost", "127.0.0.1", "node1", "node1.cluster.local"] {
            assert!(host(name, None).is_local("node1"), "{name}");
        }
        assert!(
            host("node1", None).is_local("node1.cluster.local") && !host("node2", None).is_local("node1")
        );
    }

    fn host_probe(name: &str) -> Host {
        Host { name: name.to_owned(), slots: None }
    }

    #[test]
    fn the_launchers_agent_is_taken() {
        assert_eq!(Agent::new(|_| None).text(), SSH);
        let set = |name: &str| (name == "OMPI_MCA_plm_rsh_agent").then(|| "my agent".to_owned());
        assert_eq!(Agent::new(set).text(), "my agent");
    }

    #[test]
    fn only_hosts_that_answer_count() {
        // `test HOST != true`... an agent that fails for one host_probe.
        let agent = Agent("test b !=".to_owned());
        let own = host_probe("own");
        let command = agent.command(&own, &[]);
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["b", "!=", "own"]);
        let missing = Agent("/nonexistent/agent".to_owned());
        assert_eq!(missing.answering(&[host_probe("own"), host_probe("b")], "own"), [true, false]);
        let all = Agent("echo".to_owned());
        assert_eq!(all.answering(&[host_probe("a"), host_probe("b")], "own"), [true, true]);
        let none = Agent("false".to_owned());
        assert_eq!(none.answering(&[host_probe("a"), host_probe("own")], "own"), [false, true]);
    }

    #[test]
    fn gpus_are_counted() {
        assert_eq!(n_gpus("{\"gpus\":[{\"index\":0},{\"index\":1}]}"), Some(2));
        assert_eq!((n_gpus("{\"gpus\":[]}"), n_gpus("no json")), (Some(0), None));
    }

    fn shell(script: &str, both: bool, limit: Duration) -> Answer {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run_bounded(command, both, limit).unwrap()
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        const LONG: Duration = Duration::from_secs(60);
        let answer = shell("echo a; echo b >&2", true, LONG);
        assert_eq!((answer.text.as_str(), answer.status.unwrap().code()), ("a\nb\n", Some(0)));
        assert_eq!(shell("echo a; echo b >&2", false, LONG).text, "a\n");
        let started = Instant::now();
        for script in ["echo a; sleep 100 & sleep 100", "while :; do echo yes; done"] {
            let answer = shell(script, true, Duration::from_millis(200));
            assert!(answer.status.is_none() && !answer.text.is_empty(), "{script}");
        }
        // A process in the background keeps the pipe.
        assert_eq!(shell("echo a; sleep 3 & exit 3", true, LONG).status.unwrap().code(), Some(3));
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(run_bounded(Command::new("/nonexistent"), true, LONG).is_err());
    }
}
