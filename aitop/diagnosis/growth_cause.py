"""Which lines go over something that only grows, or through a graph that is kept from step to step. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aitop.diagnosis.evidence import Lines, main_lines, main_stacks
from aitop.diagnosis.trend import trend
from aitop.model.snapshot import GrowthSite, HotLine, Snapshot

# A backward takes two or three times as long as its forward: so many times only through more than its own graph.
OWN_GRAPH, KEPT_GRAPH = 3.0, 6.0
WATCH_SECONDS = 60.0
# Bytes a second, and of how many: less may be anything.
LEAST_SLOPE, LEAST_RISE = 50e3, 0.5e6

_GROWN = re.compile(
    r"^([\w.]+(?:\[[^\]]*\])?)(?:\.(?:append|appendleft|extend|insert)\(|\s*\+=|\s*=(?!=))|^([\w.]+)\[[^=]*\]\s*=(?!=)"
)
_JOINED = re.compile(r"\b(?:cat|concat|concatenate|append|vstack|hstack)\(")
_OVER_ALL = (
    "sort|index|count|copy|reverse|sum|mean|std|var|min|max|median|quantile|argsort|topk|tolist|numpy|cumsum|norm"
    "|unique"
)
# What is assigned to is made anew, not gone over: `losses, seen = episode(world)`.
_TARGETS = re.compile(r"^\s*\(?\*?[\w.]+(?:\s*,\s*\*?[\w.]+)+,?\s*\)?\s*=(?!=)")
_RETAINS = re.compile(r"(?:retain|create)_graph\s*=\s*(?!False|None|\s)")


@dataclass(frozen=True)
class Cause:
    """Lines that take the time, and lines that make longer what they go over."""

    lines: Lines
    sites: tuple[GrowthSite, ...]


def over_all(snapshot: Snapshot, sites: Sequence[GrowthSite]) -> Cause:
    """The lines that go over all of something that the sites make longer, and those sites."""
    over = main_lines(snapshot, lambda line: bool(_gone_over(line, sites)))
    return Cause(over, tuple(dict.fromkeys(site for line in over.lines for site in _gone_over(line, sites))))


def proven(snapshot: Snapshot) -> tuple[GrowthSite, ...]:
    """The sites that run at every step, and whose thing nothing shortens.

    Where only a setting decides whether something does, memory that rises tells that it does not.
    """
    every = [site for site in snapshot.growth_sites if site.every_step]
    return tuple(site for site in every if site.unless is None or memory_rises(snapshot))


def memory_rises(snapshot: Snapshot) -> bool:
    """Whether the memory of the ranks rises steadily, however little."""
    line = trend(snapshot.series.get("rss"), snapshot.time - WATCH_SECONDS)
    return (
        line is not None
        and line.points >= 6
        and line.slope >= LEAST_SLOPE
        and line.growth >= LEAST_RISE
        and line.fit >= 0.85
        and line.rising >= 0.7
        and line.late_slope >= 0.4 * line.slope
    )


def kept_graph(snapshot: Snapshot) -> tuple[float, Cause] | None:
    """The share of time in which a backward goes through graphs of earlier steps, and what keeps them.

    Seen by a backward that retains its graph and takes many times the forward, and by code that carries a graph on or
    memory that rises.
    """
    process = main_stacks(snapshot)
    phases = snapshot.steps.phases if snapshot.steps else process.phases if process else None
    if process is None or phases is None or not phases.backward:
        return None
    forward = max(phases.forward or 0.0, 0.5 / max(1, process.samples))
    lines = main_lines(snapshot, lambda line: line.phase == "backward" and _RETAINS.search(line.text or "") is not None)
    sites = tuple(site for site in proven(snapshot) if site.keeps_graph)
    if phases.backward < KEPT_GRAPH * forward or lines.share < 0.5 * phases.backward:
        return None
    if not sites and not memory_rises(snapshot):
        return None
    return phases.backward - OWN_GRAPH * forward, Cause(lines if not sites else Lines(0.0, ()), sites)


def _gone_over(line: HotLine, sites: Sequence[GrowthSite]) -> list[GrowthSite]:
    """The sites whose grown thing this line, or the line that calls it, takes as a whole."""
    found = []
    for site in sites:
        places = [(line.file, line.line, line.text), *((one.file, one.line, one.text) for one in line.via[-2:])]
        if any(text and takes_all(text, site) for _, _, text in places) and _lives(site, line):
            found.append(site)
    return found


def _lives(site: GrowthSite, line: HotLine) -> bool:
    """Whether the line runs inside of the loop in which the thing lives, rather than once it is done."""
    if site.within is None:
        return True
    first, last = site.within
    places = [(line.file, line.line), *((one.file, one.line) for one in line.via)]
    return any(file == site.file and first <= at <= last for file, at in places)


def takes_all(text: str, site: GrowthSite) -> bool:
    """Whether a line of code takes all of what the site makes longer: not one element, a slice, or its length."""
    text = text.replace('"', "'")
    if text == site.text.replace('"', "'"):
        # What is joined anew is copied as a whole.
        text = text.partition("=")[2]
        if not _JOINED.search(text):
            return False
    text = _TARGETS.sub("", text)
    return any(re.search(_whole(name), text) for name in _names(site))


def _whole(name: str) -> str:
    as_it_is = r"(?:\.(?:values|items|keys)\(\))?(?![\w.\[(]|\s*[-+*/]?=(?!=))"
    return rf"(?<![\w.])(?<!len\(){re.escape(name)}(?:{as_it_is}|\.(?:{_OVER_ALL})\()"


def _names(site: GrowthSite) -> Iterator[str]:
    """What grows, and what holds it where it is an element."""
    match = _GROWN.match(site.text.replace('"', "'"))
    grown = site.grown or (match[1] or match[2] if match is not None else "")
    if grown:
        yield grown
        if "[" in grown:
            yield grown.partition("[")[0]
