# SPDX-License-Identifier: Apache-2.0
"""Several hosts on this machine, for MPI's launchers: network namespaces that are joined by a bridge. Each
host has a name, an address, and a /dev/shm of its own, so that a wrong guess of "same host" shows.

    with Hosts(2) as hosts:
        hosts.run([3, 1], [PROGRAM, ARGUMENT…])       # three ranks on the first, one on the second

Everything is in a mount namespace of this process: when it ends, however it does, the kernel takes all of it
back. Needs root and CAP_NET_ADMIN; else NotPermitted says what is missing.
"""

import ctypes
import os
import pathlib
import subprocess
import tempfile

import launcher
from check_leftovers import CLONE_NEWNS, MS_PRIVATE, MS_REC

NETWORK = "10.77.0"
namespaces = pathlib.Path("/run/netns")

# What the launchers take for ssh: `agent [OPTIONS] ADDRESS COMMAND…`. `ip netns exec` gives it mounts of its
# own, too.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=@PREFIX@${1##*.}
shift
exec ip netns exec "$host" unshare --uts sh -c '
  mount -t tmpfs -o size=256m tmpfs /dev/shm && hostname "$0" || exit 125
  exec sh -c "$1"' "$host" "$*"
"""


class NotPermitted(Exception):
    """This machine does not let us make hosts."""


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPermitted(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def own_mounts():
    """Takes this process into a mount namespace of its own, with an empty /run/netns."""
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result, what):
        if result != 0:
            raise NotPermitted(f"{what}: {os.strerror(ctypes.get_errno())}")

    must(libc.unshare(CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    must(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    try:
        namespaces.mkdir(exist_ok=True)
    except OSError as error:
        raise NotPermitted(f"{namespaces}: {error}") from error
    must(libc.mount(b"tmpfs", bytes(namespaces), b"tmpfs", 0, b"size=1m"), f"tmpfs on {namespaces}")


class Hosts:
    def __init__(self, number):
        self.number = number
        self.prefix = f"rf{os.getpid():x}-"  # also the host's name: another run has others
        self.switch = f"{self.prefix}switch"

    def name(self, host):
        """Of host 0, 1, …"""
        return f"{self.prefix}{host + 1}"

    def address(self, host):
        return f"{NETWORK}.{host + 1}"

    def __enter__(self):
        own_mounts()
        self.made = []
        try:
            for name in [self.switch, *map(self.name, range(self.number))]:
                command("ip", "netns", "add", name)
                self.made.append(name)
                command("ip", "-n", name, "link", "set", "lo", "up")
            command("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            command("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for host in range(self.number):
                cable, name = f"to{host}", self.name(host)
                command("ip", "-n", self.switch, "link", "add", cable, "type", "veth", "peer", "name", "e0",
                        "netns", name)
                command("ip", "-n", self.switch, "link", "set", cable, "master", "bridge", "up")
                command("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "e0")
                command("ip", "-n", name, "link", "set", "e0", "up")
            agent = tempfile.NamedTemporaryFile("w", prefix="rankfold-agent-", delete=False)
            self.agent = pathlib.Path(agent.name)
            with agent:
                agent.write(AGENT.replace("@PREFIX@", self.prefix))
            self.agent.chmod(0o755)
            command(str(self.agent), self.address(0), "true")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["umount", str(namespaces)], capture_output=True)
        if hasattr(self, "agent"):
            self.agent.unlink(missing_ok=True)

    def cut(self, host):
        """Pulls the host's plug: whatever is sent to it or by it from now on is lost."""
        command("ip", "-n", self.switch, "link", "set", f"to{host}", "down")

    def plug(self, host):
        command("ip", "-n", self.switch, "link", "set", f"to{host}", "up")

    def run(self, ranks, program, flags=(), timeout=launcher.SPARE_SECONDS, during=None, finished=None, **variables):
        """Runs a program on so many ranks on each host. `during` and, for MPICH, `finished` are as in
        launcher.run_launcher.

        MPICH 4.0's MPI_Finalize hangs in every second run over UCX's TCP, also in a program that has done nothing
        but MPI_Comm_dup and MPI_Allgather: one rank flushes its connections while the others wait for it and no
        longer answer."""
        places = ",".join(f"{self.address(host)}:{count}" for host, count in enumerate(ranks) if count)
        total = str(sum(ranks))
        if launcher.name == "openmpi":
            # Each under the name of Open MPI 4 and of 5.
            network = f"{NETWORK}.0/24"
            settings = {"OMPI_MCA_plm_rsh_agent": self.agent, "PRTE_MCA_plm_ssh_agent": self.agent,
                        "OMPI_MCA_btl_tcp_if_include": network, "OMPI_MCA_oob_tcp_if_include": network,
                        "PRTE_MCA_prte_if_include": network, "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
                        "PRTE_MCA_prte_keep_fqdn_hostnames": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
            how = ["--host", places, "-np", total, "--map-by", "slot"]
        else:
            # UCX would find the memory of a rank on another "host": it is the same kernel.
            settings = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "e0"}
            how = ["-hosts", places, "-n", total, "-launcher", "ssh", "-launcher-exec", self.agent, "-iface", "e0"]
        words = [launcher.launcher(), *how, *launcher.run_flags(), *flags, *program]
        line = " ".join(f"'{word}'" for word in words)
        variables = {**{name: str(value) for name, value in settings.items()}, **variables}
        return launcher.run_launcher([str(self.agent), self.address(0), f"exec {line}"], timeout, variables, during,
                                     finished if launcher.name == "mpich" else None)
