"""`aitop diagnose --fail-on stalled` as a liveness probe: 0 if a server is idle or serves, 1 if its engine stands."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving_cases import CASE_BY_NAME
from serving_run import Clients
from serving_verdicts import running, sends_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROBE = ("--for", "5s", "--fail-on", "stalled", "--format", "json")


@pytest.mark.parametrize("name", ["embeddings", "review_scores"])
def test_idle_serving_stopped_and_going_on(name, aitop):
    case = CASE_BY_NAME[name]
    if missing := case.missing():
        pytest.skip(missing)

    def probes(server, code):
        """The verdicts with the hook and without it, of two probes at a time that must leave with this code."""

        def probe(*flags):
            done = aitop("diagnose", "--pid", server.pid, *PROBE, *flags, timeout=90)
            assert done.returncode == code, (flags, done.stdout, done.stderr)
            return json.loads(done.stdout)["verdicts"]

        with ThreadPoolExecutor() as both:
            begun = [both.submit(probe, *flags) for flags in ((), ("--no-hook",))]
            return [one.result() for one in begun]

    with running(case) as server:
        probes(server, 0)
        with Clients(server, [*sends_of(case), "--clients", "2", "--seconds", "120"]):
            time.sleep(1.0)
            probes(server, 0)
            # No monitor sees the moment.
            os.kill(server.model_pid, signal.SIGSTOP)
            time.sleep(1.0)
            for first, *_ in probes(server, 1):
                assert (first["id"], first["subtype"]) == ("hang", "stopped")
                assert first["processes"] == [server.model_pid]
            os.kill(server.model_pid, signal.SIGCONT)
            probes(server, 0)
