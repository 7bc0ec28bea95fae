# SPDX-License-Identifier: Apache-2.0
"""Who may ask, and how: keys and TLS on every HTTP way of a deployment, Unix sockets, and which endpoints there are,
direct and through both proxies. The instances are scripted workers."""
import contextlib
import http.client
import json
import os
import pathlib
import socket
import ssl
import subprocess
import tempfile
import unittest

import tandem_processes as tandem

STUB = ("--load-format", "stub", "--max-model-len", "2048")
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
PROXY_ONLY = {"/tandem/info", "/healthcheck", "/instances/add", "/instances/remove", "/v1/metaserver"}


def pair(connector, *flags, proxy_flags=(), **options):
    """(prefiller, decoder, proxy) of a connector; not ready yet."""
    transfer = {"kv_connector": connector}
    p = tandem.serve("p", *STUB, *flags, model="m", role="kv_producer", transfer=transfer, **options)
    d = tandem.serve("d", *STUB, *flags, model="m", role="kv_consumer", transfer=transfer, **options)
    return p, d, tandem.proxy([p], [d], *proxy_flags)


class Endpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dev = {"VLLM_SERVER_DEV_MODE": "1"}
        flags = ("--enable-tokenizer-info-endpoint",)
        cls.pull = pair("MooncakeConnectorV1", *flags, environment=dev)
        cls.layerwise = pair("MooncakeLayerwiseConnector", *flags, environment=dev)
        for process in (*cls.pull, *cls.layerwise):
            cls.addClassCleanup(process.stop)
        for process in (*cls.pull, *cls.layerwise):
            process.wait_ready()

    def paths(self, process):
        status, text = process.get("/openapi.json")
        self.assertEqual(status, 200)
        return json.loads(text)["paths"]

    def test_every_documented_route_answers(self):
        bodies = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "a", "max_tokens": 2},
                  "/invocations": CHAT, "/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [65]},
                  "/v1/metaserver": {"request_id": "cmpl-nobody-0"}, "/instances/add": {"type": "x"},
                  "/instances/remove": {"type": "x"}}
        for process in (self.pull[1], self.pull[2], self.layerwise[2]):
            for path, operations in self.paths(process).items():
                for method, operation in operations.items():
                    with self.subTest(process=process.name, path=path, method=method):
                        if method == "get":
                            status, answer = process.get(path)
                        else:
                            status, answer = process.post(path, bodies.get(path, {}), timeout_s=10)
                        promised = int(next(iter(operation["responses"])))
                        if path in PROXY_ONLY and method == "post":
                            promised = {"/v1/metaserver": 404}.get(path, 400)
                        self.assertEqual(status, promised, answer)
                        if status >= 400:
                            self.assertTrue(answer["error"]["message"], answer)

    def test_a_proxy_describes_itself(self):
        instance = set(self.paths(self.pull[0])) - {"/tandem/release", "/tandem/info"}
        for process in (self.pull[2], self.layerwise[2]):
            self.assertEqual(set(self.paths(process)), instance | PROXY_ONLY)

    def test_invocations_through_proxies_are_the_answers_of_their_kind(self):
        for proxy in (self.pull[2], self.layerwise[2]):
            for body, kind in ((CHAT, "chat.completion"), ({"prompt": "a", "max_tokens": 2}, "text_completion")):
                status, answer = proxy.post("/invocations", body)
                self.assertEqual((status, answer["object"]), (200, kind))
            self.assertEqual(proxy.post("/invocations", {"input": "a"})[0], 400)
            # It was paired, and not computed by the decoder alone.
            self.assertGreater(proxy.metric("tandem:proxy_requests_total", endpoint="/invocations"), 0)
        tandem.assert_blocks_come_back(*self.pull[:2], *self.layerwise[:2])

    def test_a_head_has_the_length_of_the_whole_answer(self):
        for process in (self.pull[1], self.pull[2], self.layerwise[2]):
            for path in ("/v1/models", "/docs"):
                with contextlib.closing(process.connection()) as connection:
                    lengths = []
                    for method in ("GET", "HEAD"):
                        connection.request(method, path)
                        answer = connection.getresponse()
                        lengths.append((answer.status, answer.getheader("Content-Length"), len(answer.read())))
                    whole, head = lengths
                    self.assertEqual(whole[:2], (200, str(whole[2])), process.name)
                    self.assertEqual(head, (*whole[:2], 0), process.name)

    def test_browsers_may_ask_through_proxies(self):
        asked = {"Origin": "https://a", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}
        for process in (self.pull[1], self.pull[2], self.layerwise[2]):
            for path in ("/v1/chat/completions", "/v1/models", "/tokenize", "/health"):
                with self.subTest(process=process.name, path=path):
                    with contextlib.closing(process.connection()) as connection:
                        connection.request("OPTIONS", path, headers=asked)
                        answer = connection.getresponse()
                        self.assertEqual((answer.status, answer.read()), (200, b"OK"))
                        self.assertEqual(answer.getheader("Access-Control-Allow-Origin"), "*")
                        self.assertEqual(answer.getheader("Access-Control-Allow-Headers"), asked["Access-Control-Request-Headers"])
                        self.assertIn("POST", answer.getheader("Access-Control-Allow-Methods"))
            with contextlib.closing(process.connection()) as connection:
                connection.request("POST", "/v1/chat/completions", json.dumps(CHAT),
                                   {"Content-Type": "application/json", "Origin": "https://a"})
                answer = connection.getresponse()
                self.assertEqual((answer.status, answer.getheader("Access-Control-Allow-Origin")), (200, "*"))


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class UnixSocket(tandem.Process):
    def connection(self, timeout_s=120):
        return UnixConnection(self.port)


class Uds(unittest.TestCase):
    def test_it_stands_for_host_and_port(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tandem.sock")
            server = UnixSocket("uds", ["serve", "m", *STUB, "--threads", "1", "--uds", path, "--served-model-name", "first",
                                        "second", "--override-generation-config.max_new_tokens", "5"], path)
            self.addCleanup(server.stop)
            server.wait_ready()
            self.assertEqual(server.complete("Hello", max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"], 3)
            self.assertEqual(len(list(server.stream("/v1/completions", {"prompt": "a", "max_tokens": 3,
                                                                             "ignore_eos": True}))), 3)
            self.assertIn(f"unix:{path}", server.log())
            # Two names, the first of which is shown; max_new_tokens is a limit for all requests, as in vLLM.
            status, answer = server.post("/v1/chat/completions", {"model": "second", "messages": CHAT["messages"],
                                                                  "ignore_eos": True})
            self.assertEqual((status, answer["model"], answer["usage"]["completion_tokens"]), (200, "first", 5))
            status, answer = server.post("/v1/chat/completions", {**CHAT, "max_tokens": 7, "ignore_eos": True})
            self.assertEqual(answer["usage"]["completion_tokens"], 5)
            self.assertEqual([card["id"] for card in json.loads(server.get("/v1/models")[1])["data"]], ["first", "second"])
            self.assertEqual(server.metric("vllm:generation_tokens_total", model_name="first"), 3 + 3 + 5 + 5)
            server.stop()
            self.assertFalse(os.path.exists(path))


class Secured(tandem.Process):
    """A process that is asked over TLS with a key."""
    context = None

    def connection(self, timeout_s=120):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout_s, context=self.context)


class KeysAndTls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        for name in ("instance", "proxy", "stranger"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                            "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", cls.folder / f"{name}.key",
                            "-out", cls.folder / f"{name}.crt"], check=True, capture_output=True)
        file = lambda name: str(cls.folder / name)  # noqa: E731
        Secured.context = ssl.create_default_context(cafile=file("proxy.crt"))
        cls.deployments = []
        for connector in ("MooncakeConnectorV1", "MooncakeLayerwiseConnector"):
            # Instances take the proxy only, and by a key of their own; decoders check the proxy's metaserver.
            instance_flags = ["--ssl-certfile", file("instance.crt"), "--ssl-keyfile", file("instance.key"),
                              "--ssl-ca-certs", file("proxy.crt"), "--ssl-cert-reqs", "2", "--api-key", "inside",
                              "--kv-metaserver-ca-certs", file("proxy.crt")]
            p, d, unused = pair(connector, *instance_flags)
            unused.stop()
            port = tandem.free_port()
            proxy = Secured("proxy", ["proxy", "--host", "127.0.0.1", "--port", str(port), "--api-key", "outside",
                                      "--instance-api-key", "inside", "--prefiller-hosts", "https://127.0.0.1",
                                      "--prefiller-ports", str(p.port), "--decoder-hosts", "https://127.0.0.1",
                                      "--decoder-ports", str(d.port), "--ssl-certfile", file("proxy.crt"),
                                      "--ssl-keyfile", file("proxy.key"), "--instance-ca-certs", file("instance.crt"),
                                      "--instance-certfile", file("proxy.crt"), "--instance-keyfile", file("proxy.key")],
                            port)
            cls.deployments.append((p, d, proxy))
            for process in (p, d, proxy):
                cls.addClassCleanup(process.stop)
        for _, _, proxy in cls.deployments:
            proxy.wait_ready()

    KEY = {"Authorization": "Bearer outside"}

    def test_answers_come_through_both_ways(self):
        for p, d, proxy in self.deployments:
            status, answer = proxy.post("/v1/completions", {"prompt": "Hello there", "max_tokens": 5,
                                                                "ignore_eos": True}, self.KEY)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["usage"]["completion_tokens"], 5)
            events = list(proxy.stream("/v1/chat/completions", {**CHAT, "ignore_eos": True}, self.KEY))
            self.assertGreater(len(events), 3)
            # The KV came from the prefiller: it is not that the decoder helped itself.
            self.assertEqual(self.instance_metric(d, 'vllm:prompt_tokens_by_source_total', 'source="external_kv_transfer"') > 0, True)
        self.assertEqual(self.deployments[1][2].metric("tandem:proxy_metaserver_posts_total", status="200"), 2)

    def instance_metric(self, instance, name, label):
        """Asked as the proxy asks: with its certificate."""
        context = ssl.create_default_context(cafile=str(self.folder / "instance.crt"))
        context.load_cert_chain(self.folder / "proxy.crt", self.folder / "proxy.key")
        with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", instance.port, timeout=10, context=context)) as to:
            to.request("GET", "/metrics")
            lines = to.getresponse().read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and label in line)

    def test_keys(self):
        for _, _, proxy in self.deployments:
            for headers in (None, {"Authorization": "Bearer inside"}, {"Authorization": "Bearer wrong"}):
                for path in ("/v1/completions", "/instances/add", "/v1/metaserver"):
                    status, answer = proxy.post(path, {"prompt": "a"}, headers)
                    self.assertEqual((status, answer), (401, {"error": "Unauthorized"}), path)
            self.assertEqual(proxy.get("/health")[0], 200)

    def test_peers_without_certificates_are_told(self):
        p, _, proxy = self.deployments[0]
        for process in (p, proxy):
            plain = tandem.Remote("plain", "127.0.0.1", process.port)
            status, answer = plain.post("/v1/completions", {"prompt": "a"})
            self.assertEqual(status, 400)
            self.assertIn("this port speaks TLS", answer["error"]["message"])
        # An instance takes nobody but the proxy.
        context = ssl.create_default_context(cafile=str(self.folder / "instance.crt"))
        context.load_cert_chain(self.folder / "stranger.crt", self.folder / "stranger.key")
        with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", p.port, timeout=10, context=context)) as stranger:
            with self.assertRaises((ssl.SSLError, OSError, http.client.HTTPException)):
                stranger.request("GET", "/health")
                stranger.getresponse()
        self.assertEqual(proxy.get("/health")[0], 200)


if __name__ == "__main__":
    unittest.main()
