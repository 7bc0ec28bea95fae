#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rounds between the processes of an instance, each in a network namespace of its own on one bridge.

    python3 bench/comm/run.py --build build/release [--processes 2]      # root: it makes network namespaces
"""
import argparse
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def quiet(*command):
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run(*command):
    subprocess.run(command, check=True)


class Hosts:
    """Namespaces 10.78.0.1 to .N; removed on exit."""

    def __init__(self, count):
        self.spaces = [f"tandem-comm-{i}" for i in range(count)]

    def __enter__(self):
        self.__exit__()
        run("ip", "link", "add", "tdcomm", "type", "bridge")
        run("ip", "link", "set", "tdcomm", "up")
        for i, space in enumerate(self.spaces):
            run("ip", "netns", "add", space)
            run("ip", "link", "add", f"tdcomm{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", f"tdcomm{i}", "master", "tdcomm", "up")
            run("ip", "-n", space, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for space in self.spaces:
            quiet("ip", "netns", "del", space)
        quiet("ip", "link", "del", "tdcomm")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    program = pathlib.Path(arguments.build) / "bench" / "comm" / "comm_rounds"
    count = arguments.processes
    with Hosts(count) as hosts:
        processes = [subprocess.Popen(["ip", "netns", "exec", hosts.spaces[i], str(program), str(i), str(count),
                                       "10.78.0.1", f"10.78.0.{i + 1}"]) for i in range(count)]
        codes = [process.wait(120) for process in processes]
    if any(codes):
        raise SystemExit(f"exit codes {codes}")


if __name__ == "__main__":
    main()
