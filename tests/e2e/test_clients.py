# SPDX-License-Identifier: Apache-2.0
"""The clients that people use, unmodified, against one instance, and through the proxy with prefiller and decoder, pull
and layerwise push. The clients' own tests are in tests/clients, each in its language; here are the servers, and what
different clients got for the same question is compared. tools/fetch_clients.sh gets the packages; without them this fails.

The model is a real one (SmolLM2, 135M) with the chat template of Qwen 3: shown some examples, it calls tools by itself.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tandem_processes as tandem

CLIENTS = tandem.ROOT / "tests" / "clients"
PACKAGES = tandem.ROOT / ".cache" / "clients"
KEY = "key of the tests"
# W8A8 for its speed. Greedy unless a request says otherwise, so that the commands of the docs give one answer.
COMMON = ["--quantization", "w8a8", "--max-model-len", "2048", "--kv-cache-memory-bytes", "64M",
          "--served-model-name", "smollm2", "--override-generation-config", '{"temperature": 0}']
CONNECTORS = {"pull": "MooncakeConnectorV1", "layerwise": "MooncakeLayerwiseConnector"}
CLIENT_TIMEOUT_S = 300


def start(add_cleanup, name, *flags, colocated):
    """A pair for each connector, and one colocated instance if wanted, perhaps not ready yet: {way: [processes]}."""
    ways = {"direct": [tandem.serve(f"{name}-direct", *COMMON, *flags)]} if colocated else {}
    for way, connector in CONNECTORS.items():
        ways[way] = [tandem.serve(f"{name}-{way}-{role}", *COMMON, *flags, role=role, transfer={"kv_connector": connector})
                     for role in ("kv_producer", "kv_consumer")]
    for process in (process for processes in ways.values() for process in processes):
        add_cleanup(process.stop)
    return ways


def entrances(add_cleanup, ways):
    """{way: the process that clients talk to}, all ready. Without a colocated instance a decoder is asked directly."""
    for process in (process for processes in ways.values() for process in processes):
        process.wait_ready()
    front = {"direct": ways.get("direct", ways["pull"])[-1]}
    for way in CONNECTORS:
        prefill, decode = ways[way]
        front[way] = tandem.proxy([prefill], [decode])
        add_cleanup(front[way].stop)
    return {way: process.wait_ready() for way, process in front.items()}


def url(process):
    return f"http://127.0.0.1:{process.port}"


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for needed in (PACKAGES / "venv" / "bin" / "python", PACKAGES / "node_modules"):
            if not needed.exists():
                raise AssertionError(f"{needed} is missing: run tools/fetch_clients.sh")
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="tandem-clients-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        tokenizer = tandem.ROOT / ".cache" / "tokenizers" / "qwen3" / "tokenizer_config.json"
        template = cls.folder / "qwen3.jinja"
        template.write_text(json.loads(tokenizer.read_text())["chat_template"])
        plain = start(cls.addClassCleanup, "plain", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
                      "--chat-template", str(template), colocated=True)
        thinking = start(cls.addClassCleanup, "thinking", "--reasoning-parser", "qwen3", "--api-key", KEY, colocated=False)
        front = entrances(cls.addClassCleanup, plain)
        behind_key = entrances(cls.addClassCleanup, thinking)
        cls.ways = {way: {"url": url(front[way]), "instances": [url(instance) for instance in plain[way]],
                          "thinking": url(behind_key[way])} for way in front}
        cls.answers = collections.defaultdict(dict)  # question: {client: answer}
        # JavaScript looks for packages beside the script.
        for script in (*CLIENTS.glob("*.mjs"), CLIENTS / "requests.json"):
            shutil.copy(script, cls.folder)
        (cls.folder / "node_modules").symlink_to(PACKAGES / "node_modules")

    def client(self, name, command, folder, *, expect):
        """Runs a client's tests to their end; `expect` matches what their runner says of them."""
        recorded = self.folder / f"{name}.jsonl"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LANGSMITH_"))}
        environment |= {"TANDEM_WAYS": json.dumps(self.ways), "TANDEM_ANSWERS": str(recorded), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True,
                              timeout=CLIENT_TIMEOUT_S, check=False)
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, output)
        self.assertRegex(output, expect)
        for line in recorded.read_text().splitlines() if recorded.exists() else ():
            entry = json.loads(line)
            others = self.answers[entry["question"]]
            for client, answer in others.items():
                self.assertEqual(entry["answer"], answer, f"{entry['question']}: {name} and {client}")
            others[name] = entry["answer"]
        return output

    def python(self, module):
        self.client(module, [PACKAGES / "venv" / "bin" / "python", "-m", "unittest", "-v", module], CLIENTS,
                    expect=r"Ran [1-9]\d* tests")

    def node(self, script):
        self.client(script, ["node", "--test", "--test-reporter=tap", f"{script}.mjs"], self.folder,
                    expect=r"# pass [1-9]")

    def test_openai_python(self):
        self.python("openai_python")
        self.python("openai_async")

    def test_langchain(self):
        self.python("langchain_client")

    def test_openai_npm(self):
        self.node("openai_node")

    def test_ai_sdk(self):
        self.node("ai_sdk")

    def test_curl(self):
        self.client("curl", [sys.executable, "-m", "unittest", "-v", "curl_commands"], CLIENTS, expect=r"Ran [1-9]\d* tests")

    def test_snippets_of_the_docs(self):
        """The code under "Clients" of docs/api.md, as it stands there but for the address, each on one way."""
        section = (tandem.ROOT / "docs" / "api.md").read_text().split("\n## Clients\n")[1].split("\n## ")[0]
        snippets = re.findall(r"^```(python|js)\n(.*?)^```", section, re.M | re.S)
        self.assertEqual([language for language, _ in snippets], ["python", "python", "js"])
        for (language, code), way in zip(snippets, self.ways):
            self.assertIn("http://127.0.0.1:8000", code)
            script = self.folder / f"snippet_{way}.{'py' if language == 'python' else 'mjs'}"
            script.write_text(code.replace("http://127.0.0.1:8000", self.ways[way]["url"]))
            runner = PACKAGES / "venv" / "bin" / "python" if language == "python" else "node"
            done = subprocess.run([runner, script.name], cwd=self.folder, capture_output=True, text=True, timeout=90,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("Paris", done.stdout)


if __name__ == "__main__":
    unittest.main()
