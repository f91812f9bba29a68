"""`aitop diagnose` on servers under load that know nothing of aitop: one planted cause each, and nothing wrong.

And --fail-on stalled as a liveness probe: 0 if a server is idle or serves, 1 if its engine stands. All cases, at every
tier, and how right the latencies are, are in the bench tests/accuracy/serving/serving_verdicts.py.
"""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving_cases import CASE_BY_NAME
from serving_run import Clients
from serving_verdicts import loaded, row_of, running, sends_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LEAST_SECONDS, MOST_SECONDS, WARM_SECONDS = 12.0, 60.0, 3.0
# Servers that are also asked whether they are alive.
PROBED = ("review_scores", "embeddings")
NAMES = (*PROBED, "review_scores:collect", "toxicity_workers:few", "story_teller:tokenise")

# Seconds of a probe, and of those after it where a slow machine has shown too little.
PROBES_SECONDS = (5, 10, 20)
NOT_ENOUGH_EVIDENCE = 5


@pytest.mark.parametrize("name", NAMES)
def test_a_server_is_told_what_its_requests_wait_for(name, watched, aitop):
    """Those that are probed are so before and afterwards."""
    case = CASE_BY_NAME[name]
    if missing := case.missing():
        pytest.skip(missing)

    with running(case) as server:
        if name in PROBED:
            check_probes(aitop, server, 0)
        try:
            check_verdict(case, server, watched)
        except AssertionError:
            if not case.healthy():
                raise
            # Half of what the server could answer is too much where the machine has become slower since: measured anew.
            check_verdict(case, server, watched)
        if name in PROBED:
            check_liveness(case, server, aitop)


def check_verdict(case, server, watched):
    with loaded(case, server, MOST_SECONDS + 60.0) as clients:

        def check(report):
            row = row_of(case, 3, report, (), server.model_pid)
            assert row.flawless(), row
            assert report["target"]["kind"] == "inference"

        time.sleep(WARM_SECONDS)
        began = time.monotonic()
        watched(server.pid, check, least=LEAST_SECONDS, most=MOST_SECONDS)
        answers = clients.answers(began, time.monotonic())

    assert answers and {answer.status for answer in answers} == {200}


def check_liveness(case, server, aitop):
    """Serving, stopped, and going on."""
    with Clients(server, [*sends_of(case), "--clients", "2", "--seconds", "300"]):
        time.sleep(1.0)
        check_probes(aitop, server, 0)
        # No monitor sees the moment.
        os.kill(server.model_pid, signal.SIGSTOP)
        time.sleep(1.0)
        for first, *_ in check_probes(aitop, server, 1):
            assert (first["id"], first["subtype"]) == ("hang", "stopped")
            assert first["processes"] == [server.model_pid]
        os.kill(server.model_pid, signal.SIGCONT)
        check_probes(aitop, server, 0)


def check_probes(aitop, server, code):
    """The verdicts with the hook and without it, of two probes at a time that must leave with this code."""

    def probe(*flags):
        for seconds in PROBES_SECONDS:
            asked = ("--for", f"{seconds}s", "--fail-on", "stalled", "--format", "json", *flags)
            done = aitop("diagnose", "--pid", server.pid, *asked, timeout=90)
            if done.returncode != NOT_ENOUGH_EVIDENCE:
                break
        assert done.returncode == code, (flags, done.stdout, done.stderr)
        return json.loads(done.stdout)["verdicts"]

    with ThreadPoolExecutor() as side_by_side:
        begun = [side_by_side.submit(probe, *flags) for flags in ((), ("--no-hook",))]
        return [future.result() for future in begun]
