"""A small HTTP server that streams completions by script, as servers with OpenAI's protocol do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STOP = {"choices": [{"text": "", "finish_reason": "length"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}


def events(is_chat: bool) -> list[Any]:
    """Five tokens in three chunks; a completion's second chunk has no whole character yet."""
    if not is_chat:
        chunks = [{"choices": [{"text": text, "finish_reason": None}]} for text in ("caf", "", "é")]
        return [*chunks, STOP, USAGE, "[DONE]"]
    deltas = [{"role": "assistant", "content": ""}, {"content": "caf"}, {"content": "é"}, {"content": "s"}]
    return [
        *({"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas),
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        USAGE,
        "[DONE]",
    ]


class OpenAiServer(ThreadingHTTPServer):
    """asked: requests' bodies. script: what streams have, in place of a whole answer. status: of answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.script: list[Any] | None = None
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: OpenAiServer

    def do_GET(self) -> None:
        self._answer("application/json", json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        if self.server.status != 200:
            error = {"error": {"message": "the queue is full", "type": "rate_limit_error"}}
            self._answer("application/json", json.dumps(error).encode())
            return
        script = self.server.script
        whole = events("messages" in body) if script is None else script
        lines = [each if isinstance(each, str) else json.dumps(each) for each in whole]
        self._answer("text/event-stream", "".join(f"data: {line}\n\n" for line in lines).encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        # In pieces that have nothing to do with lines.
        for start in range(0, len(body), 37):
            self.wfile.write(body[start : start + 37])


@contextmanager
def running_openai_server() -> Iterator[OpenAiServer]:
    """On a free port, until the end of the `with`."""
    with OpenAiServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="OpenAI server")
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(timeout=10)
