"""Recordings of the servers of tests/accuracy/serving, judged at each tier that they can stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from aitop.engine.core import Engine
from aitop.model.source import SourceStatus
from aitop.model.steps import HookSample
from aitop.sources.replay import read_recording

RECORDINGS = Path(__file__).resolve().parent / "serving" / "recordings"
SLEEPS, COLLECTS = "time.sleep(0.4)", "gc.collect()"


def judged(name, tier):
    """The verdicts at the end of a recording; tier 2 is the same without the hook."""
    header, events = read_recording(RECORDINGS / f"{name}.jsonl.gz")
    engine, last = Engine(header.target), None
    for event in events:
        hook = isinstance(event, HookSample) or (isinstance(event, SourceStatus) and event.source == "hook")
        if tier == 3 or not hook:
            last = engine.handle(event) or last
    return last.diagnosis.verdicts


@pytest.mark.parametrize(
    ("name", "tier", "expected", "text"),
    [
        ("review_scores_sleep", 3, "latency-tail/event-loop", SLEEPS),
        ("review_scores_sleep", 2, "host-bound/event-loop", SLEEPS),
        ("review_scores_collect", 3, "latency-tail/collector", COLLECTS),
        ("review_scores_collect", 2, "gc-stall/None", COLLECTS),
        ("embeddings_stopped", 3, "hang/stopped", None),
        ("embeddings_stopped", 2, "hang/stopped", None),
    ],
)
def test_what_holds_a_server_up_is_named_first_with_its_line(name, tier, expected, text):
    first, *_ = judged(name, tier)
    assert f"{first.id}/{first.subtype}" == expected
    assert text is None or first.where[0].text.strip() == text


@pytest.mark.parametrize("tier", [3, 2])
def test_a_server_that_nothing_holds_up_is_not_warned_of(tier):
    assert {verdict.severity for verdict in judged("review_scores_quiet", tier)} == {"info"}
