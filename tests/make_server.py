"""An OpenAI-compatible server on loopback that does what a test says, and keeps what it got."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Served:
    """``behaviors`` are used one a request, the last one again and again."""

    def __init__(self, *behaviors):
        self.behaviors = list(behaviors)
        self.requests = []
        self.headers = []
        handler = type("Handler", (_Handler,), {"served": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    served: Served

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.served.headers.append({name.lower(): value for name, value in self.headers.items()})
        try:
            self.served.requests.append(json.loads(body))
        except ValueError:
            self.served.requests.append(body)
        number = min(len(self.served.requests), len(self.served.behaviors)) - 1
        self.served.behaviors[number](self)

    do_PATCH = do_POST

    def reply(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)


def fails(status, message="no", code=None, **headers):
    error = {"error": {"message": message, "type": "test", "code": code}}
    return lambda handler: handler.reply(status, error, **headers)


def plain(text, kind="application/json"):
    return lambda handler: handler.reply(200, text.encode(), kind)


def streams(text, *, finish="stop", cut_after=None, pause_s=0.0, refusal=None, usage=True):
    """Answer in pieces of eight characters; ``cut_after`` pieces the line goes dead."""

    def behavior(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        pieces = [text[n : n + 8] for n in range(0, len(text), 8)]
        deltas = [{"role": "assistant", "content": ""}, *({"content": p} for p in pieces)]
        if refusal:
            deltas.append({"refusal": refusal})
        for number, delta in enumerate(deltas):
            if cut_after is not None and number > cut_after:
                return
            _event(handler, [{"index": 0, "delta": delta, "finish_reason": None}])
            time.sleep(pause_s)
        _event(handler, [{"index": 0, "delta": {}, "finish_reason": finish}])
        if usage:
            _event(handler, [], {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18})
        handler.wfile.write(b"data: [DONE]\n\n")

    return behavior


def _event(handler, choices, usage=None):
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunk |= {"choices": choices, "usage": usage}
    try:
        handler.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        handler.wfile.flush()
    except (BrokenPipeError, ConnectionResetError):
        return
