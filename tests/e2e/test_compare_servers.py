"""`aitop compare` on recordings of a real server before and after its fix, under the same load."""

from __future__ import annotations

import json
import time
from statistics import fmean

import pytest
from serving_cases import CASE_BY_NAME
from serving_run import Clients, capacity
from serving_verdicts import running, sends_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WARM_SECONDS, SECONDS = 3.0, 15
# Requests come at random, as many a second as the slow server can answer about half the time.
PART_OF_CAPACITY, CLIENTS = 0.5, 2


def test_a_mended_server_is_faster_and_its_latency_is_said(aitop, tmp_path):
    """Under as many requests a second, and under as many at a time."""
    loads: dict[str, list[str]] = {}
    recordings: dict[str, list[tuple[str, float, float]]] = {}
    # The same requests for both: so they come at the same moments.
    sends: list[str] = []
    for name in ("review_scores:tokenise", "review_scores"):
        case = CASE_BY_NAME[name]
        if missing := case.missing():
            pytest.skip(missing)
        with running(case) as server:
            if not loads:
                sends = sends_of(case)
                rate = PART_OF_CAPACITY * capacity(server, sends)
                loads = {"rate": ["--rate", str(rate)], "clients": ["--clients", str(CLIENTS)]}
            for what, load in loads.items():
                file = str(tmp_path / f"{what}-{len(recordings.setdefault(what, []))}.jsonl.gz")
                recordings[what].append((file, *recorded(aitop, server, [*sends, *load], file)))
    for (before, *slow), (after, *quick) in recordings.values():
        check(aitop, before, after, latencies=(slow[0], quick[0]), rates=(slow[1], quick[1]))


def recorded(aitop, server, load, file):
    """Record it under this load: the mean latency that its clients see, and how many requests a second it answers."""
    with Clients(server, [*load, "--seconds", "120"]) as clients:
        time.sleep(WARM_SECONDS)
        began = time.monotonic()
        made = aitop("record", "--pid", server.pid, "--for", f"{SECONDS}s", "-o", file, timeout=120)
        assert made.returncode == 0, made.stderr
        ended = time.monotonic()
        answers = clients.answers(began, ended)
    assert {answer.status for answer in answers} == {200}
    return fmean(answer.served for answer in answers if answer.served is not None), len(answers) / (ended - began)


def check(aitop, before, after, latencies, rates):
    made = aitop("compare", before, after, "--format", "json")
    assert made.returncode == 0, made.stderr
    comparison = json.loads(made.stdout)
    low, high = comparison["change"]["range"]
    assert comparison["change"]["verdict"] == "faster"
    assert 0.6 * low <= latencies[0] / latencies[1] <= 1.5 * high
    for side, rate in zip(("before", "after"), rates, strict=True):
        assert comparison[side]["unit"] == "request"
        assert comparison[side]["per_s"] == pytest.approx(rate, rel=0.5)
        assert comparison[side]["latency_ms"]["p50"] <= comparison[side]["latency_ms"]["p99"]
