# SPDX-License-Identifier: Apache-2.0
"""The `openai` Python package, sync, unmodified, on every way. Run by tests/e2e/test_clients.py."""
import json
import time
import unittest

import openai
import pydantic

from ways import KEY, MODEL, REQUESTS, TOOL, WAYS, Ways

CLIENTS = {way: openai.OpenAI(base_url=place["url"] + "/v1", api_key="none", max_retries=0, timeout=60)
           for way, place in WAYS.items()}
THINKING = {way: openai.OpenAI(base_url=place["thinking"] + "/v1", api_key=KEY, max_retries=0, timeout=60)
            for way, place in WAYS.items()}


class City(pydantic.BaseModel):
    city: str
    country: str


def usage_of(usage):
    return [usage.prompt_tokens, usage.completion_tokens]


def chat(client, question, **fields):
    return client.chat.completions.create(model=MODEL, **{**REQUESTS[question], **fields})


def ended(call, answer):
    """The conversation after a tool call has been answered."""
    return [*REQUESTS["weather"]["messages"],
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": call.id, "type": "function",
                             "function": {"name": call.function.name, "arguments": call.function.arguments}}]},
            {"role": "tool", "tool_call_id": call.id, "content": answer}]


class OpenaiPython(Ways):
    def test_models(self):
        def ask(way):
            return [model.id for model in CLIENTS[way].models.list()]
        self.assertEqual(self.everywhere(ask, "models"), [MODEL])

    def test_completions(self):
        def ask(way):
            answer = CLIENTS[way].completions.create(model=MODEL, **REQUESTS["completion"])
            return [answer.choices[0].text, answer.choices[0].finish_reason, *usage_of(answer.usage)]

        def streamed(way):
            text, reason, usage = "", None, None
            with CLIENTS[way].completions.create(model=MODEL, **REQUESTS["completion"], stream=True,
                                                 stream_options={"include_usage": True}) as stream:
                for chunk in stream:
                    for choice in chunk.choices:
                        text += choice.text
                        reason = choice.finish_reason or reason
                    usage = chunk.usage or usage
            return [text, reason, *usage_of(usage)]

        whole = self.everywhere(ask, "completion")
        self.assertEqual(whole[1:], ["length", whole[2], 8])
        self.assertEqual(self.everywhere(streamed), whole)

    def test_echo_and_logprobs_of_completions(self):
        def ask(way):
            answer = CLIENTS[way].completions.create(model=MODEL, prompt=["One two", "Red green"], max_tokens=3,
                                                     temperature=0, echo=True, logprobs=2)
            return [choice.model_dump() for choice in answer.choices]

        choices = self.everywhere(ask)
        self.assertEqual([choice["index"] for choice in choices], [0, 1])
        for choice in choices:
            self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])
            self.assertIsNone(choice["logprobs"]["token_logprobs"][0])

    def test_chat(self):
        def ask(way):
            answer = chat(CLIENTS[way], "chat")
            self.assertEqual((answer.object, answer.model), ("chat.completion", MODEL))
            return [answer.choices[0].message.content, answer.choices[0].finish_reason, *usage_of(answer.usage)]

        def streamed(way):
            stream = chat(CLIENTS[way], "chat", stream=True, stream_options={"include_usage": True})
            text, roles, reasons, usage, ids = "", [], [], None, set()
            for chunk in stream:
                ids.add(chunk.id)
                for choice in chunk.choices:
                    roles += [choice.delta.role] if choice.delta.role else []
                    text += choice.delta.content or ""
                    reasons += [choice.finish_reason] if choice.finish_reason else []
                usage = chunk.usage or usage
            self.assertEqual((roles, len(ids)), (["assistant"], 1))
            return [text, *reasons, *usage_of(usage)]

        whole = self.everywhere(ask, "chat")
        self.assertIn("Paris", whole[0])
        self.assertEqual(self.everywhere(streamed), whole)

    def test_logprobs(self):
        def ask(way):
            return chat(CLIENTS[way], "chat", logprobs=True, top_logprobs=2).choices[0].logprobs.model_dump()["content"]

        def streamed(way):
            with CLIENTS[way].chat.completions.stream(model=MODEL, **REQUESTS["chat"], logprobs=True,
                                                      top_logprobs=2) as stream:
                return stream.get_final_completion().choices[0].logprobs.model_dump()["content"]

        tokens = self.everywhere(ask)
        for token in tokens:
            self.assertEqual(len(token["top_logprobs"]), 2)
            self.assertEqual(token["top_logprobs"][0]["token"], token["token"])  # greedy
        self.assertEqual(self.everywhere(streamed), tokens)

    def test_several_choices(self):
        def ask(way):
            return [choice.message.content for choice in chat(CLIENTS[way], "several").choices]

        def streamed(way):
            texts = {}
            for chunk in chat(CLIENTS[way], "several", stream=True):
                for choice in chunk.choices:
                    texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            return [texts[0], texts[1]]

        texts = self.everywhere(ask, "several")
        self.assertNotEqual(*texts)
        self.assertEqual(self.everywhere(streamed), texts)

    def test_stop(self):
        def ask(way):
            choice = chat(CLIENTS[way], "stop").choices[0]
            return [choice.message.content, choice.finish_reason, choice.stop_reason]

        text, reason, word = self.everywhere(ask)
        self.assertEqual((reason, word), ("stop", " Paris"))
        self.everywhere(lambda way: ask(way)[:2], "stop")
        self.assertNotIn("Paris", text)

    def test_tool_loop(self):
        """The model calls by itself, gets an answer, and tells it."""
        def ask(way):
            choice = chat(CLIENTS[way], "weather", tools=[TOOL]).choices[0]
            call, = choice.message.tool_calls
            self.assertEqual((choice.finish_reason, choice.message.content, call.type), ("tool_calls", None, "function"))
            told = chat(CLIENTS[way], "weather", messages=ended(call, REQUESTS["tool_result"]), tools=[TOOL]).choices[0]
            self.assertEqual((told.finish_reason, told.message.tool_calls or []), ("stop", []))
            return [[call.function.name, json.loads(call.function.arguments)], told.message.content]

        call, told = self.everywhere(ask, "weather")
        self.assertEqual(call, ["get_weather", {"city": "Paris"}])
        self.assertIn("foggy", told)

    def test_streamed_tool_call(self):
        """With the package's own helper, which accumulates and parses the arguments."""
        def ask(way):
            pieces, done = [], []
            with CLIENTS[way].chat.completions.stream(model=MODEL, **REQUESTS["weather"], tools=[
                    {**TOOL, "function": {**TOOL["function"], "strict": True}}]) as stream:
                for event in stream:
                    if event.type == "tool_calls.function.arguments.delta":
                        pieces.append(event.arguments_delta)
                    elif event.type == "tool_calls.function.arguments.done":
                        done.append([event.name, event.arguments, event.parsed_arguments])
                final = stream.get_final_completion().choices[0]
            self.assertEqual("".join(pieces), done[0][1])
            self.assertEqual(final.message.tool_calls[0].function.arguments, done[0][1])
            return [*done, final.finish_reason, final.message.content or None]

        done, reason, content = self.everywhere(ask)
        self.assertEqual((done[0], done[2], reason, content), ("get_weather", {"city": "Paris"}, "tool_calls", None))

    def test_forced_tools(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice, reason in (("required", "tool_calls"), (named, "stop")):
            def ask(way, choice=choice):
                answer = chat(CLIENTS[way], "chat", tools=[TOOL], tool_choice=choice, parallel_tool_calls=False,
                              max_tokens=60).choices[0]
                call, = answer.message.tool_calls
                return [call.function.name, json.loads(call.function.arguments), answer.finish_reason]

            name, arguments, found = self.everywhere(ask, f"forced {'named' if choice == named else choice}")
            self.assertEqual((name, list(arguments), found), ("get_weather", ["city"], reason))

    def test_json_schema(self):
        wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": REQUESTS["city_schema"], "strict": True}}

        def ask(way):
            return json.loads(chat(CLIENTS[way], "city", response_format=wanted).choices[0].message.content)

        self.assertEqual(self.everywhere(ask, "city"), {"city": "Paris", "country": "France"})

    def test_parse_with_pydantic(self):
        def ask(way):
            answer = CLIENTS[way].chat.completions.parse(model=MODEL, **REQUESTS["city"], response_format=City)
            return answer.choices[0].message.parsed

        def streamed(way):
            with CLIENTS[way].chat.completions.stream(model=MODEL, **REQUESTS["city"], response_format=City) as stream:
                done = [event.parsed for event in stream if event.type == "content.done"]
            return done[0]

        def tool(way):
            answer = CLIENTS[way].chat.completions.parse(
                model=MODEL, **REQUESTS["city"], tools=[openai.pydantic_function_tool(City)], tool_choice="required",
                parallel_tool_calls=False)
            return answer.choices[0].message.tool_calls[0].function.parsed_arguments

        for each in (ask, streamed):
            self.assertEqual(self.everywhere(each), City(city="Paris", country="France"))
        self.assertIsInstance(self.everywhere(tool), City)
        for way in WAYS:
            with self.assertRaises(openai.LengthFinishReasonError):
                CLIENTS[way].chat.completions.parse(model=MODEL, **{**REQUESTS["city"], "max_tokens": 2},
                                                    response_format=City)

    def test_json_object(self):
        def ask(way):
            return chat(CLIENTS[way], "city", response_format={"type": "json_object"}).choices[0].message.content
        self.assertIsInstance(json.loads(self.everywhere(ask)), dict)

    def test_extra_body(self):
        """Fields of vLLM that the package does not know."""
        for extra, pattern in (({"guided_json": REQUESTS["city_schema"]}, r'^\{\s*"city"'),
                               ({"guided_choice": ["sunny", "rainy"]}, "^(sunny|rainy)$"),
                               ({"structured_outputs": {"regex": "[0-9]{2}:[0-9]{2}"}}, "^[0-9]{2}:[0-9]{2}$"),
                               ({"chat_template_kwargs": {"enable_thinking": False}}, "."),
                               ({"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 3, "min_tokens": 4}, "."),
                               ({"ignore_eos": True, "return_token_ids": True}, ".")):
            def ask(way, extra=extra):
                choice = chat(CLIENTS[way], "city", max_tokens=16, extra_body=extra).choices[0]
                return [choice.message.content, choice.token_ids]

            text, ids = self.everywhere(ask)
            self.assertRegex(text, pattern)
            self.assertEqual(len(ids or []), 16 if "return_token_ids" in extra else 0)

    def test_errors(self):
        """Each is the package's own exception, with the fields that it reads."""
        def refused(kind, way, **fields):
            with self.assertRaises(kind) as caught:
                chat(CLIENTS[way], "chat", **fields)
            error = caught.exception
            return [type(error).__name__, error.status_code, error.message, error.type, error.param, error.code]

        for kind, word, fields in ((openai.NotFoundError, "`nobody`", {"model": "nobody"}),
                                   (openai.BadRequestError, "temperature", {"temperature": -1}),
                                   (openai.BadRequestError, "maximum context length is", {"max_tokens": 100000}),
                                   (openai.BadRequestError, "thing", {"extra_body": {"guided_json": {"type": "thing"}}})):
            def ask(way, kind=kind, fields=fields):
                fields = dict(fields)
                model = fields.pop("model", MODEL)
                with self.assertRaises(kind) as caught:
                    CLIENTS[way].chat.completions.create(model=model, **{**REQUESTS["chat"], **fields})
                error = caught.exception
                return [error.status_code, error.message, error.type, error.param, error.code]

            found = self.everywhere(ask)
            self.assertIn(word, found[1])
            self.assertTrue(found[2], found)
        # A stream is refused before it begins, too.
        self.everywhere(lambda way: refused(openai.BadRequestError, way, temperature=-1, stream=True))

    def test_closed_stream(self):
        for way in WAYS:
            with CLIENTS[way].completions.create(model=MODEL, prompt="Once", max_tokens=1500, stream=True,
                                                 extra_body={"ignore_eos": True}) as stream:
                next(iter(stream))
            self.assert_idle(way)

    def test_raw_and_streaming_responses(self):
        def ask(way):
            raw = CLIENTS[way].chat.completions.with_raw_response.create(model=MODEL, **REQUESTS["chat"])
            with CLIENTS[way].chat.completions.with_streaming_response.create(
                    model=MODEL, **REQUESTS["chat"], stream=True) as response:
                lines = [line for line in response.iter_lines() if line]
            self.assertEqual(lines[-1], "data: [DONE]")
            return [raw.status_code, raw.headers["content-type"], raw.parse().choices[0].message.content,
                    response.headers["content-type"].split(";")[0]]

        status, kind, _, stream_kind = self.everywhere(ask)
        self.assertEqual((status, kind, stream_kind), (200, "application/json", "text/event-stream"))

    def test_timeout_and_retry(self):
        """A client that gives up leaves nothing behind, nor does its second attempt."""
        for way in WAYS:
            impatient = CLIENTS[way].with_options(timeout=0.3, max_retries=1)
            begun = time.monotonic()
            with self.assertRaises(openai.APITimeoutError):
                impatient.completions.create(model=MODEL, prompt="Once", max_tokens=1500,
                                             extra_body={"ignore_eos": True})
            self.assertGreater(time.monotonic() - begun, 0.6)
            self.assert_idle(way)
        self.everywhere(lambda way: chat(CLIENTS[way], "chat").choices[0].message.content)


class Thinking(Ways):
    """Servers with a key and a reasoning parser."""

    def test_reasoning(self):
        def ask(way):
            message = chat(THINKING[way], "thoughts").choices[0].message
            self.assertEqual(message.reasoning_content, message.reasoning)
            return [message.reasoning, message.content]

        def streamed(way):
            reasoning, content = "", ""
            for chunk in chat(THINKING[way], "thoughts", stream=True):
                delta = chunk.choices[0].delta
                self.assertEqual(getattr(delta, "reasoning_content", None), getattr(delta, "reasoning", None))
                reasoning += getattr(delta, "reasoning", None) or ""
                content += delta.content or ""
            return [reasoning, content]

        whole = self.everywhere(ask, "thoughts")
        self.assertIn("stone", whole[0])
        self.assertNotIn("think", "".join(whole))
        self.assertEqual(self.everywhere(streamed), whole)

    def test_keys(self):
        def ask(way):
            with self.assertRaises(openai.AuthenticationError) as caught:
                THINKING[way].with_options(api_key="another").models.list()
            with self.assertRaises(openai.AuthenticationError):
                chat(THINKING[way].with_options(api_key=KEY + "x"), "chat", stream=True)
            return [caught.exception.status_code, caught.exception.body]

        self.assertEqual(self.everywhere(ask)[0], 401)
        self.everywhere(lambda way: [model.id for model in THINKING[way].models.list()])


if __name__ == "__main__":
    unittest.main()
