# SPDX-License-Identifier: Apache-2.0
"""What vLLM-Ascend's proxy scripts import of vLLM: its logger, and nothing else. vLLM itself is not needed to run them."""
