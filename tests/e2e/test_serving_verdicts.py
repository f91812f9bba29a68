"""`aitop diagnose` on servers under load that know nothing of aitop: one planted cause each, and nothing wrong.

All cases, at every tier, and how right the latencies are, are in the bench tests/accuracy/serving/serving_verdicts.py.
"""

from __future__ import annotations

import time

import pytest
from serving_cases import CASE_BY_NAME
from serving_verdicts import loaded, row_of, running

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LEAST_SECONDS, MOST_SECONDS, WARM_SECONDS = 12.0, 60.0, 3.0
NAMES = ("review_scores", "review_scores:collect", "embeddings", "toxicity_workers:few", "story_teller:tokenise")


@pytest.mark.parametrize("name", NAMES)
def test_a_server_is_told_what_its_requests_wait_for(name, watched):
    case = CASE_BY_NAME[name]
    if missing := case.missing():
        pytest.skip(missing)

    with running(case) as server, loaded(case, server, MOST_SECONDS + 60.0) as clients:

        def check(report):
            row = row_of(case, 3, report, (), server.model_pid)
            assert row.flawless(), row
            assert report["target"]["kind"] == "inference"

        time.sleep(WARM_SECONDS)
        began = time.monotonic()
        watched(server.pid, check, least=LEAST_SECONDS, most=MOST_SECONDS)
        answers = clients.answers(began, time.monotonic())

    assert answers and {answer.status for answer in answers} == {200}
