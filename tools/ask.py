#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks one chat question over HTTP, prints the answer as it streams, then where the time went."""
import json
import sys
import time
import urllib.request


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: ask.py URL QUESTION", file=sys.stderr)
        return 2
    url, question = sys.argv[1:]
    body = {
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 64,
    }
    request = urllib.request.Request(
        url + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "X-Tandem-Timing": "1"},
    )
    started = time.monotonic()
    first = None
    usage = None
    answer = ""
    with urllib.request.urlopen(request, timeout=120) as response:
        # "name=seconds;name=seconds;..."; the parts add up to the time to the first token as the proxy saw it.
        timing = [part.split("=") for part in (response.headers["X-Tandem-Timing"] or "").split(";") if "=" in part]
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                print("\nerror:", event["error"]["message"], file=sys.stderr)
                return 1
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                if first is None:
                    first = time.monotonic()
                answer += text
                print(text, end="", flush=True)
    ended = time.monotonic()
    print("\n")
    if not answer.strip():
        print("error: the answer is empty", file=sys.stderr)
        return 1
    print(f"tokens:   {usage['prompt_tokens']} in the prompt, {usage['completion_tokens']} in the answer")
    print(f"seen by the client: first token after {(first - started) * 1000:.0f} ms, all after "
          f"{(ended - started) * 1000:.0f} ms (decode {(ended - first) * 1000:.0f} ms)")
    if timing:
        parts = ", ".join(f"{name} {float(seconds) * 1000:.1f} ms" for name, seconds in timing if float(seconds) > 0)
        print(f"where the time to the first token went: {parts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
