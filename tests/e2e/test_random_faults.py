# SPDX-License-Identifier: Apache-2.0
"""A short run of random_faults.py for each flow; the long one is `python3 tests/e2e/random_faults.py --requests 1000`."""
import unittest

import random_faults

REQUESTS = 200


class RandomFaults(unittest.TestCase):
    def run_with(self, connector, policy, seed):
        outcomes, faults, wrong = random_faults.run(REQUESTS, connector, policy, seed)
        self.assertEqual(wrong, [])
        self.assertGreater(outcomes["right"], REQUESTS // 4, outcomes)
        self.assertGreaterEqual(sum(faults.values()), 2, "too few faults to mean anything")

    def test_pull(self):
        self.run_with("pull", "fail", 1)

    def test_layerwise_with_recompute(self):
        self.run_with("layerwise", "recompute", 2)


if __name__ == "__main__":
    unittest.main()
