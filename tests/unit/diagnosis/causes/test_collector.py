"""gc-stall: the collector of garbage."""

from __future__ import annotations

import msgspec
from judgements import fired
from snapshot_builder import (
    line,
    snapshot,
    steps,
)

from aitop.diagnosis.causes import (
    collector,
)
from aitop.model.snapshot import Phases
from aitop.model.verdict import Abstention


def test_a_collector_that_starts_by_itself_has_none():
    verdict = fired(collector.judge(snapshot(steps(seconds=0.1, forward=0.08, gc=0.02))))
    assert verdict.where == () and "gc.freeze()" in verdict.fixes[0].text


def test_a_collection_that_another_thread_asks_for_has_its_line():
    asking = line("count", 0.1, activity="collect", number=43, thread="loop")
    verdict = fired(collector.judge(snapshot(steps(seconds=0.1, forward=0.08, gc=0.02), lines=[asking])))
    assert verdict.where[0].line == 43 and "leave out the collection" in verdict.fixes[0].text
    assert not any("starts by itself" in why for why in verdict.evidence)


def test_collections_that_another_cause_explains_are_none_of_its_own():
    seen = snapshot(steps(seconds=0.1, forward=0.08, gc=0.02))
    (ledger,) = seen.ledgers
    left = tuple(entry for entry in ledger.entries if entry.activity != "collect")
    compiled = msgspec.structs.replace(seen, ledgers=(msgspec.structs.replace(ledger, entries=left),))
    assert collector.judge(compiled) is None


def test_a_collector_that_starts_by_itself_is_not_seen_from_outside():
    answer = collector.judge(snapshot(phases=Phases(forward=0.4, backward=0.5)))
    assert isinstance(answer, Abstention) and "only the hook" in answer.reason
