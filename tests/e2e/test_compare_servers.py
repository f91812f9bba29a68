"""`aitop compare` on recordings of a real server before and after its fix, under the same load."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import fmean

import pytest
from serving_cases import CASE_BY_NAME
from serving_run import Clients
from serving_verdicts import running, sends_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WARM_SECONDS, SECONDS, RATE = 3.0, 15, 4.0


def aitop(*words):
    return subprocess.run([sys.executable, "-m", "aitop", *words], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "load", [("--rate", str(RATE)), ("--clients", "2")], ids=["as many a second", "as many at a time"]
)
def test_a_mended_server_is_faster_and_its_latency_is_said(tmp_path, load):
    latencies = []
    for name in ("review_scores:tokenise", "review_scores"):
        case = CASE_BY_NAME[name]
        if missing := case.missing():
            pytest.skip(missing)
        file = tmp_path / f"{len(latencies)}.jsonl.gz"
        with running(case) as server, Clients(server, [*sends_of(case), *load, "--seconds", "120"]) as clients:
            time.sleep(WARM_SECONDS)
            began = time.monotonic()
            made = aitop("record", "--pid", str(server.pid), "--for", f"{SECONDS}s", "-o", str(file))
            assert made.returncode == 0, made.stderr
            answers = clients.answers(began, time.monotonic())
        assert {answer.status for answer in answers} == {200}
        latencies.append(fmean(answer.served for answer in answers if answer.served is not None))

    made = aitop("compare", str(tmp_path / "0.jsonl.gz"), str(tmp_path / "1.jsonl.gz"), "--format", "json")
    assert made.returncode == 0, made.stderr
    said = json.loads(made.stdout)
    change = said["change"]
    low, high = change["range"]
    assert (change["verdict"], change["at_equal_load"]) == ("faster", True), change
    assert 0.8 * low <= latencies[0] / latencies[1] <= 1.2 * high
    for side, latency in (("before", 0), ("after", 1)):
        assert said[side]["unit"] == "request"
        assert said[side]["latency_ms"]["p50"] <= said[side]["latency_ms"]["p99"]
        if load[0] == "--rate":
            assert said[side]["per_s"] == pytest.approx(RATE, rel=0.35)
        else:
            assert said[side]["per_s"] == pytest.approx(2 / latencies[latency], rel=0.35)
