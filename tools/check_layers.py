#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the dependency directions of docs/architecture.md: which part of src/ may include which other."""
import pathlib
import re
import sys

# part -> parts it may include, beside itself, base and obs.
MAY_KNOW = {
    "base": set(),
    "obs": set(),
    "config": set(),
    "text": set(),
    "net": set(),
    "kernels": set(),
    "kv": set(),
    "comm": set(),
    "model": {"kernels", "comm", "kv"},
    "transfer": {"kv"},
    "worker": {"model", "kv", "transfer", "comm", "kernels"},
    "engine": {"worker", "kv", "transfer", "text"},
    "api": {"engine", "text", "net", "config", "worker", "transfer"},
    "proxy": {"config", "net"},
    "cluster": {"config", "net"},
    "bench": {"config", "net", "text"},
    "app": None,  # everything
}
# What one part may see of another, where the design grants only its interface.
ONLY_HEADERS = {
    ("engine", "worker"): {"worker/worker.h", "worker/sampling_params.h"},
    ("api", "worker"): {"worker/sampling_params.h", "worker/worker.h"},
    ("api", "transfer"): {"transfer/handover.h", "transfer/delivery.h"},
}
# Libraries that stay behind one part or in few files.
ONLY_IN = {
    "boost/beast": ("src/net/", ".cc"),
    "CLI/": ("src/config/command_line", ""),
    "spdlog/": ("src/base/log.cc", ""),
    "prometheus/": ("src/obs/", ""),
    "yaml-cpp/": ("src/", ".cc"),
    "boost/json.hpp": ("src/", ".cc"),
}
# base is at the bottom, obs just above it: base may not look up.
COMMON = {"base": {"base"}, "obs": {"base", "obs"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.M)


def check(root: pathlib.Path) -> list[str]:
    problems = []
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in (".h", ".cc") or "crate" in path.parts:
            continue
        name = path.relative_to(root).as_posix()
        part = path.relative_to(root / "src").parts[0]
        if part not in MAY_KNOW:
            problems.append(f"{name}: part '{part}' is not in the table of tools/check_layers.py")
            continue
        allowed = MAY_KNOW[part]
        text = path.read_text()
        for match in INCLUDE.finditer(text):
            header = match.group(1)
            line = text.count("\n", 0, match.start()) + 1
            for prefix, (place, suffix) in ONLY_IN.items():
                if header.startswith(prefix) and not (name.startswith(place) and name.endswith(suffix)):
                    problems.append(f"{name}:{line}: <{header}> belongs in {place}*{suffix} only")
            other = header.split("/")[0]
            if other not in MAY_KNOW or not (root / "src" / header).exists() or other == part or allowed is None:
                continue
            if other in COMMON.get(part, {"base", "obs"}):
                continue
            if other not in allowed:
                problems.append(f"{name}:{line}: {part} may not know {other} (includes {header})")
            elif (part, other) in ONLY_HEADERS and header not in ONLY_HEADERS[(part, other)]:
                problems.append(f"{name}:{line}: {part} may know only {sorted(ONLY_HEADERS[(part, other)])} of {other}")
    return problems


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    problems = check(root)
    print("\n".join(problems) if problems else "layers: every include follows the table")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
