# SPDX-License-Identifier: Apache-2.0
"""Tandem instances as guests of vLLM-Ascend's own proxy scripts, unmodified: pull and layerwise, of the release that the
specification calls rc2 and of the newest final one. tools/fetch_guest_proxies.sh gets them; without them this fails.

The same scripts drive the stand-ins of instance_standin.py, too, so that what the stand-ins hold for the protocol (and
`tandem proxy` is tested with) is held against the originals.
"""
import json
import os
import pathlib
import unittest

import instance_standin as standin
import tandem_processes as tandem

FOLDER = pathlib.Path(os.environ.get("TANDEM_GUEST_PROXIES", tandem.ROOT / ".cache" / "guest_proxies"))
VERSIONS = ("0.11.0rc2", "0.23.0.post1")
SCRIPTS = {"pull": "load_balance_proxy_server_example.py", "layerwise": "load_balance_proxy_layerwise_server_example.py"}
CONNECTORS = {"pull": "MooncakeConnectorV1", "layerwise": "MooncakeLayerwiseConnector"}
PROMPTS = ("The capital of France is", "One two three four five six seven eight nine ten, and so on: " * 6)


def guest_proxy(version, mode, prefillers, decoders):
    script = FOLDER / version / SCRIPTS[mode]
    python = FOLDER / "venv" / "bin" / "python"
    for needed in (script, python):
        if not needed.exists():
            raise AssertionError(f"{needed} is missing: run tools/fetch_guest_proxies.sh")
    port = tandem.free_port()
    arguments = [str(script), "--host", "127.0.0.1", "--port", str(port)]
    for kind, instances in (("prefiller", prefillers), ("decoder", decoders)):
        arguments += [f"--{kind}-hosts", *["127.0.0.1"] * len(instances)]
        arguments += [f"--{kind}-ports", *[str(instance.port) for instance in instances]]
    if mode == "pull" and version != VERSIONS[0]:
        arguments += ["--waiting-retry-interval", "0.2"]
    stand_in = str(pathlib.Path(__file__).resolve().parent / "guest_stand_in")
    return tandem.Process(f"guest-{mode}-{version}", arguments, port, health="/healthcheck", binary=str(python),
                          environment={"PYTHONPATH": stand_in, "PYTHONUNBUFFERED": "1"}).wait_ready()


def pieces(proxy, path, body, field):
    text = ""
    # rc2 calls its streams application/json.
    kind = "application/json" if VERSIONS[0] in proxy.name else "text/event-stream"
    for event in proxy.stream(path, body, content_type=kind):
        for choice in event["choices"]:
            text += (choice["delta"].get("content") if field == "delta" else choice["text"]) or ""
    return text


class GuestsOfTheScripts:
    """Two prefillers and two decoders behind each script give what one colocated instance gives."""

    mode = "pull"
    model_flags = ()
    versions = VERSIONS

    @classmethod
    def setUpClass(cls):
        transfer = {"kv_connector": CONNECTORS[cls.mode]}
        cls.alone = tandem.serve("alone", *cls.model_flags)
        cls.p = [tandem.serve(f"P{i}", *cls.model_flags, role="kv_producer", transfer=transfer) for i in (1, 2)]
        cls.d = [tandem.serve(f"D{i}", *cls.model_flags, role="kv_consumer", transfer=transfer) for i in (1, 2)]
        cls.everyone = (cls.alone, *cls.p, *cls.d)
        for instance in cls.everyone:
            cls.addClassCleanup(instance.stop)
        for instance in cls.everyone:
            instance.wait_ready()

    def moved_bytes(self):
        return sum(d.metric("tandem:kv_transfer_bytes_total") for d in self.d)

    def fresh(self):
        """Nothing cached, so that KV has to move."""
        for instance in (*self.p, *self.d):
            self.assertEqual(instance.post("/reset_prefix_cache", "")[0], 200)

    def check(self, proxy):
        before = self.moved_bytes()
        for prompt in PROMPTS:
            body = {"model": self.model(), "prompt": prompt, "max_tokens": 12, "temperature": 0}
            expected = self.alone.complete(prompt, model=self.model(), max_tokens=12)["choices"][0]["text"]
            status, answer = proxy.post("/v1/completions", body)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["text"], expected)
            self.assertEqual(pieces(proxy, "/v1/completions", body, "text"), expected)
        chat = {"model": self.model(), "messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 8,
                "temperature": 0}
        expected = self.alone.post("/v1/chat/completions", chat)[1]["choices"][0]["message"]["content"]
        self.assertEqual(proxy.post("/v1/chat/completions", chat)[1]["choices"][0]["message"]["content"], expected)
        self.assertEqual(pieces(proxy, "/v1/chat/completions", chat, "delta"), expected)
        # The scripts tell a prefiller nothing of the client's max_tokens, and what fits depends on it.
        body = {"model": self.model(), "prompt": [97 + i % 7 for i in range(2100)], "truncate_prompt_tokens": -1,
                "max_tokens": 12, "temperature": 0}
        expected = self.alone.post("/v1/completions", body)[1]
        status, answer = proxy.post("/v1/completions", body)
        self.assertEqual((status, expected["usage"]["prompt_tokens"]), (200, 2036), answer)
        self.assertEqual(answer["choices"][0]["text"], expected["choices"][0]["text"])
        self.assertEqual(answer["usage"], expected["usage"])
        self.assertGreater(self.moved_bytes(), before, "KV came from the prefillers")
        tandem.assert_blocks_come_back(*self.p, *self.d, within_s=10)

    def check_client_gone(self, proxy):
        connection = proxy.connection(20)
        body = {"model": self.model(), "prompt": PROMPTS[1], "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertTrue(response.readline())
        response.close()
        connection.close()
        tandem.assert_blocks_come_back(*self.p, *self.d, within_s=10)

    def model(self):
        return json.loads(self.alone.get("/v1/models")[1])["data"][0]["id"]

    def test_every_release(self):
        for version in self.versions:
            with self.subTest(version=version):
                self.fresh()
                proxy = guest_proxy(version, self.mode, self.p, self.d)
                try:
                    self.check(proxy)
                    self.check_client_gone(proxy)
                    self.check_endpoints(proxy, version)
                except AssertionError as error:
                    raise AssertionError(f"{error}\n--- the script's log:\n{proxy.log()[-6000:]}") from None
                finally:
                    proxy.stop()

    def check_endpoints(self, proxy, version):
        status, text = proxy.get("/healthcheck")
        self.assertEqual((status, json.loads(text)["prefill_instances"]), (200, 2))
        if version == VERSIONS[0]:
            return  # the others came later
        self.assertEqual(proxy.post("/reset_prefix_cache", "")[0], 200)
        if self.mode == "pull":
            # It activates an instance that is added once it answers GET /v1/models.
            change = {"type": "prefill", "instances": f"127.0.0.1:{self.p[1].port}"}
            for verb, count in (("remove", 1), ("add", 2)):
                self.assertEqual(proxy.post(f"/instances/{verb}", change)[0], 200)
                tandem.wait_until(lambda: json.loads(proxy.get("/healthcheck")[1])["prefill_instances"] == count, 10,
                                  f"{count} prefillers after {verb}")


class PullWithTheScriptedWorker(GuestsOfTheScripts, unittest.TestCase):
    model_flags = ("--load-format", "stub", "--max-model-len", "2048")


class PullWithARealModel(GuestsOfTheScripts, unittest.TestCase):
    model_flags = ("--max-model-len", "2048")
    versions = VERSIONS[1:]


class LayerwiseWithTheScriptedWorker(GuestsOfTheScripts, unittest.TestCase):
    mode = "layerwise"
    model_flags = ("--load-format", "stub", "--max-model-len", "2048")


class LayerwiseWithARealModel(GuestsOfTheScripts, unittest.TestCase):
    mode = "layerwise"
    model_flags = ("--max-model-len", "2048")
    versions = VERSIONS[1:]


class StandInsOfTheScripts(unittest.TestCase):
    def test_the_originals_and_the_stand_ins_agree(self):
        for mode in SCRIPTS:
            for version, head in zip(VERSIONS, (False, True)):
                with self.subTest(mode=mode, version=version):
                    cluster = standin.Cluster()
                    p = [standin.Instance(cluster, "prefill", mode, head) for _ in range(2)]
                    d = [standin.Instance(cluster, "decode", mode, head) for _ in range(2)]
                    proxy = guest_proxy(version, mode, p, d)
                    try:
                        for prompt in ("The capital", [1, 2, 3]):
                            body = {"model": "m", "prompt": prompt, "max_tokens": 4}
                            status, answer = proxy.post("/v1/completions", body, timeout_s=20)
                            self.assertEqual(status, 200, answer)
                            self.assertEqual(answer["choices"][0]["text"], standin.generated(prompt, 4))
                            self.assertEqual(pieces(proxy, "/v1/completions", body, "text"), standin.generated(prompt, 4))
                        self.assertEqual([problem for each in (*p, *d) for problem in each.problems], [])
                    finally:
                        proxy.stop()
                        for instance in (*p, *d):
                            instance.stop()


if __name__ == "__main__":
    unittest.main()
