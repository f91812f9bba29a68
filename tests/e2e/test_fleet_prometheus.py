"""The queries of `aitop fleet` against a real Prometheus, whose store gets the series of made-up clusters.

Skipped where `prometheus` and `promtool` are not installed (Debian: the package prometheus).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from fake_prometheus import COMPUTE, INPUT, Cluster, FakePrometheus, Rank, everything, four_jobs, large
from msgspec.structs import replace
from real_prometheus import prometheus

from aitop.sources.prometheus.address import parse
from aitop.sources.prometheus.client import ask
from aitop.sources.prometheus.fleet import FleetReader, page

WINDOW = 600.0
PERIOD = 60
HOSTILE = 'a"b\\c\n{x="1"} ü'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(not (shutil.which("prometheus") and shutil.which("promtool")), reason="no prometheus here"),
]


def openmetrics(ranks, now, periods):
    """All series of the ranks, once in a period until now. Counters grow."""
    for name, labels, value in everything(ranks):
        written = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items())
        for before in range(periods, -1, -1):
            counted = name.endswith(("_sum", "_count"))
            number = value * PERIOD * (periods - before) if counted else value
            yield f"{name}{{{written}}} {number!r} {now - before * PERIOD}\n"
    yield "# EOF\n"


@contextmanager
def prometheus_of(ranks, folder, periods):
    """The URL of a Prometheus that has seen these ranks for so many periods."""
    text, store = folder / "series.txt", folder / "store"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(openmetrics(ranks, int(time.time()), periods))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", text, store],
        check=True,
        capture_output=True,
        timeout=60,
    )
    with prometheus(folder, {"global": {}}, store) as server:
        yield server.url


def about(job):
    """A job with its figures rounded: what is summed over time is so within a sample or two."""
    rounded = {name: value and round(value, 6) for name, value in (("lost", job.lost), ("wasted", job.wasted))}
    finding = job.finding and replace(job.finding, share=job.finding.share and round(job.finding.share, 6))
    return replace(job, **rounded, finding=finding)


def test_the_real_one_answers_as_the_fake_does(tmp_path):
    ranks = [
        *four_jobs(),
        Rank(HOSTILE, "n", 0, 7, 0.5, wait=0.2, verdicts=((HOSTILE, "", "warning", HOSTILE, 3, 0.5, 1.5), COMPUTE)),
        Rank("no-device", "n", 0, 8, verdicts=(INPUT,)),
    ]
    with FakePrometheus(Cluster(ranks, hours=WINDOW / 3600), WINDOW) as fake, prometheus_of(ranks, tmp_path, 12) as url:
        made_up, real = (FleetReader(parse(address), WINDOW) for address in (fake.url, url))
        jobs = {job.job: about(job) for job in made_up.jobs().jobs}
        assert {job.job: about(job) for job in real.jobs().jobs} == jobs
        assert HOSTILE in jobs
        for job in jobs:
            wanted = {(rank.node, rank.rank): rank for rank in made_up.ranks(job).ranks}
            seen = {(rank.node, rank.rank): rank for rank in real.ranks(job).ranks}
            assert {key: replace(rank, step=None) for key, rank in seen.items()} == {
                key: replace(rank, step=None) for key, rank in wanted.items()
            }
            for key, rank in seen.items():
                step = wanted[key].step
                assert rank.step == (step and pytest.approx(step, rel=1e-6))
        assert real.ranks("nobody").ranks == ()


def test_eight_thousand_ranks(tmp_path):
    ranks = large(1000)
    with prometheus_of(ranks, tmp_path, 3) as url:
        reader = FleetReader(parse(url), WINDOW)
        reader.jobs()
        took = []
        for _ in range(3):
            began = time.monotonic()
            fleet = reader.jobs()
            took.append(time.monotonic() - began)
        rows = {name: len(answer) for name, answer in ask(reader.address, page(WINDOW)).items()}
        done = subprocess.run(
            [sys.executable, "-m", "aitop", "fleet", "--prometheus", url, "--format", "json", "--over", "10m"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    assert (fleet.ranks, fleet.nodes, len(fleet.jobs)) == (8000, 1000, 250)
    assert len(json.loads(done.stdout)["jobs"]) == 250
    # The nodes of each job, and one or two rows for each job.
    assert max(rows.values()) == 1000
    assert sorted(rows.values())[-2] <= 500
    assert min(took) < 5
