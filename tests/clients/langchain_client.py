# SPDX-License-Identifier: Apache-2.0
"""LangChain (`langchain-openai`), unmodified, on every way. Run by tests/e2e/test_clients.py."""
import asyncio
import unittest

import pydantic
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from ways import KEY, MODEL, REQUESTS, TOOL, WAYS, Ways


class City(pydantic.BaseModel):
    """A city and its country."""
    city: str
    country: str


@tool
def get_weather(city: str) -> str:
    """Tells the sky of a city."""
    return REQUESTS["tool_result"] if city == "Paris" else '{"sky":"unknown"}'


def model(way, question, **more):
    fields = {key: value for key, value in REQUESTS[question].items() if key != "messages"}
    return ChatOpenAI(model=MODEL, base_url=WAYS[way]["url"] + "/v1", api_key="none", max_retries=0, timeout=60,
                      **{**fields, **more})


def usage_of(message):
    return [message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]]


class LangChain(Ways):
    def test_completions(self):
        fields = dict(REQUESTS["completion"])
        prompt = fields.pop("prompt")

        def completer(way):
            return OpenAI(model=MODEL, base_url=WAYS[way]["url"] + "/v1", api_key="none", max_retries=0, **fields)

        def ask(way):
            answer = completer(way).generate([prompt])
            usage = answer.llm_output["token_usage"]
            return [answer.generations[0][0].text, answer.generations[0][0].generation_info["finish_reason"],
                    usage["prompt_tokens"], usage["completion_tokens"]]

        whole = self.everywhere(ask, "completion")
        self.assertEqual(self.everywhere(lambda way: "".join(completer(way).stream(prompt))), whole[0])

    def test_chat(self):
        messages = REQUESTS["chat"]["messages"]

        def whole(way):
            answer = model(way, "chat").invoke(messages)
            return [answer.content, answer.response_metadata["finish_reason"], *usage_of(answer)]

        def streamed(way):
            answer = None
            for chunk in model(way, "chat", stream_usage=True).stream(messages):
                answer = chunk if answer is None else answer + chunk
            return [answer.content, answer.response_metadata["finish_reason"], *usage_of(answer)]

        def streamed_async(way):
            async def joined():
                return "".join([chunk.content async for chunk in model(way, "chat").astream(messages)])
            return asyncio.run(joined())

        answer = self.everywhere(whole, "chat")
        self.assertEqual(self.everywhere(streamed), answer)
        self.assertEqual(self.everywhere(streamed_async), answer[0])

    def test_batch(self):
        def ask(way):
            prompts = [[{"role": "user", "content": f"What is the capital of {land}?"}]
                       for land in ("France", "Italy", "Spain")]
            return [message.content for message in model(way, "chat", max_tokens=8).batch(prompts)]

        self.assertEqual(len(set(self.everywhere(ask))), 3)

    def test_tool_loop(self):
        """bind_tools; the model calls by itself, the tool is run, its result is told."""
        def loop(way, bound, ask):
            messages = list(REQUESTS["weather"]["messages"])
            answer = ask(bound, messages)
            call, = answer.tool_calls
            self.assertEqual(answer.invalid_tool_calls, [])
            result = get_weather.invoke(call)
            self.assertIsInstance(result, ToolMessage)
            told = ask(bound, [*messages, answer, result])
            self.assertEqual(told.tool_calls, [])
            return [[call["name"], call["args"]], told.content]

        def added(bound, messages):
            total = None
            for chunk in bound.stream(messages):
                total = chunk if total is None else total + chunk
            return total

        def whole(way):
            return loop(way, model(way, "weather").bind_tools([TOOL]), lambda bound, messages: bound.invoke(messages))

        def streamed(way):
            return loop(way, model(way, "weather").bind_tools([get_weather]), added)

        answer = self.everywhere(whole, "weather")
        self.assertEqual(answer[0], ["get_weather", {"city": "Paris"}])
        self.assertEqual(self.everywhere(streamed)[0], answer[0])

    def test_forced_tools(self):
        for choice in ("required", "get_weather"):
            def ask(way, choice=choice):
                bound = model(way, "chat", max_tokens=60).bind_tools([TOOL], tool_choice=choice, parallel_tool_calls=False)
                call, = bound.invoke(REQUESTS["chat"]["messages"]).tool_calls
                return [call["name"], call["args"]]

            name, arguments = self.everywhere(ask)
            self.assertEqual((name, list(arguments)), ("get_weather", ["city"]))

    def test_structured_output(self):
        for method in ("json_schema", "function_calling"):
            def ask(way, method=method):
                return model(way, "city").with_structured_output(City, method=method).invoke(REQUESTS["city"]["messages"])

            found = self.everywhere(ask)
            self.assertIsInstance(found, City)
            if method == "json_schema":
                self.everywhere(lambda way: ask(way).model_dump(), "city")

        def streamed(way):
            bound = model(way, "city").with_structured_output(REQUESTS["city_schema"] | {"title": "city"},
                                                             method="json_schema")
            return list(bound.stream(REQUESTS["city"]["messages"]))[-1]

        self.assertEqual(self.everywhere(streamed), {"city": "Paris", "country": "France"})

    def test_fields_of_vllm(self):
        def ask(way):
            bound = model(way, "chat", extra_body={"guided_choice": ["sunny", "rainy"]})
            return bound.invoke(REQUESTS["chat"]["messages"]).content

        self.assertIn(self.everywhere(ask), ("sunny", "rainy"))

    def test_thinking_server(self):
        """LangChain takes no field that OpenAI does not have: the thoughts do not get into the content."""
        def ask(way):
            thinking = ChatOpenAI(model=MODEL, base_url=WAYS[way]["thinking"] + "/v1", api_key=KEY, max_retries=0,
                                  max_tokens=40, temperature=0)
            return thinking.invoke(REQUESTS["thoughts"]["messages"]).content

        self.assertEqual(self.everywhere(ask).strip(), "stone")


if __name__ == "__main__":
    unittest.main()
