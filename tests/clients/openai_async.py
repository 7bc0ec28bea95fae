# SPDX-License-Identifier: Apache-2.0
"""The `openai` Python package, async, unmodified, on every way. Run by tests/e2e/test_clients.py."""
import asyncio
import json
import unittest

import openai
import pydantic

from ways import KEY, MODEL, REQUESTS, TOOL, WAYS, Ways, record


class City(pydantic.BaseModel):
    city: str
    country: str


def run(ask, at="url"):
    """A plain function of a way from ask(client), a coroutine function."""
    async def with_client(way):
        async with openai.AsyncOpenAI(base_url=WAYS[way][at] + "/v1", api_key=KEY, max_retries=0, timeout=60) as client:
            return await ask(client)
    return lambda way: asyncio.run(with_client(way))


class OpenaiAsync(Ways):
    def test_many_at_once(self):
        async def ask(client):
            asked = [client.completions.create(model=MODEL, **REQUESTS["completion"]),
                     client.chat.completions.create(model=MODEL, **REQUESTS["chat"]),
                     client.chat.completions.create(model=MODEL, **REQUESTS["several"]),
                     client.chat.completions.create(model=MODEL, **REQUESTS["stop"])]
            completion, chat, several, stop = await asyncio.gather(*asked)
            return [[completion.choices[0].text, completion.choices[0].finish_reason, completion.usage.prompt_tokens,
                     completion.usage.completion_tokens],
                    [chat.choices[0].message.content, chat.choices[0].finish_reason, chat.usage.prompt_tokens,
                     chat.usage.completion_tokens],
                    [choice.message.content for choice in several.choices],
                    [stop.choices[0].message.content, stop.choices[0].finish_reason]]

        for question, answer in zip(("completion", "chat", "several", "stop"), self.everywhere(run(ask))):
            record(question, answer)

    def test_streams_side_by_side(self):
        async def one(client):
            text = ""
            async for chunk in await client.chat.completions.create(model=MODEL, **REQUESTS["chat"], stream=True):
                text += chunk.choices[0].delta.content or ""
            return text

        async def ask(client):
            return await asyncio.gather(one(client), one(client), one(client))

        first, *others = self.everywhere(run(ask))
        self.assertIn("Paris", first)
        self.assertEqual(others, [first, first])

    def test_streamed_tool_call(self):
        async def ask(client):
            async with client.chat.completions.stream(model=MODEL, **REQUESTS["weather"], tools=[
                    {**TOOL, "function": {**TOOL["function"], "strict": True}}]) as stream:
                done = [[event.name, event.parsed_arguments] async for event in stream
                        if event.type == "tool_calls.function.arguments.done"]
                final = await stream.get_final_completion()
            return [*done, json.loads(final.choices[0].message.tool_calls[0].function.arguments)]

        self.assertEqual(self.everywhere(run(ask)), [["get_weather", {"city": "Paris"}], {"city": "Paris"}])

    def test_parse_with_pydantic(self):
        async def ask(client):
            answer = await client.chat.completions.parse(model=MODEL, **REQUESTS["city"], response_format=City)
            return answer.choices[0].message.parsed

        self.assertEqual(self.everywhere(run(ask)), City(city="Paris", country="France"))

    def test_errors(self):
        async def ask(client):
            with self.assertRaises(openai.NotFoundError):
                await client.chat.completions.create(model="nobody", **REQUESTS["chat"])
            with self.assertRaises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model=MODEL, **{**REQUESTS["chat"], "temperature": -1}, stream=True)
            return caught.exception.message

        async def with_another_key(client):
            with self.assertRaises(openai.AuthenticationError):
                await client.with_options(api_key="another").models.list()
            return [model.id async for model in client.models.list()]

        self.assertIn("temperature", self.everywhere(run(ask)))
        self.assertEqual(self.everywhere(run(with_another_key, at="thinking")), [MODEL])

    def test_cancelled_task(self):
        """A task that is cancelled in the middle of its stream leaves nothing behind on the instances."""
        async def ask(client):
            begun = asyncio.Event()

            async def read():
                async for _ in await client.completions.create(model=MODEL, prompt="Once", max_tokens=1500, stream=True,
                                                               extra_body={"ignore_eos": True}):
                    begun.set()

            task = asyncio.create_task(read())
            await asyncio.wait_for(begun.wait(), 60)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        self.everywhere(run(ask))
        for way in WAYS:
            self.assert_idle(way)


if __name__ == "__main__":
    unittest.main()
