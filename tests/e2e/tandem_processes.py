# SPDX-License-Identifier: Apache-2.0
"""Real tandem processes for end-to-end tests: starts instances and proxies, asks them, reads their metrics.

Every wait has a deadline. Processes are stopped and reaped by stop(), also when a test fails.
"""
import atexit
import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("TANDEM_BINARY", str(ROOT / "build" / "tandem"))
SMOLLM2 = str(ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
START_TIMEOUT_S = 120
JSON = {"Content-Type": "application/json"}
CONNECTORS = {"pull": "MooncakeConnectorV1", "layerwise": "MooncakeLayerwiseConnector"}
MOST_RANKS = 8  # an instance has one KV port a rank

_given_ports = set()
_port_locks = open(f"{tempfile.gettempdir()}/tandem-test-ports-{os.getuid()}", "ab")  # byte n: port n


def free_port(count=1) -> int:
    """The first of `count` free ports in a row, given to nobody before, and to no other test that runs now. Below those that
    the kernel takes for outgoing connections: one of them could have the port of an instance that a test has killed and
    starts again."""
    for _ in range(1000):
        first = random.randrange(10_000, 32_000)
        ports = range(first, first + count)
        if not _given_ports.isdisjoint(ports):
            continue
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            fcntl.lockf(_port_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)  # until this process ends
            for port in ports:
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            _given_ports.update(ports)
            return first
    raise AssertionError(f"no {count} free ports in a row")


def wait_until(condition, timeout_s: float, what: str):
    """Polls until condition() is truthy and returns it; fails after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)


class Process:
    """One tandem process with a port that answers HTTP."""
    host = "127.0.0.1"

    def __init__(self, name, arguments, port, health="/health", environment=None, binary=None):
        self.name = name
        self.port = port
        self.log_path = tempfile.NamedTemporaryFile(prefix=f"tandem-{name}-", suffix=".log", delete=False).name
        self._log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [binary or BINARY, *arguments], stdout=self._log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})})
        self._health = health
        atexit.register(self.stop)

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.log()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.get(self._health, timeout_s=2)[0] == 200
            return False

        try:
            wait_until(ready, START_TIMEOUT_S, f"{self.name} answers {self._health}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None
        return self

    def log(self) -> str:
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        if not self._log.closed:
            self._log.close()
            with contextlib.suppress(OSError):
                os.unlink(self.log_path)

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def connection(self, timeout_s=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def exchange(self, method, path, body=None, headers=None, timeout_s=120):
        """Returns (status, headers, raw body). A dict is sent as JSON, text and bytes as they are; no header is added."""
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body).encode()
        connection = self.connection(timeout_s)
        with contextlib.closing(connection):
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def get(self, path, timeout_s=10):
        status, _, raw = self.exchange("GET", path, timeout_s=timeout_s)
        return status, raw

    def post(self, path, body, headers=None, timeout_s=120):
        """Returns (status, parsed JSON or raw text)."""
        status, _, raw = self.exchange("POST", path, body, {**JSON, **(headers or {})}, timeout_s)
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw.decode(errors="replace")

    def complete(self, prompt, **fields):
        status, body = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        assert status == 200, f"{self.name}: {status} {body}"
        return body

    def stream(self, path, body, headers=None, timeout_s=120, content_type="text/event-stream"):
        """Yields the parsed events of an SSE answer; checks that it ends with [DONE]."""
        connection = self.connection(timeout_s)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps({**body, "stream": True}),
                               {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            assert response.status == 200, f"{response.status} {response.read()}"
            assert response.getheader("Content-Type", "").startswith(content_type), response.getheaders()
            done = False
            for line in response:
                line = line.decode().rstrip("\n")
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    done = True
                    break
                yield json.loads(line.removeprefix("data: "))
            assert done, "the stream ended without [DONE]"

    def metrics(self):
        """{series name with its labels: value}"""
        values = {}
        for line in self.get("/metrics")[1].decode().splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                values[series] = float(value)
        return values

    def metric(self, name, **labels):
        """Sum of all series of that name whose labels include those given."""
        total = None
        for series, value in self.metrics().items():
            if series.split("{")[0] != name:
                continue
            if all(f'{key}="{text}"' in series for key, text in labels.items()):
                total = (total or 0.0) + value
        assert total is not None, f"{self.name} has no metric {name} {labels}"
        return total


class Remote(Process):
    """One that somebody else has started, perhaps on another host."""

    def __init__(self, name, host, port):  # pylint: disable=super-init-not-called
        self.name = name
        self.host = host
        self.port = port


def serve(name, *flags, model=SMOLLM2, role=None, kv_port=None, port=None, environment=None, transfer=None,
          binary=None):
    """An instance; role is None (colocated), "kv_producer" or "kv_consumer"."""
    port = port or free_port()
    arguments = ["serve", model, "--host", "127.0.0.1", "--port", str(port), "--threads", "1", *map(str, flags)]
    if role:
        config = {"kv_connector": "MooncakeConnectorV1", "kv_role": role, "engine_id": name,
                  "kv_port": str(kv_port or free_port(MOST_RANKS)), **(transfer or {})}
        arguments += ["--kv-transfer-config", json.dumps(config)]
    return Process(name, arguments, port, environment={"VLLM_HOST_IP": "127.0.0.1", **(environment or {})}, binary=binary)


def peer_certificates(folder, name="member", days="2", authority="cluster"):
    """The flags of an instance with a certificate that the authority signed (made if it is not there yet)."""
    folder = pathlib.Path(folder)
    openssl = lambda *arguments: subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)  # noqa: E731
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    ca, own = folder / authority, folder / name
    if not ca.with_suffix(".crt").exists():
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={authority}", "-keyout", f"{ca}.key", "-out", f"{ca}.crt")
    openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{own}.key", "-out", f"{own}.csr")
    openssl("x509", "-req", "-in", f"{own}.csr", "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", days,
            "-out", f"{own}.crt")
    return ["--peer-ca-certs", f"{ca}.crt", "--peer-certfile", f"{own}.crt", "--peer-keyfile", f"{own}.key"]


def proxy(prefillers, decoders, *flags, environment=None):
    """In front of instances, which need not run yet: their ports will do."""
    port = free_port()
    arguments = ["proxy", "--host", "127.0.0.1", "--port", str(port)]
    for kind, instances in (("prefiller", prefillers), ("decoder", decoders)):
        arguments += [f"--{kind}-hosts", *["127.0.0.1"] * len(instances)]
        arguments += [f"--{kind}-ports", *[str(getattr(instance, "port", instance)) for instance in instances]]
    return Process("proxy", [*arguments, *flags], port, health="/healthcheck", environment=environment)


class Pair:
    """1P1D and a proxy, of which each can be started again at its ports. start=False: nothing runs yet."""

    def __init__(self, *flags, flow="pull", transport="auto", proxy_flags=(), prefill_flags=(), decode_flags=(),
                 model=SMOLLM2, start=True):
        common = (*flags, "--kv-transport", transport)
        self.flow = flow
        self._sides = {"P1": ("kv_producer", (*common, *prefill_flags)), "D1": ("kv_consumer", (*common, *decode_flags))}
        self._ports = {name: (free_port(), free_port(MOST_RANKS)) for name in self._sides}
        self._proxy_flags = proxy_flags
        self._model = model
        self.prefill = self.decode = self.proxy = None
        if start:
            self.start().wait_ready()

    def _start(self, name):
        role, flags = self._sides[name]
        port, kv_port = self._ports[name]
        return serve(name, *flags, role=role, port=port, kv_port=kv_port, model=self._model,
                     transfer={"kv_connector": CONNECTORS[self.flow]})

    def start_prefill(self):
        self.prefill = self._start("P1")
        return self.prefill

    def start_decode(self):
        self.decode = self._start("D1")
        return self.decode

    def start_proxy(self, environment=None):
        self.proxy = proxy([self._ports["P1"][0]], [self._ports["D1"][0]], *self._proxy_flags, environment=environment)
        return self.proxy

    def start(self):
        self.start_prefill()
        self.start_decode()
        self.start_proxy()
        return self

    def wait_ready(self):
        for process in (self.prefill, self.decode, self.proxy):
            process.wait_ready()
        return self

    def stop(self):
        for process in (self.proxy, self.decode, self.prefill):
            if process:
                process.stop()

    def transfers(self, transport):
        return self.decode.metric("tandem:kv_transfer_bytes_total", transport=transport)


class Fleet:
    """Instances with the scripted worker that tests kill, stop and start again with the same engine_id and ports, and a
    plain one that says what is right. The worker's text depends on every slot of KV that it reads, and its steps take the
    time that they are told, so that a test knows where a request is when the fault comes.

    `members`: {engine_id: (role, flags, kv_load_failure_policy)}."""

    def __init__(self, flags, members, connector):
        self._flags = ("--load-format", "stub", *flags)
        self._members = members
        self._connector = connector
        self._ports = {name: (free_port(), free_port(MOST_RANKS)) for name in members}
        self._instances = {}
        self._texts = {}
        self.plain = serve("plain", *self._flags)
        for name in members:
            self.start(name)
        for process in (self.plain, *self.instances()):
            process.wait_ready()

    def __getitem__(self, name):
        return self._instances[name]

    def instances(self):
        return list(self._instances.values())

    def policy(self, name):
        return self._members[name][2]

    def start(self, name):
        role, flags, policy = self._members[name]
        port, kv_port = self._ports[name]
        self._instances[name] = serve(name, *self._flags, *flags, role=role, port=port, kv_port=kv_port,
                                      transfer={"kv_connector": self._connector, "kv_load_failure_policy": policy})

    def restart(self, name):
        self.start(name)
        self[name].wait_ready()

    def heal(self):
        """Starts what is dead, continues what is stopped."""
        for name, instance in list(self._instances.items()):
            if instance.process.poll() is not None:
                self.restart(name)
            instance.process.send_signal(signal.SIGCONT)

    def stop(self):
        self.heal()
        for process in (self.plain, *self.instances()):
            process.stop()

    def text(self, prompt, max_tokens):
        """What must come after a prompt."""
        if (prompt, max_tokens) not in self._texts:
            self._texts[prompt, max_tokens] = self.plain.complete(prompt, max_tokens=max_tokens)["choices"][0]["text"]
        return self._texts[prompt, max_tokens]


class Background:
    """A request on a thread of its own; result() has a deadline."""

    def __init__(self, ask):
        self.started = time.monotonic()
        self.ended = None
        self._value = None
        self._thread = threading.Thread(target=self._run, args=(ask,), daemon=True)
        self._thread.start()

    def _run(self, ask):
        try:
            self._value = ask()
        except (OSError, http.client.HTTPException) as error:
            self._value = (0, repr(error))
        self.ended = time.monotonic()

    def result(self, within_s):
        """(status, body); status 0 if the connection broke."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), f"no answer within {within_s} s"
        return self._value


class Stream:
    """A streamed answer that is read by hand."""

    def __init__(self, process, body):
        self.connection = process.connection(timeout_s=30)
        self.connection.request("POST", "/v1/completions", json.dumps({"stream": True, "temperature": 0, **body}),
                                {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.status

    def event(self):
        """The next event's data, or None at the end."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                return line[len(b"data: "):].strip().decode()
        return None

    def close(self):
        self.response.close()
        self.connection.close()


def assert_blocks_come_back(*instances, within_s=2.0):
    """free + cached = all blocks, nothing running or waiting, no lease open."""
    for instance in instances:
        def idle():
            values = instance.metrics()

            def total(name, part=""):
                return sum(v for series, v in values.items() if series.split("{")[0] == name and part in series)

            blocks = {state: total("tandem:kv_blocks", f'state="{state}"') for state in ("free", "cached", "used")}
            # One series for each data-parallel rank.
            every = sum(map(int, re.findall(r'num_gpu_blocks="(\d+)"', " ".join(values))))
            busy = (total("vllm:num_requests_running"), total("vllm:num_requests_waiting"), total("tandem:kv_leases_open"))
            seen["last"] = (blocks, every, busy)
            return blocks["free"] + blocks["cached"] == every and blocks["used"] == 0 and busy == (0, 0, 0)

        seen = {}
        try:
            wait_until(idle, within_s, "all blocks come back")
        except AssertionError as error:
            raise AssertionError(f"{instance.name}: {error}; last seen {seen['last']}") from None


def assert_scores_zero(proxy_process, within_s=2.0):
    pattern = re.compile(r"tandem:proxy_.*(score|active|in_?flight)")

    def zero():
        values = {s: v for s, v in proxy_process.metrics().items() if pattern.match(s)}
        state["last"] = values
        return values and all(value == 0 for value in values.values())

    state = {}
    try:
        wait_until(zero, within_s, "the proxy's scores are zero")
    except AssertionError as error:
        raise AssertionError(f"{error}; last seen {state['last']}") from None
