// SPDX-License-Identifier: Apache-2.0
// Vercel's AI SDK (`ai` with `@ai-sdk/openai-compatible` and `@ai-sdk/openai`), unmodified, on every way. Run by
// tests/e2e/test_clients.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, jsonSchema, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";
import { assertIdle, everywhere, KEY, MODEL, REQUESTS, WAYS } from "./ways.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

const compatible = (way) => createOpenAICompatible(
  { name: "tandem", baseURL: WAYS[way].url + "/v1", apiKey: "none", includeUsage: true, supportsStructuredOutputs: true });
const thinking = (way) => createOpenAICompatible(
  { name: "tandem", baseURL: WAYS[way].thinking + "/v1", apiKey: KEY, includeUsage: true });
const openai = (way) => createOpenAI({ baseURL: WAYS[way].url + "/v1", apiKey: "none" });
// One of requests.json, in the names of the SDK.
const asked = (question) => {
  const { max_tokens: maxOutputTokens, messages, ...rest } = REQUESTS[question];
  const system = messages?.find((message) => message.role === "system")?.content;
  return { maxOutputTokens, maxRetries: 0, system, messages: messages?.filter((message) => message.role !== "system"), ...rest };
};
const City = z.object({ city: z.string(), country: z.string() });
const weatherTool = { description: REQUESTS.tool.description, inputSchema: jsonSchema(REQUESTS.tool.parameters) };
const usageOf = (usage) => [usage.inputTokens, usage.outputTokens];
const providers = { compatible: (way) => compatible(way)(MODEL), openai: (way) => openai(way).chat(MODEL) };

test("completions", async () => {
  await everywhere(async (way) => {
    const { text, finishReason, usage } = await generateText(
      { model: compatible(way).completionModel(MODEL), ...asked("completion") });
    assert.equal(finishReason, "length");
    return [text, ...usageOf(usage)];
  });
});

test("generate_and_stream_text", async () => {
  for (const model of Object.values(providers)) {
    const whole = await everywhere(async (way) => {
      const { text, finishReason, usage } = await generateText({ model: model(way), ...asked("chat") });
      return [text, finishReason, ...usageOf(usage)];
    }, "chat");
    const streamed = await everywhere(async (way) => {
      const result = streamText({ model: model(way), ...asked("chat"), onError: ({ error }) => { throw error; } });
      let text = "";
      for await (const piece of result.textStream) text += piece;
      return [text, await result.finishReason, ...usageOf(await result.usage)];
    });
    assert.deepEqual(streamed, whole);
  }
});

test("stop", async () => {
  await everywhere(async (way) => {
    const { stop, ...rest } = asked("stop");
    const { text, finishReason } = await generateText({ model: compatible(way)(MODEL), ...rest, stopSequences: stop });
    return [text, finishReason];
  }, "stop");
});

test("tool_loop", async () => {
  for (const model of Object.values(providers)) {
    const loop = (way) => {
      const calls = [];
      const execute = async (given) => { calls.push([REQUESTS.tool.name, given]); return REQUESTS.tool_result; };
      return [calls, { model: model(way), ...asked("weather"), stopWhen: stepCountIs(3),
        tools: { [REQUESTS.tool.name]: tool({ ...weatherTool, execute }) } }];
    };
    const whole = await everywhere(async (way) => {
      const [calls, call] = loop(way);
      const { text, steps } = await generateText(call);
      assert.deepEqual(steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
      return [calls[0], text];
    }, "weather");
    const streamed = await everywhere(async (way) => {
      const [calls, call] = loop(way);
      const result = streamText({ ...call, onError: ({ error }) => { throw error; } });
      const text = await result.text;
      return [calls[0], text];
    });
    assert.deepEqual(streamed, whole);
  }
});

test("forced_tools", async () => {
  for (const [name, toolChoice] of [["required", "required"], ["named", { type: "tool", toolName: REQUESTS.tool.name }]]) {
    const whole = await everywhere(async (way) => {
      const { toolCalls: [call] } = await generateText({ model: compatible(way)(MODEL), ...asked("chat"),
        maxOutputTokens: 60, toolChoice, tools: { [REQUESTS.tool.name]: tool(weatherTool) },
        providerOptions: { tandem: { parallel_tool_calls: false } } });
      return [call.toolName, call.input];
    });
    assert.equal(whole[0], REQUESTS.tool.name);
  }
});

test("objects", async () => {
  for (const model of Object.values(providers)) {
    const made = await everywhere(async (way) =>
      (await generateObject({ model: model(way), ...asked("city"), schema: City })).object, "city");
    assert.deepEqual(made, { city: "Paris", country: "France" });
    const streamed = await everywhere(async (way) => {
      const result = streamObject({ model: model(way), ...asked("city"), schema: City });
      let last;
      for await (const partial of result.partialObjectStream) last = partial;
      assert.deepEqual(await result.object, last);
      return last;
    });
    assert.deepEqual(streamed, made);
    const output = await everywhere(async (way) => (await generateText(
      { model: model(way), ...asked("city"), output: Output.object({ schema: City }) })).output);
    assert.deepEqual(output, made);
  }
});

test("fields_of_vllm", async () => {
  const text = await everywhere(async (way) => (await generateText({ model: compatible(way)(MODEL), ...asked("chat"),
    providerOptions: { tandem: { guided_choice: ["sunny", "rainy"] } } })).text);
  assert.match(text, /^(sunny|rainy)$/);
});

test("reasoning", async () => {
  const whole = await everywhere(async (way) => {
    const { reasoningText, text } = await generateText({ model: thinking(way)(MODEL), ...asked("thoughts") });
    return [reasoningText, text];
  }, "thoughts");
  const streamed = await everywhere(async (way) => {
    const joined = { "reasoning-delta": "", "text-delta": "" };
    for await (const part of streamText({ model: thinking(way)(MODEL), ...asked("thoughts") }).fullStream) {
      if (part.type in joined) joined[part.type] += part.text;
      assert.notEqual(part.type, "error", `${part.error}`);
    }
    return Object.values(joined);
  });
  assert.deepEqual(streamed, whole);
});

test("errors", async () => {
  const refused = async (call) => {
    const error = await call.then(() => assert.fail("no error"), (reason) => reason);
    assert.ok(APICallError.isInstance(error), `${error}`);
    return [error.statusCode, error.isRetryable, error.message];
  };
  const nobody = await everywhere((way) => refused(generateText({ model: compatible(way)("nobody"), ...asked("chat") })));
  assert.deepEqual(nobody.slice(0, 2), [404, false]);
  assert.match(nobody[2], /`nobody`/);
  const long = await everywhere((way) => refused(generateText(
    { model: compatible(way)(MODEL), ...asked("chat"), maxOutputTokens: 100000 })));
  assert.equal(long[0], 400);
  assert.match(long[2], /maximum context length is/);
});

test("aborted_stream", async () => {
  for (const way of Object.keys(WAYS)) {
    const abort = new AbortController();
    const result = streamText({ model: compatible(way)(MODEL), prompt: "Once", maxOutputTokens: 1500, maxRetries: 0,
      abortSignal: abort.signal, providerOptions: { tandem: { ignore_eos: true } } });
    for await (const part of result.fullStream) {
      assert.notEqual(part.type, "error", `${part.error}`);
      if (part.type === "text-delta") abort.abort();
    }
    await assertIdle(way);
  }
});
