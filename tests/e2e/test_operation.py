# SPDX-License-Identifier: Apache-2.0
"""What operators and their scripts rely on: lines of the log, statistics on and off, signals and exit codes, a dead
engine, idle connections. Instances run the scripted worker."""
import contextlib
import json
import os
import re
import signal
import subprocess
import time
import unittest

from tandem_processes import BINARY, JSON, ROOT, Background, Stream, free_port, proxy, serve, wait_until

PLAIN = ("--load-format", "stub", "--max-model-len", "4096", "--served-model-name", "m", "other-name")
SLOW = ("--hf-overrides", json.dumps({"seconds_per_decode_token": 0.05}))
LONG = {"prompt": "On and on", "max_tokens": 2000, "ignore_eos": True}
ENGINE_LINE = (r"{level} Engine {rank:03}: Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: "
               r"([\d.]+) tokens/s, Running: (\d+) reqs, Waiting: (\d+) reqs, GPU KV cache usage: ([\d.]+)%, "
               r"Prefix cache hit rate: ([\d.]+)%\n")


def engine_lines(process, level="info", rank=0):
    return [tuple(map(float, line)) for line in re.findall(ENGINE_LINE.format(level=level, rank=rank), process.log())]


class Operation(unittest.TestCase):
    def start(self, *flags, environment=None, name="S", **options):
        process = serve(name, *PLAIN, *flags, model="m", environment=environment, **options)
        self.addCleanup(process.stop)
        return process

    def stream(self, process):
        stream = Stream(process, LONG)
        self.addCleanup(stream.close)
        return stream

    def test_the_libraries_that_the_docs_name_are_those_that_it_needs(self):
        linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
        needed = set()
        for path in re.findall(r"=> (\S+)", linked):
            real = os.path.realpath(path)
            owner = next((found.stdout for found in (
                subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
                for name in (real, path, real.removeprefix("/usr"), "/usr" + path)) if found.returncode == 0), "")
            needed.add(owner.split(":")[0])
        own = {name for name in needed if not re.fullmatch(r"lib(c6|gcc-s1|stdc\+\+6|[atl]san\d+|ubsan\d+)|", name)}
        named = re.search(r"^apt install (lib.*)$", (ROOT / "docs" / "deploy.md").read_text(), re.M).group(1).split()
        self.assertEqual(sorted(own), named)

    # The log.

    def test_lines_that_scripts_look_for_at_start(self):
        process = self.start().wait_ready()
        lines = process.log()
        places = [lines.index(text) for text in (
            f"Starting vLLM API server 0 on http://127.0.0.1:{process.port}\n", "Available routes are:\n",
            "Route: /health, Methods: GET\n", "Route: /v1/completions, Methods: POST\n",
            "Application startup complete.\n")]
        self.assertEqual(sorted(places[:3]) + places[4:], places[:3] + places[4:])
        for path, methods in re.findall(r"Route: (\S+), Methods: (.*)", lines):
            for method in methods.split(", "):
                answer = process.get(path) if method == "GET" else process.post(path, {})
                self.assertNotEqual(answer[0], 405, (method, path))
                self.assertNotIn("Not Found", str(answer[1]), (method, path))

    def test_the_periodic_line_tells_load_and_is_silent_when_idle(self):
        process = self.start(*SLOW, "--data-parallel-size", 2, environment={"VLLM_LOG_STATS_INTERVAL": "1"}).wait_ready()
        prompt = "The same prompt every time, " * 4
        for _ in range(2):
            status, _ = process.post("/v1/completions", {"prompt": prompt, "max_tokens": 20, "ignore_eos": True},
                                     {"X-data-parallel-rank": "0"})
            self.assertEqual(status, 200)
        stream = self.stream(process)
        wait_until(lambda: [line for rank in (0, 1) for line in engine_lines(process, rank=rank) if line[2] == 1], 5,
                   "a line with one running request")
        stream.close()
        lines = wait_until(lambda: engine_lines(process) if engine_lines(process)[-1:] and
                           engine_lines(process)[-1][1:4] == (0, 0, 0) else None, 5, "a last line with zeros")
        self.assertTrue(any(line[0] > 20 for line in lines), lines)
        self.assertTrue(any(line[1] > 5 for line in lines), lines)
        self.assertTrue(any(line[5] > 30 for line in lines), f"the second prompt was cached: {lines}")
        count = len(lines)
        time.sleep(2.2)
        self.assertEqual(len(engine_lines(process)), count, "an idle engine says nothing at level info")

    def test_the_periodic_line_goes_on_at_level_debug(self):
        process = self.start(environment={"VLLM_LOG_STATS_INTERVAL": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}).wait_ready()
        wait_until(lambda: len(engine_lines(process, level="debug")) >= 2, 10, "two lines of an idle engine")

    def test_without_statistics_there_is_no_line_and_no_series_of_vllm(self):
        process = self.start("--disable-log-stats", environment={"VLLM_LOG_STATS_INTERVAL": "1"}).wait_ready()
        process.complete("Hello", max_tokens=3)
        text = process.get("/metrics")[1].decode()
        self.assertNotIn("vllm:", text)
        for name in ("tandem:kv_blocks", "http_requests_total", "process_start_time_seconds"):
            self.assertIn(f"\n{name}", text)
        time.sleep(2.2)
        self.assertNotIn("Avg prompt throughput", process.log())

    def test_requests_and_answers_are_logged_if_asked(self):
        process = self.start("--enable-log-requests", "--enable-log-outputs", "--max-log-len", 5).wait_ready()
        process.post("/v1/completions", {"prompt": "Hello world", "max_tokens": 3}, {"X-Request-Id": "a"})
        wait_until(lambda: "Generated response" in process.log(), 5, "the answer's line")
        log = process.log()
        self.assertRegex(log, r'Received request cmpl-a-0: prompt: "Hello", params: SamplingParams\(n=1, .*max_tokens=3, '
                              r".*prompt_token_ids: \[\d+(, \d+){4}\], ")
        self.assertRegex(log, r'Generated response cmpl-a: output: ".*", output_token_ids: \[\d+, \d+, \d+\], '
                              r"finish_reason: length")

    def test_the_access_log(self):
        process = self.start().wait_ready()
        process.complete("Hello", max_tokens=1)
        wait_until(lambda: re.search(r'127\.0\.0\.1:\d+ - "POST /v1/completions HTTP/1\.1" 200 OK\n', process.log()), 5,
                   "the request's line")
        self.assertNotIn("Received request", process.log())
        self.assertNotIn("SamplingParams", process.log())

    def test_the_access_log_off(self):
        for flags in (("--disable-uvicorn-access-log",), ("--uvicorn-log-level", "warning")):
            process = self.start(*flags).wait_ready()
            process.complete("Hello", max_tokens=1)
            self.assertNotIn("HTTP/1.1", process.log())
            self.assertIn("Application startup complete.", process.log())

    # Series.

    def test_both_served_names_are_the_first_one_in_metrics(self):
        process = self.start().wait_ready()
        for name in ("m", "other-name"):
            process.complete("Hello", max_tokens=2, model=name)
        self.assertEqual(process.metric("vllm:request_success_total", model_name="m"), 2)
        self.assertNotIn("other-name", process.get("/metrics")[1].decode())

    def test_a_client_that_leaves_is_no_finished_request(self):
        process = self.start(*SLOW).wait_ready()
        stream = self.stream(process)
        stream.event()
        self.assertEqual(process.metric("vllm:num_requests_running"), 1)
        stream.close()
        wait_until(lambda: process.metric("vllm:num_requests_running") == 0, 1, "it is gone within some steps")
        self.assertEqual(process.metric("vllm:request_success_total"), 0)

    def test_metrics_of_several_processes_are_one_exposition(self):
        rpc_port = free_port()
        places = [("--data-parallel-size", 2, "--data-parallel-size-local", 1, "--data-parallel-address", "127.0.0.1",
                   "--data-parallel-rpc-port", rpc_port, *more)
                  for more in ((), ("--headless", "--data-parallel-start-rank", 1))]
        first, _ = [self.start(*place, role="kv_producer", environment={"TANDEM_CLUSTER_SECRET": "a test's"})
                    for place in places]
        first.wait_ready()
        for rank in (0, 1):
            status, body = first.post("/v1/completions", {"prompt": "Hello", "max_tokens": 3 + rank, "ignore_eos": True},
                                      {"X-data-parallel-rank": str(rank)})
            self.assertEqual(status, 200, body)
        for rank in (0, 1):
            self.assertEqual(first.metric("vllm:generation_tokens_total", engine=rank), 3 + rank)
        text = first.get("/metrics")[1].decode()
        series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
        self.assertEqual(len(series), len(set(series)), "each series once")
        self.assertIn("tandem:kv_leases_open 0.0\n", text)
        self.assertEqual(text.count("\nprocess_start_time_seconds "), 1)
        self.assertEqual(first.metric("http_requests_total", handler="/v1/completions"), 2, "each request counts once")

    # Life.

    def test_a_signal_ends_it_with_exit_code_0(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.start(*SLOW).wait_ready()
            stream = self.stream(process)
            stream.event()
            started = time.monotonic()
            process.process.send_signal(number)
            last = None
            while (event := stream.event()) is not None:
                last = event
            self.assertEqual(last, "[DONE]", "a running request is ended, not cut off")
            self.assertEqual(process.process.wait(10), 0)
            self.assertLess(time.monotonic() - started, 8)
            with self.assertRaises(ConnectionRefusedError):
                process.get("/health")

    def test_with_a_shutdown_timeout_what_runs_is_finished_and_nothing_new_begins(self):
        process = self.start(*SLOW, "--shutdown-timeout", "20s").wait_ready()
        running = Background(lambda: process.complete("Count", max_tokens=40, ignore_eos=True))
        wait_until(lambda: process.metric("vllm:num_requests_running") == 1, 5, "it runs")
        process.process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.get("/health")[0] == 503, 2, "it is not ready any more")
        self.assertEqual(process.get("/ping")[0], 503)
        status, headers, body = process.exchange("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 1}, JSON)
        self.assertEqual(status, 503)
        self.assertIn(b"stopping", body)
        self.assertEqual(headers["Retry-After"], "1")
        self.assertEqual(process.get("/metrics")[0], 200, "watched to the end")
        choice = running.result(10)["choices"][0]
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(process.process.wait(5), 0)

    def test_the_shutdown_timeout_ends_and_a_second_signal_ends_it_sooner(self):
        process = self.start(*SLOW, "--shutdown-timeout", "500ms").wait_ready()
        stream = self.stream(process)
        stream.event()
        started = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        last = None
        while (event := stream.event()) is not None:
            last = event
        self.assertEqual(last, "[DONE]", "a request whose time is over is ended, not cut off")
        self.assertEqual(process.process.wait(10), 0)
        self.assertTrue(0.4 < time.monotonic() - started < 8)
        self.assertIn("--shutdown-timeout is over", process.log())

        impatient = self.start(*SLOW, "--shutdown-timeout", "60").wait_ready()
        self.stream(impatient).event()
        impatient.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "a second signal ends them" in impatient.log(), 5, "it drains")
        impatient.process.send_signal(signal.SIGTERM)
        self.assertEqual(impatient.process.wait(5), 1)

    def test_a_stopping_prefiller_keeps_kv_until_it_was_fetched(self):
        prefiller = self.start(*SLOW, "--shutdown-timeout", "20s", role="kv_producer").wait_ready()
        decoder = self.start(*SLOW, role="kv_consumer", name="D").wait_ready()
        request = {"prompt": "A prompt of more than a block: " * 4, "max_tokens": 5, "ignore_eos": True, "temperature": 0}
        handed_over = prefiller.complete(**{**request, "max_tokens": 1}, kv_transfer_params={"do_remote_decode": True})
        prefiller.process.send_signal(signal.SIGTERM)
        wait_until(lambda: prefiller.get("/health")[0] == 503, 2, "it drains")
        decoder.complete(**request, kv_transfer_params=handed_over["kv_transfer_params"])
        self.assertEqual(decoder.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") > 0, True)
        self.assertEqual(prefiller.process.wait(5), 0, "nothing is left to wait for")

    def test_behind_a_proxy_a_stopping_decoder_finishes_and_others_take_over(self):
        prefiller = self.start(role="kv_producer", name="P")
        stopping, other = [self.start(*SLOW, "--shutdown-timeout", "30s", role="kv_consumer", name=name)
                           for name in ("D1", "D2")]
        front = proxy([prefiller], [stopping, other])
        self.addCleanup(front.stop)
        for process in (prefiller, stopping, other, front):
            process.wait_ready()
        running = Background(lambda: front.complete("Long", max_tokens=60, ignore_eos=True))
        wait_until(lambda: stopping.metric("vllm:num_requests_running") == 1, 5, "the first decoder has it")
        stopping.process.send_signal(signal.SIGTERM)
        wait_until(lambda: stopping.get("/health")[0] == 503, 2, "it drains")
        for number in range(6):
            self.assertEqual(front.complete(f"Short {number}", max_tokens=2)["choices"][0]["finish_reason"], "length")
        self.assertEqual(running.result(10)["choices"][0]["finish_reason"], "length")
        self.assertEqual(stopping.process.wait(5), 0)
        self.assertEqual(front.metric("tandem:proxy_requests_total", outcome="5xx"), 0)
        self.assertEqual(front.metric("tandem:proxy_instance_failures_total"), 0, "to stop is no failure")

    def test_behind_a_proxy_another_answers_what_a_stopped_instance_has_begun(self):
        slow = ("--hf-overrides", json.dumps({"seconds_per_decode_token": 0.05, "seconds_per_prefill_token": 0.02}))
        prefillers = [self.start(*slow, role="kv_producer", name=name) for name in ("P1", "P2")]
        decoders = [self.start(*slow, role="kv_consumer", name=name) for name in ("D1", "D2")]
        front = proxy(prefillers, decoders)
        self.addCleanup(front.stop)
        for process in (*prefillers, *decoders, front):
            process.wait_ready()
        for instances in (prefillers, decoders):
            running = Background(lambda: front.complete("Long " * 20, max_tokens=60, ignore_eos=True))
            wait_until(lambda: any(self.runs(instance) for instance in instances), 10, "one of them has it")
            stopped = next(instance for instance in instances if self.runs(instance))
            stopped.process.send_signal(signal.SIGTERM)
            answer = running.result(20)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            self.assertEqual(answer["usage"]["completion_tokens"], 60)
            self.assertEqual(stopped.process.wait(5), 0)
        self.assertEqual(front.metric("tandem:proxy_local_prefills_total"), 0, "no decoder computed a prompt")

    @staticmethod
    def runs(instance):
        return instance.metric("vllm:num_requests_running") == 1

    def test_a_dead_engine_is_503_and_500_and_the_process_goes_unless_told_to_stay(self):
        flags = ("--hf-overrides", json.dumps({"dies_at_step": 5}))
        mortal = self.start(*flags).wait_ready()
        told_to_stay = self.start(*flags, environment={"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}).wait_ready()
        for process in (told_to_stay, mortal):
            status, body = Background(lambda each=process: each.post("/v1/completions", LONG)).result(5)
            self.assertEqual(status, 500, body)
            self.assertEqual(process.get("/health")[0], 503)
            self.assertEqual(process.get("/ping")[0], 503)
            status, body = process.post("/v1/completions", {"prompt": "Hello", "max_tokens": 1})
            self.assertEqual((status, body["error"]["code"]), (500, 500), body)
            self.assertGreater(process.metric("vllm:request_success_total", finished_reason="error"), 0)
        died = time.monotonic()
        self.assertNotEqual(mortal.process.wait(10), 0)
        self.assertTrue(2 < time.monotonic() - died < 8, "about five seconds")
        time.sleep(1)
        self.assertEqual(told_to_stay.get("/health")[0], 503)
        told_to_stay.process.send_signal(signal.SIGTERM)
        self.assertEqual(told_to_stay.process.wait(10), 0)

    def test_a_dead_engine_in_mid_stream_is_an_error_event(self):
        process = self.start("--hf-overrides", json.dumps({"dies_at_step": 5})).wait_ready()
        stream = self.stream(process)
        events = []
        while (event := stream.event()) is not None:
            events.append(event)
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(json.loads(events[-2])["error"]["code"], 500)

    def test_idle_connections_are_closed_after_the_time_that_is_asked(self):
        process = self.start(environment={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"}).wait_ready()
        connection = process.connection(timeout_s=10)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            self.assertEqual(connection.getresponse().read(), b"")
            started = time.monotonic()
            self.assertEqual(connection.sock.recv(1), b"", "closed by the server")
            self.assertTrue(0.5 < time.monotonic() - started < 4)


if __name__ == "__main__":
    unittest.main()
