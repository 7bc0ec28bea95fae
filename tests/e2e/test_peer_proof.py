# SPDX-License-Identifier: Apache-2.0
"""TLS on the ways that are not HTTP: KV between instances, pulled and pushed, by certificates and by a secret; who does
not fit is refused at both ends with a reason, and the others are served. The instances are scripted workers, whose
tokens depend on every KV slot. Processes of one instance: test_multi_host.py."""
import tempfile
import unittest

import tandem_processes as tandem

STUB = ("--load-format", "stub", "--max-model-len", "2048", "--kv-transport", "tcp")
ASK = {"prompt": "A prompt that is long enough for some blocks of KV. " * 8, "max_tokens": 6, "ignore_eos": True}
NO_SECRET = {"TANDEM_CLUSTER_SECRET": ""}


def instance(name, role, *flags, flow="pull", secret=""):
    return tandem.serve(name, *STUB, *flags, model="m", role=role, transfer={"kv_connector": tandem.CONNECTORS[flow]},
                        environment={"TANDEM_CLUSTER_SECRET": secret})


class KvTransfer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.member = tandem.peer_certificates(folder.name)
        cls.second = tandem.peer_certificates(folder.name, "second")
        cls.stranger = tandem.peer_certificates(folder.name, "stranger", authority="another")
        cls.pull = cls.start_pair("pull", cls.member, cls.second)
        cls.layerwise = cls.start_pair("layerwise", cls.member, cls.second)
        cls.by_secret = cls.start_pair("pull", (), (), secret="a test's")
        cls.alone = cls.started(tandem.serve("alone", *STUB, model="m", environment=NO_SECRET))
        cls.alone.wait_ready()
        cls.expected = cls.alone.complete(**ASK)["choices"][0]["text"]

    @classmethod
    def started(cls, process):
        cls.addClassCleanup(process.stop)
        return process

    @classmethod
    def start_pair(cls, flow, p_flags, d_flags, **options):
        p = cls.started(instance("P", "kv_producer", *p_flags, flow=flow, **options))
        d = cls.started(instance("D", "kv_consumer", *d_flags, flow=flow, **options))
        return p, d, cls.started(tandem.proxy([p], [d]))

    def check_served(self, deployment):
        p, d, proxy = deployment
        proxy.wait_ready()
        before = d.metric("tandem:kv_transfer_bytes_total", transport="tcp")
        for i in range(3):
            status, answer = proxy.post("/v1/completions", {**ASK, "prompt": ASK["prompt"] + str(i)})
            self.assertEqual(status, 200, answer)
        self.assertEqual(proxy.complete(**ASK)["choices"][0]["text"], self.expected)
        self.assertGreater(d.metric("tandem:kv_transfer_bytes_total", transport="tcp"), before)

    def test_certificates_pull(self):
        self.check_served(self.pull)
        self.assertIn("TLS by certificates", self.pull[0].log())

    def test_certificates_layerwise(self):
        self.check_served(self.layerwise)

    def test_a_secret(self):
        self.check_served(self.by_secret)
        self.assertIn("TLS by the secret", self.by_secret[1].log())

    def check_refused(self, p, d, d_says, p_says):
        """Requests of this decoder fail with a reason; that of the prefiller is in its log once, not each time."""
        for one in (p, d):
            one.wait_ready()
        proxy = self.started(tandem.proxy([p], [d])).wait_ready()
        for i in range(4):
            status, answer = proxy.post("/v1/completions", {**ASK, "prompt": f"{i} {ASK['prompt']}"})
            self.assertGreaterEqual(status, 500, answer)
        self.assertIn(d_says, d.log())
        tandem.wait_until(lambda: p_says in p.log(), 5, f"the prefiller says: {p_says}")
        return p.log().count(p_says)

    def test_a_plain_decoder_is_refused_and_others_are_served(self):
        p, _, _ = self.pull
        plain = self.started(instance("plain", "kv_consumer"))
        lines = self.check_refused(p, plain, "it speaks TLS, and this side does not; give both sides the same",
                                   "it does not speak TLS, and this side does; give both sides the same")
        self.assertEqual(lines, 1)
        self.check_served(self.pull)

    def test_a_decoder_with_tls_does_not_take_kv_from_a_plain_prefiller(self):
        p = self.started(instance("plain-P", "kv_producer"))
        d = self.started(instance("D-tls", "kv_consumer", secret="a test's"))
        self.check_refused(p, d, "it does not speak TLS, and this side does", "it speaks TLS, and this side does not")

    def test_another_secret(self):
        d = self.started(instance("other", "kv_consumer", secret="another"))
        self.check_refused(self.by_secret[0], d, "it refuses this side's secret", "it has another secret")
        self.check_served(self.by_secret)

    def test_a_certificate_of_another_authority(self):
        # It trusts the cluster's authority, so that only its own certificate is wrong.
        flags = [*self.member[:2], *self.stranger[2:]]
        p, d, _ = self.layerwise
        stranger = self.started(instance("stranger", "kv_consumer", *flags, flow="layerwise"))
        # A prefiller connects first in a push: here it is the one that is told, and the one that refuses.
        for one in (p, stranger):
            one.wait_ready()  # so that the proxy learns their connector
        proxy = self.started(tandem.proxy([p], [stranger])).wait_ready()
        status, answer = proxy.post("/v1/completions", {**ASK, "prompt": "x " + ASK["prompt"]}, timeout_s=60)
        self.assertGreaterEqual(status, 500, answer)
        self.assertIn("its certificate is refused: ", p.log(), answer)
        tandem.wait_until(lambda: "it refuses this side's certificate" in stranger.log(), 5, "the decoder is told")
        self.check_served(self.layerwise)

    def test_what_does_not_go_together_is_a_usage_error(self):
        both = instance("both", "kv_consumer", *self.member, secret="x")
        self.addCleanup(both.stop)
        self.assertEqual(both.process.wait(20), 2)
        self.assertIn("leave one out, everywhere", both.log())
        missing = instance("missing", "kv_consumer", "--peer-ca-certs", "/nowhere.crt", *self.member[2:])
        self.addCleanup(missing.stop)
        self.assertEqual(missing.process.wait(20), 1)
        self.assertIn("--peer-ca-certs: peer CA /nowhere.crt: No such file or directory", missing.log())


if __name__ == "__main__":
    unittest.main()
