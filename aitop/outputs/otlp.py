"""Sends the metrics to an OpenTelemetry collector, and a log record whenever a verdict appears or ends.

The metrics are those that Prometheus would scrape, under the same names (counters without `_total`). The SDK's own
exporters encode and send them; its instruments are not used, since all values are already there at each moment.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family

from aitop import __version__
from aitop.outputs.prometheus.counters import BOUNDS
from aitop.outputs.prometheus.families import OF_JOB, JobsCollector

TIMEOUT_SECONDS = 5.0
SEVERITIES = {"critical": SeverityNumber.ERROR, "warning": SeverityNumber.WARN, "info": SeverityNumber.INFO}
Labels = dict[str, str]


class OtlpSender:
    """Sends to the collector at `url`. `say` gets a sentence when sending begins to fail, and when it works again.

    In these sentences the collector is called `shown`: its URL without a password.
    """

    def __init__(self, url: str, collector: JobsCollector, say: Callable[[str], None], shown: str) -> None:
        # The SDK would log every failed attempt to stderr.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        base = url.rstrip("/")
        self._shown = shown
        self._collector = collector
        self._say = say
        self._began = time.time_ns()
        self._failing = False
        self._verdicts: dict[tuple[str, ...], Labels] = {}
        self._resource = Resource.create(
            {"service.name": "aitop", "service.version": __version__, "host.name": collector.node}
        )
        self._metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=TIMEOUT_SECONDS)
        self._provider = LoggerProvider(resource=self._resource)
        self._provider.add_log_record_processor(
            BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{base}/v1/logs", timeout=TIMEOUT_SECONDS))
        )
        self._log = self._provider.get_logger("aitop", __version__)

    def send(self) -> None:
        """Send the metrics as they are now. What cannot be sent is dropped: the next ones say the same or more."""
        families = list(self._collector.collect())
        now = time.time_ns()
        metrics = [_metric(family, self._began, now) for family in families]
        scope = InstrumentationScope("aitop", __version__)
        data = MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(scope, metrics, "")], "")])
        failed = self._metrics.export(data) is not MetricExportResult.SUCCESS
        if failed != self._failing:
            self._failing = failed
            self._say(f"cannot send to {self._shown}: trying again" if failed else f"sending to {self._shown}")
        self._tell_changes(families, now)

    def close(self) -> None:
        """Send what is left, within the time-out, and end."""
        self._provider.shutdown()
        self._metrics.shutdown()

    def _tell_changes(self, families: Iterable[Family], now: int) -> None:
        verdicts: dict[tuple[str, ...], Labels] = {}
        for family in families:
            for sample in family.samples if family.name == "aitop_verdict_order" else ():
                labels = sample.labels
                key = tuple(labels[name] for name in (*OF_JOB, "verdict", "subtype"))
                # Several ranks may have the same verdict: one log record is enough.
                verdicts.setdefault(key, {name: value for name, value in labels.items() if value})
        for key, labels in verdicts.items():
            # A verdict that is told with another severity goes on: its old one does not end it.
            if labels["severity"] != self._verdicts.get(key, {}).get("severity"):
                self._tell("aitop.verdict.begin", labels, now)
        for key, labels in self._verdicts.items():
            if key not in verdicts:
                self._tell("aitop.verdict.end", labels, now)
        self._verdicts = verdicts

    def _tell(self, event: str, labels: Labels, now: int) -> None:
        begins = event.endswith("begin")
        severity = SEVERITIES[labels["severity"]] if begins else SeverityNumber.INFO
        words = f"job {labels['job']} on {labels['node']} {'is' if begins else 'is no longer'} {labels['verdict']}"
        record = LogRecord(
            timestamp=now,
            observed_timestamp=now,
            severity_number=severity,
            severity_text=severity.name,
            body=words,
            attributes=dict(labels),
            event_name=event,
        )
        self._log.emit(record)


def _metric(family: Family, began: int, now: int) -> Metric:
    """A family of prometheus_client as a metric of OpenTelemetry; only the three kinds that aitop has."""
    cumulative = AggregationTemporality.CUMULATIVE
    data: Gauge | Sum | Histogram
    if family.type == "histogram":
        data = Histogram(_histograms(family, began, now), cumulative)
    else:
        points = [NumberDataPoint(_attributes(sample.labels), began, now, sample.value) for sample in family.samples]
        data = Sum(points, cumulative, is_monotonic=True) if family.type == "counter" else Gauge(points)
    return Metric(family.name, family.documentation, "", data)


def _histograms(family: Family, began: int, now: int) -> Sequence[HistogramDataPoint]:
    """One point for each set of labels.

    A bucket of Prometheus counts all values up to its bound, one of OpenTelemetry those between two bounds.
    """
    below: dict[tuple[tuple[str, str], ...], list[float]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        key = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.name.endswith("_bucket"):
            below.setdefault(key, []).append(sample.value)
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    points = []
    for key, counts in below.items():
        between = [int(count - before) for before, count in zip([0.0, *counts], counts, strict=False)]
        # The SDK's way to say that least and largest value are not known.
        least, most = math.inf, -math.inf
        points.append(
            HistogramDataPoint(
                _attributes(dict(key)), began, now, int(counts[-1]), sums[key], between, BOUNDS, least, most
            )
        )
    return points


def _attributes(labels: Labels) -> dict[str, str]:
    return {name: value for name, value in labels.items() if value}
