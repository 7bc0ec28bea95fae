# SPDX-License-Identifier: Apache-2.0
"""`tandem up`: one command for a whole deployment, and nothing left behind."""
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import tandem_processes as tandem


class Up(unittest.TestCase):
    def start(self, *arguments, **environment):
        process = subprocess.Popen([tandem.BINARY, "up", *map(str, arguments)], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                                   env={**os.environ, **environment})
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.stdout.close(), process.wait(10)))
        self.lines = []
        return process

    def read_until(self, process, pattern):
        for line in process.stdout:
            self.lines.append(line)
            match = re.search(pattern, line)
            if match:
                return match
        self.fail("output ended before " + pattern + ":\n" + "".join(self.lines))

    def children(self, parent):
        listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True)
        return [line for line in listed.stdout.splitlines() if "ps -o" not in line]

    def ask(self, url):
        body = b'{"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}'
        request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def test_starts_answers_and_stops_on_ctrl_c(self):
        process = self.start("--model", tandem.SMOLLM2, "--prefill", 1, "--decode", 2, "--port", tandem.free_port(), "--",
                             "--max-model-len", 512)
        url = self.read_until(process, r"up: ready: (http://\S+)").group(1)
        text = "".join(self.lines)
        for name in ("P1", "D1", "D2", "proxy"):
            self.assertRegex(text, rf"up: {name} is ready")
            self.assertIn(f"[{name}] ", text)
        self.read_until(process, r"up: try: curl " + re.escape(url))
        self.assertIn("Paris", self.ask(url))
        self.assertEqual(len(self.children(process.pid)), 4)
        process.send_signal(signal.SIGINT)
        self.read_until(process, "up: all processes have ended")
        self.assertEqual(process.wait(10), 0)

    def test_keys_tls_and_time_to_finish(self):
        folder = tempfile.mkdtemp(prefix="tandem-up-")
        self.addCleanup(shutil.rmtree, folder)
        certificate = f"{folder}/own.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=up",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/own.key", "-out", certificate],
                       check=True, capture_output=True)
        steps = json.dumps({"seconds_per_decode_token": 0.05})
        process = self.start("--model", "m", "--port", tandem.free_port(), "--api-key", "k1", "k2", "--ssl-certfile",
                             certificate, "--ssl-keyfile", f"{folder}/own.key", "--shutdown-timeout", "30s", "--",
                             "--load-format", "stub", "--hf-overrides", steps)
        url = self.read_until(process, r"up: ready: (https://\S+)").group(1)
        self.read_until(process, r"up: try: curl --cacert CA.pem https://.* -H 'Authorization: Bearer KEY' ")
        ports = {name: port for name, port in re.findall(r"up: starting (\w+) \(.*:(\d+)\n", "".join(self.lines))}
        trusted = ssl.create_default_context(cafile=certificate)

        def ask(base, key=None, **fields):
            body = json.dumps({"prompt": "Hello", "max_tokens": 4, "ignore_eos": True, **fields}).encode()
            headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
            try:
                with urllib.request.urlopen(urllib.request.Request(base + "/v1/completions", body, headers), timeout=60,
                                            context=trusted if base.startswith("https") else None) as answer:
                    return json.load(answer)["choices"][0]["finish_reason"]
            except urllib.error.HTTPError as error:
                return error.code

        self.assertEqual(ask(url), 401)
        self.assertEqual(ask(url, "k2"), "length")
        self.assertEqual(ask(f"http://127.0.0.1:{ports['D1']}"), 401, "nobody on this machine walks round the proxy")
        running = tandem.Background(lambda: ask(url, "k1", max_tokens=60))
        self.read_until(process, r"\[P1\] .*POST /v1/completions")  # of the first request
        self.read_until(process, r"\[P1\] .*POST /v1/completions")
        process.send_signal(signal.SIGINT)
        self.read_until(process, "up: running requests have 30 s to finish")
        self.assertEqual(running.result(20), "length", "finished, not ended")
        self.read_until(process, "up: all processes have ended")
        self.assertEqual(process.wait(10), 0)

    def test_from_a_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(f"model: {tandem.SMOLLM2}\nserve_flags: [--max-model-len, '512']\n"
                       f"proxy: {{port: {tandem.free_port()}}}\n"
                       "instances:\n  - {role: prefill}\n  - {role: decode, name: left}\n")
            file.flush()
            process = self.start(file.name, TANDEM_CLUSTER_SECRET="a test's")
            url = self.read_until(process, r"up: ready: (http://\S+)").group(1)
            self.assertIn("Paris", self.ask(url))
            self.assertEqual("".join(self.lines).count("TLS by the secret"), 2, "both instances know the secret")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(30), 0)

    def test_the_example_files_parse_and_start(self):
        # Those of the big deployments: deployment_test.cc parses them, deployments_table.py runs them.
        for path in sorted((tandem.ROOT / "examples").glob("smollm2-*.yaml")):
            process = subprocess.Popen([tandem.BINARY, "up", str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, cwd=tandem.ROOT, stdin=subprocess.DEVNULL)
            self.addCleanup(lambda p=process: (p.poll() is None and p.kill(), p.stdout.close(), p.wait(10)))
            self.lines = []
            self.read_until(process, r"up: ready: (http://\S+)")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(30), 0)

    def test_says_who_could_not_start_and_stops_the_rest(self):
        process = self.start("--model", "no/such/model.gguf", "--port", tandem.free_port())
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 1, output)
        self.assertRegex(output, r"(P1|D1) \((prefill|decode)\) could not start: .*no/such/model.gguf")

    def test_killed_itself_it_leaves_nothing(self):
        process = self.start("--model", tandem.SMOLLM2, "--port", tandem.free_port(), "--", "--max-model-len", 512)
        self.read_until(process, r"up: ready: ")
        pids = [int(line.split()[0]) for line in self.children(process.pid)]
        self.assertEqual(len(pids), 3)
        process.kill()
        process.wait(10)

        def gone(pid):
            status = pathlib.Path(f"/proc/{pid}/status")
            try:
                return "State:\tZ" in status.read_text()
            except OSError:
                return True

        tandem.wait_until(lambda: all(gone(pid) for pid in pids), 20, "the children end with their launcher")


if __name__ == "__main__":
    unittest.main()
