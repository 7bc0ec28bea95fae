#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The two deployments of the guides, whole: every rank, every node in a network namespace, both ways KV moves.

    sudo python3 tests/e2e/deployments_table.py                  # both examples, pull and layerwise
    sudo python3 tests/e2e/deployments_table.py --examples 2p2d --connectors layerwise --requests 40
    sudo python3 tests/e2e/deployments_table.py --scripts        # the guides' scripts in place of `tandem up`

Each gets the two requests of the guides and many mixed ones at once: prompts as text, ids and chat, short and long, greedy
and drawn, streamed and not. It is right if every answer has the tokens of one colocated process, and KV did move.
"""
import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tandem_processes as tandem

MODEL = "build/models/qwen3-moe-small"
EXAMPLES = {"2p1d": {"port": 8080, "nodes": 4, "ranks": 64, "decoders": ["192.0.0.3"]},
            "2p2d": {"port": 9000, "nodes": 4, "ranks": 32, "decoders": ["192.0.0.3", "192.0.0.4"]}}
NAMES = ["qwen3-moe", "Qwen3-235B-A22B-W8A8"]  # in the guides' order
BRIDGE, PREFIX = "192.0.0.254", "192.0.0."
READY_S = 300

CHAT = {"model": "Qwen3-235B-A22B-W8A8", "messages": [{"role": "user", "content": "你好, 你是谁"}], "max_tokens": 100,
        "stream": False, "temperature": 0.8, "top_p": 0.8}
# The guides' two requests. A drawn answer without a seed is another one each time, so that one is asked once as it is, and
# compared with a seed.
GUIDE_REQUESTS = [
    ("/v1/completions", {"model": "qwen3-moe", "prompt": "Who are you?", "max_tokens": 100, "temperature": 0}),
    ("/v1/chat/completions", {**CHAT, "seed": 1024}),
]
WORDS = "the model reads 预填充 a prompt and 解码 writes tokens over several hosts 64 ranks é ü 🙂 at once".split()


def mixed_request(index):
    """A path and a body; the same for the same index."""
    rng = random.Random(index)
    length = rng.choice([1, 3, 15, 16, 17, 40, 128, 300, 900])
    body = {"max_tokens": rng.choice([1, 2, 8, 17, 32]), "seed": index, "ignore_eos": True,
            "temperature": rng.choice([0, 0, 0.8, 1.0]), "top_p": rng.choice([1.0, 0.9]), "stream": rng.random() < 0.5}
    kind = rng.randrange(3)
    if kind == 0:
        return "/v1/completions", {**body, "prompt": [rng.randrange(100_000) for _ in range(length)], "logprobs": 1}
    text = " ".join(rng.choice(WORDS) for _ in range(length))
    if kind == 1:
        return "/v1/completions", {**body, "prompt": text, "logprobs": 1}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}], "logprobs": True}


def pieces_of(choice):
    """Text, tokens and log-probabilities of a choice, whole or one event's."""
    text = choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
    logprobs = choice.get("logprobs") or {}
    content = logprobs.get("content") or []
    return (text, logprobs.get("tokens") or [entry["token"] for entry in content],
            logprobs.get("token_logprobs") or [entry["logprob"] for entry in content])


def ask(where, path, body):
    """The answer's text, tokens, log-probabilities and finish reason."""
    if body.get("stream"):
        choices = [choice for event in where.stream(path, body, timeout_s=900) for choice in event["choices"]]
    else:
        status, answer = where.post(path, body, timeout_s=900)
        assert status == 200, f"{status} {answer}"
        choices = answer["choices"]
    text, tokens, logprobs, finish = "", [], [], None
    for choice in choices:
        part = pieces_of(choice)
        text, tokens, logprobs = text + part[0], tokens + part[1], logprobs + part[2]
        finish = choice.get("finish_reason") or finish
    return text, tokens, logprobs, finish


def ask_all(where, requests):
    """Answers in order, all asked at once; an error stands in the place of its answer."""
    def one(request):
        try:
            return ask(where, *request)
        except (AssertionError, OSError, ValueError) as error:
            return repr(error)

    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(one, requests))


def namespace(node):
    return f"tdc0000000-{node}"


@contextlib.contextmanager
def namespaces(count):
    """What `tandem up` makes: namespaces with the guides' addresses on a bridge."""
    def ip(*arguments, check=True):
        subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)

    def remove():
        for node in range(1, count + 1):
            ip("netns", "delete", namespace(node), check=False)
            ip("link", "delete", namespace(node), check=False)  # stays if somebody is still in the namespace
        ip("link", "delete", "tdc0000000", check=False)

    remove()
    try:
        ip("link", "add", "tdc0000000", "type", "bridge")
        ip("address", "add", BRIDGE + "/24", "dev", "tdc0000000")
        ip("link", "set", "tdc0000000", "up")
        for node in range(1, count + 1):
            ip("netns", "add", namespace(node))
            ip("link", "add", namespace(node), "type", "veth", "peer", "name", "eth0", "netns", namespace(node))
            ip("link", "set", namespace(node), "master", "tdc0000000", "up")
            ip("-n", namespace(node), "address", "add", f"{PREFIX}{node}/24", "dev", "eth0")
            ip("-n", namespace(node), "link", "set", "eth0", "up")
            ip("-n", namespace(node), "link", "set", "lo", "up")
        yield
    finally:
        remove()


class Started:
    """Processes whose output goes to a file; ended with the block."""

    def __init__(self, log):
        self.log = open(log, "wb")
        self.processes = []

    def start(self, *command, environment=None):
        self.processes.append(subprocess.Popen(
            [str(part) for part in command], stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            cwd=tandem.ROOT, env={**os.environ, **(environment or {})}, start_new_session=True))

    def check(self):
        for process in self.processes:
            assert process.poll() is None, f"{process.args} ended with {process.returncode}; see {self.log.name}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.log.close()


def start_up(stack, example, connector, log):
    started = stack.enter_context(Started(log))
    started.start(tandem.BINARY, "up", f"examples/qwen3-moe-{example}.yaml", "--connector", connector, "--color", "never",
                  "--ready-timeout", f"{READY_S}s")
    return started


def start_scripts(stack, example, log):
    """The four scripts, each in its namespace, and the proxy's here."""
    stack.enter_context(namespaces(EXAMPLES[example]["nodes"]))
    started = stack.enter_context(Started(log))
    path = f"{pathlib.Path(tandem.BINARY).absolute().parent}:{os.environ['PATH']}"
    folder = f"examples/qwen3-moe-{example}"
    for node, name in enumerate(["prefill-1", "prefill-2", "decode-1", "decode-2"], start=1):
        started.start("ip", "netns", "exec", namespace(node), "bash", f"{folder}/{name}.sh", environment={"PATH": path})
    started.start("bash", f"{folder}/proxy.sh", environment={"PATH": path})
    return started


def moved_bytes(example):
    return sum(tandem.Remote("D", host, 8004).metric("tandem:kv_transfer_bytes_total")
               for host in EXAMPLES[example]["decoders"])


def run_deployment(example, connector, requests, expected, arguments):
    """A row of the table, and what is wrong."""
    log = f"build/deployment-{example}-{connector}.log"
    with contextlib.ExitStack() as stack:
        begin = time.monotonic()
        started = start_scripts(stack, example, log) if arguments.scripts else start_up(stack, example, connector, log)
        host = "127.0.0.1" if example == "2p2d" or arguments.scripts else BRIDGE
        proxy = tandem.Remote("proxy", host, EXAMPLES[example]["port"])

        def ready():
            started.check()
            with contextlib.suppress(OSError):
                return proxy.get("/health", timeout_s=5)[0] == 200
            return False

        tandem.wait_until(ready, READY_S, f"{example} is ready; see {log}")
        ready_s = time.monotonic() - begin
        begin = time.monotonic()
        model = NAMES[0] if example == "2p1d" else NAMES[1]
        renamed = [(path, {**body, "model": model}) for path, body in requests]
        answers = [ask(proxy, *request) for request in renamed[:len(GUIDE_REQUESTS)]]
        assert ask(proxy, "/v1/chat/completions", {**CHAT, "model": model})[0], "an empty answer"
        answers += ask_all(proxy, renamed[len(GUIDE_REQUESTS):])
        asked_s = time.monotonic() - begin
        wrong = [f"{example} {connector} request {index}: {answer} instead of {right}"
                 for index, (answer, right) in enumerate(zip(answers, expected)) if answer != right]
        moved = moved_bytes(example)
        if moved == 0:
            wrong.append(f"{example} {connector}: no KV moved")
    row = (example, "script" if arguments.scripts else connector, EXAMPLES[example]["ranks"], len(requests), len(wrong),
           f"{moved / 2**20:.0f}", f"{ready_s:.0f}", f"{asked_s:.0f}")
    return row, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def names(text):
        return text.split(",")

    parser.add_argument("--examples", type=names, default=list(EXAMPLES))
    parser.add_argument("--connectors", type=names, default=["pull", "layerwise"])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--scripts", action="store_true", help="start the guides' scripts, not `tandem up`")
    arguments = parser.parse_args()
    os.chdir(tandem.ROOT)
    requests = GUIDE_REQUESTS + [mixed_request(index) for index in range(arguments.requests)]
    rows, wrong = [], []
    models = {example: MODEL + ("-w8a8" if arguments.scripts and example == "2p2d" else "") for example in EXAMPLES}
    for model in sorted({models[example] for example in arguments.examples}):
        colocated = tandem.serve("colocated", "--seed", 1024, "--max-model-len", 32768, "--served-model-name", *NAMES,
                                 "--kv-cache-memory-bytes", "512M", model=model).wait_ready()
        expected = [ask(colocated, *request) for request in requests[:len(GUIDE_REQUESTS)]]
        expected += ask_all(colocated, requests[len(GUIDE_REQUESTS):])
        colocated.stop()
        refused = [answer for answer in expected if isinstance(answer, str)]
        assert not refused, f"the colocated process failed: {refused[0]}"
        for example in [name for name in arguments.examples if models[name] == model]:
            for connector in arguments.connectors if not arguments.scripts else ["script"]:
                row, bad = run_deployment(example, connector, requests, expected, arguments)
                rows.append(row)
                wrong += bad
                print("done:", *row, flush=True)
    print("\nexample  KV moves by  ranks  requests  wrong  MiB moved  ready s  asked s")
    for row in rows:
        print(f"{row[0]:7}  {row[1]:11} {row[2]:6} {row[3]:9} {row[4]:6} {row[5]:>10} {row[6]:>8} {row[7]:>8}")
    for line in wrong[:20]:
        print("WRONG:", line[:600])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
