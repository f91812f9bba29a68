"""A small HTTP server with vLLM's names: a page of metrics that move as those of a server with a steady load.

    python -m vllm.entrypoints.openai.api_server --port PORT --log FILE [--stalled]

`tests/e2e/test_server_metrics.py` puts it where vLLM has its API server. It writes down every request, and listens on a
second port on which nobody is to say anything. Twenty requests a second, each of 0.4 to 0.8 s.
"""

import argparse
import http.server
import socket
import threading
import time

RATE, TOKENS, RUNNING = 20.0, 64, 12
BOUNDS = (0.3, 0.5, 0.8, 1.0)
SHARES = (0.0, 0.25, 1.0, 1.0)
MEAN = 0.6


def page(done: int, running: int) -> str:
    """The metrics after so many requests."""
    name, labels = "vllm:e2e_request_latency_seconds", 'engine="0",model_name="m"'
    buckets = [
        f'{name}_bucket{{{labels},le="{bound}"}} {done * share}' for bound, share in zip(BOUNDS, SHARES, strict=True)
    ]
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} {running}.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.25",
        f'vllm:request_success_total{{finished_reason="length",{labels}}} {done}.0',
        f"vllm:generation_tokens_total{{{labels}}} {done * TOKENS}.0",
        f"vllm:iteration_tokens_total_count{{{labels}}} {done * 7}.0",
        *buckets,
        f'{name}_bucket{{{labels},le="+Inf"}} {done}.0',
        f"{name}_sum{{{labels}}} {done * MEAN}",
        f"{name}_count{{{labels}}} {done}.0",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--stalled", action="store_true")
    args = parser.parse_args()
    began = time.monotonic()

    def note(words: str) -> None:
        with open(args.log, "a", encoding="utf-8") as log:
            log.write(f"{words}\n")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            note(f"{self.client_address[0]} {self.path}")
            done = 400 if args.stalled else int(RATE * (time.monotonic() - began))
            body = page(done, RUNNING).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Say nothing on stderr."""

    def watch(other: socket.socket) -> None:
        while True:
            other.accept()
            note("the other port")

    other = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=watch, args=(other,), daemon=True).start()
    with http.server.ThreadingHTTPServer(("0.0.0.0", args.port), Handler) as server:
        print("serving", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
