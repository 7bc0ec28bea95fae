#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands in for a tandem process in launcher tests: answers 200 to every GET on --port, or fails as told.

FAKE_FAIL=NAME makes the process whose --kv-transfer-config or name in the environment is NAME end at once.
"""
import http.server
import os
import sys


def main() -> int:
    arguments = sys.argv[1:]
    name = os.environ.get("FAKE_NAME", "")
    if name and name == os.environ.get("FAKE_FAIL"):
        print("error: port 99 is in use", file=sys.stderr)
        return 1
    port = int(arguments[arguments.index("--port") + 1])

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    print(f"listening on {port}", flush=True)
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
