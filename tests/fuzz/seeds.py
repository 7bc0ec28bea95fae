#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""seeds.py FILE FOLDER: makes the seeds and the dictionary of a fuzz target: FOLDER/seeds/*, FOLDER/dictionary.

FILE has a seed a line, as JSON: an object is taken as it stands; of a text the content; a recorded output of a model
({"format", "text", ...}) becomes input of tool_parser_fuzz. The dictionary has what stands in quotation marks or angle
brackets in the seeds, with the marks.
"""
import json
import pathlib
import re
import sys

# The first byte chooses what tool_parser_fuzz parses with: format, plus 8 for reasoning; the second where it cuts.
FORMATS = {"hermes": 0, "qwen3_coder": 1, "llama3_json": 2}
MOST_WORD_BYTES = 60  # libFuzzer takes words of up to 64


def seeds_of(line):
    value = json.loads(line)
    if isinstance(value, str):
        return [value.encode()]
    if "format" not in value:
        return [line.encode()]
    text = value["text"].encode()
    kind = FORMATS[value["format"]]
    return [bytes([kind, len(text) // 2 % 256]) + text,
            bytes([kind + 8, len(text) // 2 % 256]) + b"<think>\nhm\n</think>\n" + text]


def words_of(seed):
    for word in re.findall(rb'"[^"\\]*"|</?[a-z_|]+[=>]?', seed):
        if 3 <= len(word) <= MOST_WORD_BYTES:
            yield word


def main():
    source, folder = map(pathlib.Path, sys.argv[1:])
    lines = [line for line in source.read_text(encoding="utf-8").splitlines() if line]
    seeds = [seed for line in lines for seed in seeds_of(line)]
    (folder / "seeds").mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (folder / "seeds" / str(number)).write_bytes(seed)
    words = sorted({word for seed in seeds for word in words_of(seed)} | {b"true", b"false", b"null", b"{}", b"[]"})
    quoted = ("".join(f"\\x{byte:02x}" for byte in word) for word in words)
    (folder / "dictionary").write_text("".join(f'"{word}"\n' for word in quoted), encoding="ascii")


if __name__ == "__main__":
    main()
