"""What an OpenTelemetry collector gets: the metrics of Prometheus, and a log record when a verdict comes or goes."""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otlp is not installed")

from exported_job import JOB
from msgspec.structs import replace
from otlp_receiver import Receiver, attributes, metrics_in, records_in
from recorded_runs import end_of_recording, snapshots_of

from aitop import cli
from aitop.commands import export
from aitop.model.verdict import Diagnosis
from aitop.outputs import otlp
from aitop.outputs.otlp import OtlpSender
from aitop.outputs.prometheus.families import JobsCollector


@pytest.fixture
def receiver():
    with Receiver() as server:
        yield server
        server.shutdown()


def test_metrics_and_changes_of_verdicts_arrive(receiver):
    collector, said = JobsCollector("n1"), []
    sender = OtlpSender(receiver.url + "/", collector, said.append, receiver.url)
    snapshots = snapshots_of("slow-loader")
    for snapshot in (snapshots[0], snapshots[-1]):
        collector.take(JOB, snapshot)
        sender.send()
    collector.drop(JOB.pid)
    sender.send()
    sender.close()
    assert said == []
    first, last, empty = map(metrics_in, receiver.bodies["/v1/metrics"])
    assert "aitop_verdict_order" not in first
    (point,) = [point for point in last["aitop_verdict_share"].gauge.data_points if attributes(point)["line"]]
    assert attributes(point)["verdict"] == snapshots[-1].diagnosis.primary.id
    assert point.as_double == snapshots[-1].diagnosis.primary.share
    assert last["aitop_units"].sum.is_monotonic
    (lengths,) = last["aitop_unit_seconds"].histogram.data_points
    assert lengths.count == sum(lengths.bucket_counts) > 0
    assert len(lengths.bucket_counts) == len(lengths.explicit_bounds) + 1
    assert set(empty) == {"aitop_jobs"}
    records = records_in(receiver.bodies["/v1/logs"])
    events = [(record.event_name, attributes(record)["verdict"]) for record in records]
    verdicts = [verdict.id for verdict in snapshots[-1].diagnosis.verdicts]
    assert events == [("aitop.verdict.begin", name) for name in verdicts] + [
        ("aitop.verdict.end", name) for name in verdicts
    ]
    assert records[0].body.string_value == "job 4711 on n1 is input-bound"
    assert records[0].severity_text == "ERROR"


def test_a_verdict_that_is_told_with_another_severity_does_not_end(receiver):
    collector = JobsCollector("n1")
    sender = OtlpSender(receiver.url, collector, [].append, receiver.url)
    last = end_of_recording("slow-loader")
    for severity in ("warning", "info", "info", "critical"):
        verdict = replace(last.diagnosis.primary, severity=severity)
        collector.take(JOB, replace(last, diagnosis=Diagnosis(verdicts=(verdict,))))
        sender.send()
    collector.drop(JOB.pid)
    sender.send()
    sender.close()
    records = records_in(receiver.bodies["/v1/logs"])
    begin, end = "aitop.verdict.begin", "aitop.verdict.end"
    assert [(record.event_name, attributes(record)["severity"]) for record in records] == [
        (begin, "warning"), (begin, "info"), (begin, "critical"), (end, "critical"),
    ]  # fmt: skip


def test_a_collector_that_is_away_is_told_once_without_its_password(capfd, monkeypatch):
    monkeypatch.setattr(otlp, "TIMEOUT_SECONDS", 0.3)
    with contextlib.ExitStack() as ending:
        send = export.otlp_of(JobsCollector("n1"), "http://ada:secret@127.0.0.1:9", ending)
        send()
        send()
    assert capfd.readouterr().err == "aitop: cannot send to http://ada:***@127.0.0.1:9: trying again\n"


@pytest.mark.parametrize(("url", "shown"), [("localhost:4317", "localhost:4317"), ("ada:secret@n1:4318", "ada:***@n1")])
def test_what_is_no_url_is_refused(url, shown, capsys):
    assert cli.run(["export", "--all", "--otlp", url]) == 2
    err = capsys.readouterr().err
    assert "is not the URL of a collector" in err and shown in err and "secret" not in err
