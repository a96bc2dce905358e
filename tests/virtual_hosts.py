"""Hosts as network namespaces, between which mpirun starts ranks."""

import os
import signal
import subprocess

PREFIX = "ddpw"


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


class Hosts:
    """Hosts as network namespaces on a bridge: 10.77.0.1 and so on."""

    def __init__(self, n):
        self.names = [f"{PREFIX}{i + 1}" for i in range(n)]
        self.down()
        switch = f"{PREFIX}sw"
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{name}v", "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", switch, "link", "set", f"{name}v", "master", "br0", "up")
            run("ip", "-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def link(self, host, state):
        run("ip", "-n", f"{PREFIX}sw", "link", "set", f"{self.names[host]}v", state)

    def end_processes(self):
        """Ends what a job has left on the hosts: daemons of mpirun wait for a host that was cut off."""
        for name in self.names:
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout
            for pid in found.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def down(self):
        for name in [*self.names, f"{PREFIX}sw"]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


AGENT = """#!/bin/sh
# The remote shell of mpirun: runs a command on a host that is a network namespace.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$*"' "$host" "$@"
"""


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def mpirun_flags(agent):
    """Flags with which mpirun reaches these hosts by `agent`, and its ranks each other by TCP."""
    return ["--mca", "plm_rsh_agent", agent, "--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", "eth0",
            "--mca", "oob_tcp_if_include", "eth0"]
