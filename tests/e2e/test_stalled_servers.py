"""`aitop diagnose --fail-on stalled` as a liveness probe: 0 if a server is idle or serves, 1 if its engine stands."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from serving_cases import CASE_BY_NAME
from serving_run import Clients
from serving_verdicts import running, sends_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROBE = ("--for", "5s", "--fail-on", "stalled", "--format", "json")


@pytest.mark.parametrize("name", ["embeddings", "review_scores"])
@pytest.mark.parametrize("flags", [(), ("--no-hook",)], ids=["hook", "no hook"])
def test_idle_serving_stopped_and_going_on(name, flags, aitop):
    case = CASE_BY_NAME[name]
    if missing := case.missing():
        pytest.skip(missing)

    def probe(server):
        done = aitop("diagnose", "--pid", server.pid, *PROBE, *flags, timeout=90)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)

    with running(case) as server:
        code, idle = probe(server)
        assert code == 0, idle["verdicts"]
        with Clients(server, [*sends_of(case), "--clients", "2", "--seconds", "120"]):
            time.sleep(1.0)
            code, serving = probe(server)
            assert code == 0, serving["verdicts"]
            # No monitor sees the moment.
            os.kill(server.model_pid, signal.SIGSTOP)
            time.sleep(1.0)
            code, stopped = probe(server)
            assert code == 1
            first = stopped["verdicts"][0]
            assert (first["id"], first["subtype"]) == ("hang", "stopped")
            assert first["processes"] == [server.model_pid]
            os.kill(server.model_pid, signal.SIGCONT)
            code, again = probe(server)
            assert code == 0, again["verdicts"]
