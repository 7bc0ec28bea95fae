// SPDX-License-Identifier: Apache-2.0
// The npm package `openai`, unmodified, on every way. Run by tests/e2e/test_clients.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { assertIdle, everywhere, KEY, MODEL, REQUESTS, WAYS } from "./ways.mjs";

const options = { maxRetries: 0, timeout: 60_000 };
const client = (way) => new OpenAI({ baseURL: WAYS[way].url + "/v1", apiKey: "none", ...options });
const thinking = (way, apiKey = KEY) => new OpenAI({ baseURL: WAYS[way].thinking + "/v1", apiKey, ...options });
const tools = [{ type: "function", function: REQUESTS.tool }];
const City = z.object({ city: z.string(), country: z.string() });
const usageOf = (usage) => [usage.prompt_tokens, usage.completion_tokens];
const chat = (way, question, fields = {}) =>
  client(way).chat.completions.create({ model: MODEL, ...REQUESTS[question], ...fields });

test("models", async () => {
  const ids = await everywhere(async (way) => {
    const found = [];
    for await (const model of client(way).models.list()) found.push(model.id);
    return found;
  }, "models");
  assert.deepEqual(ids, [MODEL]);
});

test("completions", async () => {
  const body = { model: MODEL, ...REQUESTS.completion };
  const whole = await everywhere(async (way) => {
    const { choices: [choice], usage } = await client(way).completions.create(body);
    return [choice.text, choice.finish_reason, ...usageOf(usage)];
  }, "completion");
  const streamed = await everywhere(async (way) => {
    let text = "", reason, usage;
    const stream = await client(way).completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.text ?? "";
      reason = chunk.choices[0]?.finish_reason ?? reason;
      usage = chunk.usage ?? usage;
    }
    return [text, reason, ...usageOf(usage)];
  });
  assert.deepEqual(streamed, whole);
});

test("chat", async () => {
  const whole = await everywhere(async (way) => {
    const { choices: [choice], usage } = await chat(way, "chat");
    return [choice.message.content, choice.finish_reason, ...usageOf(usage)];
  }, "chat");
  const streamed = await everywhere(async (way) => {
    const stream = client(way).chat.completions.stream(
      { model: MODEL, ...REQUESTS.chat, stream_options: { include_usage: true } });
    let text = "";
    stream.on("content", (piece) => { text += piece; });
    const { choices: [choice], usage } = await stream.finalChatCompletion();
    assert.equal(choice.message.content, text);
    return [text, choice.finish_reason, ...usageOf(usage)];
  });
  assert.deepEqual(streamed, whole);
});

test("several_choices_and_logprobs", async () => {
  await everywhere(async (way) => (await chat(way, "several")).choices.map((choice) => choice.message.content), "several");
  const ask = (fields) => async (way) => {
    if (!fields.stream) return (await chat(way, "chat", fields)).choices[0].logprobs.content;
    const tokens = [];
    for await (const chunk of await chat(way, "chat", fields)) tokens.push(...(chunk.choices[0].logprobs?.content ?? []));
    return tokens;
  };
  const tokens = await everywhere(ask({ logprobs: true, top_logprobs: 2 }));
  assert.deepEqual(await everywhere(ask({ logprobs: true, top_logprobs: 2, stream: true })), tokens);
});

test("stop", async () => {
  await everywhere(async (way) => {
    const { choices: [choice] } = await chat(way, "stop");
    return [choice.message.content, choice.finish_reason];
  }, "stop");
});

test("tool_loop", async () => {
  const [call, told] = await everywhere(async (way) => {
    const { choices: [{ message, finish_reason: reason }] } = await chat(way, "weather", { tools });
    assert.equal(reason, "tool_calls");
    const [call] = message.tool_calls;
    const messages = [...REQUESTS.weather.messages, message,
      { role: "tool", tool_call_id: call.id, content: REQUESTS.tool_result }];
    const answer = await chat(way, "weather", { tools, messages });
    return [[call.function.name, JSON.parse(call.function.arguments)], answer.choices[0].message.content];
  }, "weather");
  // The package runs the loop itself, from streams.
  const ran = await everywhere(async (way) => {
    const calls = [];
    const runner = client(way).chat.completions.runTools({
      model: MODEL, ...REQUESTS.weather, stream: true,
      tools: [{ type: "function", function: { ...REQUESTS.tool, parse: JSON.parse,
        function: (given) => { calls.push([REQUESTS.tool.name, given]); return REQUESTS.tool_result; } } }] });
    return [calls, await runner.finalContent()];
  });
  assert.deepEqual(ran, [[call], told]);
});

test("forced_tools", async () => {
  for (const [name, choice] of [["required", "required"],
    ["named", { type: "function", function: { name: REQUESTS.tool.name } }]]) {
    await everywhere(async (way) => {
      const { choices: [{ message, finish_reason: reason }] } = await chat(
        way, "chat", { tools, tool_choice: choice, parallel_tool_calls: false, max_tokens: 60 });
      const [{ function: called }] = message.tool_calls;
      return [called.name, JSON.parse(called.arguments), reason];
    }, `forced ${name}`);
  }
});

test("structured_output", async () => {
  const body = { model: MODEL, ...REQUESTS.city, response_format: zodResponseFormat(City, "city") };
  const parsed = await everywhere(async (way) =>
    (await client(way).chat.completions.parse(body)).choices[0].message.parsed, "city");
  assert.deepEqual(parsed, { city: "Paris", country: "France" });
  const streamed = await everywhere(async (way) =>
    (await client(way).chat.completions.stream(body).finalChatCompletion()).choices[0].message.parsed);
  assert.deepEqual(streamed, parsed);
});

test("fields_of_vllm", async () => {
  const text = await everywhere(async (way) => {
    const fields = { structured_outputs: { choice: ["sunny", "rainy"] }, chat_template_kwargs: { enable_thinking: false } };
    return (await chat(way, "chat", fields)).choices[0].message.content;
  });
  assert.match(text, /^(sunny|rainy)$/);
});

test("errors", async () => {
  for (const [kind, word, fields] of [[OpenAI.NotFoundError, "`nobody`", { model: "nobody" }],
    [OpenAI.BadRequestError, "temperature", { temperature: -1 }],
    [OpenAI.BadRequestError, "temperature", { temperature: -1, stream: true }],
    [OpenAI.BadRequestError, "maximum context length is", { max_tokens: 100000 }]]) {
    const found = await everywhere(async (way) => {
      const error = await chat(way, "chat", fields).then(() => assert.fail("no error"), (reason) => reason);
      assert.ok(error instanceof kind, `${error}`);
      return [error.status, error.message, error.type, error.param, error.code];
    });
    assert.ok(found[1].includes(word), found[1]);
  }
  const status = await everywhere(async (way) => {
    const error = await thinking(way, "another").models.list().then(() => assert.fail("no error"), (reason) => reason);
    assert.ok(error instanceof OpenAI.AuthenticationError, `${error}`);
    return error.status;
  });
  assert.equal(status, 401);
});

test("closed_stream", async () => {
  for (const way of Object.keys(WAYS)) {
    const stream = await client(way).completions.create(
      { model: MODEL, prompt: "Once", max_tokens: 1500, ignore_eos: true, stream: true });
    for await (const chunk of stream) {
      assert.equal(chunk.object, "text_completion");
      break; // which closes it
    }
    await assertIdle(way);
  }
});

test("raw_response", async () => {
  const found = await everywhere(async (way) => {
    const { data, response } = await client(way).chat.completions.create({ model: MODEL, ...REQUESTS.chat }).withResponse();
    return [response.status, response.headers.get("content-type"), data.choices[0].message.content];
  });
  assert.deepEqual(found.slice(0, 2), [200, "application/json"]);
});

test("reasoning", async () => {
  const body = { model: MODEL, ...REQUESTS.thoughts };
  const whole = await everywhere(async (way) => {
    const { choices: [{ message }] } = await thinking(way).chat.completions.create(body);
    assert.equal(message.reasoning_content, message.reasoning);
    return [message.reasoning, message.content];
  }, "thoughts");
  const streamed = await everywhere(async (way) => {
    const joined = ["", ""];
    for await (const { choices: [{ delta }] } of await thinking(way).chat.completions.create({ ...body, stream: true })) {
      joined[0] += delta.reasoning_content ?? "";
      joined[1] += delta.content ?? "";
    }
    return joined;
  });
  assert.deepEqual(streamed, whole);
});
