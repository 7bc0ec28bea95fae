#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every test that docs/conformance.md names exists: `path::Suite.name`, of C++ (TEST, TEST_F, TEST_P) or unittest."""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tests_of(path: pathlib.Path) -> set:
    text = path.read_text()
    if path.suffix == ".cc":
        return {f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", text, re.M)}
    return {f"{node.name}.{item.name}" for node in ast.parse(text).body if isinstance(node, ast.ClassDef)
            for item in node.body if isinstance(item, ast.FunctionDef) and item.name.startswith("test")}


def main() -> int:
    wrong = []
    known = {}
    for number, line in enumerate((ROOT / "docs" / "conformance.md").read_text().splitlines(), 1):
        if number > 10 and line.startswith("|") and not line.startswith("|---") and line.rstrip().endswith("| |"):
            wrong.append(f"line {number}: no test")
        for name, test in re.findall(r"`([\w/.\-]+\.(?:py|cc|mjs))::([\w.]+)`", line):
            path = ROOT / name
            if not path.is_file():
                wrong.append(f"line {number}: there is no {name}")
                continue
            if path.suffix == ".mjs":
                found = f'"{test}"' in path.read_text()
            else:
                found = test in known.setdefault(name, tests_of(path))
            if not found:
                wrong.append(f"line {number}: {name} has no {test}")
    for text in wrong:
        print(f"docs/conformance.md: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
