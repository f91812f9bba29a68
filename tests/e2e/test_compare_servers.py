"""`aitop compare` on recordings of a real server before and after its fix, under the same load."""

from __future__ import annotations

import json
import subprocess
import sys
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


def aitop(*words):
    return subprocess.run([sys.executable, "-m", "aitop", *words], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("at_random", [True, False], ids=["as many a second", "as many at a time"])
def test_a_mended_server_is_faster_and_its_latency_is_said(tmp_path, at_random):
    latencies, rates, load = [], [], []
    for name in ("review_scores:tokenise", "review_scores"):
        case = CASE_BY_NAME[name]
        if missing := case.missing():
            pytest.skip(missing)
        file = tmp_path / f"{len(rates)}.jsonl.gz"
        with running(case) as server:
            if not load:
                rate = PART_OF_CAPACITY * capacity(server, sends_of(case))
                load = ["--rate", str(rate)] if at_random else ["--clients", str(CLIENTS)]
            with Clients(server, [*sends_of(case), *load, "--seconds", "120"]) as clients:
                time.sleep(WARM_SECONDS)
                began = time.monotonic()
                made = aitop("record", "--pid", str(server.pid), "--for", f"{SECONDS}s", "-o", str(file))
                assert made.returncode == 0, made.stderr
                ended = time.monotonic()
                answers = clients.answers(began, ended)
        assert {answer.status for answer in answers} == {200}
        rates.append(len(answers) / (ended - began))
        latencies.append(fmean(answer.served for answer in answers if answer.served is not None))

    made = aitop("compare", str(tmp_path / "0.jsonl.gz"), str(tmp_path / "1.jsonl.gz"), "--format", "json")
    assert made.returncode == 0, made.stderr
    said = json.loads(made.stdout)
    low, high = said["change"]["range"]
    assert said["change"]["verdict"] == "faster"
    assert 0.8 * low <= latencies[0] / latencies[1] <= 1.2 * high
    for side, rate in zip(("before", "after"), rates, strict=True):
        assert said[side]["unit"] == "request"
        assert said[side]["per_s"] == pytest.approx(rate, rel=0.35)
        assert said[side]["latency_ms"]["p50"] <= said[side]["latency_ms"]["p99"]
