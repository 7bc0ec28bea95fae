// SPDX-License-Identifier: Apache-2.0
// llama.cpp (npm's node-llama-cpp, prebuilt for this CPU) behind the protocol of bench_model.cc. It drives llama.cpp's
// batches directly (llama_decode and greedy sampling, no chat wrapper), so that little but llama.cpp is measured.
// Usage: node llama_peer.mjs PACKAGE_FOLDER MODEL.gguf THREADS CONTEXT
import {createInterface} from "node:readline";
import path from "node:path";
import process from "node:process";

const [folder, modelPath, threadsText, contextText] = process.argv.slice(2);
const threads = Number(threadsText);
const context = Number(contextText);
const maxBatch = 8;
const promptBatch = 512;
const {getLlama, LlamaLogLevel} = await import(path.join(folder, "node_modules/node-llama-cpp/dist/index.js"));

const start = performance.now();
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: threads});
const model = await llama.loadModel({modelPath, gpuLayers: 0});
const llamaContext = await model.createContext({
    contextSize: context, batchSize: promptBatch, sequences: maxBatch, threads: {ideal: threads, min: threads}
});
const engine = llamaContext._ctx;  // the bindings under the JavaScript interface
engine.setThreads(threads);
const sampler = new llama._bindings.AddonSampler(model._model);
sampler.applyConfig({temperature: 0});
const vocabulary = model.fileInfo.metadata.tokenizer.ggml.tokens.length;

/** Runs one batch of [sequence, first position, tokens]; the last token of each that `sample` is answered. */
async function run(items, sample) {
    engine.initBatch(items.reduce((sum, [, , tokens]) => sum + tokens.length, 0));
    const rows = items.map(([sequence, first, tokens]) =>
        engine.addToBatch(sequence, first, Uint32Array.from(tokens), Uint32Array.from(sample ? [tokens.length - 1] : [])));
    await engine.decodeBatch();
    if (!sample)
        return [];
    const next = [];
    for (const row of rows)
        next.push(await engine.sampleToken(row[0], sampler));
    return next;
}

async function prefill(slot, count) {
    engine.disposeSequence(slot);
    const begin = performance.now();
    for (let done = 0; done < count; done += promptBatch) {
        const size = Math.min(promptBatch, count - done);
        const tokens = Array.from({length: size}, (_, i) => (slot * 7919 + (done + i) * 37 + 11) % vocabulary);
        await run([[slot, done, tokens]], done + size === count);
    }
    return (performance.now() - begin) / 1000;
}

async function decode(batch, position, steps) {
    let next = Array(batch).fill(1);
    const begin = performance.now();
    for (let i = 0; i < steps; i++)
        next = await run(next.map((token, slot) => [slot, position + i, [token]]), true);
    const seconds = (performance.now() - begin) / 1000;
    for (let slot = 0; slot < batch; slot++)
        engine.removeTokenCellsFromSequence(slot, position, position + steps);
    return seconds;
}

console.log(JSON.stringify({
    ready: true, threads: engine.getThreads(), flash_attention: llamaContext.flashAttention,
    system: llama.systemInfo, weight_bytes: model.size, load_seconds: (performance.now() - start) / 1000
}));
for await (const line of createInterface({input: process.stdin})) {
    const [verb, ...numbers] = line.trim().split(/\s+/);
    const [first, tokens, steps] = numbers.map(Number);
    const cpu = process.cpuUsage();
    let seconds;
    if (verb === "prefill")
        seconds = await prefill(first, tokens);
    else if (verb === "decode")
        seconds = await decode(first, tokens, steps);
    else
        throw new Error(`'${line}': expected prefill or decode`);
    const used = process.cpuUsage(cpu);
    console.log(JSON.stringify({seconds, cpu_seconds: (used.user + used.system) / 1e6}));
}
process.exit(0);
