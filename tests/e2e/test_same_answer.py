# SPDX-License-Identifier: Apache-2.0
"""An answer is the same, byte for byte but for its ids and times, whoever is asked: one instance, a prefiller and a
decoder that pulls, or a prefiller that pushes layer by layer; streams event by event; errors with status and body."""
import concurrent.futures
import json
import re
import time
import unittest

import same_answer_corpus as corpus
import tandem_processes as tandem

FLAGS = ["--max-model-len", "512", "--kv-cache-memory-bytes", "64M", "--served-model-name", "m", "alias",
         "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--trust-request-chat-template",
         "--enable-prompt-tokens-details"]
LAYERWISE = {"kv_connector": "MooncakeLayerwiseConnector"}
MOST_CHOICES = 1000
EOS = "2"
PROCESSES = {}
ASKERS = {}  # one for each way: direct, pull, layerwise


def without_ids_and_times(text):
    """The id of an answer that a proxy tried again has an end more (-r1), which stays."""
    text = re.sub(r'"id":"(cmpl|chatcmpl|chatcmpl-tool)-[0-9a-f-]{32,36}"', r'"id":"\1-ID"', text)
    return re.sub(r'"created":\d+', '"created":TIME', text)


def by_choice(answer):
    """The events of a stream, those of one choice together: how choices take turns says nothing."""
    def place(event):
        index = re.search(r'"choices":\[\{"index":(\d+)', event)
        return int(index.group(1)) if index else MOST_CHOICES

    return sorted(answer.split("\n\n"), key=place) if answer.startswith("data: ") else answer


class Asker:
    """One connection that stays open, but for pauses: servers close what is idle for 75 s."""

    def __init__(self, name, process):
        self.name = name
        self.process = process
        self.connection = process.connection(timeout_s=60)
        self.last_used = time.monotonic()

    def ask(self, path, body, headers=None):
        """(status, content type, answer), the answer as it came."""
        data = body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "application/json", **(headers or {})}
        if time.monotonic() > self.last_used + 30:
            self.connection.close()  # the next request opens it again
        self.connection.request("POST", path, data.encode(), headers)
        response = self.connection.getresponse()
        answer = response.status, response.getheader("Content-Type"), response.read().decode()
        self.last_used = time.monotonic()
        return answer

    def answer(self, path, body):
        """A whole answer, which must be good."""
        status, _, text = self.ask(path, body)
        assert status == 200, text
        return json.loads(text)

    def events(self, path, body):
        """The events of a stream; checks that it ends with [DONE]."""
        status, _, text = self.ask(path, {**body, "stream": True})
        assert status == 200, text
        *events, done, end = text.split("\n\n")
        assert (done, end) == ("data: [DONE]", ""), text
        return [json.loads(event.removeprefix("data: ")) for event in events]


def setUpModule():
    """One instance, and two pairs behind proxies."""
    def start(name, process):
        unittest.addModuleCleanup(process.stop)
        PROCESSES[name] = process

    start("direct", tandem.serve("direct", *FLAGS))
    for name, transfer in (("pull", {}), ("layerwise", LAYERWISE)):
        start(f"P-{name}", tandem.serve(f"P-{name}", *FLAGS, role="kv_producer", transfer=transfer))
        start(f"D-{name}", tandem.serve(f"D-{name}", *FLAGS, role="kv_consumer", transfer=transfer))
    for process in PROCESSES.values():
        process.wait_ready()
    for name in ("pull", "layerwise"):
        start(name, tandem.proxy([PROCESSES[f"P-{name}"]], [PROCESSES[f"D-{name}"]]))
        PROCESSES[name].wait_ready()
    for name in ("direct", "pull", "layerwise"):
        ASKERS[name] = Asker(name, PROCESSES[name])
        unittest.addModuleCleanup(ASKERS[name].connection.close)


class Case(unittest.TestCase):
    """What a proxy had to try again would be the same answer too: nothing here may need that."""

    def tearDown(self):
        for name in ("pull", "layerwise"):
            for stage in ("prefill", "decode"):
                retries = PROCESSES[name].metric("tandem:proxy_retries_total", stage=stage)
                self.assertEqual(retries, 0, f"{name}: {stage} was tried again")


class SameAnswer(Case):
    def compare(self, cases):
        """Each way is asked all cases in the same order, so that prefix caches know the same."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answers = dict(zip(ASKERS, pool.map(lambda asker: [asker.ask(*case[:3]) for case in cases], ASKERS.values())))
        for i, (path, body, _, status) in enumerate(cases):
            for name in ASKERS:
                with self.subTest(way=name, path=path, body=str(body)[:300]):
                    expected, got = answers["direct"][i], answers[name][i]
                    self.assertEqual(got[:2], expected[:2], got)
                    self.assertEqual(by_choice(without_ids_and_times(got[2])),
                                     by_choice(without_ids_and_times(expected[2])))
                    self.assertEqual(got[0], status, got)

    def test_every_field(self):
        self.compare([(*case, 200) for case in corpus.good()])
        for instance in ("D-pull", "D-layerwise"):
            received = PROCESSES[instance].metric("tandem:kv_transfer_bytes_total")
            self.assertGreater(received, 0, f"{instance} computed everything itself")

    def test_every_refusal(self):
        self.compare([(*case, 404 if "'nobody'" in str(case[1]) else 400) for case in corpus.REFUSED])
        instances = [process for name, process in PROCESSES.items() if name[1] == "-"]
        tandem.assert_blocks_come_back(*instances)


    def test_several_requests_with_one_id_at_once(self):
        body = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
        prompts = [f"{corpus.LONG}{i}" for i in range(4)]
        expected = [ASKERS["direct"].answer(corpus.COMPLETIONS, {**body, "prompt": prompt}) for prompt in prompts]
        for name in ASKERS:
            def ask(prompt):
                return PROCESSES[name].post(corpus.COMPLETIONS, {**body, "prompt": prompt}, {"X-Request-Id": "same"})  # noqa: B023
            with concurrent.futures.ThreadPoolExecutor() as pool:
                answers = list(pool.map(ask, prompts))
            for (status, answer), alone in zip(answers, expected):
                self.assertEqual((name, status, answer["id"]), (name, 200, "cmpl-same"))
                self.assertEqual(answer["choices"][0]["text"], alone["choices"][0]["text"])


class Reports:
    """What users of other systems reported of prefill and decode on two instances, asked of one of the ways."""
    way = ""

    def both(self, path, fields, first):
        """A whole answer and the events of the same answer as a stream; `first`: prompt or messages."""
        body = {**first, "temperature": 0, **fields}
        return self.asker.answer(path, body), self.asker.events(path, {**body, "stream_options": {"include_usage": True}})

    @property
    def asker(self):
        return ASKERS[self.way]

    def completions(self, prompt="The sky is", **fields):
        return self.both(corpus.COMPLETIONS, fields, {"prompt": prompt})

    def chats(self, **fields):
        return self.both(corpus.CHAT, fields, {"messages": corpus.USER})

    def test_several_choices(self):
        for n in (2, 4):
            answer, events = self.completions(n=n, temperature=1, seed=3, max_tokens=4)
            self.assertEqual([choice["index"] for choice in answer["choices"]], list(range(n)))
            self.assertEqual(len({choice["text"] for choice in answer["choices"]}), n)
            streamed = {event["choices"][0]["index"] for event in events if event["choices"]}
            self.assertEqual(streamed, set(range(n)))
            for usage in (answer["usage"], events[-1]["usage"]):
                self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), (3, 4 * n))
        status, _, text = self.asker.ask(corpus.COMPLETIONS, {"prompt": "a", "best_of": 2})
        self.assertEqual(status, 400)
        self.assertIn("best_of", text)

    def test_log_probabilities_of_the_first_token(self):
        """As many as tokens; the first is what the instance alone says of it."""
        body = {"messages": corpus.USER, "temperature": 0, "max_tokens": 3, "logprobs": True, "top_logprobs": 5}
        alone = ASKERS["direct"].answer(corpus.CHAT, body)["choices"][0]["logprobs"]["content"]
        answer, events = self.chats(logprobs=True, top_logprobs=5, max_tokens=3)
        content = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), answer["usage"]["completion_tokens"])
        self.assertEqual(len(content[0]["top_logprobs"]), 5)
        self.assertAlmostEqual(content[0]["logprob"], alone[0]["logprob"], delta=1e-3)
        streamed = [entry for event in events for choice in event["choices"] if choice["logprobs"]
                    for entry in choice["logprobs"]["content"]]
        self.assertEqual(streamed, content)

    def test_an_end_token_first_is_the_end(self):
        answer, events = self.completions(logit_bias={EOS: 100}, max_tokens=9)
        choice = answer["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"], choice["stop_reason"]), ("", "stop", None))
        self.assertEqual(answer["usage"]["completion_tokens"], 1)
        self.assertEqual([event["choices"][0]["finish_reason"] for event in events[:-1]], ["stop"])

    def test_few_tokens_and_a_stop_string_in_the_first(self):
        for number in (1, 2):
            answer, events = self.completions(max_tokens=number)
            self.assertEqual(answer["usage"]["completion_tokens"], number)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            self.assertEqual(len(events), number + 1)
        answer, events = self.completions(max_tokens=5, ignore_eos=True)
        self.assertEqual((len(events), events[4]["choices"][0]["finish_reason"]), (6, "length"))
        self.assertTrue(events[4]["choices"][0]["text"])
        first = ASKERS["direct"].answer(corpus.COMPLETIONS, {"prompt": "The sky is", "temperature": 0, "max_tokens": 1})
        first = first["choices"][0]["text"]
        answer, _ = self.completions(stop=[first], max_tokens=9)
        choice = answer["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"], choice["stop_reason"]), ("", "stop", first))

    def test_cached_tokens(self):
        """Nothing of a fresh prompt is; KV that came from a prefiller is no hit; then whole blocks below the prompt."""
        body = {"prompt": [900 + 3 * i for i in range(40)], "max_tokens": 2, "temperature": 0}
        fresh, again = (self.asker.answer(corpus.COMPLETIONS, body)["usage"] for _ in range(2))
        self.assertEqual(fresh["prompt_tokens_details"], None)
        self.assertEqual(again["prompt_tokens_details"], {"cached_tokens": 32})

    def test_json_from_the_first_token_on(self):
        schema = {"structured_outputs": {"json": corpus.SCHEMA, "disable_any_whitespace": True}}
        for seed in range(2):
            for fields in (schema, {"response_format": {"type": "json_object"}}):
                answer, events = self.chats(temperature=1, seed=seed, max_tokens=20, **fields)
                text = answer["choices"][0]["message"]["content"]
                self.assertEqual("".join(c["delta"].get("content") or "" for event in events for c in event["choices"]), text)
                if answer["choices"][0]["finish_reason"] == "stop":
                    self.assertIsInstance(json.loads(text), dict)
                else:
                    self.assertNotIn("structured_outputs", fields)
                    self.assertTrue(text.startswith("{"))

    def test_the_usage_chunk(self):
        for path, first in ((corpus.COMPLETIONS, {"prompt": "a"}), (corpus.CHAT, {"messages": corpus.USER})):
            for options, number in (({"include_usage": True}, 1), ({"include_usage": False}, 0), ({}, 0), (None, 0)):
                events = self.asker.events(path, {**first, "max_tokens": 2, "stream_options": options})
                self.assertEqual([event["choices"] for event in events].count([]), number)
                self.assertEqual(sum(bool(event.get("usage")) for event in events), number)
                self.assertTrue(number == 0 or events[-1]["choices"] == [])

    def test_tool_calls_of_streams(self):
        values = r'\{"a": \{"b": \[1, 2.5, -3e2\], "c": \{\}\}, "d": "q\\"\}日本 \U0001f600"\}'
        for arguments in (values, r"\{\}", r'\{"n": 7\}'):
            call = r'<tool_call>\n\{"name": "get_weather", "arguments": ' + arguments + r'\}\n</tool_call>'
            answer, events = self.chats(tools=corpus.WEATHER, guided_regex=call, max_tokens=120)
            whole, = answer["choices"][0]["message"]["tool_calls"]
            deltas = [call for event in events for choice in event["choices"]
                      for call in choice["delta"].get("tool_calls", [])]
            self.assertEqual("".join(d["function"].get("arguments", "") for d in deltas),
                             whole["function"]["arguments"])
            json.loads(whole["function"]["arguments"])
            self.assertEqual([d["function"]["name"] for d in deltas if "name" in d["function"]], ["get_weather"])
            self.assertEqual(sum("id" in d for d in deltas), 1)

    def test_finish_reasons_of_tool_calls(self):
        for choice, reason, number in (("auto", "tool_calls", 1), ("required", "tool_calls", 1), (corpus.CLIMATE, "stop", 1),
                                       ("none", "stop", 0)):
            fields = dict(tools=corpus.WEATHER, tool_choice=choice, max_tokens=100, parallel_tool_calls=False)
            if isinstance(choice, str) and choice != "required":
                fields["guided_regex"] = corpus.CALL
            answer, events = self.chats(**fields)
            message = answer["choices"][0]["message"]
            self.assertEqual(answer["choices"][0]["finish_reason"], reason)
            self.assertEqual(len(message["tool_calls"]), number)
            reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
            self.assertEqual([r for r in reasons if r], [reason])
            ids = [call["id"] for event in events[:-1] for call in event["choices"][0]["delta"].get("tool_calls", [])
                   if "id" in call]
            self.assertEqual(len(set(ids)), number)

    def test_characters_are_never_cut(self):
        """In prompts that end in half a character, in answers that end there, and in between."""
        half = ASKERS["direct"].answer("/tokenize", {"prompt": "Hi \U0001f600"})["tokens"]
        for fields in (dict(guided_regex=corpus.EMOJI, max_tokens=number) for number in (20, 5, 4, 3, 2)):
            answer, events = self.completions(**fields)
            text = answer["choices"][0]["text"]
            self.assertNotIn("\ufffd", text)
            self.assertEqual("".join(c["text"] for event in events for c in event["choices"]), text)
        answer, events = self.completions(prompt=half[:-1], max_tokens=3)
        self.assertNotIn("\ufffd", answer["choices"][0]["text"])
        self.assertNotIn("Hi", answer["choices"][0]["text"])
        self.assertEqual("".join(c["text"] for event in events for c in event["choices"]), answer["choices"][0]["text"])

    def test_likelihoods_of_an_evaluation(self):
        """As evaluation harnesses ask: the prompt echoed, with the log-probability of each of its tokens."""
        prompt = "The capital of France is Paris"
        body = {"prompt": prompt, "temperature": 0, "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1234}
        choice = self.asker.answer(corpus.COMPLETIONS, body)["choices"][0]
        scores = choice["logprobs"]
        self.assertEqual("".join(scores["tokens"]), choice["text"])
        self.assertTrue(choice["text"].startswith(prompt))
        self.assertEqual([choice["text"][at:at + len(token)] for at, token in zip(scores["text_offset"], scores["tokens"])],
                         scores["tokens"])
        self.assertEqual((scores["token_logprobs"][0], scores["top_logprobs"][0]), (None, None))
        # Each is what the beginning of the prompt makes of the next token.
        ids = self.asker.answer("/tokenize", {"prompt": prompt})["tokens"]
        for i in (1, len(ids) - 1):
            step = ASKERS["direct"].answer(corpus.COMPLETIONS, {
                "prompt": ids[:i], "max_tokens": 1, "logprobs": 0, "allowed_token_ids": [ids[i]]})
            expected = step["choices"][0]["logprobs"]["token_logprobs"][0]
            self.assertAlmostEqual(scores["token_logprobs"][i], expected, delta=1e-3)
        whole = self.asker.answer(corpus.COMPLETIONS, {**body, "max_tokens": 0})["choices"][0]
        self.assertEqual(whole["text"], prompt)
        self.assertEqual(whole["logprobs"]["token_logprobs"], scores["token_logprobs"][:len(ids)])
        one = self.asker.answer(corpus.COMPLETIONS, {**body, "prompt": ids[:1], "prompt_logprobs": 2})["choices"][0]
        self.assertEqual(one["prompt_logprobs"], [None])
        self.assertEqual(one["logprobs"]["token_logprobs"][0], None)
        self.assertEqual("".join(one["logprobs"]["tokens"]), one["text"])

    def test_stop_means_an_end_token(self):
        for seed in range(8):
            answer = self.asker.answer(corpus.CHAT, {"messages": [{"role": "user", "content": "Say yes."}], "seed": seed,
                                                     "temperature": 0.6, "max_tokens": 12, "return_token_ids": True})
            choice = answer["choices"][0]
            ended = choice["token_ids"][-1] == int(EOS)
            self.assertEqual(choice["finish_reason"], "stop" if ended else "length")
            self.assertEqual(len(choice["token_ids"]), 12 if not ended else answer["usage"]["completion_tokens"])

    def test_chunks_are_tokens(self):
        """No empty deltas but of tokens that write nothing, and usage that counts what came."""
        answer, events = self.chats(max_tokens=12, return_token_ids=True)
        role, *chunks, usage = events
        self.assertEqual(role["choices"][0]["delta"], {"role": "assistant", "content": ""})
        ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
        self.assertEqual(ids, answer["choices"][0]["token_ids"])
        self.assertEqual(usage["usage"]["completion_tokens"], len(ids))
        self.assertEqual([len(chunk["choices"][0]["token_ids"]) for chunk in chunks], [1] * len(chunks))
        self.assertLessEqual(sum(not chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1]), 1)
        self.assertIn(chunks[-1]["choices"][0]["finish_reason"], ("stop", "length"))
        self.assertNotIn("stop_reason", chunks[0]["choices"][0])

    def test_streams_joined_are_the_whole_answer(self):
        for fields in ({}, {"tools": corpus.WEATHER}, {"stop": ["."], "max_tokens": 20}, {"guided_regex": corpus.EMOJI}):
            answer, events = self.chats(**{"max_tokens": 10, **fields})
            joined = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
            self.assertEqual(joined, answer["choices"][0]["message"]["content"] or "")


class Pulled(Reports, Case):
    way = "pull"


class Pushed(Reports, Case):
    way = "layerwise"


if __name__ == "__main__":
    unittest.main()
