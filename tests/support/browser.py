"""A real headless Chromium, asked over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.waiting import PATIENCE_SECONDS


class Browser:
    """One window; what it says about its pages is kept."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._selector = selectors.DefaultSelector()
        self._selector.register(reading, selectors.EVENT_READ)
        self._received = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []

    def open_window(self) -> None:
        """A window whose messages, errors and requests are told."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return dict(found["result"])

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._received:
            assert self._selector.select(max(0.0, end - time.monotonic())), "the browser says nothing"
            chunk = os.read(self._reading, 1 << 16)
            assert chunk, "the browser has ended"
            self._received += chunk
        text, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        if "method" in found:
            self.events.append(found)
        return found

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event from now on of which something holds."""
        while True:
            found = self._next()
            if "method" in found and holds(found):
                return found

    def visit(self, address: str) -> None:
        """Load a page to its end."""
        self.ask("Page.navigate", url=address)
        self.until(lambda event: event["method"] == "Page.loadEventFired")

    def show(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Be a screen of a size, with a taste in colours."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, script: str) -> Any:
        """What an expression of JavaScript gives, beside whatever the page has."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press a key and let it go."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, *, whole: bool = True) -> bytes:
        """A PNG of the page, also of what is below the screen."""
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def complaints(self) -> list[str]:
        """Errors and whatever else the console was told."""
        told = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Network.loadingFailed")
        return [json.dumps(one["params"]) for one in self.events if one["method"] in told]

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        return [one["params"]["request"]["url"] for one in self.events if one["method"] == "Network.requestWillBeSent"]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, gone afterwards."""
    (read_low, write_here), (read_here, write_low) = os.pipe(), os.pipe()
    # The browser wants them as 3 and 4: neither may have one of these numbers before.
    read_there, write_there = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (read_low, write_low))
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-pipe",
                 f"--user-data-dir={profile}"]  # fmt: skip
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f'exec chromium "$@" 3<&{read_there} 4>&{write_there}', "chromium", *arguments],
            pass_fds=(read_there, write_there), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    for one in (read_low, write_low, read_there, write_there):
        os.close(one)
    browser = Browser(read_here, write_here)
    try:
        browser.open_window()
        yield browser
    finally:
        os.close(write_here)  # it ends with its pipe
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        os.close(read_here)
