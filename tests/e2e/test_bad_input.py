# SPDX-License-Identifier: Apache-2.0
"""Bad input: one clear line and the right exit code at start; a 4xx with an OpenAI error body over HTTP, and the next
request works."""
import json
import os
import pathlib
import socket
import struct
import subprocess
import tempfile
import unittest
import unittest.mock

import tandem_processes as tandem


def run(*arguments, timeout_s=60):
    """(exit code, stderr and stdout) of a command that must end by itself."""
    done = subprocess.run([tandem.BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


class AtStart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refused(self, exit_code, *needles, arguments):
        code, text = run(*arguments)
        self.assertEqual(code, exit_code, text)
        for needle in needles:
            self.assertIn(needle, text)
        # One clear line: the reason stands in a single line that says error.
        self.assertEqual(sum("error" in line.lower() for line in text.splitlines()), 1, text)

    def file(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def hf_folder(self, config, tensors=b""):
        self.file("model/config.json", json.dumps(config).encode())
        self.file("model/model.safetensors", tensors)
        return self.folder / "model"

    LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
             "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 259}

    def test_usage(self):
        self.refused(2, "--max-num-seqz", "--max-num-seqs", arguments=["serve", "m", "--max-num-seqz", "4"])
        self.refused(2, "--port", "70000", arguments=["serve", "m", "--port", "70000"])
        self.refused(2, "--block-size", arguments=["serve", "m", "--block-size", "0"])
        self.refused(2, "kv_role", arguments=["serve", "m", "--kv-transfer-config", '{"kv_connector":"MooncakeConnector"}'])
        self.refused(2, "NoSuchConnector", "MooncakeConnector",
                     arguments=["serve", "m", "--kv-transfer-config",
                                '{"kv_connector":"NoSuchConnector","kv_role":"kv_both"}'])
        self.refused(2, "prefiller", arguments=["proxy", "--prefiller-hosts", "a", "b", "--prefiller-ports", "1"])
        self.refused(2, "dance", arguments=["dance"])

    def test_missing_and_unknown_models(self):
        self.refused(1, "no/such/model", arguments=["serve", "no/such/model"])
        self.refused(1, "MambaForCausalLM", "Qwen3ForCausalLM",
                     arguments=["serve", self.hf_folder({**self.LLAMA, "architectures": ["MambaForCausalLM"]})])

    def test_broken_safetensors(self):
        def with_header(header, length=None):
            return struct.pack("<Q", len(header) if length is None else length) + header

        cases = [
            (b"abc", "model.safetensors"),
            (with_header(b"{}", length=1 << 60), "header"),
            (with_header(b"{not json"), "model.safetensors"),
            (with_header(json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [259, 64],
                                                                   "data_offsets": [0, 33152]}}).encode()), "truncated"),
            (with_header(json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [1 << 40, 1 << 40],
                                                                   "data_offsets": [0, 8]}}).encode()) + b"12345678",
             "model.embed_tokens.weight"),
            (with_header(json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [2, 2],
                                                                   "data_offsets": [0, 8]}}).encode()) + b"12345678",
             "model.embed_tokens.weight"),
        ]
        for data, needle in cases:
            with self.subTest(needle=needle):
                code, text = run("serve", self.hf_folder(self.LLAMA, data))
                self.assertEqual(code, 1, text)
                self.assertIn("model", text)
                self.assertIn("model.safetensors", text)

    def test_broken_gguf(self):
        real = pathlib.Path(tandem.SMOLLM2).read_bytes()
        self.refused(1, "truncated.gguf", arguments=["serve", self.file("truncated.gguf", real[:40_000_000])])
        self.refused(1, "short.gguf", arguments=["serve", self.file("short.gguf", real[:100])])
        self.refused(1, "wild.gguf",
                     arguments=["serve", self.file("wild.gguf", real[:8] + struct.pack("<QQ", 1 << 60, 1 << 60) + real[24:])])
        self.refused(1, "other.gguf", arguments=["serve", self.file("other.gguf", b"not a model" * 100)])

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused(1, str(port), "in use", arguments=["serve", tandem.SMOLLM2, "--host", "127.0.0.1", "--port", port])
            self.refused(1, str(port), "in use",
                         arguments=["serve", tandem.SMOLLM2, "--host", "127.0.0.1", "--port", tandem.free_port(),
                                    "--kv-transfer-config",
                                    json.dumps({"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer",
                                                "kv_port": str(port)})])
            self.refused(1, str(port), "in use",
                         arguments=["proxy", "--host", "127.0.0.1", "--port", port, "--prefiller-ports", "1",
                                    "--decoder-ports", "2"])


    def test_connectors(self):
        def config(**members):
            return ["serve", tandem.SMOLLM2, "--port", "8000", "--kv-transfer-config", json.dumps(members)]

        self.refused(2, "MultiConnector", "it combines connectors", "MooncakeConnectorV1",
                     arguments=config(kv_connector="MultiConnector", kv_role="kv_both"))
        self.refused(2, "needs a kv_connector", arguments=config(kv_role="kv_producer"))
        self.refused(2, "needs a kv_role", arguments=config(kv_connector="MooncakeLayerwiseConnector"))
        self.refused(2, "kv_port takes the ports 8000 to 8000, and --port 8000",
                     arguments=config(kv_connector="MooncakeConnectorV1", kv_role="kv_producer", kv_port=8000))
        self.refused(2, "conflicting tensor parallel size. Expected 1, but got 8",
                     arguments=config(kv_connector="MooncakeConnectorV1", kv_role="kv_producer",
                                      kv_connector_extra_config={"prefill": {"tp_size": 8, "dp_size": 1}}))
        self.refused(2, "DISAGGREGATED_PREFILL_RANK_TABLE_PATH", "tandem ranktable",
                     arguments=config(kv_connector="LLMDataDistCMgrConnector", kv_role="kv_producer"))

    def test_kv_ports_in_use(self):
        # A layerwise decoder listens too; the port, and who has it, are named before anything is loaded.
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for name, role in (("MooncakeLayerwiseConnector", "kv_consumer"), ("MooncakeConnectorV1", "kv_producer")):
                transfer = {"kv_connector": name, "kv_role": role, "kv_port": port}
                self.refused(1, f"kv_port {port}", "in use", f"process {os.getpid()} (",
                             arguments=["serve", tandem.SMOLLM2, "--host", "127.0.0.1", "--port", tandem.free_port(),
                                        "--kv-transfer-config", json.dumps(transfer)])

    def test_rank_tables_that_do_not_fit(self):
        def row(server, device, cluster):
            return {"server_id": server, "device_id": str(device), "device_ip": f"10.9.{cluster}.1",
                    "cluster_id": str(cluster)}

        table = {"version": "1.2", "server_count": "2", "prefill_device_list": [row("127.0.0.1", 0, 1)],
                 "decode_device_list": [row("192.0.2.77", 0, 2)], "status": "completed"}

        def refused(table, *needles, role="kv_producer", devices=""):
            path = self.file("table.json", json.dumps(table).encode())
            environment = {"DISAGGREGATED_PREFILL_RANK_TABLE_PATH": str(path), "VLLM_HOST_IP": "127.0.0.1",
                           "ASCEND_RT_VISIBLE_DEVICES": devices}
            with unittest.mock.patch.dict(os.environ, environment):
                self.refused(1, str(path), *needles, arguments=[
                    "serve", tandem.SMOLLM2, "--port", tandem.free_port(), "--kv-transfer-config",
                    json.dumps({"kv_connector": "LLMDataDistCMgrConnector", "kv_role": role})])

        refused(table, "decode_device_list.server_id", "is kv_role kv_consumer right?", role="kv_consumer")
        refused(table, "prefill_device_list", "a device_id among [3], found 0", devices="3")
        refused({**table, "decode_device_list": {}}, "decode_device_list")
        refused({**table, "prefill_device_list": [row("192.0.2.9", 0, 1)]}, "prefill_device_list.server_id",
                "VLLM_HOST_IP: 127.0.0.1")


class OverHttp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pair = tandem.Pair("--max-model-len", "512")
        cls.addClassCleanup(cls.pair.stop)

    def refused(self, process, status, body, needle="", path="/v1/completions", headers=None, kind=None):
        got, answer = process.post(path, body, headers)
        self.assertEqual(got, status, answer)
        self.assertIsInstance(answer, dict, answer)
        self.assertIn("error", answer)
        self.assertEqual(answer["error"]["code"], status)
        self.assertTrue(answer["error"]["message"])
        self.assertIn(needle, answer["error"]["message"])
        if kind:
            self.assertEqual(answer["error"]["type"], kind)

    def both(self):
        return (self.pair.decode, self.pair.proxy)

    def test_broken_bodies(self):
        for process in self.both():
            self.refused(process, 400, b'{"prompt": "a"', "JSON")
            self.refused(process, 400, b"")
            self.refused(process, 400, b"[1,2]")
            self.refused(process, 400, b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
            self.refused(process, 400, {"prompt": "a", "max_tokens": "many"}, "max_tokens")
            self.refused(process, 400, {"prompt": "a", "max_tokens": -1})
            self.refused(process, 400, {"prompt": "a", "temperature": -1}, "temperature must be non-negative, got -1")
            self.refused(process, 400, {"prompt": "a", "top_p": 0}, "top_p must be in (0, 1]")
            self.refused(process, 400, {"prompt": "a", "stop": ""}, "stop cannot contain an empty string")
            self.refused(process, 400, {"prompt": "a", "n": 2, "temperature": 0}, "greedy")
            self.refused(process, 400, {"max_tokens": 1})
            self.refused(process, 400, {"prompt": [1, 2, 49152]})
            self.refused(process, 400, {"prompt": [-5]})
            self.refused(process, 404, {"prompt": "a", "model": "nobody"}, "The model `nobody` does not exist.",
                         kind="NotFoundError")
            self.refused(process, 400, {"prompt": "word " * 600}, "maximum context length is 512 tokens")
            self.refused(process, 400, {"messages": "hello"}, path="/v1/chat/completions")
            self.refused(process, 400, {"messages": []}, path="/v1/chat/completions")
            self.assertEqual(process.complete("Hello", max_tokens=2)["usage"]["completion_tokens"], 2)

    def test_streams_get_the_status_too(self):
        for process in self.both():
            self.refused(process, 400, {"prompt": "word " * 600, "stream": True}, "maximum context length is 512 tokens")

    def test_a_body_of_100_megabytes(self):
        body = b'{"prompt": "' + b"a" * 100_000_000 + b'"}'
        for process in self.both():
            try:
                status, answer = process.post("/v1/completions", body)
            except (BrokenPipeError, ConnectionResetError):
                # Refused while we were still sending: the answer may be lost, the server must not be.
                status, answer = 413, {"error": {}}
            self.assertIn(status, (400, 413), answer)
            self.assertIn("error", answer)
            self.assertEqual(process.complete("Hello", max_tokens=2)["usage"]["completion_tokens"], 2)

    def test_unknown_paths_and_methods(self):
        self.assertEqual(self.pair.decode.get("/nope")[0], 404)
        self.assertEqual(self.pair.decode.get("/v1/completions")[0], 405)

    def test_garbage_on_the_sockets(self):
        kv_port = self.pair.prefill.process.args[-1]
        self.assertIn("kv_port", kv_port)
        for port in (self.pair.decode.port, self.pair.proxy.port, int(json.loads(kv_port)["kv_port"])):
            for garbage in (b"\x00" * 5000, b"GET / HTTP/9.9\r\n\r\n", b"\xff" * 100_000, b"POST /v1/completions HTTP/1.1\r\n"):
                with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
                    raw.settimeout(0.5)
                    try:
                        raw.sendall(garbage)
                        raw.recv(1000)
                    except OSError:
                        pass
        self.assertEqual(self.pair.proxy.complete("Hello", max_tokens=2)["usage"]["completion_tokens"], 2)
        tandem.assert_blocks_come_back(self.pair.prefill, self.pair.decode)

    def test_kv_transfer_params_of_a_client(self):
        wild = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [1, 2], "remote_host": "192.0.2.1",
                "remote_port": 1, "remote_engine_id": "x", "tandem": {"lease": "zz"}}
        # The proxy strips them; D refuses what it cannot read and never dies of it.
        answer = self.pair.proxy.complete("Hello", max_tokens=2, kv_transfer_params=wild)
        self.assertEqual(answer["usage"]["completion_tokens"], 2)
        self.refused(self.pair.decode, 400, {"prompt": "Hello", "kv_transfer_params": wild})
        foreign = {k: v for k, v in wild.items() if k != "tandem"}
        self.assertEqual(self.pair.decode.complete("Hello", max_tokens=2, kv_transfer_params=foreign)
                         ["usage"]["completion_tokens"], 2)

    def test_instances_that_do_not_fit_are_told_both_values(self):
        other = tandem.serve("other", "--max-model-len", "512", "--dtype", "float32", role="kv_consumer").wait_ready()
        self.addCleanup(other.stop)
        front = tandem.proxy([self.pair.prefill], [other]).wait_ready()
        self.addCleanup(front.stop)
        status, answer = front.post("/v1/completions", {"prompt": "A few words to move", "max_tokens": 2})
        self.assertEqual(status, 502, answer)
        self.assertIn("fingerprint", answer["error"]["message"])
        self.assertIn("fingerprint is LlamaForCausalLM/bfloat16/", other.log())
        self.assertIn("LlamaForCausalLM/float32/", other.log())
        tandem.assert_blocks_come_back(self.pair.prefill, other)


if __name__ == "__main__":
    unittest.main()
