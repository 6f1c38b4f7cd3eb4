"""An HTTP server of one file on loopback, which can be made to break the rules in one way at a time."""

import http.server
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from shardtrail.storage import http as fetching

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes


@dataclass
class Server:
    """A server of one file that keeps the rules of ranges, unless ``quirk`` answers a request first.

    ``quirk(handler, number)`` returns True if it has answered request ``number`` (from 0).
    """

    url: str = ""
    content: bytes = CONTENT
    etag: str = '"v1"'
    modified: str = "Mon, 01 Jan 2024 00:00:00 GMT"
    quirk: Callable[["Handler", int], bool] = lambda handler, number: False
    requests: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Server

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        state = self.state
        state.requests.append({"path": self.path, **{key.lower(): value for key, value in self.headers.items()}})
        if state.quirk(self, len(state.requests) - 1):
            return
        asked = {key.lower(): value for key, value in self.headers.items()}
        if state.etag and asked.get("if-none-match") == state.etag:
            return self.answer(304)
        if asked.get("if-modified-since") == state.modified and state.modified:
            return self.answer(304)
        piece = re.fullmatch(r"bytes=(\d+)-", asked.get("range", ""))
        if piece and asked.get("if-range") in (state.etag, state.modified):
            self.send_from(int(piece[1]))
        else:
            self.answer(200, state.content)

    def send_from(self, start: int, **headers: str) -> None:
        total = len(self.state.content)
        if start >= total:
            return self.answer(416, **{"Content-Range": f"bytes */{total}"})
        span = f"bytes {start}-{total - 1}/{total}"
        self.answer(206, self.state.content[start:], **{"Content-Range": span, **headers})

    def answer(self, status: int, body: bytes = b"", cut: int | None = None, **headers: str) -> None:
        """Send an answer; with ``cut``, end the connection after so many bytes of the body."""
        fields = {"ETag": self.state.etag, "Last-Modified": self.state.modified, "Content-Length": str(len(body))}
        self.send_response(status)
        for key, value in {**fields, **headers}.items():
            if value:
                self.send_header(key, value)
        self.end_headers()
        part = body if cut is None else body[:cut]
        self.state.sent += len(part)
        self.wfile.write(part)
        if cut is not None:
            self.close_connection = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetching, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve() as state:
        yield state


class serve:
    """A server in a thread."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.state = Server()
        handler = type("Of", (Handler,), {"state": self.state})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        scheme = "https" if context else "http"
        self.state.url = f"{scheme}://127.0.0.1:{self.server.server_address[1]}/data/set.tar"

    def __enter__(self) -> Server:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self.state

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
