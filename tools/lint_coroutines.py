#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds co_await expressions that g++ 12 miscompiles (double free of temporaries).

Flagged, in one statement with co_await: lambdas with captures, braced temporaries, ?: and co_await inside braces.
Each is cured by a named local before the statement. A regular expression, not a parser: it may flag harmless code
(name the local anyway) and misses what macros hide, so the builds under AddressSanitizer stay beside it.

usage: lint_coroutines.py [file or folder ...]    default: the parts that may use coroutines
Exit code 1 if anything was found. Parts other than these may not use coroutines at all, which is checked too.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COROUTINE_PARTS = ("net", "api", "proxy", "bench")
SUFFIXES = (".cc", ".h")

CAPTURING_LAMBDA = re.compile(r"\bco_await\b.*\[[^\]\[]*[\w&=][^\]\[]*\]\s*(\(|\{|mutable|->)", re.S)
BRACED_TEMPORARY = re.compile(r"\bco_await\b.*(\(|,)\s*[\w:<>]*\s*\{", re.S)
CONDITIONAL = re.compile(r"\?")
STATEMENT = re.compile(r"[^;{}]*\bco_await\b[^;]*;")
INSIDE_BRACES = re.compile(r"\bco_await\b[^;{}]*\}")
KEYWORD = re.compile(r"\bco_(await|yield|return)\b")


def without_comments_and_strings(text):
    """Same length and lines, so that offsets stay true."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))
    text = re.sub(r'R"(\w*)\((?:.|\n)*?\)\1"', lambda m: '"' + re.sub(r"[^\n]", " ", m.group(0)[1:-1]) + '"', text)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', lambda m: '"' + " " * (len(m.group(0)) - 2) + '"', text)
    text = re.sub(r"//[^\n]*", blank, text)
    return re.sub(r"/\*.*?\*/", blank, text, flags=re.S)


def without_lambda_bodies(statement):
    return re.sub(r"\[.*?\][^{]*\{.*", "", statement, flags=re.S)


def findings(text):
    code = without_comments_and_strings(text)
    found = set()
    for match in STATEMENT.finditer(code):
        statement = match.group(0)
        at = match.start() + statement.index("co_await")
        if CAPTURING_LAMBDA.search(statement):
            found.add((at, "capturing lambda"))
        if BRACED_TEMPORARY.search(without_lambda_bodies(statement)):
            found.add((at, "braced temporary"))
        if CONDITIONAL.search(statement):
            found.add((at, "?: operator"))
    for match in INSIDE_BRACES.finditer(code):
        found.add((match.start(), "co_await inside braces"))
    for at, why in sorted(found):
        yield code.count("\n", 0, at) + 1, why


def sources(paths):
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)
        else:
            yield path


def check(paths):
    bad = 0
    for path in sources(paths):
        for line, why in findings(path.read_text(encoding="utf-8")):
            print(f"{path}:{line}: {why} in a co_await expression; name it in a local first (g++ 12 double free)")
            bad += 1
    return bad


def check_other_parts():
    bad = 0
    for part in sorted(p for p in (ROOT / "src").iterdir() if p.is_dir() and p.name not in COROUTINE_PARTS):
        for path in sources([part]):
            code = without_comments_and_strings(path.read_text(encoding="utf-8"))
            if match := KEYWORD.search(code):
                line = code.count("\n", 0, match.start()) + 1
                print(f"{path}:{line}: coroutines are for {', '.join(COROUTINE_PARTS)} only")
                bad += 1
    return bad


def main(arguments):
    if arguments:
        bad = check([pathlib.Path(a) for a in arguments])
    else:
        bad = check([ROOT / "src" / part for part in COROUTINE_PARTS if (ROOT / "src" / part).is_dir()])
        bad += check_other_parts()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
