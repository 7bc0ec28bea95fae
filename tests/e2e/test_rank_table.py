# SPDX-License-Identifier: Apache-2.0
"""LLMDataDistCMgrConnector over real processes: instances find themselves in the rank table, the decoder pulls, and
refuses KV of an engine that is not in it."""
import json
import pathlib
import tempfile
import unittest

import tandem_processes as tandem

PROMPT = "The rank table says which device is whose, and where. " * 8


def row(server, device, cluster):
    return {"server_id": server, "device_id": str(device), "device_ip": f"10.9.0.{cluster}", "cluster_id": str(cluster)}


class RankTable(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        table = {"version": "1.2", "server_count": "1", "status": "completed",
                 "prefill_device_list": [row("127.0.0.1", 0, 1)], "decode_device_list": [row("127.0.0.1", 1, 2)]}
        path = pathlib.Path(folder.name) / "ranktable.json"
        path.write_text(json.dumps(table))

        def instance(name, role, devices):
            # As the tutorials have it: engine_id "0" everywhere, kv_port without meaning.
            return tandem.serve(
                name, "--max-model-len", "512", role=role,
                transfer={"kv_connector": "LLMDataDistCMgrConnector", "engine_id": "0", "kv_port": "20001",
                          "kv_buffer_device": "npu", "kv_parallel_size": 1},
                environment={"DISAGGREGATED_PREFILL_RANK_TABLE_PATH": str(path), "ASCEND_RT_VISIBLE_DEVICES": devices,
                             "VLLM_ASCEND_LLMDD_RPC_PORT": str(tandem.free_port())})

        cls.prefill = instance("P", "kv_producer", "0")
        cls.decode = instance("D", "kv_consumer", "1")
        for process in (cls.prefill, cls.decode):
            cls.addClassCleanup(process.stop)
            process.wait_ready()
        cls.proxy = tandem.proxy([cls.prefill], [cls.decode]).wait_ready()
        cls.addClassCleanup(cls.proxy.stop)

    def test_pulls_and_gives_the_same_tokens(self):
        through = self.proxy.complete("Pull. " + PROMPT, max_tokens=12)["choices"][0]["text"]
        self.assertGreater(self.decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer"), 50)
        self.assertEqual(through, self.prefill.complete("Pull. " + PROMPT, max_tokens=12)["choices"][0]["text"])
        tandem.assert_blocks_come_back(self.prefill, self.decode)
        self.assertIn("rank 0 is device 1 (10.9.0.2) of 127.0.0.1, cluster_id 2", self.decode.log())

    def test_an_engine_that_is_not_in_the_table(self):
        status, answer = self.prefill.post("/v1/completions", {
            "prompt": "Other. " + PROMPT, "max_tokens": 1, "min_tokens": 1,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}})
        self.assertEqual(status, 200, answer)
        params = answer["kv_transfer_params"]
        status, answer = self.decode.post("/v1/completions", {
            "prompt": "Other. " + PROMPT, "kv_transfer_params": {**params, "remote_host": "192.0.2.77"}})
        self.assertEqual(status, 500, answer)
        self.assertIn("192.0.2.77", answer["error"]["message"])
        self.assertIn("no row of the rank table", answer["error"]["message"])
        self.prefill.post("/tandem/release", {"kv_transfer_params": params})
        tandem.assert_blocks_come_back(self.prefill, self.decode)


if __name__ == "__main__":
    unittest.main()
