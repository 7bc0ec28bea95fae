# SPDX-License-Identifier: Apache-2.0
"""One request must not hurt the others: values out of all bounds are a quick 400 that names the member, nothing that
is written to any port ends a process, and a neighbour's answer does not change. Direct, pulled and pushed."""
import contextlib
import json
import os
import pathlib
import random
import socket
import struct
import threading
import time
import unittest

import tandem_processes as tandem

STUB = ("--load-format", "stub", "--max-model-len", "2048")
VOCABULARY = 259  # of the scripted worker
NEIGHBOUR = {"prompt": "A neighbour who wants to be left alone", "max_tokens": 200, "seed": 7, "ignore_eos": True}
CHAT = [{"role": "user", "content": "a"}]


def resident_bytes(process):
    return int(pathlib.Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def listeners(process):
    """(address, port) of every TCP socket on which a process listens."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{process.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(link))
    found = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            address, port = fields[1].split(":")
            found.add((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return found


def deployment(connector):
    transfer = {"kv_connector": connector}
    p = tandem.serve("p", *STUB, model="m", role="kv_producer", transfer=transfer)
    d = tandem.serve("d", *STUB, model="m", role="kv_consumer", transfer=transfer)
    return p, d, tandem.proxy([p], [d])


class Deployments(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pull = deployment("MooncakeConnectorV1")
        cls.layerwise = deployment("MooncakeLayerwiseConnector")
        cls.processes = (*cls.pull, *cls.layerwise)
        for process in cls.processes:
            cls.addClassCleanup(process.stop)
        for process in cls.processes:
            process.wait_ready()
        cls.asked = (cls.pull[1], cls.pull[2], cls.layerwise[2])  # direct, pulled, pushed
        cls.undisturbed = cls.pull[1].post("/v1/completions", NEIGHBOUR)[1]["choices"][0]["text"]

    def tearDown(self):
        for process in self.processes:
            self.assertIsNone(process.process.poll(), process.log())
            self.assertEqual(process.get("/health")[0], 200)
        tandem.assert_blocks_come_back(*self.pull[:2], *self.layerwise[:2])

    def answer(self, process, body):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        text = json.dumps(body) if not isinstance(body, str) else body
        started = time.monotonic()
        status, answer = process.post(path, text)
        return status, answer, time.monotonic() - started

    def refused(self, body, member):
        """A 400 everywhere that names the member, at once."""
        for process in self.asked:
            with self.subTest(process=process.name, body=str(body)[:200]):
                status, answer, took = self.answer(process, body)
                self.assertEqual(status, 400, answer)
                error = answer["error"]
                self.assertTrue(error["param"] == member or member in error["message"], error)
                self.assertLess(took, 2.0)  # of a loaded machine; nothing is computed for it

    def taken(self, body, tokens):
        for process in self.asked:
            with self.subTest(process=process.name, body=str(body)[:200]):
                status, answer, _ = self.answer(process, body)
                self.assertEqual(status, 200, answer)
                self.assertEqual(answer["usage"]["completion_tokens"], tokens)

    def neighbour(self):
        """Starts one; the returned function checks that its answer is what it always was."""
        ask = tandem.Background(lambda: self.pull[1].post("/v1/completions", NEIGHBOUR))

        def check():
            status, answer = ask.result(60)
            self.assertEqual(status, 200)
            self.assertEqual(answer["choices"][0]["text"], self.undisturbed)
        return check


class Values(Deployments):
    def test_token_ids_outside_the_vocabulary(self):
        check = self.neighbour()
        for member in ("stop_token_ids", "allowed_token_ids"):
            for wrong in (VOCABULARY, -1, 2**31, 2**63, 1.5, "a"):
                self.refused({"prompt": "a", member: [wrong]}, member)
                self.refused({"messages": CHAT, member: [1, wrong]}, member)
        self.refused({"prompt": [VOCABULARY]}, "prompt")
        self.refused({"prompt": [1, -5]}, "prompt")
        self.taken({"prompt": "a", "stop_token_ids": [], "max_tokens": 2, "ignore_eos": True}, 2)
        check()

    def test_logit_bias(self):
        check = self.neighbour()
        for wrong in ({"999999": 1}, {"-1": 1}, {"AI": 1}, {"1": "x"}, {"99999999999999999999": 1}, [1], "1"):
            self.refused({"prompt": "a", "logit_bias": wrong}, "logit_bias")
            self.refused({"messages": CHAT, "logit_bias": wrong}, "logit_bias")
        self.taken({"prompt": "a", "logit_bias": {}, "max_tokens": 2, "ignore_eos": True}, 2)
        check()

    def test_sizes_beyond_all_bounds_cost_no_memory(self):
        check = self.neighbour()
        before = [resident_bytes(process) for process in self.processes]
        self.refused({"messages": CHAT, "logprobs": True, "top_logprobs": 10**9}, "logprobs")
        self.refused({"prompt": "a", "logprobs": 10**9}, "logprobs")
        self.refused({"prompt": "a", "prompt_logprobs": 10**9}, "prompt_logprobs")
        self.refused({"prompt": "a", "n": 5_000_000}, "n")
        self.refused({"prompt": "a", "n": 1024, "best_of": 5_000_000}, "best_of")
        self.refused({"prompt": ["a"] * 20_000, "n": 1024, "max_tokens": 1}, "choices")
        self.refused({"prompt": "a", "truncate_prompt_tokens": 10**12}, "truncate_prompt_tokens")
        self.refused({"prompt": "a", "min_tokens": 10**12}, "min_tokens")
        check()
        for process, earlier in zip(self.processes, before):
            self.assertLess(resident_bytes(process) - earlier, 48 << 20, process.name)

    def test_numbers_in_every_form(self):
        for wrong in (-1, 10**12, "ten", 1.5, [], {}):
            self.refused({"prompt": "a", "max_tokens": wrong}, "max_tokens" if wrong != 10**12 else "maximum context")
            self.refused({"messages": CHAT, "max_tokens": wrong}, "max_tokens" if wrong != 10**12 else "maximum context")
        self.refused({"prompt": "a", "max_tokens": 0}, "max_tokens")
        self.refused('{"prompt": "a", "temperature": NaN}', "JSON")
        self.refused({"prompt": "a", "temperature": "nan"}, "temperature")
        self.refused('{"prompt": "a", "temperature": 1e999}', "")
        for member, values in {"temperature": (-1,), "top_p": (0, 2), "min_p": (-1, 2), "top_k": (-2,),
                               "presence_penalty": (3,), "frequency_penalty": (-3,), "repetition_penalty": (0, -1),
                               "n": (0, -1), "seed": ("x", 2**64, 1.5), "min_tokens": (-1,)}.items():
            for value in values:
                self.refused({"prompt": "a", member: value}, member)
        # What is not wrong, and what it means: the documented default, or a number written as text.
        self.taken({"prompt": "a", "max_tokens": "3", "ignore_eos": True}, 3)
        self.taken({"prompt": "a", "max_tokens": 2, "seed": "5", "temperature": None, "ignore_eos": True}, 2)
        self.taken({"prompt": "a", "max_tokens": None, "n": None, "stop": None, "temperature": 0, "ignore_eos": True},
                   2048 - 1)
        for process in self.asked:
            echoed = process.complete("A prompt and no more", echo=True, max_tokens=0)
            self.assertEqual(echoed["choices"][0]["text"], "A prompt and no more")


class Transfer(Deployments):
    FORGED = ({"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [0, 10**9, -1],
               "remote_host": "192.0.2.1", "remote_port": 1, "remote_engine_id": "x", "tandem": {"lease": "zz"}},
              {"do_remote_prefill": True, "remote_block_ids": "all", "remote_engine_id": None},
              {"do_remote_prefill": True, "metaserver": "http://127.0.0.1:1/x"},
              {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": [[1]], "remote_host": "192.0.2.1",
               "remote_port": 99999, "request_id": "cmpl-x-0"},
              {"do_remote_decode": True}, {"tandem_prompts": [{}]})
    NO_OBJECTS = ([], "x", 7)

    def test_a_clients_own_parameters_go_nowhere(self):
        expected = self.pull[1].complete("Hello", max_tokens=4)["choices"][0]["text"]
        for proxy in (self.pull[2], self.layerwise[2]):
            for forged in self.FORGED:
                with self.subTest(forged=forged):
                    answer = proxy.complete("Hello", max_tokens=4, kv_transfer_params=forged)
                    self.assertEqual(answer["choices"][0]["text"], expected)
                    self.assertIsNone(answer.get("kv_transfer_params"))
            for forged in self.NO_OBJECTS:
                status, answer = proxy.post("/v1/completions", {"prompt": "Hello", "kv_transfer_params": forged})
                self.assertEqual((status, answer["error"]["param"]), (400, "kv_transfer_params"))

    def test_an_instance_refuses_or_ignores_them(self):
        for instance in (*self.pull[:2], *self.layerwise[:2]):
            for forged in (*self.FORGED, *self.NO_OBJECTS):
                with self.subTest(instance=instance.name, forged=forged):
                    status, answer = instance.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2,
                                                                       "kv_transfer_params": forged})
                    self.assertIn(status, (200, 400, 500, 502, 503), answer)
                    if status != 200:
                        self.assertIn("error", answer)
                    elif answer.get("kv_transfer_params"):  # a prefiller was asked to hand over, as a proxy asks it
                        self.assertEqual(instance.post("/tandem/release", answer)[1], {"released": True})

    def test_nobody_can_post_for_a_request_that_is_not_open(self):
        for proxy in (self.pull[2], self.layerwise[2]):
            status, answer = proxy.post("/v1/metaserver", {"request_id": "cmpl-x-0", "remote_host": "192.0.2.1",
                                                           "remote_port": 1})
            self.assertEqual(status, 404, answer)


class Ports(Deployments):
    def frames(self):
        source = random.Random(5)
        yield b"\x00" * 5000
        yield b"\xff" * 100_000
        yield struct.pack("<Q", 2**63) * 8  # huge lengths, both byte orders
        yield struct.pack(">Q", 2**62) * 8
        yield struct.pack("<I", 2**32 - 1) + b"x" * 64
        yield b"GET / HTTP/1.1\r\nHost: x\r\n"  # begun and never ended
        yield b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n"
        yield b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"
        yield b"\x80\x04\x95" + b"c__builtin__\neval\n"  # a pickle
        for size in (1, 3, 7, 63, 64, 65, 1000, 70_000):
            yield source.randbytes(size)

    def throw_at(self, port):
        for frame in self.frames():
            with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
                raw.settimeout(0.05)
                with contextlib.suppress(OSError):
                    raw.sendall(frame)
                    raw.recv(1000)

    def check_ports(self, processes):
        before = {process: resident_bytes(process) for process in processes}
        ports = set()
        for process in processes:
            found = listeners(process)
            self.assertTrue(found, process.name)
            for address, port in found:
                # Where it was told to listen and nowhere else.
                self.assertEqual(address, "127.0.0.1", f"{process.name} {port}")
                ports.add(port)
        threads = [threading.Thread(target=self.throw_at, args=(port,)) for port in ports]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for process, earlier in before.items():
            self.assertLess(resident_bytes(process) - earlier, 48 << 20, process.name)
        return ports

    def test_garbage_on_every_port_hurts_nobody(self):
        check = self.neighbour()
        ports = self.check_ports(self.processes)
        self.assertGreaterEqual(len(ports), 9)  # six HTTP, a KV port of each prefiller and of the layerwise decoder
        check()
        for proxy in (self.pull[2], self.layerwise[2]):
            self.assertEqual(proxy.complete("Hello", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"], 2)

    def test_garbage_between_the_processes_of_an_instance(self):
        port = tandem.free_port()
        place = ["--data-parallel-size", 2, "--data-parallel-size-local", 1, "--data-parallel-address", "127.0.0.1",
                 "--data-parallel-rpc-port", port]
        secret = {"TANDEM_CLUSTER_SECRET": "a test's"}
        first = tandem.serve("first", *STUB, *place, model="m", environment=secret)
        second = tandem.serve("second", *STUB, *place, "--headless", "--data-parallel-start-rank", 1, model="m",
                              environment=secret)
        for process in (first, second):
            self.addCleanup(process.stop)
        first.wait_ready()
        self.assertIn(port, self.check_ports((first, second)))
        for rank in ("0", "1"):
            status, answer = first.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2},
                                        {"X-data-parallel-rank": rank})
            self.assertEqual(status, 200, answer)


if __name__ == "__main__":
    unittest.main()
