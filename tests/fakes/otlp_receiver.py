"""A collector of OpenTelemetry on the loopback that keeps what it is sent, read with the official messages."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections import defaultdict

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class Receiver(http.server.ThreadingHTTPServer):
    """Takes what is sent to /v1/metrics and /v1/logs."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies = defaultdict(list)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies[self.path].append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        pass


def metrics_in(body):
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    return {metric.name: metric for metric in resource.scope_metrics[0].metrics}


def records_in(bodies):
    """The log records in all of these, in order."""
    requests = map(ExportLogsServiceRequest.FromString, bodies)
    return [
        record
        for request in requests
        for resource in request.resource_logs
        for record in resource.scope_logs[0].log_records
    ]


def attributes(point):
    return {attribute.key: attribute.value.string_value for attribute in point.attributes}
