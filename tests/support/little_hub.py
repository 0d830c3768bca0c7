"""A Hugging Face hub on loopback, as small as the real client allows; it can misbehave.

`fault` names what goes wrong with the files it serves; `patience` is after how many requests it
behaves again (None: never).
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

REPOSITORY = "someone/fineweb-edu"
COMMIT = "a" * 40
FOLDERS = (("sample/10BT", 0), ("data/CC-MAIN-2023-50", 0))
FAULTS = ("cut", "short", "429", "503", "other-bytes", "moved")


class LittleHub:
    """Serves one dataset repository from a folder the way the hub does, ranges included."""

    def __init__(self, root: Path, *, lfs: bool = True) -> None:
        self.root, self.lfs, self.requests = root, lfs, []
        self.fault: str | None = None
        self.patience: int | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args):
                pass

            def do_HEAD(self):
                outer.answer(self, body=False)

            def do_GET(self):
                outer.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request, *, body):
        path = unquote(urlsplit(request.path).path)
        self.requests.append(path)
        api_root = f"/api/datasets/{REPOSITORY}"
        if path.startswith(f"{api_root}/revision/"):
            if path.endswith("/nosuch"):
                return self.send(request, 404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
            commit = "b" * 40 if self.fault == "moved" else COMMIT
            info = {"id": REPOSITORY, "sha": commit, "siblings": [], "private": False}
            return self.send(request, 200, json.dumps(info).encode(), body)
        if path.startswith(f"{api_root}/tree/"):
            folder = path.split("/", 7)[7] if path.count("/") > 6 else ""
            if not (self.root / folder).is_dir():
                return self.send(request, 404, b"{}", body, {"X-Error-Code": "EntryNotFound"})
            return self.send(request, 200, json.dumps(self.tree(folder)).encode(), body)
        if path.startswith(f"/datasets/{REPOSITORY}/resolve/{COMMIT}/"):
            return self.send_file(request, self.root / path.split("/", 6)[6], body)
        return self.send(request, 404, b"{}", body)

    def tree(self, folder):
        entries = []
        for file in sorted(p for p in (self.root / folder).rglob("*") if p.is_file()):
            data = file.read_bytes()
            name = file.relative_to(self.root).as_posix()
            entry = {"type": "file", "path": name, "size": len(data), "oid": "b" * 40}
            if self.lfs:
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 130}
            entries.append(entry)
        return entries

    def send_file(self, request, file, body):
        if body and self.fault and self.patience != 0:
            if self.patience is not None:
                self.patience -= 1
            if self.fault in ("429", "503"):
                headers = {"Retry-After": "0"}
                return self.send(request, int(self.fault), b"later", body, headers)
        elif self.fault != "other-bytes":
            return self.send_range(request, file.read_bytes(), body)
        data = file.read_bytes()
        if self.fault == "other-bytes":  # one letter of a text, behind an index that says otherwise
            data = data.replace(b"says so", b"says no")
        self.send_range(request, data, body, broken=self.fault if body else None)

    def send_range(self, request, data, body, broken=None):
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes", "ETag": '"etag"'}
        asked = request.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            stop = int(last) + 1 if last else len(data)
            total, data = len(data), data[int(first) : stop]
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{total}"
        if broken in ("cut", "short"):
            announced = len(data) if broken == "cut" else len(data) // 2
            self.start(request, 206 if asked else 200, announced, headers)
            request.wfile.write(data[: len(data) // 2])
            request.close_connection = True
            return
        self.send(request, 206 if asked else 200, data, body, headers)

    def start(self, request, status, length, headers=None):
        request.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(length))
        request.end_headers()

    def send(self, request, status, data, body, headers=None):
        self.start(request, status, len(data), headers)
        if body:
            request.wfile.write(data)


def write_repository(root: Path) -> Path:
    for folder, dump, count in (
        ("sample/10BT", "CC-MAIN-2023-14", 120),
        ("data/CC-MAIN-2023-50", "CC-MAIN-2023-50", 60),
        ("data/CC-MAIN-2024-10", "CC-MAIN-2024-10", 30),
    ):
        for part in range(2):
            names = [f"{dump}-{part}-{n}" for n in range(count)]
            columns = {
                "text": [f"{name}: " + f"{name} says so. " * 40 for name in names],
                "id": names,
                "dump": [dump] * count,
                "url": [f"https://a.example/{name}" for name in names],
            }
            file = root / folder / f"{part:03d}_00000.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), file, row_group_size=50)
    (root / "README.md").write_text("a card")
    return root
