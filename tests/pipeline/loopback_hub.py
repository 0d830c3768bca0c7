"""A hub on loopback that takes commits: enough for `huggingface_hub` to create, upload and list.

Files end up in a folder, as a reader of the repository would get them.
"""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Hub:
    """A server; `folder/OWNER/NAME` is what each repository holds."""

    def __init__(self, folder: Path, token: str = "secret") -> None:
        self.folder, self.token = folder, token
        self.objects: dict[str, bytes] = {}
        self.commits: list[dict] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def files(self, repository: str) -> list[str]:
        root = self.folder / repository
        return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_PUT(self) -> None:
        self.hub.objects[self.path.rpartition("/")[2]] = self._body()
        self._answer({})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not path.startswith(("/api/datasets/", "/api/models/")):
            return self._answer({"error": f"nothing at {path}"}, 404)
        owner, name = path.split("/")[3:5]
        files = self.hub.files(f"{owner}/{name}")
        if "/tree/" in path:
            return self._answer([{"type": "file", "path": f, "size": 1, "oid": "0"} for f in files])
        siblings = [{"rfilename": file} for file in files]
        self._answer({"id": f"{owner}/{name}", "siblings": siblings, "sha": "0" * 40})

    def do_POST(self) -> None:
        body = self._body()
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._answer({"error": "Invalid credentials"}, 401)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or "me"
            (self.hub.folder / owner / asked["name"]).mkdir(parents=True, exist_ok=True)
            return self._answer({"url": f"{self.hub.url}/datasets/{owner}/{asked['name']}"})
        if self.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".arrow") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self._answer({"files": modes})
        if self.path.endswith("/info/lfs/objects/batch"):
            return self._answer({"transfer": "basic", "objects": self._uploads(body)})
        if "/commit/" in self.path:
            return self._commit(body)
        self._answer({"error": f"nothing at {self.path}"}, 404)

    def _uploads(self, body: bytes) -> list[dict]:
        return [
            {**asked, "actions": {"upload": {"href": f"{self.hub.url}/objects/{asked['oid']}"}}}
            for asked in json.loads(body)["objects"]
        ]

    def _commit(self, body: bytes) -> None:
        owner, name = self.path.split("/")[3:5]
        root = self.hub.folder / owner / name
        entries = [json.loads(line) for line in body.splitlines()]
        for entry in entries:
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
        self._answer(
            {"commitUrl": f"{url}/commit/{'1' * 40}", "commitOid": "1" * 40, "success": True}
        )
