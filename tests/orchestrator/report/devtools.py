"""A page in headless Chromium over the DevTools protocol, with the standard library alone."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """Use as a context manager. `requests` and `errors`: what the page asked for, and what went wrong in it."""

    def __init__(self, profile: Path) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._ids = 0
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            "--window-size=1400,1200",
        ]
        self._process = subprocess.Popen(
            [str(CHROMIUM), *flags, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._socket = _connect(_address(profile))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def open(self, file: Path) -> None:
        self.call("Page.navigate", url=file.as_uri())
        deadline, ready = time.monotonic() + 60, "location.protocol == 'file:' && document.readyState == 'complete'"
        while not self.js(ready):
            assert time.monotonic() < deadline, "the page did not load"
            time.sleep(0.05)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._ids += 1
        _send(self._socket, json.dumps({"id": self._ids, "method": method, "params": parameters}))
        while True:
            message = _receive(self._socket)
            if message.get("id") == self._ids:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def js(self, expression: str) -> Any:
        """The value of an expression; an exception in it is an error."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click in the middle of the first such element."""
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def middle(self, selector: str) -> tuple[float, float]:
        place = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            "return [r.left + Math.min(r.width / 2, 200), r.top + r.height / 2]; })()"
        )
        return place[0], place[1]

    def drag(self, selector: str, dx: float, dy: float) -> None:
        x, y = self.middle(selector)
        steps = (("mousePressed", 0.0), ("mouseMoved", 0.5), ("mouseMoved", 1.0), ("mouseReleased", 1.0))
        for kind, part in steps:
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x + dx * part,
                y=y + dy * part,
                button="left",
                buttons=1,
                clickCount=1,
            )

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, file: Path) -> bytes:
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        file.write_bytes(data)
        return data

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"])[:2000])


def _address(profile: Path) -> str:
    deadline = time.monotonic() + 60
    file = profile / "DevToolsActivePort"
    while time.monotonic() < deadline:
        if file.exists() and file.read_text().count("\n"):
            port = file.read_text().splitlines()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            if pages:
                return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise TimeoutError("Chromium did not start")


def _connect(url: str) -> socket.socket:
    host, _, path = url.removeprefix("ws://").partition("/")
    name, _, port = host.partition(":")
    connection = socket.create_connection((name, int(port)), timeout=60)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET /{path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
    connection.sendall("\r\n".join(lines).encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(1)
    assert b" 101 " in answer.split(b"\r\n")[0]
    return connection


def _send(connection: socket.socket, text: str) -> None:
    data, mask = text.encode(), os.urandom(4)
    size = len(data)
    head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
    if size >= 1 << 16:
        head = struct.pack("!BBQ", 0x81, 0xFF, size)
    connection.sendall(head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))


def _receive(connection: socket.socket) -> dict[str, Any]:
    """One message; parts of it are put together."""
    data = b""
    while True:
        first, second = _exactly(connection, 2)
        size = second & 0x7F
        if size == 126:
            size = struct.unpack("!H", _exactly(connection, 2))[0]
        elif size == 127:
            size = struct.unpack("!Q", _exactly(connection, 8))[0]
        part = _exactly(connection, size)
        if first & 0x0F in (0, 1):
            data += part
            if first & 0x80:
                return json.loads(data)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("Chromium closed the connection")
        data += part
    return bytes(data)
