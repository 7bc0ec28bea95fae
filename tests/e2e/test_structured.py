# SPDX-License-Identifier: Apache-2.0
"""Structured output, tool calls and thoughts on the real model: what is asked for comes out, and it is the same
colocated, through pull and through layerwise push, whole and streamed."""
import concurrent.futures
import json
import math
import re
import unittest

import tandem_processes as tandem

FLAGS = ["--max-model-len", "1024", "--kv-cache-memory-bytes", "128M", "--enable-auto-tool-choice",
         "--tool-call-parser", "hermes"]
CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {
    "name": name, "description": "Tells the weather.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"], "additionalProperties": False}}} for name in ("get_weather", "get_climate")]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer",
          "minimum": 0, "maximum": 99}, "tags": {"type": "array", "items": {"enum": ["é", "b"]}, "maxItems": 2}},
          "required": ["name", "age", "tags"], "additionalProperties": False, }
TIGHT = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}
CALL = r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "[A-Z][a-z]{2,8}", "days": [1-3]\}\}\n</tool_call>'


def body(**fields):
    return {"messages": [{"role": "user", "content": "Tell me about the weather in Paris, please."}], "temperature": 0,
            "max_tokens": 100, **fields}


def joined(events):
    """What a client makes of a stream: (message, finish_reason)."""
    message, reason = {"content": "", "reasoning": "", "calls": []}, None
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["calls"]):
                    message["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                else:
                    assert "id" not in call and "name" not in call["function"], call
                message["calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
            reason = choice["finish_reason"] or reason
    return message, reason


def without_ids(answer):
    text = json.dumps({key: value for key, value in answer.items() if key not in ("id", "created")})
    return re.sub("chatcmpl-tool-[0-9a-f]{32}", "ID", text)


class Structured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.colocated = tandem.serve("colocated", *FLAGS)
        cls.addClassCleanup(cls.colocated.stop)
        pairs = [tandem.Pair(*FLAGS, flow=flow, start=False).start() for flow in tandem.CONNECTORS]
        for pair in pairs:
            cls.addClassCleanup(pair.stop)
        for each in (cls.colocated, *pairs):
            each.wait_ready()
        cls.pairs = {pair.flow: pair.proxy for pair in pairs}

    def everywhere(self, request):
        """The colocated answer. The same must come whole through pull, and joined from streams direct and through
        layerwise push."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            whole = pool.map(lambda process: process.post(CHAT, request), (self.colocated, self.pairs["pull"]))
            streams = pool.map(lambda process: joined(process.stream(CHAT, request)),
                               (self.colocated, self.pairs["layerwise"]))
        (status, expected), answer = whole
        self.assertEqual(status, 200, expected)
        self.assertEqual(answer[0], 200, answer)
        self.assertEqual(without_ids(answer[1]), without_ids(expected))
        message = expected["choices"][0]["message"]
        calls = [call["function"] for call in message["tool_calls"]]
        for streamed, reason in streams:
            self.assertEqual(streamed["content"], message["content"] or "")
            self.assertEqual([{"name": c["name"], "arguments": c["arguments"]} for c in streamed["calls"]], calls)
            self.assertEqual(len({call["id"] for call in streamed["calls"]}), len(calls))
            self.assertEqual(reason, expected["choices"][0]["finish_reason"])
        return expected["choices"][0]

    def test_json_of_a_schema(self):
        request = body(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA,
                                                                               "strict": True}})
        choice = self.everywhere(request)
        value = json.loads(choice["message"]["content"])
        self.assertEqual(set(value), {"name", "age", "tags"})
        self.assertTrue(0 <= value["age"] <= 99)
        self.assertEqual(choice["finish_reason"], "stop")

    def test_choices_regexes_and_grammars(self):
        for fields, pattern in (({"guided_choice": ["sunny", "rainy"]}, "sunny|rainy"),
                                ({"guided_regex": "[0-9]{2}:[0-9]{2}"}, "[0-9]{2}:[0-9]{2}"),
                                ({"guided_grammar": 'root ::= "it is " ("hot" | "cold")'}, "it is (hot|cold)"),
                                ({"structured_outputs": {"grammar": 'start: "a" /[bc]{3}/'}}, "a[bc]{3}")):
            choice = self.everywhere(body(**fields))
            self.assertRegex(choice["message"]["content"], f"^({pattern})$")
            self.assertEqual(choice["finish_reason"], "stop")

    def test_free_text_around_tags(self):
        request = body(max_tokens=60, response_format={
            "type": "structural_tag", "triggers": ["<f="],
            "structures": [{"begin": "<f=a>", "schema": {"enum": [1, 2]}, "end": "</f>"}]})
        request["messages"][0]["content"] = "Write: <f=a>"
        text = self.everywhere(request)["message"]["content"]
        self.assertEqual(text.count("<f="), len(re.findall(r"<f=a>[12]</f>", text)))

    def test_tools(self):
        choice = self.everywhere(body(tools=TOOLS, guided_regex=CALL))
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertIsNone(choice["message"]["content"])
        self.assertEqual(set(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])), {"city", "days"})
        choice = self.everywhere(body(tools=TOOLS, guided_regex=CALL + "\n" + CALL, max_tokens=200))
        self.assertEqual(len(choice["message"]["tool_calls"]), 2)
        choice = self.everywhere(body(tools=TOOLS, guided_regex='<tool_call>\\{"name": "noargs"\\}</tool_call>'))
        self.assertEqual(choice["message"]["content"], '<tool_call>{"name": "noargs"}</tool_call>')
        self.assertEqual((choice["message"]["tool_calls"], choice["finish_reason"]), ([], "stop"))

    def test_tool_calls_that_are_cut_off(self):
        """A forced call is told once its arguments have begun, whole and streamed, and the reason says that it is not
        whole. A whole answer whose own call is cut off is text; a stream has told what it knew by then."""
        request = body(tools=TOOLS, guided_regex=CALL, max_tokens=20)
        for pair in self.pairs.values():
            status, answer = pair.post(CHAT, request)
            choice = answer["choices"][0]
            self.assertEqual((choice["finish_reason"], choice["message"]["tool_calls"]), ("length", []))
            self.assertTrue(choice["message"]["content"].startswith("<tool_call>"))
            self.assertEqual(joined(pair.stream(CHAT, request))[1], "length")
        named = {"type": "function", "function": {"name": "get_climate"}}
        for fields in (dict(tool_choice="required"), dict(tool_choice=named)):
            calls = 0
            for number in range(4, 40, 5):
                choice = self.everywhere(body(tools=TOOLS, **fields, max_tokens=number))
                message = choice["message"]
                self.assertGreaterEqual(len(message["tool_calls"]), calls)
                calls = len(message["tool_calls"])
                self.assertTrue(calls or message["content"])
                self.assertTrue(all(call["function"]["arguments"] for call in message["tool_calls"]))
                if choice["finish_reason"] != "length":
                    self.assertTrue(all(json.loads(call["function"]["arguments"]) for call in message["tool_calls"]))
            self.assertGreater(calls, 0)

    def test_forced_tools(self):
        named = {"type": "function", "function": {"name": "get_climate"}}
        choice = self.everywhere(body(tools=TOOLS, tool_choice=named))
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "get_climate")
        choice = self.everywhere(body(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertEqual(choice["message"]["content"], "")
        call, = choice["message"]["tool_calls"]
        self.assertIn(json.loads(call["function"]["arguments"])["days"], (1, 2, 3))

    def test_with_sampling_several_choices_stop_and_log_probabilities(self):
        request = body(**TIGHT, n=3, temperature=1.5, seed=5, logprobs=True, top_logprobs=2, min_tokens=4)
        status, answer = self.colocated.post(CHAT, request)
        self.assertEqual(status, 200, answer)
        for choice in answer["choices"]:
            self.assertEqual(set(json.loads(choice["message"]["content"])), {"name", "age", "tags"})
        self.assertEqual(without_ids(self.pairs["layerwise"].post(CHAT, request)[1]), without_ids(answer))
        choice = self.everywhere(body(**TIGHT, stop=['"age"']))
        self.assertEqual(choice["stop_reason"], '"age"')
        self.assertTrue(choice["message"]["content"].endswith(","))

    def test_completions_too(self):
        for process in (self.colocated, *self.pairs.values()):
            answer = process.complete("The weather is", guided_choice=["nice", "bad"])
            self.assertIn(answer["choices"][0]["text"], ("nice", "bad"))

    def test_what_is_no_schema_is_refused(self):
        for fields, words in (({"guided_json": {"type": "thing"}}, "thing"), ({"guided_regex": "["}, "guided_regex"),
                              ({"guided_choice": []}, "empty list"), ({"guided_json": "{"}, "guided_json"),
                              ({"response_format": {"type": "json_schema"}}, "must be provided"),
                              ({"guided_regex": "a", "guided_choice": ["b"]}, "only use one kind")):
            for process in (self.colocated, *self.pairs.values()):
                for stream in (False, True):
                    status, answer = process.post(CHAT, body(**fields, stream=stream))
                    self.assertEqual(status, 400, answer)
                    self.assertIn(words, answer["error"]["message"])


class Scores(unittest.TestCase):
    """Log-probabilities of prompts and of what tokens were drawn from, and words that must not come, colocated and
    through pull. Of greedy tokens without penalties both kinds are the same."""

    def test_the_same_colocated_and_disaggregated(self):
        colocated = tandem.serve("colocated", "--max-num-batched-tokens", "16", *FLAGS, "--logprobs-mode", "processed_logprobs")
        self.addCleanup(colocated.stop)
        pair = tandem.Pair(*FLAGS, decode_flags=["--logprobs-mode", "processed_logprobs"])
        self.addCleanup(pair.stop)
        colocated.wait_ready()
        prompt = [504 + 7 * i for i in range(40)]
        fields = dict(max_tokens=2, prompt_logprobs=1, logprobs=1)
        expected = colocated.complete(prompt, **fields)["choices"][0]
        self.assertEqual(pair.proxy.complete(prompt, **fields)["choices"][0], expected)
        self.assertEqual(colocated.complete(prompt, **fields)["choices"][0], expected, "with a full prefix cache")
        scores = expected["prompt_logprobs"]
        self.assertEqual((len(scores), scores[0]), (40, None))
        # What follows a beginning of the prompt most likely is what the scores say.
        for length in (1, 15, 16, 17, 39):
            step = colocated.complete(prompt[:length], max_tokens=1, logprobs=1, return_tokens_as_token_ids=True)
            top = max(scores[length].values(), key=lambda entry: entry["logprob"])
            self.assertEqual(step["choices"][0]["logprobs"]["token_logprobs"][0], top["logprob"])
            self.assertIn(str(prompt[length]), scores[length])
        echo = dict(echo=True, logprobs=0, max_tokens=1)
        text = colocated.complete("The sky is blue", **echo)["choices"][0]
        self.assertEqual(pair.proxy.complete("The sky is blue", **echo)["choices"][0], text)
        self.assertEqual(text["logprobs"]["token_logprobs"][0], None)
        self.assertEqual("".join(text["logprobs"]["tokens"]), text["text"])

        # Of what a token was drawn from: two of them, with all of the probability, from the first token on.
        drawn = dict(temperature=0.7, top_k=2, seed=5, max_tokens=4)
        expected = colocated.complete("The sky is", **drawn, logprobs=2)["choices"][0]["logprobs"]
        self.assertEqual(pair.proxy.complete("The sky is", **drawn, logprobs=2)["choices"][0]["logprobs"], expected)
        for tops in expected["top_logprobs"]:
            self.assertAlmostEqual(sum(map(math.exp, tops.values())), 1, delta=1e-4)
        for process in (colocated, pair.proxy):
            answer = process.post(CHAT, body(**drawn, logprobs=True, top_logprobs=3))[1]
            for token in answer["choices"][0]["logprobs"]["content"]:
                tops = [top["logprob"] for top in token["top_logprobs"]]
                self.assertEqual(tops[2], -9999.0)
                self.assertAlmostEqual(math.exp(tops[0]) + math.exp(tops[1]), 1, delta=1e-4)

        said = colocated.post(CHAT, body(max_tokens=8))[1]["choices"][0]["message"]["content"]
        # As vLLM does it: a word behind a space is banned too if it has as many tokens as without.
        def length(text):
            return colocated.post("/tokenize", {"prompt": text})[1]["count"]
        word = next(word for word in said.split()[1:] if length(word) == length(" " + word) == 1)
        for process in (colocated, pair.proxy):
            without = process.post(CHAT, body(max_tokens=8, bad_words=[word]))[1]["choices"][0]["message"]["content"]
            self.assertNotIn(word, without.split())
        tandem.assert_blocks_come_back(pair.prefill, pair.decode)


class Preempted(unittest.TestCase):
    def test_a_grammar_outlives_a_preemption(self):
        with_room = tandem.serve("room", *FLAGS)
        self.addCleanup(with_room.stop)
        without = tandem.serve("tight", "--max-model-len", "112", "--num-gpu-blocks-override", "7",
                               "--no-enable-prefix-caching")
        self.addCleanup(without.stop)
        with_room.wait_ready()
        without.wait_ready()
        fields = dict(guided_regex="([a-z]{3,6} ){24}end", max_tokens=100, temperature=1.0)
        expected = [with_room.complete(f"Words {i}:", **{**fields, "seed": i})["choices"][0]["text"] for i in range(4)]
        background = [tandem.Background(lambda i=i: without.post(
            "/v1/completions", {"prompt": f"Words {i}:", **fields, "seed": i})) for i in range(4)]
        for i, each in enumerate(background):
            status, answer = each.result(100)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["choices"][0]["text"], expected[i])
            self.assertRegex(expected[i], "^([a-z]{3,6} ){24}end$")
        self.assertGreater(without.metric("vllm:num_preemptions_total"), 0)


class Thoughts(unittest.TestCase):
    def test_thoughts_go_where_they_belong(self):
        plain = tandem.serve("plain", *FLAGS)
        self.addCleanup(plain.stop)
        pair = tandem.Pair(*FLAGS, "--reasoning-parser", "qwen3")
        self.addCleanup(pair.stop)
        text = plain.wait_ready().post(CHAT, body(max_tokens=12))[1]["choices"][0]["message"]["content"]
        usages = []
        for process in (pair.decode, pair.proxy):
            for thinking, field in ((True, "reasoning"), (False, "content")):
                request = body(max_tokens=12, chat_template_kwargs={"enable_thinking": thinking})
                answer = process.post(CHAT, request)[1]
                message = answer["choices"][0]["message"]
                self.assertEqual(message[field], text)
                usages.append(answer["usage"])
                self.assertEqual(message["content" if thinking else "reasoning_content"], None)
                streamed, _ = joined(process.stream(CHAT, request))
                self.assertEqual(streamed[field], text)
        self.assertEqual(usages[:2], usages[2:], "direct and through the proxy")
        status, answer = pair.proxy.post(CHAT, body(guided_regex="a"))
        self.assertEqual(status, 400)
        self.assertIn("</think>", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
