"""A web handler whose client may ask again: python web_handler.py PORT, then POST /refunds/ORDER?cents=500.

The order is the run id, so a second click, a proxy's retry or a restart in mid-request meets the first call's answer.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from refunds import refund, say

import counterfoil as cf


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        url = urlsplit(self.path)
        order, cents = url.path.removeprefix("/refunds/"), int(parse_qs(url.query)["cents"][0])
        try:
            done = cf.guard(f"refund-{order}", refund, {"order": order, "cents": cents})
            status, text = (200 if done.done else 409), say(done)
        except cf.CounterfoilError as error:  # another request makes this very call now, or the input differs
            status, text = 409, error.message
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler) as server:
        print(f"listening on {server.server_address[1]}", flush=True)
        server.serve_forever()
