// SPDX-License-Identifier: Apache-2.0
// What the JavaScript clients share, as ways.py for the Python ones: where the servers are, what is asked, and that
// every way answers alike.
import assert from "node:assert/strict";
import { appendFileSync, readFileSync } from "node:fs";

export const MODEL = "smollm2";
export const KEY = "key of the tests";
export const REQUESTS = JSON.parse(readFileSync(new URL("requests.json", import.meta.url)));
export const WAYS = JSON.parse(process.env.TANDEM_WAYS);

// ask(way) for every way, at once; the answers must be equal. Returns the one, and records it for the comparison between clients
// if it has a name.
export async function everywhere(ask, question) {
  const [direct, pull, layerwise] = await Promise.all(["direct", "pull", "layerwise"].map(ask));
  assert.deepEqual(pull, direct, "pull");
  assert.deepEqual(layerwise, direct, "layerwise");
  if (question) appendFileSync(process.env.TANDEM_ANSWERS, JSON.stringify({ question, answer: direct }) + "\n");
  return direct;
}

// Nothing runs or waits on any instance of the way.
export async function assertIdle(way, withinMs = 5000) {
  const deadline = Date.now() + withinMs;
  for (;;) {
    const pages = await Promise.all(WAYS[way].instances.map(async (url) => (await fetch(url + "/metrics")).text()));
    const busy = pages.join("\n").split("\n").filter(
      (line) => /^vllm:num_requests_(running|waiting)/.test(line) && Number(line.split(" ").pop()) > 0);
    if (busy.length === 0) return;
    assert.ok(Date.now() < deadline, `${way}: ${busy}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
