"""Tells lines that make the next batch from other work that a hand-written loop does between its phases."""

from __future__ import annotations

import re

from aitop.diagnosis.evidence import Lines, main_lines, records, summed
from aitop.model.snapshot import HotLine, Snapshot

# Words of functions and assignments that make batches, and of work that has nothing to do with the next one.
FEEDS = re.compile(
    r"batch|load|read|fetch|sample|pars|decod|augment|collat|stream|pipeline|dataset|generat|token|next\(|__next__|"
    r"__iter__|__getitem__|transform|preprocess|record|example|shard|inputs?\b|images?\b|features?\b",
    re.IGNORECASE,
)
NOT_FEEDING = re.compile(
    r"metric|logg|accurac|score|eval|valid|checkpoint|save|plot|report|summar|track|monitor|stat(s|istic)|publish|"
    r"writer|histor|\bprint\(|\blog\b|push|emit|notif",
    re.IGNORECASE,
)
LOOP_HEADER = re.compile(r"^(async )?for .+ in .+:")
BUSY = frozenset({"save", "log", "sync", "gc", "queue", "spawn", "compile", "lock"})


def feeds(line: HotLine) -> bool:
    """Whether a line outside of every phase makes the next batch."""
    if line.phase != "outside" or line.activity in BUSY:
        return False
    names = (line.function, *line.via)
    if NOT_FEEDING.search(line.function) or any(NOT_FEEDING.search(text) for text in line.via):
        return False
    if any(LOOP_HEADER.match(text) for text in line.via):
        return True
    return any(FEEDS.search(name) for name in names) or bool(FEEDS.search(line.text or ""))


def feeding_lines(snapshot: Snapshot) -> Lines:
    """Lines that make batches by hand; the share is corrected by the measured time outside of everything else."""
    found = main_lines(snapshot, feeds)
    outside = main_lines(snapshot, lambda line: line.phase == "outside")
    measured = summed(records(snapshot), lambda step: max(0.0, step.outside - step.save - step.evaluation))
    if not found.lines or measured is None or outside.share <= 0:
        return found
    return Lines(min(1.0, found.share / outside.share * measured), found.lines)
