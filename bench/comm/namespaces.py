# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine: network namespaces on a bridge, for benchmarks of what goes between hosts. Needs root."""
import subprocess


def _quiet(*command):
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run(*command):
    subprocess.run(command, check=True)


class Hosts:
    """Namespaces with the addresses 10.78.0.1 to .N; this side is 10.78.0.254. Removed on exit."""

    def __init__(self, count):
        self.addresses = [f"10.78.0.{i + 1}" for i in range(count)]
        self._spaces = [f"tandem-host-{i}" for i in range(count)]

    def command(self, host, *command):
        """To run something on a host."""
        return ["ip", "netns", "exec", self._spaces[host], *map(str, command)]

    def __enter__(self):
        self.__exit__()
        _run("ip", "link", "add", "tdhosts", "type", "bridge")
        _run("ip", "addr", "add", "10.78.0.254/24", "dev", "tdhosts")
        _run("ip", "link", "set", "tdhosts", "up")
        for i, space in enumerate(self._spaces):
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", f"tdhost{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", f"tdhost{i}", "master", "tdhosts", "up")
            _run("ip", "-n", space, "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for space in self._spaces:
            _quiet("ip", "netns", "del", space)
        _quiet("ip", "link", "del", "tdhosts")
