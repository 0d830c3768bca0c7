"""An HTTP proxy in front of the store: `python gate.py ADDRESS CONTROL_FILE [PORT STORE_PORT]`.

The control file says what happens to requests: empty (pass), `503` or `429` (refuse; `503/3` every
third one), a number of seconds to wait before an answer, or `hold N`: PUTs after the first N wait
for another order. `gate.json` beside it counts finished PUTs by the client's address, and requests
that were refused or held.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONTROL = Path(sys.argv[2])
PORT, STORE_PORT = map(int, sys.argv[3:] or (5001, 5000))
COUNTS = CONTROL.with_name("gate.json")
COUNTING = threading.Lock()
COUNTED: Counter[str] = Counter()


def ordered() -> str:
    return CONTROL.read_text().strip() if CONTROL.exists() else ""


def count(what: str) -> int:
    with COUNTING:
        COUNTED[what] += 1
        new = COUNTS.with_suffix(".new")
        new.write_text(json.dumps(COUNTED))
        new.replace(COUNTS)
        return COUNTED[what]


class Gate(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        order = ordered()
        status, _, every = order.partition("/")
        if status in ("429", "503"):
            if count("seen") % int(every or 1) == 0:
                self.send_response(int(status))
                self.send_header("Content-Length", "0")
                self.end_headers()
                count("refused")
                return
        elif order.startswith("hold"):
            if self.command == "PUT" and count("asked") > int(order.split()[1]):
                count("held")
                while ordered() == order:
                    time.sleep(0.05)
                return
        elif order:
            time.sleep(float(order))
        inner = http.client.HTTPConnection("127.0.0.1", STORE_PORT, timeout=60)
        inner.request(self.command, self.path, body, dict(self.headers))
        answer = inner.getresponse()
        data = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        if self.command == "PUT":
            count(self.client_address[0])

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer((sys.argv[1], PORT), Gate).serve_forever()
