"""A web server without a model, of Python's own: `plain_front.py PORT (http.server|forked|wsgiref|werkzeug) [torch]`.

`forked` is http.server in two processes.
"""

import importlib
import json
import logging
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from wsgiref.simple_server import WSGIRequestHandler, make_server


def answer():
    time.sleep(0.02)
    return json.dumps({"ready": time.monotonic()}).encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        body = answer()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Quiet(WSGIRequestHandler):
    def log_message(self, *args):
        pass


def application(environ, start_response):
    body = answer()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


if __name__ == "__main__":
    port, kind = int(sys.argv[1]), sys.argv[2]
    for name in sys.argv[3:]:
        importlib.import_module(name)
    if kind in ("http.server", "forked"):
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        if kind == "forked" and os.fork() and os.fork():
            sys.exit(os.wait()[1])
    elif kind == "wsgiref":
        server = make_server("127.0.0.1", port, application, handler_class=Quiet)
    else:
        from werkzeug import serving

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = serving.make_server("127.0.0.1", port, application, threaded=True)
    server.serve_forever()
