//! The remote shell: checks whether hosts respond, and counts their GPUs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::bounded;
use crate::hosts::Host;

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
    let answer = bounded::run(command, false, TIMEOUT).ok()?;
    answer.status.is_some_and(|status| status.success()).then_some(answer.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
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
        // `test HOST != true`... an agent that fails for one host.
        let agent = Agent("test b !=".to_owned());
        let own = host("own");
        let command = agent.command(&own, &[]);
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["b", "!=", "own"]);
        let missing = Agent("/nonexistent/agent".to_owned());
        assert_eq!(missing.answering(&[host("own"), host("b")], "own"), [true, false]);
        let all = Agent("echo".to_owned());
        assert_eq!(all.answering(&[host("a"), host("b")], "own"), [true, true]);
        let none = Agent("false".to_owned());
        assert_eq!(none.answering(&[host("a"), host("own")], "own"), [false, true]);
    }

    #[test]
    fn gpus_are_counted() {
        assert_eq!(n_gpus("{\"gpus\":[{\"index\":0},{\"index\":1}]}"), Some(2));
        assert_eq!((n_gpus("{\"gpus\":[]}"), n_gpus("no json")), (Some(0), None));
    }
}
