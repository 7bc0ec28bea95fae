# SPDX-License-Identifier: Apache-2.0
"""`tandem up` with a network: each host of the file is a network namespace of its own, and all of them are gone
afterwards, whatever happened."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import tandem_processes as tandem
from parity_table import make_model

NETWORK = "198.51.100"  # addresses of documentation
NAME = "tdc6336400"  # how its bridge is named
PROMPTS = [[5, 9, 200, 7, 33], list(range(40, 140)), [3] * 33]
FLAGS = ["--max-model-len", "512", "--kv-cache-memory-bytes", "8M", "--max-num-seqs", "4"]


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


def why_not():
    """A reason why there can be no namespaces here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "the program ip (iproute2) is not here"
    probe = subprocess.run(["ip", "netns", "add", "tandem-probe"], capture_output=True, text=True)
    if probe.returncode != 0:
        return "no network namespace can be made here: " + probe.stderr.strip()
    veth = subprocess.run(["ip", "link", "add", "tandem-probe", "type", "veth", "peer", "name", "eth0", "netns",
                           "tandem-probe"], capture_output=True, text=True)
    ip("netns", "delete", "tandem-probe")
    return "no veth pair can be made here: " + veth.stderr.strip() if veth.returncode != 0 else None


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="tandem-up-")
        cls.addClassCleanup(cls.folder.cleanup)
        os.chmod(cls.folder.name, 0o755)
        cls.model = make_model("tiny-t7", cls.folder.name)

    def deployment(self):
        path = pathlib.Path(self.folder.name) / "up.yaml"
        path.write_text(
            f"model: {self.model}\nserve_flags: {FLAGS}\nnetwork: {{address: {NETWORK}.254/24}}\n"
            f"proxy: {{host: {NETWORK}.254, port: 9000}}\n"
            "instances:\n"
            f"  - {{role: prefill, host: {NETWORK}.1, port: 8004, kv_port: 21000}}\n"
            f"  - {{role: decode, host: {NETWORK}.2, port: 8004, kv_port: 21000}}\n")
        return path

    def start(self, *arguments, prefix=()):
        process = subprocess.Popen([*prefix, tandem.BINARY, "up", *map(str, arguments)], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.stdout.close(), process.wait(20)))
        return process

    def read_until(self, process, pattern):
        lines = []
        for line in process.stdout:
            lines.append(line)
            if re.search(pattern, line):
                return "".join(lines)
        self.fail(f"output ended before {pattern}:\n" + "".join(lines))


@unittest.skipIf(why_not(), why_not())
class UpOverNamespaces(Model):
    def assert_nothing_left(self):
        self.assertNotIn(NAME, ip("netns", "list"))
        self.assertNotIn(NAME, ip("-o", "link", "show"))

    def answers(self, where):
        return [where.complete(prompt, max_tokens=8, ignore_eos=True, logprobs=0)["choices"][0]["logprobs"]["tokens"]
                for prompt in PROMPTS]

    def test_tokens_cross_the_network_and_nothing_stays(self):
        colocated = tandem.serve("colocated", *FLAGS, model=self.model)
        self.addCleanup(colocated.stop)
        expected = self.answers(colocated.wait_ready())
        for connector in ("pull", "layerwise"):
            process = self.start(self.deployment(), "--connector", connector)
            text = self.read_until(process, r"up: ready: http://198\.51\.100\.254:9000")
            self.assertIn(f"up: network: {NETWORK}.1, {NETWORK}.2 in namespaces of their own", text)
            self.assertEqual(sorted(line.split()[0] for line in ip("netns", "list").splitlines() if NAME in line),
                             [f"{NAME}-1", f"{NAME}-2"])
            self.assertIn(f"{NETWORK}.1/24", ip("-n", f"{NAME}-1", "-o", "address", "show", "eth0"))
            self.assertEqual(self.answers(tandem.Remote("proxy", f"{NETWORK}.254", 9000)), expected)
            moved = tandem.Remote("D1", f"{NETWORK}.2", 8004).metric("tandem:kv_transfer_bytes_total")
            self.assertGreater(moved, 0)
            process.send_signal(signal.SIGINT)
            self.read_until(process, "up: the network is removed")
            self.assertEqual(process.wait(20), 0)
            self.assert_nothing_left()

    def test_a_killed_run_is_cleaned_up_by_the_next_and_a_running_one_is_not(self):
        first = self.start(self.deployment())
        self.read_until(first, r"up: network: ")
        second = self.start(self.deployment())
        output = second.communicate(timeout=20)[0]
        self.assertEqual(second.returncode, 1, output)
        self.assertRegex(output, r"another `tandem up` has the network 198\.51\.100\.0/24 now")
        first.kill()
        first.wait(20)
        self.assertIn(f"{NAME}-2", ip("netns", "list"))
        third = self.start(self.deployment())
        self.read_until(third, r"up: ready: ")
        third.send_signal(signal.SIGTERM)
        self.assertEqual(third.wait(30), 0)
        self.assert_nothing_left()

    def test_addresses_of_this_machine_are_left_alone(self):
        ip("link", "add", "tandem-probe", "type", "bridge")
        self.addCleanup(ip, "link", "delete", "tandem-probe")
        ip("address", "add", f"{NETWORK}.77/32", "dev", "tandem-probe")
        process = self.start(self.deployment())
        output = process.communicate(timeout=20)[0]
        self.assertEqual(process.returncode, 1, output)
        self.assertIn("interface tandem-probe of this machine has 198.51.100.77", output)
        self.assertNotIn(NAME, ip("netns", "list"))


class UpWithoutRoot(Model):
    def test_says_what_it_needs(self):
        prefix = ()
        if os.geteuid() == 0:
            if not shutil.which("setpriv"):
                self.skipTest("setpriv, which gives root away, is not here")
            prefix = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
        process = self.start(self.deployment(), prefix=prefix)
        output = process.communicate(timeout=20)[0]
        self.assertEqual(process.returncode, 1, output)
        self.assertIn("namespaces for the hosts need root; run as root (sudo), or take the network out", output)


if __name__ == "__main__":
    unittest.main()
