"""What is said of a server: JSON as documented, text and HTML without a figure that was not measured."""

from __future__ import annotations

import json

import msgspec
import pytest
from report_samples import snapshot
from snapshot_builder import process

from aitop.model.host import HostSample, MachineSample
from aitop.model.serving import Percentiles, Serving
from aitop.model.source import SourceStatus
from aitop.model.verdict import Diagnosis
from aitop.outputs.html.page import to_html
from aitop.outputs.report import as_json, report_of
from aitop.outputs.text import WIDTH, to_text

SERVED = Serving(
    basis="hook",
    seconds=11.0,
    pid=10,
    requests_per_second=41.00042,
    tokens_per_second=900.04,
    concurrency=7.40001,
    queue=3.0,
    latency=Percentiles(p50=0.12, p95=0.3, p99=0.9),
    first_token=Percentiles(p50=0.02, p95=0.03, p99=0.09),
    first_token_basis="answer",
    batch_mean=5.1,
    kv_used=0.62,
    preemptions_per_second=0.0,
    alive=7,
    still=0.012,
)


def served(serving=SERVED, engine="vllm 0.32.0", sources=()):
    processes = (process(10, "other", part="API server"), process(11, "other", part="engine"), process(12, "helper"))
    return snapshot(
        kind="inference",
        host=HostSample(time=1.0, processes=processes, machine=MachineSample(cores=2), engine=engine),
        sources={source.source: source for source in sources},
        steps=None,
        diagnosis=Diagnosis(),
        serving=serving,
        engine=engine,
    )


def test_the_json_is_the_documented_one():
    said = json.loads(as_json(report_of(served())))
    assert said["serving"] == {
        "window_s": 11.0,
        "requests_per_s": 41.0,
        "tokens_per_s": 900.0,
        "concurrency": 7.4,
        "queue": 3.0,
        "latency_ms": {"p50": 120.0, "p95": 300.0, "p99": 900.0},
        "ttft_ms": {"p50": 20.0, "p95": 30.0, "p99": 90.0},
        "ttft_basis": "answer",
        "itl_ms": None,
        "batch_mean": 5.1,
        "kv_used": 0.62,
        "preemptions_per_s": 0.0,
        "alive": 7,
        "still_s": 0.012,
        "basis": "hook",
    }
    assert said["target"]["engine"] == "vllm 0.32.0"
    assert [process.get("part") for process in said["target"]["processes"]] == ["API server", "engine", None]
    assert "part" not in said["target"]["processes"][2]


def test_nothing_served_is_null():
    said = json.loads(as_json(report_of(served(None, None))))
    assert said["serving"] is None and said["target"]["engine"] is None and "server" not in said["sources"]


def test_text_and_html_have_the_figures():
    text, page = to_text(served()), to_html(served())
    assert "vllm 0.32.0 · inference" in text
    for words in ("41 requests/s", "900 tokens/s", "7.4 under way", "3 waiting", "batch 5.1", "KV cache 62 %"):
        assert words in text and words in page
    rows = [line.split() for line in text.splitlines()]
    assert ["latency", "120", "ms", "300", "ms", "900", "ms"] in rows
    assert "preemptions" not in text and "between tokens" not in text and "without progress" not in text
    assert all(len(line) <= WIDTH for line in text.splitlines())


def test_figures_that_are_not_known_are_left_out():
    bare = served(Serving(basis="stacks"))
    assert "Serving (" not in to_text(bare) and "What is served" not in to_html(bare)


@pytest.mark.parametrize(
    ("alive", "still", "said"), [(7, 12.0, True), (0, 12.0, False), (7, 0.5, False), (None, 12.0, False)]
)
def test_requests_that_stand_are_named(alive, still, said):
    seen = served(msgspec.structs.replace(SERVED, alive=alive, still=still))
    assert ("without progress for 12" in to_text(seen)) is said
    assert ("without progress for 12" in to_html(seen)) is said


def test_metrics_are_missed_only_where_something_is_served():
    silent = SourceStatus(time=1.0, source="server", state="failed", reason="port 8000 gave no answer")
    assert "server failed: port 8000" in to_text(served(sources=[silent]))
    assert "server failed" not in to_text(served(None, None, sources=[silent]))
    assert json.loads(as_json(report_of(served(sources=[silent]))))["sources"]["server"]["state"] == "failed"
