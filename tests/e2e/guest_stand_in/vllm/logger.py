# SPDX-License-Identifier: Apache-2.0
import logging


def init_logger(name):
    logging.basicConfig(level=logging.INFO)
    return logging.getLogger(name)
