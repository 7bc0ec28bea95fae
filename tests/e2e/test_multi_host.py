# SPDX-License-Identifier: Apache-2.0
"""An instance over several processes, as one over several hosts is: the experts of a small MoE model are spread over
them, tokens are those of one process, and a process that dies or stops fails requests but not the instance."""
import contextlib
import functools
import signal
import tempfile
import threading
import time
import unittest

from parity_table import make_model
from tandem_processes import Background, assert_blocks_come_back, free_port, peer_certificates, proxy, serve, wait_until

PROMPTS = [f"{text} number {i}" for i, text in enumerate(["The first host", "Experts", "A", "Two processes or"] * 3)]
FLAGS = ("--num-gpu-blocks-override", 256, "--max-num-seqs", 8)
SECRET = {"TANDEM_CLUSTER_SECRET": "a test's"}


def over_processes(name, model, sizes, *flags, port=None, **options):
    """Processes with so many ranks each, first one first. They load side by side; only the first has an API."""
    port = port or free_port()
    processes = []
    for index, size in enumerate(sizes):
        place = ["--data-parallel-size", sum(sizes), "--data-parallel-size-local", size,
                 "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", port]
        if index > 0:
            place += ["--headless", "--data-parallel-start-rank", sum(sizes[:index])]
        processes.append(serve(f"{name}-{index}", *FLAGS, *place, *flags, model=model,
                               environment={**SECRET, **options.get("environment", {})},
                               **{key: value for key, value in options.items() if key != "environment"}))
    return processes


def tokens_of(instance, prompt, max_tokens=12, **fields):
    body = instance.complete(prompt, max_tokens=max_tokens, return_token_ids=True, ignore_eos=True, **fields)
    return body["choices"][0]["token_ids"]


@functools.cache
def model_and_tokens():
    """A small MoE model, and what it says in one process."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    model = make_model("tiny-t2", folder.name)
    alone = serve("alone", *FLAGS, model=model).wait_ready()
    expected = [tokens_of(alone, prompt) for prompt in PROMPTS]
    alone.stop()
    return model, expected


class Instances(unittest.TestCase):
    """What all tests here start from."""

    @classmethod
    def setUpClass(cls):
        cls.model, cls.expected = model_and_tokens()

    def start(self, *arguments, **options):
        processes = over_processes(*arguments, **options)
        for process in processes:
            self.addCleanup(process.stop)
        return processes

    def check_all_ranks(self, first, num_ranks):
        for i, (prompt, expected) in enumerate(zip(PROMPTS, self.expected)):
            status, body = first.post(
                "/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": True,
                                    "ignore_eos": True}, {"X-data-parallel-rank": str(i % num_ranks)})
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["token_ids"], expected, f"{prompt} on rank {i % num_ranks}")


class MultiHostTest(Instances):
    def test_tokens_are_those_of_one_process(self):
        first, _ = self.start("EP2", self.model, [1, 1], "--enable-expert-parallel")
        first.wait_ready()
        self.check_all_ranks(first, 2)
        waiting = [Background(lambda prompt=prompt: first.post(
            "/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": True,
                                "ignore_eos": True})) for prompt in PROMPTS]
        for background, expected in zip(waiting, self.expected):
            status, body = background.result(30)
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["token_ids"], expected)
        streamed = [event["choices"][0].get("token_ids") or [] for event in first.stream(
            "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 12, "temperature": 0, "return_token_ids": True,
                                "ignore_eos": True}, {"X-data-parallel-rank": "1"}) if event["choices"]]
        self.assertEqual(sum(streamed, []), self.expected[0])

    def test_three_processes_in_any_order_and_one_without_experts_to_share(self):
        port = free_port()
        first, *others = self.start("EP3", self.model, [1, 2, 1], "--enable-expert-parallel", port=port)
        first.wait_ready()
        self.check_all_ranks(first, 4)
        # Metrics of all are at the first one, by their ranks.
        for rank in range(4):
            self.assertGreater(first.metric("vllm:generation_tokens_total", engine=rank), 0)
        status, _ = first.post("/reset_prefix_cache", {})
        self.assertEqual(status, 200)
        assert_blocks_come_back(first)
        self.assertEqual(first.metric("tandem:kv_blocks", state="cached"), 0)
        for other in others:
            self.assertEqual(other.get("/health")[0], 401, "only the first one answers anybody")
        for process in (*others, first):
            process.stop()
            self.assertEqual(process.process.returncode, 0, process.log_path)

    def test_with_certificates_instead_of_a_secret(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        flags = peer_certificates(folder.name)
        first, second = self.start("certified", self.model, [1, 1], "--enable-expert-parallel", *flags,
                                   environment={"TANDEM_CLUSTER_SECRET": ""})
        first.wait_ready()
        self.check_all_ranks(first, 2)
        second.kill()
        wait_until(lambda: first.get("/health")[0] == 503, 10, "the loss is noticed")

    def test_each_process_has_all_experts_and_lives_alone(self):
        first, second = self.start("DP2", self.model, [1, 1])
        first.wait_ready()
        self.check_all_ranks(first, 2)
        second.kill()
        wait_until(lambda: first.post("/v1/completions", {"prompt": "x", "max_tokens": 1},
                                      {"X-data-parallel-rank": "1"})[0] == 503, 5, "rank 1 is refused")
        for prompt, expected in zip(PROMPTS, self.expected):
            self.assertEqual(tokens_of(first, prompt), expected)
        self.assertEqual(first.get("/health")[0], 200)

    def test_flags_that_do_not_fit_are_refused_with_both_values(self):
        port = free_port()
        first, = self.start("misfit", self.model, [1], "--data-parallel-size", 2, "--data-parallel-size-local", 1,
                            port=port)
        second = serve("misfit-1", "--data-parallel-size", 2, "--data-parallel-start-rank", 1, "--headless",
                       "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", port, "--block-size", 32,
                       model=self.model, environment=SECRET)
        self.addCleanup(second.stop)
        self.assertEqual(second.process.wait(60), 1)
        self.assertIn("--block-size is 32 there and 16 in the first process", second.log())
        stranger = serve("misfit-2", "--data-parallel-size", 2, "--data-parallel-start-rank", 1, "--headless",
                         "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", port,
                         model=self.model, environment={"TANDEM_CLUSTER_SECRET": "another"})
        self.addCleanup(stranger.stop)
        self.assertEqual(stranger.process.wait(60), 1)
        self.assertIn("TANDEM_CLUSTER_SECRET", stranger.log())
        status, body = first.get("/health")
        self.assertEqual(status, 503)
        self.assertIn(b"waiting for a process with data-parallel rank 1 to join", body)


class Load:
    """Requests without a pause, each to its end; how each ended."""

    def __init__(self, instance, expected, num_clients=6):
        self.ends = []  # (when, seconds it took, status, token ids or error)
        self._expected = expected
        self._instance = instance
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(num_clients)]
        for thread in self._threads:
            thread.start()

    def _run(self, number):
        while not self._stop.is_set():
            i = number % len(PROMPTS)
            number += 1
            begun = time.monotonic()
            status, what = 0, "the connection broke"
            with contextlib.suppress(OSError):
                status, body = self._instance.post(
                    "/v1/completions", {"prompt": PROMPTS[i], "max_tokens": 12, "temperature": 0,
                                        "return_token_ids": True, "ignore_eos": True}, timeout_s=60)
                what = body["choices"][0]["token_ids"] if status == 200 else body["error"]["message"]
            self.ends.append((time.monotonic(), time.monotonic() - begun, status, what))
            if status == 200:
                assert what == self._expected[i], f"{PROMPTS[i]}: {what}"
            else:
                time.sleep(0.05)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request hangs"
        return self.ends


class LostProcessTest(Instances):
    def lose_and_return(self, lose, bring_back):
        first, second = self.start("lost", self.model, [2, 2], "--enable-expert-parallel")
        first.wait_ready()
        pid = first.process.pid
        load = Load(first, self.expected)
        wait_until(lambda: sum(end[2] == 200 for end in load.ends) > 20, 30, "the load runs")
        lost = time.monotonic()
        lose(second)
        wait_until(lambda: first.get("/health")[0] == 503, 5, "/health says that somebody is missing")
        self.assertIn(b"data-parallel ranks 2 to 3", first.get("/health")[1])
        time.sleep(1)
        second = bring_back(second)
        self.addCleanup(second.stop)
        wait_until(lambda: first.get("/health")[0] == 200, 60, "the instance is back")
        back = time.monotonic()
        wait_until(lambda: sum(end[2] == 200 and end[0] > back for end in load.ends) > 20, 30, "the load goes on")
        ends = load.stop()
        failed = [end for end in ends if end[2] != 200]
        self.assertTrue(failed, "something was under way")
        for when, took, status, message in failed:
            self.assertEqual(status, 503, message)
            self.assertLess(took, 5.5, message)
            self.assertRegex(message, "data-parallel ranks? 2|link up|linking up")
        self.assertGreater(max(end[0] for end in failed), lost)
        self.check_all_ranks(first, 4)
        assert_blocks_come_back(first)
        self.assertEqual(first.process.pid, pid)
        self.assertIsNone(first.process.poll())

    def again(self, second):
        """The same command once more."""
        return type(second)(second.name, second.process.args[1:], second.port,
                            environment={"VLLM_HOST_IP": "127.0.0.1", **SECRET})

    def test_killed(self):
        self.lose_and_return(lambda second: second.kill(), self.again)

    def test_terminated(self):
        self.lose_and_return(lambda second: second.stop(), self.again)

    def test_stopped_for_a_while(self):
        def go_on(second):
            second.process.send_signal(signal.SIGCONT)
            return second

        self.lose_and_return(lambda second: second.process.send_signal(signal.SIGSTOP), go_on)

    def test_the_first_process_is_restarted(self):
        first, second = self.start("head", self.model, [1, 1], "--enable-expert-parallel")
        first.wait_ready()
        first.kill()
        time.sleep(0.5)
        first = self.again(first)
        self.addCleanup(first.stop)
        first.wait_ready()
        self.check_all_ranks(first, 2)
        self.assertIsNone(second.process.poll())


class HandOverTest(Instances):
    """A prefiller in one process, a decoder over two, and the other way round."""

    def check_pair(self, prefill, decode, num_decode_ranks, first, *proxy_flags):
        front = proxy([prefill], [decode], *proxy_flags).wait_ready()
        self.addCleanup(front.stop)
        for i, (prompt, expected) in enumerate(zip(PROMPTS, self.expected)):
            self.assertEqual(tokens_of(front, prompt), expected, prompt)
        for rank in range(num_decode_ranks):
            self.assertGreater(first.metric("vllm:generation_tokens_total", engine=rank), 0)
        self.assertGreater(decode.metric("tandem:kv_transfer_bytes_total"), 0)
        assert_blocks_come_back(prefill, decode)

    def pair(self, connector, prefill_sizes, decode_sizes):
        instances = []
        for name, role, sizes in (("P", "kv_producer", prefill_sizes), ("D", "kv_consumer", decode_sizes)):
            instances.append(self.start(name, self.model, sizes, "--enable-expert-parallel", role=role,
                                        kv_port=free_port(8),
                                        transfer={"kv_connector": connector, "engine_id": name}))
        for first, *_ in instances:
            first.wait_ready()
        self.processes = instances
        return [first for first, *_ in instances]

    def test_pull_into_two_processes(self):
        prefill, decode = self.pair("MooncakeConnectorV1", [2], [1, 1])
        self.check_pair(prefill, decode, 2, decode)

    def test_pull_out_of_two_processes(self):
        prefill, decode = self.pair("MooncakeConnectorV1", [1, 1], [1])
        self.check_pair(prefill, decode, 2, prefill)

    def test_kv_that_was_handed_over_outlives_a_lost_process(self):
        prefill, decode = self.pair("MooncakeConnectorV1", [1, 1], [1])
        status, body = prefill.post(
            "/v1/completions", {"prompt": PROMPTS[0], "max_tokens": 1, "temperature": 0,
                                "kv_transfer_params": {"do_remote_decode": True}}, {"X-data-parallel-rank": "0"})
        self.assertEqual(status, 200, body)
        self.processes[0][1].kill()
        wait_until(lambda: prefill.get("/health")[0] == 503, 5, "the prefiller misses a process")
        self.assertEqual(tokens_of(decode, PROMPTS[0], kv_transfer_params=body["kv_transfer_params"]),
                         self.expected[0])
        self.assertGreater(decode.metric("tandem:kv_transfer_bytes_total"), 0)
        assert_blocks_come_back(prefill, decode)

    def test_push_into_two_processes(self):
        prefill, decode = self.pair("MooncakeLayerwiseConnector", [1], [1, 1])
        self.check_pair(prefill, decode, 2, decode)


if __name__ == "__main__":
    unittest.main()
