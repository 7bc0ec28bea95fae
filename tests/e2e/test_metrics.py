# SPDX-License-Identifier: Apache-2.0
"""deploy/ with a real Prometheus: a prefiller, a decoder and their proxy are scraped as deploy/prometheus.yml says; every
panel of the dashboard has data, rules load, and promtool reads all expositions. Instances run the scripted worker."""
import contextlib
import json
import math
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.parse

from tandem_processes import ROOT, Process, free_port, proxy, serve, wait_until

DEPLOY = ROOT / "deploy"
STUB = ("--load-format", "stub", "--max-model-len", "2048", "--num-gpu-blocks-override", "512",
        "--served-model-name", "m",
        "--hf-overrides", json.dumps({"seconds_per_prefill_token": 0.0002, "seconds_per_decode_token": 0.002}))
OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"

# What people run against vLLM: its own Grafana board, the Gateway API inference extension, the production-stack router.
OTHERS_EXPRESSIONS = [
    *[f'histogram_quantile({p}, sum by(le) (rate(vllm:{name}_bucket{{model_name="$model_name"}}[$__rate_interval])))'
      for p in (0.5, 0.9, 0.95, 0.99)
      for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds")],
    *[f'rate(vllm:{name}_sum{{model_name="$model_name"}}[$__rate_interval])'
      f' / rate(vllm:{name}_count{{model_name="$model_name"}}[$__rate_interval])'
      for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "inter_token_latency_seconds")],
    *[f'rate(vllm:{name}{{model_name="$model_name"}}[$__rate_interval])'
      for name in ("prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_sum",
                   "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum",
                   "request_max_num_generation_tokens_sum", "time_per_output_token_seconds_sum")],
    *[f'vllm:{name}{{model_name="$model_name"}}'
      for name in ("num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc", "kv_cache_usage_perc",
                   "gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total")],
    *[f'sum by(le) (increase(vllm:{name}_bucket{{model_name="$model_name"}}[$__rate_interval]))'
      for name in ("request_prompt_tokens", "request_generation_tokens")],
    'sum by(finished_reason) (increase(vllm:request_success_total{model_name="$model_name"}[$__rate_interval]))',
    'vllm:cache_config_info{block_size="16",num_gpu_blocks="512"}',
]
# Nothing fires in a deployment that is well.
EMPTY_ON_PURPOSE = re.compile(r"ALERTS\{")

# vLLM's own names that promtool finds fault with; whoever renames them breaks boards.
KNOWN_LINT = re.compile(r"metric names should not contain ':'|vllm:iteration_tokens_total non-counter metrics|"
                        r"should not have \"_total\" suffix")


def get(process, path, accept):
    connection = process.connection(10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Accept": accept})
        response = connection.getresponse()
        return response.getheader("content-type"), response.read().decode()


class Board(unittest.TestCase):
    def test_panels_have_ids_and_places_of_their_own(self):
        board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
        panels = board["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = {}
        for panel in panels:
            names = [target["refId"] for target in panel.get("targets", [])]
            self.assertEqual(len(set(names)), len(names), panel["title"])
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            for cell in ((x, y) for x in range(place["x"], place["x"] + place["w"])
                         for y in range(place["y"], place["y"] + place["h"])):
                self.assertEqual(taken.setdefault(cell, panel["title"]), panel["title"], "two panels in one place")


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in ("prometheus", "promtool"):
            assert shutil.which(tool), f"{tool} is missing: tools/setup.sh test installs it"
        cls.prefill = serve("P1", *STUB, model="m", role="kv_producer")
        cls.decode = serve("D1", *STUB, model="m", role="kv_consumer")
        cls.prefill.wait_ready()
        cls.decode.wait_ready()
        cls.proxy = proxy([cls.prefill], [cls.decode]).wait_ready()
        cls.folder = tempfile.TemporaryDirectory(prefix="tandem-prometheus-")
        cls.prometheus = cls.start_prometheus(pathlib.Path(cls.folder.name))
        wait_until(lambda: len(cls.query("up == 1")) == 3, 15, "three targets are up")
        cls.send_requests()
        # Two scrapes more, so that every rate has its samples.
        then = time.time()

        def scraped():
            times = [float(each["value"][1]) for each in cls.query("timestamp(up)")]
            return len(times) == 3 and min(times) > then + 1

        wait_until(scraped, 15, "scrapes after the last request")

    @classmethod
    def tearDownClass(cls):
        for process in (cls.prometheus, cls.proxy, cls.decode, cls.prefill):
            process.stop()
        cls.folder.cleanup()

    @classmethod
    def start_prometheus(cls, folder):
        """deploy/ as it is, but for ports and a shorter interval."""
        shutil.copytree(DEPLOY, folder / "deploy")
        config = folder / "deploy" / "prometheus.yml"
        text = config.read_text()
        assert text.count("_interval: 15s") == 2
        config.write_text(text.replace("_interval: 15s", "_interval: 1s"))
        for name, process in (("prefill", cls.prefill), ("decode", cls.decode), ("proxy", cls.proxy)):
            (folder / "deploy" / "targets" / f"{name}.json").write_text(
                json.dumps([{"targets": [f"127.0.0.1:{process.port}"]}]))
        port = free_port()
        return Process("prometheus", [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
                                      f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
                       port, health="/-/ready", binary=shutil.which("prometheus")).wait_ready()

    @classmethod
    def api(cls, path, **query):
        status, body = cls.prometheus.get(f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
        answer = json.loads(body)
        assert status == 200 and answer["status"] == "success", f"{path} {query}: {answer}"
        return answer["data"]

    @classmethod
    def query(cls, expression):
        return cls.api("query", query=expression)["result"]

    @classmethod
    def send_requests(cls):
        """For some seconds, so that there are scrapes between them."""
        for second in range(3):
            for i in range(4):
                prompt = f"Once upon a time there was request {second} of {i}, " + "and so on " * 20
                list(cls.proxy.stream("/v1/completions", {"prompt": prompt, "max_tokens": 8, "ignore_eos": True}))
            cls.proxy.complete("The same again", max_tokens=4, ignore_eos=True)
            cls.decode.complete("Straight to the decoder. " * 4, max_tokens=4, n=2, temperature=1.0, ignore_eos=True)
            assert cls.proxy.post("/v1/completions", {"prompt": 3.5})[0] == 400
            time.sleep(1.0)

    def checked(self, expression):
        """The result of an expression of a board; fails unless it has a number."""
        filled = (expression.replace('="$model_name"', '="m"').replace("$model_name", ".*")
                  .replace("$instance", ".*").replace("$__rate_interval", "30s"))
        self.assertNotIn("$", filled)
        result = self.query(filled)
        if EMPTY_ON_PURPOSE.match(expression):
            return result
        values = [float(each["value"][1]) for each in result]
        self.assertTrue(any(math.isfinite(value) for value in values), f"no data: {filled}: {result}")
        return result

    def test_promtool_accepts_configuration_and_rules(self):
        for kind, name in (("config", "prometheus.yml"), ("rules", "rules.yml")):
            done = subprocess.run(["promtool", "check", kind, DEPLOY / name], capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_reads_every_exposition(self):
        for process in (self.prefill, self.decode, self.proxy):
            with self.subTest(process.name):
                kind, text = get(process, "/metrics", "*/*")
                self.assertEqual(kind, "text/plain; version=0.0.4; charset=utf-8")
                done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True,
                                      timeout=30)
                said = [line for line in (done.stdout + done.stderr).splitlines() if not KNOWN_LINT.search(line)]
                self.assertIn(done.returncode, (0, 3), "3: nothing but names")
                self.assertEqual(said, [])

    def test_both_formats_say_the_same(self):
        for process in (self.prefill, self.decode, self.proxy):
            with self.subTest(process.name):
                kind, text = get(process, "/metrics", OPEN_METRICS)
                self.assertEqual(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8")
                self.assertTrue(text.endswith("\n# EOF\n"))
                self.assertEqual(text.count("# EOF"), 1)
                counters = re.findall(r"^# TYPE (\S+) counter$", text, re.M)
                self.assertTrue(counters)
                for name in counters:
                    self.assertFalse(name.endswith("_total"), name)
                    self.assertIn(f"\n{name}_total", text)
                _, plain = get(process, "/metrics", "text/plain")
                series = [{line.rsplit(" ", 1)[0] for line in each.splitlines() if line and not line.startswith("#")}
                          for each in (text, plain)]
                self.assertEqual(series[0], series[1])

    def test_labels_are_in_alphabetical_order_and_no_series_comes_twice(self):
        for process in (self.prefill, self.decode, self.proxy):
            _, text = get(process, "/metrics", "*/*")
            series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line and not line.startswith("#")]
            self.assertEqual(len(series), len(set(series)))
            for each in series:
                names = re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', each)
                self.assertEqual(names, sorted(names), each)

    def test_targets_are_up_and_scraped_without_errors(self):
        targets = self.api("targets")["activeTargets"]
        self.assertEqual({each["labels"]["job"] for each in targets},
                         {"tandem-prefill", "tandem-decode", "tandem-proxy"})
        for each in targets:
            self.assertEqual((each["health"], each["lastError"]), ("up", ""), each)

    def test_every_panel_of_the_dashboard_has_data(self):
        board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
        panels = [panel for panel in board["panels"] if panel["type"] != "row"]
        self.assertGreater(len(panels), 30)
        for panel in panels:
            self.assertTrue(panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"])
            for target in panel["targets"]:
                with self.subTest(panel=panel["title"], expression=target["expr"]):
                    self.checked(target["expr"])
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            values = {each["metric"].get(label) for each in self.checked(selector)}
            self.assertNotIn(None, values)

    def test_every_metric_name_of_board_and_rules_exists(self):
        names = set(self.api("label/__name__/values"))
        for file in ("grafana-dashboard.json", "rules.yml"):
            used = set(re.findall(r"\b(?:vllm|tandem):\w+(?![\w:])", (DEPLOY / file).read_text()))
            self.assertTrue(used)
            self.assertEqual(used - names, set(), file)

    def test_boards_and_routers_of_vllm_find_their_series(self):
        for expression in OTHERS_EXPRESSIONS:
            with self.subTest(expression):
                self.checked(expression)

    def test_rules_are_evaluated(self):
        def evaluated():
            rules = [rule for group in self.api("rules")["groups"] for rule in group["rules"]]
            return rules if rules and all(rule["health"] == "ok" for rule in rules) else None

        rules = wait_until(evaluated, 10, "every rule is evaluated")
        self.assertEqual([rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"], [])
        for rule in rules:
            if rule["type"] == "recording":
                self.assertTrue(self.query(rule["name"]), rule["name"])

    def test_sources_of_prompt_tokens_add_up(self):
        """computed + cached + received = all prompt tokens, on each instance (a decoder's received tokens are not its own)."""
        for process in (self.prefill, self.decode):
            parts = [process.metric("vllm:prompt_tokens_by_source_total", source=source)
                     for source in ("local_compute", "local_cache_hit", "external_kv_transfer")]
            self.assertEqual(sum(parts), process.metric("vllm:prompt_tokens_total"))
        self.assertGreater(self.decode.metric("vllm:external_prefix_cache_hits_total"), 1000)
        self.assertEqual(self.decode.metric("vllm:external_prefix_cache_hits_total"),
                         self.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer"))
        self.assertEqual(self.prefill.metric("vllm:external_prefix_cache_hits_total"), 0)
        self.assertGreater(self.decode.metric("tandem:kv_transfer_request_bytes_sum"), 0)
        self.assertGreater(self.decode.metric("tandem:kv_transfer_seconds_count"), 0)
        for process in (self.prefill, self.decode):
            self.assertTrue(0 <= process.metric("vllm:kv_cache_usage_perc") <= 1)

    def test_many_requests_leave_no_memory_and_no_files_behind(self):
        """Prompts are ids: the tokenizer keeps some thousand words that it has seen, which is no leak."""
        def ask(count, first):
            connection = self.proxy.connection()
            with contextlib.closing(connection):
                for i in range(first, first + count):
                    body = json.dumps({"prompt": [i % 250, i // 250, *range(60)], "max_tokens": 3, "ignore_eos": True})
                    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    self.assertEqual((response.status, response.read()[:1]), (200, b"{"))

        def used():
            return [(each.metric("process_resident_memory_bytes"), each.metric("process_open_fds"))
                    for each in (self.prefill, self.decode, self.proxy)]

        ask(400, 0)
        before = used()
        ask(500, 400)
        for (memory, files), (memory_before, files_before) in zip(used(), before):
            self.assertLess(memory - memory_before, 500 * 1024, "less than 1 KiB a request")
            self.assertLess(files - files_before, 5)

    def test_choices_of_a_request_are_one_request(self):
        n = {key: self.decode.metric(f"vllm:request_params_n_{key}") for key in ("count", "sum")}
        longest = self.decode.metric("vllm:request_max_num_generation_tokens_count")
        self.decode.complete("Three choices", max_tokens=3, n=3, temperature=1.0, ignore_eos=True)
        self.assertEqual(self.decode.metric("vllm:request_params_n_count"), n["count"] + 1)
        self.assertEqual(self.decode.metric("vllm:request_params_n_sum"), n["sum"] + 3)
        self.assertEqual(self.decode.metric("vllm:request_max_num_generation_tokens_count"), longest + 1)


if __name__ == "__main__":
    unittest.main()
