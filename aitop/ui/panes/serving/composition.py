"""What the turns of an engine and its requests consist of, as stacked bars. Pure: records in, lines out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.units import count, duration
from aitop.ui.panes.serving.figures import LABEL
from aitop.ui.theme.palette import DIM, REQUEST_PARTS, REST, TEXT, TURN_PARTS, TURNS, Kind
from aitop.ui.widgets.bars import phase_bar
from aitop.ui.widgets.line import Line, columns
from aitop.ui.words import share_text

SHARE_AND_TIME, GAP = 11, 2
ROOM_FOR_TOKENS = 24
LEAST_REST = 0.005
"""A smaller part (0..1) of the whole is none."""


class Composition(NamedTuple):
    """Mean seconds of each part of one unit, None for a part that was not measured; `shares` of them all."""

    name: str
    parts: tuple[tuple[Kind, float | None], ...]

    @property
    def seconds(self) -> float:
        return sum(seconds or 0.0 for _, seconds in self.parts)

    def bar(self, width: int, *, letters: bool) -> Line:
        """The parts side by side, each with its name and share where they fit."""
        shares = [(kind, None if part is None else part / self.seconds) for kind, part in self.parts]
        return Line(self.name.ljust(LABEL), DIM).join(phase_bar(shares, width - LABEL, letters=letters))

    def legend(self, width: int, most: int, *, letters: bool) -> list[Line]:
        """Each part with its share and its time, in at most `most` lines; the smallest go first."""
        known = [
            (kind, seconds) for kind, seconds in self.parts if seconds is not None and (seconds or kind is not REST)
        ]
        name = max(len(kind.name) for kind, _ in known)
        cell = min(2 + name + SHARE_AND_TIME, width - LABEL)
        per_row = max(1, (width - LABEL + GAP) // (cell + GAP))
        largest = sorted(known, key=lambda part: -part[1])[: per_row * most]
        cells = [(self._entry(*part, name, letters), cell) for part in known if part in largest]
        rows = [cells[at : at + per_row] for at in range(0, len(cells), per_row)]
        return [Line().to(LABEL).join(columns(row, GAP)) for row in rows]

    def _entry(self, kind: Kind, seconds: float, name: int, letters: bool) -> Line:
        line = Line(f"{kind.letter if letters else '■'} ", kind.ink).add(kind.name.ljust(name), DIM)
        return line.add(share_text(seconds / self.seconds), TEXT).add(duration(seconds).rjust(7), DIM)


def turn_of(iterations: Sequence[IterationRecord]) -> Composition | None:
    """The mean turn with the wait for requests before it; None where no part of it was measured."""
    return _composition("turn", iterations, TURN_PARTS, before="idle")


def request_of(requests: Sequence[RequestRecord]) -> Composition | None:
    """The mean request; None where no part of it was measured."""
    return _composition("request", requests, REQUEST_PARTS)


def _composition(
    name: str, records: Sequence[IterationRecord | RequestRecord], kinds: Sequence[Kind], before: str | None = None
) -> Composition | None:
    """The mean of each part over the records in which it was measured.

    What is left of their length is REST; the part `before` does not belong to that length.
    """
    means: dict[Kind, float | None] = {}
    for kind in kinds:
        known = [] if kind is REST else [value for one in records if (value := getattr(one, kind.key)) is not None]
        means[kind] = sum(known) / len(known) if known else None
    if all(mean is None for mean in means.values()):
        return None
    length = sum(one.seconds for one in records) / len(records)
    inside = sum(mean or 0.0 for kind, mean in means.items() if kind.key != before)
    rest = length - inside
    means[REST] = rest if rest > LEAST_REST * length else 0.0
    return Composition(name, tuple(means.items())) if sum(mean or 0.0 for mean in means.values()) > 0 else None


def kinds_line(iterations: Sequence[IterationRecord], width: int, *, letters: bool) -> Line | None:
    """Which turns read prompts, decode, or do both, by their time; the tokens of each. None where that is not known."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for one in iterations:
        if one.kind is not None:
            seconds[one.kind] += one.seconds
    total = sum(seconds.values())
    if total <= 0:
        return None
    words = Line()
    for name, field in (("prompt", "prefill_tokens"), ("new", "decode_tokens")):
        known = [value for one in iterations if (value := getattr(one, field)) is not None]
        if known:
            words.add("  ").add(count(sum(known) / len(known)).rjust(6), TEXT).add(f" {name}", DIM)
    if words.width:
        words.add(" tokens a turn", DIM)
    room = width - LABEL - words.width
    if room < ROOM_FOR_TOKENS:
        words, room = Line(), width - LABEL
    shares = [(kind, seconds[kind.key] / total) for kind in TURNS]
    return Line("turns", DIM).to(LABEL).join(phase_bar(shares, room, letters=letters)).join(words)
