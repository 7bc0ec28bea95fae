# SPDX-License-Identifier: Apache-2.0
"""Stands in for a vLLM-Ascend instance at the HTTP hop (level L1 of pd_protocol.md): what it answers, what it insists
on, and how it fails. No model: the text that a decoder generates is a function of the prompt, and it generates only from
"KV" that a prefiller stand-in made for exactly that prompt, so that a mix-up shows as an error.

Pull (pd_protocol.md 4.2 to 4.4): a prefiller answers kv_transfer_params, a decoder wants them back unchanged.
Layerwise (7.1 to 7.3): a decoder posts where the KV shall go to the metaserver, a prefiller "pushes" there.
"""
import contextlib
import http.client
import http.server
import json
import threading
import time
import urllib.parse

BIG = 18446744073709551615  # a 64-bit number that no double can hold
PULL_KEYS = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
             "remote_host": None, "remote_port": None}


def generated(prompt, count):
    """The text of `count` tokens after a prompt."""
    seed = json.dumps(prompt)
    return "".join(f" {(sum(seed.encode()) * (i + 7) + len(seed)) % 997}" for i in range(count))


def prompts_of(body):
    if "messages" in body:
        return [body["messages"]]
    prompt = body["prompt"]
    return prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]


class Cluster:
    """What moves between the stand-ins beside HTTP: finished prompts and pushed KV."""

    def __init__(self):
        self.lock = threading.Condition()
        self.held = {}       # pull: block id -> prompt
        self.delivered = {}  # push: (decoder, request id) -> prompt


class Instance:
    """One server. `head`: speaks as the newest release does, else as v0.11.0rc2. Faults are set at any time:
    "500", "400", "die" (no answer), "stall" (silent until the peer leaves), "break" (decoder: after some tokens)."""

    def __init__(self, cluster, role, mode="pull", head=False):
        self.cluster, self.role, self.mode, self.head = cluster, role, mode, head
        self.fault = None
        self.post = True       # layerwise decoder: whether it calls the metaserver
        self.post_delay_s = 0.0
        self.honours_status = False  # real ones ignore the metaserver's status and wait on
        self.problems = []     # what the peer did wrong
        self.requests = []     # (path, headers in lower case, parsed body, raw body)
        self.posts = []        # (request id, status, body)
        self.aborted = 0       # requests whose client left
        self._blocks = 0
        instance = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                known = self.path in ("/v1/models", "/health")
                instance.reply(self, 200 if known else 404, {"object": "list", "data": []} if known else {"detail": "Not Found"})

            def do_POST(self):
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.split("?")[0]
                if path == "/reset_prefix_cache":
                    instance.reply(self, 200, {})
                elif path in ("/v1/completions", "/v1/chat/completions"):
                    instance.complete(self, path, raw)
                else:
                    instance.reply(self, 404, {"detail": "Not Found"})

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # peers that leave

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def expect(self, condition, problem):
        if not condition:
            self.problems.append(problem)

    @staticmethod
    def reply(handler, status, body):
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    @staticmethod
    def client_left(handler):
        handler.connection.setblocking(False)
        try:
            return handler.connection.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            handler.connection.settimeout(60)

    def wait_for_leaving(self, handler):
        deadline = time.monotonic() + 30
        while not self.client_left(handler):
            if time.monotonic() > deadline:
                self.problems.append("a request was neither answered nor given up within 30 s")
                return
            time.sleep(0.005)
        self.aborted += 1
        handler.close_connection = True

    def complete(self, handler, path, raw):
        body = json.loads(raw)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append((path, headers, body, raw))
        self.expect(handler.headers.get("X-Request-Id"), "no X-Request-Id")
        if self.fault in ("500", "400"):
            status = int(self.fault)
            self.reply(handler, status, {"error": {"message": f"stand-in fault {status}", "type": "x", "code": status}})
        elif self.fault == "die":
            handler.close_connection = True
        elif self.fault == "stall":
            self.wait_for_leaving(handler)
        elif self.role == "prefill":
            self.prefill(handler, path, body, handler.headers["X-Request-Id"])
        else:
            self.decode(handler, path, body, raw)

    # Prefiller

    def prefill(self, handler, path, body, base):
        self.expect(body.get("max_tokens") == 1 and body.get("min_tokens") == 1, "max_tokens and min_tokens must be 1")
        self.expect(body.get("stream") is False and "stream_options" not in body, "the prefill must not stream")
        params = body.get("kv_transfer_params") or {}
        self.expect(params.get("do_remote_decode") is True, "do_remote_decode must be true")
        answer = None
        if self.mode == "pull":
            self.expect({key: params.get(key, "absent") for key in PULL_KEYS} == PULL_KEYS, f"unexpected {params}")
            answer = self.hold(prompts_of(body)[0], base, path)
        else:
            self.push(body, params)
        self.reply(handler, 200, {"id": base, "object": "x", "model": "m", "kv_transfer_params": answer,
                                  "choices": [{"index": 0, "text": " x", "message": {"role": "assistant", "content": " x"},
                                               "finish_reason": "length", "stop_reason": None}],
                                  "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}})

    def hold(self, prompt, base, path):
        with self.cluster.lock:
            self._blocks += 1
            block = self.port * 1000 + self._blocks
            self.cluster.held[block] = prompt
        answer = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "p-0",
                  "remote_host": "127.0.0.1", "remote_port": 30000, "remote_block_ids": [block], "last_token_id": 7,
                  "unknown": {"big": BIG, "list": [[], None]}}
        if self.head:
            answer.update(remote_block_ids=[[block]], remote_request_id=f"{base}-12345678", remote_block_size=[128],
                          remote_pcp_size=1, remote_dcp_size=1, remote_ptp_size=8, num_prompt_blocks=1,
                          remote_multi_nodes_meta_mapping={"0": {"host": "127.0.0.1", "engine_id": "p-0"}})
        return answer

    def push(self, body, params):
        children = {params.get("request_id"): params, **params.get("batch_kv_transfer_params", {})}
        prompts = prompts_of(body)
        for request_id, destination in children.items():
            self.expect(destination.get("unknown") == {"big": BIG}, f"the destination was changed: {destination}")
            self.expect(not self.head or "remote_cached_tokens" in destination, "remote_cached_tokens is missing")
            # As one request for all prompts the children are told apart by their number, else it is the only prompt.
            index = int(request_id.rsplit("-", 1)[1]) if len(prompts) > 1 else 0
            with self.cluster.lock:
                self.cluster.delivered[(destination.get("remote_engine_id"), request_id)] = prompts[index]
                self.cluster.lock.notify_all()

    # Decoder

    def decode(self, handler, path, body, raw):
        params = body.get("kv_transfer_params") or {}
        if self.mode == "pull":
            if params and not self.pull(params, prompts_of(body)[0]):
                return self.reply(handler, 500, {"error": {"message": "no such KV"}})
        elif params.get("do_remote_prefill") and self.post:
            if not self.receive(handler, path, body, params):
                return None
        return self.generate(handler, path, body)

    def pull(self, params, prompt):
        self.expect(params.get("unknown") == {"big": BIG, "list": [[], None]}, f"the hand-over was changed: {params}")
        self.expect(params.get("do_remote_prefill") is True, "do_remote_prefill must be true")
        block = params["remote_block_ids"][0]
        block = block[0] if isinstance(block, list) else block
        with self.cluster.lock:
            held = self.cluster.held.pop(block, None)
        self.expect(held == prompt, f"KV of {held!r} for the prompt {prompt!r}")
        return held == prompt

    def receive(self, handler, path, body, params):
        """Layerwise: posts for every prompt at once and waits until all are pushed. False: nothing more to say."""
        time.sleep(self.post_delay_s)
        base = handler.headers["X-Request-Id"]
        prompts = prompts_of(body)
        ids = [f"chatcmpl-{base}"] if "chat" in path else [f"cmpl-{base}-{i}" for i in range(len(prompts))]
        threads = [threading.Thread(target=self.call_metaserver, args=(params["metaserver"], i), daemon=True) for i in ids]
        for thread in threads:
            thread.start()
        keys = [(f"d-{self.port}", request_id) for request_id in ids]
        while True:
            with self.cluster.lock:
                if all(key in self.cluster.delivered for key in keys):
                    got = [self.cluster.delivered.pop(key) for key in keys]
                    self.expect(got == prompts, f"KV of {got!r} for the prompts {prompts!r}")
                    break
                self.cluster.lock.wait(0.01)
            refused = [status for request_id, status, _ in self.posts if request_id in ids and status != 200]
            if refused and self.honours_status:
                self.reply(handler, 500, {"error": {"message": f"the prefill failed with {refused[0]}"}})
                return False
            if self.client_left(handler):
                self.aborted += 1
                handler.close_connection = True
                return False
        return True

    def call_metaserver(self, url, request_id):
        message = {"token_ids": [], "request_id": request_id, "do_remote_prefill": False, "do_remote_decode": True,
                   "remote_block_ids": [[5, 6]] if self.head else [5, 6], "remote_engine_id": f"d-{self.port}",
                   "remote_host": "127.0.0.1", "remote_port": 30203, "unknown": {"big": BIG}}
        if self.head:
            message.update(remote_block_size=[128], remote_tp_size=1, remote_pcp_size=1, remote_dcp_size=1,
                           remote_cached_tokens=0)
        target = urllib.parse.urlsplit(url)
        try:
            with contextlib.closing(http.client.HTTPConnection(target.hostname, target.port, timeout=60)) as connection:
                connection.request("POST", target.path, json.dumps(message), {"Content-Type": "application/json"})
                response = connection.getresponse()
                self.posts.append((request_id, response.status, response.read().decode()))
        except OSError as error:
            self.posts.append((request_id, 0, str(error)))

    def generate(self, handler, path, body):
        chat = "chat" in path
        count = body.get("max_tokens") or 16
        texts = [generated(prompt, count) for prompt in prompts_of(body)]
        if not body.get("stream"):
            choices = [{"index": i, "text": text, "message": {"role": "assistant", "content": text},
                        "finish_reason": "length", "stop_reason": None} for i, text in enumerate(texts)]
            return self.reply(handler, 200, {"id": "x", "object": "x", "model": "m", "choices": choices, "usage": {
                "prompt_tokens": 3, "completion_tokens": count * len(texts), "total_tokens": 3 + count * len(texts)}})
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for index, text in enumerate(texts):
            for number, token in enumerate(text.split(" ")[1:]):
                if self.fault == "break" and number == 2:
                    handler.close_connection = True
                    return None
                piece = {"delta": {"content": " " + token}} if chat else {"text": " " + token}
                self.event(handler, json.dumps({"id": "x", "choices": [{"index": index, **piece, "finish_reason": None}]}))
        self.event(handler, "[DONE]")
        handler.wfile.write(b"0\r\n\r\n")
        return None

    @staticmethod
    def event(handler, text):
        data = f"data: {text}\n\n".encode()
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.flush()
