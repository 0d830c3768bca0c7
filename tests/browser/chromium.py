"""A headless Chromium driven over its own debugging protocol: no driver program, no extra package.

- `--host-resolver-rules` lets no name resolve, so a page that asks the network for anything fails.
- Console errors, uncaught exceptions and failed requests of a page are collected.

Usage: `with Browser() as browser: page = browser.open("file:///…/index.html", width=390)`.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--hide-scrollbars", "--remote-debugging-port=0", "--remote-allow-origins=*"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Browser:
    """One browser process with a profile of its own."""

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-")
        command = [str(PROGRAM), *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        port_file = Path(self._profile.name) / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not port_file.is_file() or len(port_file.read_text().split()) < 2:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"chromium did not start: {self._process.poll()}")
            time.sleep(0.05)
        port, path = port_file.read_text().split()
        self._socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None)
        self._last = 0
        self._events: list[dict[str, Any]] = []
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=20)
        shutil.rmtree(self._profile.name, ignore_errors=True)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command and its result; events that come meanwhile are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A page in a tab of its own, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        page.go(url)
        return page

    def wait_for(self, session: str, method: str) -> None:
        """Wait for the next event of a name in a tab."""
        while True:
            event = json.loads(self._socket.recv(timeout=60))
            self._events.append(event)
            if event.get("sessionId") == session and event.get("method") == method:
                return

    def events(self, session: str) -> list[dict[str, Any]]:
        """Events of a tab so far."""
        return [event for event in self._events if event.get("sessionId") == session]


class Page:
    """A loaded page."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command to this tab."""
        return self._browser.call(method, self._session, **params)

    def go(self, url: str) -> None:
        """Load an address and wait until it is complete."""
        self.call("Page.navigate", url=url)
        self.wait(url)

    def reload(self) -> None:
        """Load the page again; its old document answers questions until the load event."""
        self.call("Page.reload")
        self._browser.wait_for(self._session, "Page.loadEventFired")

    def follow(self, selector: str) -> None:
        """Click a link and wait for the page behind it, which may be this one again."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")
        self._browser.wait_for(self._session, "Page.loadEventFired")

    def wait(self, url: str) -> None:
        """Wait until the page at an address is complete."""
        deadline = time.monotonic() + 60
        while self.run("document.readyState + location.href") != f"complete{url}":
            if time.monotonic() > deadline:
                raise TimeoutError(url)
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key press."""
        for kind in ("rawKeyDown" if not text else "keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text
            )

    def move(self, x: float, y: float) -> None:
        """Put the pointer somewhere."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def problems(self) -> list[str]:
        """Console errors, exceptions and failed requests since the page was opened."""
        self.run("1")  # everything the page said before is delivered before this answer
        found = []
        for event in self._browser.events(self._session):
            params, method = event["params"], event["method"]
            if method == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails']['text']}")
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
                found.append(f"console: {params['args']}")
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {params['entry']['text']}")
            elif method == "Network.loadingFailed":
                found.append(f"request failed: {params['errorText']}")
        return found

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What the page looks like, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """Close the tab."""
        self._browser.call("Target.closeTarget", targetId=self._target)
