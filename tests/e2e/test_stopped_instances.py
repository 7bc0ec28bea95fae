# SPDX-License-Identifier: Apache-2.0
"""Instances that are frozen (SIGSTOP): the proxy notices by itself and gives them nothing new until they go on, whichever
way the KV moves. What they have already waits for its deadline, and no answer ever holds other text."""
import json
import signal
import unittest

import tandem_processes as tandem

FLAGS = ["--max-model-len", "1024", "--kv-lease-term", "2s"]
MEMBERS = {name: ("kv_producer" if name[0] == "P" else "kv_consumer",
                  [] if name[0] == "P" else ["--hf-overrides", '{"seconds_per_step": 0.02}'], "fail")
           for name in ("P1", "P2", "D1", "D2")}
ROLES = {"P1": "prefill", "D1": "decode"}
NOTICED_S = 2 + 3 + 15  # between two questions, for an answer, and some for a busy machine


class StoppedInstances(unittest.TestCase):
    def start(self, connector, *proxy_flags):
        fleet = tandem.Fleet(FLAGS, MEMBERS, connector)
        self.addCleanup(fleet.stop)
        proxy = tandem.proxy([fleet["P1"], fleet["P2"]], [fleet["D1"], fleet["D2"]], *proxy_flags).wait_ready()
        self.addCleanup(proxy.stop)
        return fleet, proxy

    def up(self, proxy, fleet, name):
        return proxy.metric("tandem:proxy_instance_up", role=ROLES[name], instance=f"127.0.0.1:{fleet[name].port}")

    def assert_right(self, fleet, text, answer):
        status, body = answer
        self.assertEqual(status, 200, body)
        self.assertEqual(body["choices"][0]["text"], fleet.text(text, 8))

    def ask(self, proxy, text, timeout_s=60):
        return proxy.post("/v1/completions", {"prompt": text, "max_tokens": 8, "temperature": 0}, timeout_s=timeout_s)

    def assert_idle(self, fleet, proxy):
        tandem.assert_blocks_come_back(*fleet.instances(), within_s=10)
        tandem.assert_scores_zero(proxy)

    def test_a_stopped_one_gets_nothing_new_until_it_goes_on(self):
        for connector in tandem.CONNECTORS.values():
            fleet, proxy = self.start(connector)
            for name in ROLES:
                with self.subTest(connector=connector, stopped=name):
                    fleet[name].process.send_signal(signal.SIGSTOP)
                    texts = [f"Asked before anybody knows that {name} is stopped, {i}" for i in range(2)]
                    waiting = [tandem.Background(lambda text=text: self.ask(proxy, text)) for text in texts]
                    tandem.wait_until(lambda: self.up(proxy, fleet, name) == 0, NOTICED_S, f"{name} is seen to be silent")
                    for i in range(6):
                        text = f"Asked afterwards of {name}, {i}"
                        self.assert_right(fleet, text, self.ask(proxy, text, timeout_s=10))
                    fleet[name].process.send_signal(signal.SIGCONT)
                    tandem.wait_until(lambda: self.up(proxy, fleet, name) == 1, NOTICED_S, f"{name} is back")
                    for text, one in zip(texts, waiting):  # equals take turns, so one of them waited there
                        self.assert_right(fleet, text, one.result(30))
                    self.assert_idle(fleet, proxy)
            log = proxy.log()
            for title in (f"prefiller 127.0.0.1:{fleet['P1'].port}", f"decoder 127.0.0.1:{fleet['D1'].port}"):
                for line in (f"{title}: no progress in time", f"{title}: answers now"):
                    self.assertEqual(log.count(line), 1, log)

    def test_what_a_stopped_one_has_waits_for_its_deadline_and_goes_to_another(self):
        deadlines = ("--prefill-timeout", "2s", "--whole-answer-timeout", "8s", "--stream-idle-timeout", "2s")
        fleet, proxy = self.start(tandem.CONNECTORS["pull"], *deadlines)
        for name in ROLES:
            with self.subTest(before_the_first_byte=name):
                fleet[name].process.send_signal(signal.SIGSTOP)
                texts = [f"Asked while {name} is stopped, {i}" for i in range(2)]
                for text, one in [(text, tandem.Background(lambda text=text: self.ask(proxy, text))) for text in texts]:
                    self.assert_right(fleet, text, one.result(30))
                fleet[name].process.send_signal(signal.SIGCONT)
                tandem.wait_until(lambda: self.up(proxy, fleet, name) == 1, NOTICED_S, f"{name} is back")
        with self.subTest("in mid-stream"):
            stream = tandem.Stream(proxy, {"prompt": "A long story", "max_tokens": 200, "ignore_eos": True})
            self.addCleanup(stream.close)
            first = stream.event()
            decoder, = [d for d in (fleet["D1"], fleet["D2"]) if d.metric("vllm:num_requests_running") == 1]
            decoder.process.send_signal(signal.SIGSTOP)
            events = [first]
            while (event := stream.event()) is not None:
                events.append(event)
            self.assertEqual(events[-1], "[DONE]", "another decoder went on")
            text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
            expected = fleet.plain.complete("A long story", max_tokens=200, ignore_eos=True)
            self.assertEqual(text, expected["choices"][0]["text"])
            decoder.process.send_signal(signal.SIGCONT)
        self.assert_idle(fleet, proxy)


if __name__ == "__main__":
    unittest.main()
