"""The Prefect server of `make deploy` and a browser: its owner logs in, a stranger's page fails."""

from __future__ import annotations

import http.server
import json
import sqlite3
import threading
import time
import uuid

import pytest
from deployed import Project, embedded

pytestmark = [
    pytest.mark.browser,
    pytest.mark.prefect,
    pytest.mark.xdist_group("prefect"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("project"))
    started = project.server("up")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        yield project
    finally:
        project.server("down")


@pytest.fixture
def stranger():
    """The address of a page on another port of this machine, which is another origin."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>stranger</title>")

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


ATTACK = """(async (url, id) => {
  const body = JSON.stringify({job_variables: {command: "touch /tmp/pwned"}});
  const run = `${url}/deployments/${id}/create_flow_run`;
  const said = [];
  for (const how of [
    {method: "POST", body: new Blob([body]), mode: "no-cors"},
    {method: "POST", body: new Blob([body]), mode: "no-cors", credentials: "include"},
    {method: "POST", body, mode: "cors", headers: {"Content-Type": "application/json"}},
    {method: "POST", body, mode: "cors", headers: {"Prefect-Csrf-Token": "x",
      "Prefect-Csrf-Client": "y"}},
  ]) {
    try { const reply = await fetch(run, how); said.push(`${reply.type} ${reply.status}`); }
    catch (error) { said.push("refused"); }
  }
  try { said.push(await (await fetch(`${url}/csrf-token?client=me`)).text()); }
  catch (error) { said.push("refused"); }
  return said;
})"""


def test_a_strangers_page_starts_no_run(project, browser, stranger):
    ident = project.ask("/deployments/name/build-lean/build-lean")[1]["id"]
    before = project.runs()
    page = browser.open(stranger)
    try:
        said = page.run(f"{ATTACK}({json.dumps(project.state['url'])}, {json.dumps(ident)})")
    finally:
        page.close()
    # An opaque answer tells the page nothing; whether it started something tells the database.
    assert said == ["opaque 0", "opaque 0", "refused", "refused", "refused"]
    assert project.runs() == before


def test_a_strangers_page_gets_nothing_from_the_server_of_a_command(tmp_path, browser, stranger):
    page = browser.open(stranger)
    try:
        with embedded(tmp_path) as url:
            said = page.run(f"{ATTACK}({json.dumps(url)}, {json.dumps(str(uuid.uuid4()))})")
    finally:
        page.close()
    assert said == ["opaque 0", "opaque 0", "refused", "refused", "refused"]
    with sqlite3.connect(tmp_path / ".state" / "prefect" / "home" / "prefect.db") as rows:
        assert rows.execute("select count(*) from flow_run").fetchone() == (0,)


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


def test_the_owner_logs_in_and_sees_the_deployments(project, browser):
    ui = project.state["url"].removesuffix("/api")
    page = browser.open(f"{ui}/login")
    try:
        wait_for(lambda: page.run("document.querySelector('input[type=password]') !== null"))
        page.run("document.querySelector('input[type=password]').focus()")
        page.call("Input.insertText", text=project.auth)
        page.press("Enter", 13, "\r")
        wait_for(lambda: "login" not in page.run("location.pathname"))
        page.call("Page.navigate", url=f"{ui}/deployments")
        wait_for(lambda: "build-lean" in page.run("document.body?.innerText ?? ''"))
    finally:
        page.close()
