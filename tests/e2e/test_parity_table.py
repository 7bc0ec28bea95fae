# SPDX-License-Identifier: Apache-2.0
"""The parts of parity_table.py that CI can afford: every connector, and layouts that do not divide each other."""
import argparse
import tempfile
import unittest

import parity_table


class ParityTable(unittest.TestCase):
    def run_models(self, **arguments):
        with tempfile.TemporaryDirectory(prefix="tandem-parity-") as folder:
            for shape in arguments.pop("models"):
                cells, wrong = parity_table.run_model(shape, argparse.Namespace(**arguments), folder)
                self.assertGreater(cells, 0)
                self.assertEqual(wrong, [])

    def test_two_kv_heads_over_every_connector(self):
        self.run_models(models=["tiny-t7"], connectors=list(parity_table.CONNECTORS), tp=[1, 3, 4])

    def test_twelve_kv_heads(self):
        self.run_models(models=["tiny-t6"], connectors=["pull"], tp=[2, 3])


if __name__ == "__main__":
    unittest.main()
