"""A Hugging Face hub on loopback that behaves like the real one, and can misbehave.

- Listings come in pages. Large files (Git LFS) redirect to a second address, which alone sends
  and counts their bytes; HEAD carries X-Linked-Size, X-Linked-Etag and X-Repo-Commit.
- `fault` names what goes wrong: `stall` sends nothing behind the middle of a file and leaves the
  connection open, `reset` breaks it off without a goodbye. `patience` is after how many requests it
  behaves again (None: never); `asks` are headers of its refusals. `listing_fault` is a status for
  listings, or `stall` from their second page on.
- It takes commits: repositories other than `REPOSITORY` are folders of `folder`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

REPOSITORY = "someone/fineweb-edu"
COMMIT = "a" * 40
FOLDERS = (("sample/10BT", 0, 0), ("data/CC-MAIN-2023-50", 0, 0))
PAGE = 4


class LittleHub:
    """Two servers: the hub itself, and the storage behind it."""

    def __init__(
        self, root: Path | None = None, *, folder: Path | None = None, lfs=True, token="secret"
    ) -> None:
        self.root, self.folder, self.lfs, self.token = root, folder, lfs, token
        self.fault: str | None = None
        self.patience: int | None = None
        self.listing_fault: int | str | None = None
        self.closed = threading.Event()
        self.asks: dict[str, str] = {"Retry-After": "0"}
        self.requests: list[str] = []
        self.tokens: list[str | None] = []
        self.sent = 0
        self.objects: dict[str, bytes] = {}
        self.commits: list[dict] = []
        self._servers = [_serve(self, _Hub), _serve(self, _Storage)]
        self.url, self.storage = (f"http://127.0.0.1:{s.server_port}" for s in self._servers)

    def close(self):
        self.closed.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def place(self, repository: str) -> Path:
        if repository == REPOSITORY and self.root is not None:
            return self.root
        return (self.folder or Path("/nonexistent")) / repository

    def files(self, repository: str) -> list[str]:
        root = self.place(repository)
        return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())

    def bytes_of(self, repository: str, name: str) -> bytes:
        data = (self.place(repository) / name).read_bytes()
        if self.fault == "other-bytes":  # one letter of a text, behind an index that says otherwise
            data = data.replace(b"says so", b"says no")
        return data

    def is_large(self, name: str) -> bool:
        return self.lfs and name.endswith((".parquet", ".arrow"))

    def entry(self, repository: str, name: str) -> dict:
        data = (self.place(repository) / name).read_bytes()
        entry = {"type": "file", "path": name, "size": len(data), "oid": "b" * 40}
        if self.is_large(name):
            sha256 = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 130}
        return entry

    def misbehaves(self) -> bool:
        """Whether the fault shows this time."""
        if self.fault in (None, "other-bytes", "moved") or self.patience == 0:
            return False
        if self.patience is not None:
            self.patience -= 1
        return True


def _serve(hub: LittleHub, handler: type) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"hub": hub}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    hub: LittleHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def start(self, status: int, length: int, headers: dict | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def answer(self, value: object, status: int = 200, headers: dict | None = None) -> None:
        data = json.dumps(value).encode()
        self.start(status, len(data), headers)
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_bytes(self, data: bytes, headers: dict) -> None:
        """The file or a range of it; broken off in the middle if the hub misbehaves."""
        hub, status, asked = self.hub, 200, self.headers.get("Range")
        headers = {"Accept-Ranges": "bytes", **headers}
        broken = hub.fault if self.command == "GET" and hub.misbehaves() else None
        if broken in ("429", "503", "403"):
            return self.answer({"error": "later"}, int(broken), hub.asks)
        if broken == "loop":
            return self.answer({}, 302, {"Location": self.path})
        first, total = 0, len(data)
        if asked:
            first, last = (int(n or total) for n in asked.removeprefix("bytes=").split("-"))
            status, data = 206, data[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(data) - 1}/{total}"
        self.start(status, len(data) // 2 if broken == "short" else len(data), headers)
        if self.command == "HEAD":
            return None
        sending = data[: len(data) // 2] if broken else data
        if broken == "stall":
            sending = data[: max(0, total // 2 - first)]
        self.wfile.write(sending)
        hub.sent += len(sending)
        self.close_connection = bool(broken)
        if broken == "stall":
            hub.closed.wait()
        if broken == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        return None


class _Storage(_Handler):
    """Where the bytes of large files are; the address says which."""

    def do_GET(self) -> None:
        self.hub.tokens.append(self.headers.get("Authorization"))
        repository, _, name = unquote(self.path[1:]).partition("//")
        self.send_bytes(self.hub.bytes_of(repository, name), {"ETag": '"storage"'})


class _Hub(_Handler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        self.hub.requests.append(path)
        words = path.split("/")
        if path.startswith(("/api/datasets/", "/api/models/")) and len(words) >= 5:
            return self.listing(f"{words[3]}/{words[4]}", words[5:], parse_qs(url.query))
        if path.startswith("/datasets/") and words[4:5] == ["resolve"]:
            return self.resolve(f"{words[2]}/{words[3]}", words[5], "/".join(words[6:]))
        return self.answer({"error": f"nothing at {path}"}, 404)

    def listing(self, repository: str, words: list[str], query: dict) -> None:
        hub = self.hub
        if hub.listing_fault == "stall" and "cursor" in query:
            hub.closed.wait()
        elif hub.listing_fault not in (None, "stall"):
            return self.answer({"error": "later"}, hub.listing_fault, hub.asks)
        if not hub.place(repository).is_dir():
            return self.answer({}, 404, {"X-Error-Code": "RepoNotFound"})
        if "nosuch" in words:
            return self.answer({}, 404, {"X-Error-Code": "RevisionNotFound"})
        if words[:1] == ["tree"]:
            return self.tree(repository, "/".join(words[2:]), int(query.get("cursor", ["0"])[0]))
        commit = "b" * 40 if hub.fault == "moved" else COMMIT
        siblings = [{"rfilename": file} for file in hub.files(repository)]
        return self.answer({"id": repository, "sha": commit, "siblings": siblings})

    def tree(self, repository: str, folder: str, cursor: int) -> None:
        names = [n for n in self.hub.files(repository) if n.startswith(f"{folder}/") or not folder]
        if folder and not names:
            return self.answer({}, 404, {"X-Error-Code": "EntryNotFound"})
        entries = [self.hub.entry(repository, n) for n in names[cursor : cursor + PAGE]]
        following = f"{self.hub.url}{self.path.partition('?')[0]}?recursive=true&cursor="
        link = {"Link": f'<{following}{cursor + PAGE}>; rel="next"'}
        return self.answer(entries, headers=link if names[cursor + PAGE :] else None)

    def resolve(self, repository: str, revision: str, name: str) -> None:
        hub = self.hub
        if not (hub.place(repository) / name).is_file():
            return self.answer({}, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        commit = "b" * 40 if hub.fault == "moved" else COMMIT
        data = (hub.place(repository) / name).read_bytes()
        if not hub.is_large(name):
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            return self.send_bytes(
                hub.bytes_of(repository, name), {"X-Repo-Commit": commit, "ETag": etag}
            )
        headers = {
            "X-Repo-Commit": commit,
            "X-Linked-Size": str(len(data)),
            "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "Location": f"{hub.storage}/{repository}//{name}",
        }
        return self.answer({}, 302, headers)

    def do_PUT(self) -> None:
        self.hub.objects[self.path.rpartition("/")[2]] = self.body()
        self.answer({})

    def do_POST(self) -> None:
        body = self.body()
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.answer({"error": "Invalid credentials"}, 401)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or "me"
            self.hub.place(f"{owner}/{asked['name']}").mkdir(parents=True, exist_ok=True)
            return self.answer({"url": f"{self.hub.url}/datasets/{owner}/{asked['name']}"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".arrow") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self.answer({"files": modes})
        if self.path.endswith("/info/lfs/objects/batch"):
            return self.answer({"transfer": "basic", "objects": self.uploads(body)})
        if "/commit/" in self.path:
            return self.commit(body)
        return self.answer({"error": f"nothing at {self.path}"}, 404)

    def uploads(self, body: bytes) -> list[dict]:
        return [
            {**asked, "actions": {"upload": {"href": f"{self.hub.url}/objects/{asked['oid']}"}}}
            for asked in json.loads(body)["objects"]
        ]

    def commit(self, body: bytes) -> None:
        owner, name = self.path.split("/")[3:5]
        root = self.hub.place(f"{owner}/{name}")
        for entry in map(json.loads, body.splitlines()):
            value = entry["value"]
            if entry["key"] == "header":
                self.hub.commits.append(value)
                continue
            target = root / value["path"]
            if entry["key"] == "deletedFile":
                target.unlink()
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            is_file = entry["key"] == "file"
            data = base64.b64decode(value["content"]) if is_file else self.hub.objects[value["oid"]]
            target.write_bytes(data)
        url = f"{self.hub.url}/datasets/{owner}/{name}"
        self.answer(
            {"commitUrl": f"{url}/commit/{'1' * 40}", "commitOid": "1" * 40, "success": True}
        )


CARD = """---
license: odc-by
pretty_name: FineWeb-Edu
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*
- config_name: CC-MAIN-2023-50
  data_files:
  - split: train
    path: data/CC-MAIN-2023-50/*
---
# a card
"""


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
    (root / "README.md").write_text(CARD)
    return root
