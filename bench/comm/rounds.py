#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rounds between the processes of an instance, each on a host (network namespace) of its own.

    python3 bench/comm/rounds.py --build build/release [--processes 2] [--secret TEXT]
"""
import argparse
import pathlib
import subprocess

from namespaces import Hosts

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--secret", default="", help="rounds over TLS")
    arguments = parser.parse_args()
    program = pathlib.Path(arguments.build) / "bench" / "comm" / "comm_rounds"
    count = arguments.processes
    with Hosts(count) as hosts:
        processes = [subprocess.Popen(hosts.command(i, program, i, count, hosts.addresses[0], hosts.addresses[i], arguments.secret))
                     for i in range(count)]
        codes = [process.wait(120) for process in processes]
    if any(codes):
        raise SystemExit(f"exit codes {codes}")


if __name__ == "__main__":
    main()
