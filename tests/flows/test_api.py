"""Finding the configured Prefect API as Prefect itself would, without importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tangobench.flows import _api

A, B, C, D, E = (f"http://{letter}.test/api" for letter in "abcde")


@pytest.fixture
def places(tmp_path):
    """Every place a URL can stand in; each test fills some."""
    home = tmp_path / "home"
    home.mkdir()
    return {
        ".env": (tmp_path / ".env", f'export PREFECT_API_URL="{B}"\n'),
        "prefect.toml": (tmp_path / "prefect.toml", f'[api]\nurl = "{C}"\n'),
        "pyproject.toml": (tmp_path / "pyproject.toml", f'[tool.prefect.api]\nurl = "{D}"\n'),
        "profile": (
            home / "profiles.toml",
            f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{E}"\n',
        ),
    }


CASES = [
    pytest.param([], {}, None, id="nowhere"),
    pytest.param(
        [".env", "prefect.toml", "pyproject.toml", "profile"],
        {"PREFECT_API_URL": A},
        A,
        id="environment first",
    ),
    pytest.param([".env", "prefect.toml", "pyproject.toml", "profile"], {}, B, id="then .env"),
    pytest.param(["prefect.toml", "pyproject.toml", "profile"], {}, C, id="then prefect.toml"),
    pytest.param(["pyproject.toml", "profile"], {}, D, id="then pyproject.toml"),
    pytest.param(["profile"], {}, E, id="then the active profile"),
    pytest.param(["profile"], {"PREFECT_PROFILE": "other"}, None, id="another profile"),
]


@pytest.mark.parametrize(("filled", "environment", "expected"), CASES)
def test_the_configured_url(filled, environment, expected, places, tmp_path):
    for name in filled:
        path, text = places[name]
        path.write_text(text)
    environment = {"PREFECT_HOME": str(tmp_path / "home"), **environment}
    assert _api.configured_url(tmp_path, environment) == expected


def test_prefect_itself_agrees_on_the_order(places, tmp_path, monkeypatch):
    """One start of Prefect per file removed, from the highest place down."""
    environment = {"PATH": "/usr/bin:/bin", "PREFECT_HOME": str(tmp_path / "home")}
    for path, text in places.values():
        path.write_text(text)
    for name in ("nothing", ".env", "prefect.toml"):
        if name in places:
            places[name][0].unlink()
        script = "from prefect.settings import PREFECT_API_URL as u; print(u.value())"
        said = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        assert said == _api.configured_url(tmp_path, environment)


def test_a_broken_file_counts_as_empty(tmp_path):
    (tmp_path / "prefect.toml").write_text("[api\n")
    assert _api.configured_url(tmp_path, {"PREFECT_HOME": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:4200/api", True),
        ("http://localhost/api", True),
        ("https://api.prefect.cloud/api", False),
        ("http://127.0.0.1.evil.test/api", False),
    ],
)
def test_loopback(url, expected):
    assert _api.is_loopback(url) is expected


def test_nobody_answers_at_a_closed_port():
    assert not _api.answers("http://127.0.0.1:9/api", seconds=0.5)


def test_a_proxy_does_not_stand_between_us_and_loopback(monkeypatch):
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/api/health" else 503)
            self.end_headers()
            self.wfile.write(b"true")

        def log_message(self, *args):
            pass

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/api"
        assert _api.answers(url)
        assert not _api.answers(url, path="/ready")
        server.shutdown()
