# SPDX-License-Identifier: Apache-2.0
"""What the Python clients share: where the servers are, what is asked (requests.json), and that every way answers alike.

tests/e2e/test_clients.py starts the servers, runs each client in the interpreter that has its package, and afterwards
compares what different clients got for the same question (record()).
"""
import concurrent.futures
import json
import os
import pathlib
import time
import unittest
import urllib.request

MODEL = "smollm2"
KEY = "key of the tests"
REQUESTS = json.loads(pathlib.Path(__file__).with_name("requests.json").read_text())
TOOL = {"type": "function", "function": REQUESTS["tool"]}
# Of each way (direct, pull, layerwise): "url", "instances" (urls, for their metrics), and "thinking": an address that
# wants KEY and has a reasoning parser.
WAYS = json.loads(os.environ.get("TANDEM_WAYS", "{}"))


def record(question, answer):
    """For the comparison between clients: the answer to one of requests.json."""
    with open(os.environ["TANDEM_ANSWERS"], "a") as file:
        file.write(json.dumps({"question": question, "answer": answer}) + "\n")


class Ways(unittest.TestCase):
    maxDiff = 4000

    def everywhere(self, ask, question=None):
        """ask(way) for every way, at once; the answers must be equal. Returns the one, and records it if the
        question has a name."""
        self.assertEqual(set(WAYS), {"direct", "pull", "layerwise"})
        with concurrent.futures.ThreadPoolExecutor(len(WAYS)) as threads:
            answers = dict(zip(WAYS, threads.map(ask, WAYS)))
        for way, answer in answers.items():
            self.assertEqual(answer, answers["direct"], way)
        if question:
            record(question, answers["direct"])
        return answers["direct"]

    def assert_idle(self, way, within_s=5.0):
        """Nothing runs or waits on any instance of the way: what a client has left is not computed any further."""
        deadline = time.monotonic() + within_s
        while True:
            busy = [line for url in WAYS[way]["instances"] for line in metrics(url)
                    if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting"))
                    and float(line.rsplit(" ", 1)[1]) > 0]
            if not busy:
                return
            self.assertLess(time.monotonic(), deadline, f"{way}: {busy}")
            time.sleep(0.02)


def metrics(url):
    with urllib.request.urlopen(url + "/metrics", timeout=10) as response:
        return response.read().decode().splitlines()
