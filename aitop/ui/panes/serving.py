"""The serving pane: figures of a server, where its turns and requests spend their time, and its latencies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rich.style import Style

from aitop.diagnosis.evidence import takes_request
from aitop.diagnosis.served import idle_share
from aitop.model.ledger import Activity, Entry
from aitop.model.serving import IterationRecord, RequestRecord, Serving, ServingBasis
from aitop.model.snapshot import Series, Snapshot
from aitop.model.source import SourceName
from aitop.model.units import NOT_SUPPORTED, NOT_YET, count, duration
from aitop.ui.panes.latency_histogram import LEAST_ROWS, LEAST_WIDTH, histogram, tail_causes
from aitop.ui.panes.since_mark import change, field_of, figure
from aitop.ui.panes.step_figures import LABEL, Figure
from aitop.ui.state import View
from aitop.ui.theme.palette import (
    BRIGHT,
    DEVICE_CHART,
    DIM,
    FAINT,
    HOST_CHART,
    HOST_SOFT,
    QUEUE,
    REQUEST_PARTS,
    REST,
    TEXT,
    TURN_PARTS,
    TURNS,
    WAITING,
    Kind,
    doing,
)
from aitop.ui.widgets.bars import nice_ceiling, phase_bar
from aitop.ui.widgets.line import Line, columns, wrapped
from aitop.ui.widgets.pane import WHOLE_JOB, Drawing
from aitop.ui.widgets.plot import ChartPane, Curve, Field
from aitop.ui.words import needs_hook, share_text, significant, waits_for_target

BASES: dict[ServingBasis, tuple[str, SourceName | None]] = {
    "hook": ("timed in the process", "hook"),
    "metrics": ("from the server's /metrics", None),
    "stacks": ("estimated from stacks", "stacks"),
}
"""By basis: where the figures come from, in words, and the source whose staleness the pane shows, None for none."""
LEAST_CHART = 2
ROOM_FOR_LEGEND = 10
ROOM_FOR_MORE = 14
"""From this height in rows on: a legend for the parts of the first bar and a bar of the kinds of turns; a bar for
requests beside that for turns.
"""
GAP = 2
BETWEEN = 3
"""Cells between two columns of figures, or between chart and histogram."""


class ServingPane(ChartPane):
    """Figures at the top, then bars of the parts of turns and requests, then the charts and the latency histogram."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        serving = snapshot.serving if snapshot else None
        if snapshot is None or serving is None:
            return Drawing([Line(NOT_YET if snapshot is None else "nothing is served here", DIM)], "Serving")
        bars = _bars(view, snapshot, serving, width, height)
        lines = figure_lines(view, serving, width, max(1, min(6, height - len(bars) - LEAST_CHART, (height + 1) // 2)))
        lines += bars
        lines += self._charts(view, snapshot, serving, width, height - len(lines))
        words, source = BASES[serving.basis]
        note = Line("hook waiting for the target", TEXT) if waits_for_target(view.source("hook")) else Line(words, DIM)
        pids, latency = view.pids(), serving.latency
        scope = None if pids is None or serving.pid in pids else WHOLE_JOB
        title = f"Serving · {duration(latency.p50)} p50 · {duration(latency.p99)} p99" if latency else "Serving"
        return Drawing(lines, title, note, view.stale(source) if source else None, scope=scope)

    def _charts(self, view: View, snapshot: Snapshot, serving: Serving, width: int, height: int) -> list[Line]:
        """Charts over time and the histogram, side by side if there is room; a sentence if neither has data."""
        if height < LEAST_CHART:
            return []
        timed = any(snapshot.series.get(name, Series()).times for name in SERIES)
        latencies = [request.seconds for request in serving.requests]
        by_length = partial(histogram, latencies, tail_causes(snapshot.diagnosis), letters=view.appearance.mono)
        if not timed:
            return by_length(width, height) or _why_no_charts(view, snapshot, serving, width)[:height]
        room, mark = width - BETWEEN, view.mark.time if view.mark else None
        if latencies and height >= LEAST_ROWS and room // 2 >= LEAST_WIDTH:
            left = min(room * 3 // 5, room - LEAST_WIDTH)
            lines = over_time(self.field(snapshot, SERIES, left, SCALE), height, mark)
            right = by_length(room - left, height)
            return [line.fit(left).to(left + BETWEEN).join(other) for line, other in zip(lines, right, strict=True)]
        below = height * 2 // 5
        below = below if latencies and below >= LEAST_ROWS else 0
        lines = over_time(self.field(snapshot, SERIES, width, SCALE), height - below, mark)
        return lines + by_length(width, below)


def _bars(view: View, snapshot: Snapshot, serving: Serving, width: int, height: int) -> list[Line]:
    """Bars of the parts of turns and requests, with legends: as many as there is room for."""
    letters = view.appearance.mono
    turn, request = turn_of(serving.iterations), request_of(serving.requests, held_share(snapshot), done_in(snapshot))
    first = turn or request
    lines = [first.bar(width, letters=letters)] if first and height > LEAST_CHART else []
    if first and height >= ROOM_FOR_LEGEND:
        lines += first.legend(width, 1 if height < ROOM_FOR_MORE else 2, letters=letters)
    kinds = kinds_line(serving.iterations, width, letters=letters)
    if kinds is not None and height >= ROOM_FOR_LEGEND:
        lines.append(kinds)
    if turn and request and height >= ROOM_FOR_MORE:
        lines += [request.bar(width, letters=letters), *request.legend(width, 1, letters=letters)]
    return lines


def _why_no_charts(view: View, snapshot: Snapshot, serving: Serving, width: int) -> list[Line]:
    """Why there are no charts yet, in words."""
    if serving.basis != "hook":
        return needs_hook("single requests are seen with the hook only", view.source("hook"), width)
    text = f"{NOT_YET} no request was answered in the last {duration(round(snapshot.window))}"
    return wrapped(text, width, DIM)


AMOUNTS = {
    "traffic": {
        "requests_per_second": " req/s", "tokens_per_second": " tokens/s", "concurrency": " active", "queue": " queued",
    },
    "engine": {"batch_mean": " a batch", "kv_used": " KV used", "preemptions_per_second": " preempted/s"},
}  # fmt: skip
"""By name of a row: the fields of Serving that it shows, with their units."""
PERCENTILES = (("latency", "latency"), ("TTFT", "first_token"), ("ITL", "inter_token"))
"""The name of a row of percentiles, and the field of Serving that it shows."""


def figure_lines(view: View, serving: Serving, width: int, most: int) -> list[Line]:
    """The figures in at most `most` lines, in two columns if there is room. Rows without a measured value are dropped
    first.
    """
    left = [*(_amounts(view, serving, name) for name in AMOUNTS), _now(serving)]
    right = [_percentiles(view, serving, name, field) for name, field in PERCENTILES]
    first, second = (max(row.width for row in rows) for rows in (left, right))
    if first + BETWEEN + second <= width:
        pairs = _most_important(list(zip(left, right, strict=True)), most)
        at = max(first, (width - second) // 2)
        return [one.line(first).to(at + BETWEEN).join(other.line(second)) for one, other in pairs]
    single = [(row,) for row in (left[0], right[0], left[1], *right[1:], left[2])]
    return [row.line(width) for (row,) in _most_important(single, most)]


def _most_important(lines: Sequence[tuple[Figure, ...]], most: int) -> list[tuple[Figure, ...]]:
    """At most `most` of the lines, in their order: those with a measured figure, then the others."""
    ranked = sorted(range(len(lines)), key=lambda at: (not any(row.measured for row in lines[at]), at))
    return [lines[at] for at in sorted(ranked[: max(0, most)])]


def _amounts(view: View, serving: Serving, name: str) -> Figure:
    """One row of AMOUNTS: its values, each with its unit and its change since the mark."""
    parts = []
    for field, unit in AMOUNTS[name].items():
        value, points = getattr(serving, field), field == "kv_used"
        text = share_text(value) if points else significant(value, 5 if field == "tokens_per_second" else 4)
        line = Line(text, BRIGHT if field == "requests_per_second" else TEXT).add(unit, DIM)
        parts.append(line.join(change(view, field_of(f"serving.{field}"), points=points)))
    return Figure(name, parts, measured=any(getattr(serving, field) is not None for field in AMOUNTS[name]))


def _now(serving: Serving) -> Figure:
    alive = NOT_SUPPORTED if serving.alive is None else str(serving.alive)
    parts = [
        Line(alive.rjust(4), TEXT).add(" under way", DIM),
        Line("progressed ", DIM).add(duration(serving.still).rjust(7), TEXT).add(" ago", DIM),
    ]
    return Figure("now", parts, measured=serving.alive is not None or serving.still is not None)


def _percentiles(view: View, serving: Serving, name: str, field: str) -> Figure:
    """The p50, p95 and p99 of a `field` of Serving, in seconds, with their changes since the mark."""
    parts = []
    for percentile in ("p50", "p95", "p99"):
        value = figure(view, field_of(f"serving.{field}.{percentile}"), lambda seconds: duration(seconds).rjust(7))
        parts.append(Line(f"{percentile} ", DIM).join(value))
    return Figure(name, parts, measured=getattr(serving, field) is not None)


NOTHING: Mapping[Activity, float] = {}
SHARE_AND_TIME = 11
ROOM_FOR_TOKENS = 24
LEAST_REST = 0.005
"""A part below this share (0..1) of a turn or request counts as zero."""


class Composition(NamedTuple):
    """What a mean turn or request consists of: the seconds of each part, None for a part that was not measured."""

    name: str
    parts: tuple[tuple[Kind, float | None], ...]

    @property
    def seconds(self) -> float:
        return sum(seconds or 0.0 for _, seconds in self.parts)

    def bar(self, width: int, *, letters: bool) -> Line:
        """A bar of the parts, each labelled with its name and share if they fit."""
        shares = [(kind, None if part is None else part / self.seconds) for kind, part in self.parts]
        return Line(self.name.ljust(LABEL), DIM).join(phase_bar(shares, width - LABEL, letters=letters))

    def legend(self, width: int, most: int, *, letters: bool) -> list[Line]:
        """Each part with its share and its time, in at most `most` lines; the smallest parts are dropped first."""
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
    """The parts of the mean turn, with the wait for requests before it; None if no part was measured."""
    return _composition("turn", iterations, TURN_PARTS, before="idle")


def request_of(
    requests: Sequence[RequestRecord], held: float = 0.0, done: Mapping[Activity, float] = NOTHING
) -> Composition | None:
    """The parts of the mean request; None if no part was measured.

    `held` (see `held_share`) is the share (0..1) of a request that counts as queue although no record measured it. It
    is taken from the unmeasured rest of the request; what then remains is divided among the activities in `done` (see
    `done_in`).
    """
    request = _composition("request", requests, REQUEST_PARTS)
    if request is None:
        return None
    parts = dict(request.parts)
    waits = min(parts[REST] or 0.0, held * request.seconds)
    if waits:
        parts[QUEUE], parts[REST] = (parts[QUEUE] or 0.0) + waits, (parts[REST] or 0.0) - waits
    rest = left = parts.pop(REST) or 0.0
    for kind, seconds in ((doing(activity), share * rest) for activity, share in done.items()):
        if seconds > LEAST_REST * request.seconds:
            parts[kind], left = seconds, left - seconds
    parts[REST] = left if left > LEAST_REST * request.seconds else 0.0
    return Composition(request.name, tuple(parts.items()))


def held_share(snapshot: Snapshot) -> float:
    """The share (0..1) of the time with requests under way in which they queue, from the ledger of the process that
    takes the requests.
    """
    main = _account(snapshot)
    idle, queue = (sum(entry.share for entry in main if entry.phase == phase) for phase in ("idle", "queue"))
    return queue / (1.0 - idle) if queue else 0.0


def done_in(snapshot: Snapshot) -> dict[Activity, float]:
    """What the server does in the unmeasured part of a request: the share (0..1) of that part by activity, the largest
    first, from the host code in the ledger. Empty if that is not known.
    """
    entries = [entry for entry in _account(snapshot) or _handlers(snapshot) if entry.phase == "host"]
    shares = _by_activity((entry.activity, entry.share) for entry in entries if not takes_request(entry))
    total = sum(shares.values())
    return {activity: share / total for activity, share in shares.items() if total} or _done_in_loop(snapshot)


def _done_in_loop(snapshot: Snapshot) -> dict[Activity, float]:
    """`done_in` for an event loop in front of the process that runs the model.

    While its thread rests although requests are under way, these wait; that time is what it rests beyond the server's
    idle share. The shares add up to less than 1 if the stacks do not account for all of the time.
    """
    serving, stacks = snapshot.serving, snapshot.stacks
    if serving is None or stacks is None or not snapshot.ledgers:
        return {}
    process = next((one for one in stacks.processes if one.pid == serving.pid), None)
    idle = idle_share(serving)
    if process is None or idle is None or idle >= 1.0:
        return {}
    lead = (process.pid, process.thread)
    active = next((one.active for one in stacks.threads if (one.pid, one.thread) == lead), None) or 0.0
    own = [entry for entry in snapshot.ledgers[0].entries if (entry.pid, entry.thread) == lead]
    lineless = [(one.activity, one.share) for one in process.lineless if one.activity.startswith("wait")]
    rests = _by_activity([*lineless, *((entry.activity, entry.share) for entry in own if takes_request(entry))])
    works = _by_activity((entry.activity, entry.share) for entry in own if not takes_request(entry))
    total = sum(rests.values())
    held = max(0.0, min(total, 1.0 - active) - idle)
    parts = {activity: share / total * held for activity, share in rests.items()} | works
    return {activity: share / max(1.0 - idle, sum(parts.values())) for activity, share in parts.items()}


def _by_activity(shares: Iterable[tuple[Activity, float]]) -> dict[Activity, float]:
    """The sum of the shares of each activity, the largest first."""
    sums: defaultdict[Activity, float] = defaultdict(float)
    for activity, share in shares:
        sums[activity] += share
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _account(snapshot: Snapshot) -> tuple[Entry, ...]:
    """The main lane of the ledger of the process that takes the requests; empty if that process has no ledger."""
    pid = snapshot.serving.pid if snapshot.serving else None
    own = next((ledger for ledger in snapshot.ledgers if ledger.pid == pid), None)
    return own.main if own else ()


def _handlers(snapshot: Snapshot) -> list[Entry]:
    """Entries of request-handling threads of that process, found in the ledger of the process that runs the model."""
    pid = snapshot.serving.pid if snapshot.serving else None
    beside = snapshot.ledgers[0].entries if snapshot.ledgers else ()
    return [entry for entry in beside if entry.pid == pid and entry.handler not in (None, "event-loop")]


def _composition(
    name: str, records: Sequence[IterationRecord | RequestRecord], kinds: Sequence[Kind], before: str | None = None
) -> Composition | None:
    """The mean of each part over the records in which it was measured; None if no part was.

    REST is the remainder of the mean length. The part with the key `before` lies before that length, not within it.
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
    """A bar of the time in turns that prefill, decode, or do both, and the mean tokens a turn; None if not known."""
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


SCALE = 9
"""Cells for the scale at the left of the charts."""
SERIES = ("request_p50", "request_p99", "request_rate", "request_queue")
LEAST_WITH_HEAD = 4
ROOM_FOR_RATE, ROOM_FOR_QUEUE = 6, 11
"""From this height in rows on there is a second chart (the rate of requests) and a third one (the queue)."""


def over_time(field: Field, height: int, mark: float | None) -> list[Line]:
    """Charts of latency, rate and queue, as many as fit into `height` rows (two at least), over one time axis.

    An arrow points to the mark.
    """
    known = [
        name
        for name in ("request_rate", "request_queue")
        if any(value is not None for value in field.series.get(name, Series()).values)
    ][: (height >= ROOM_FOR_RATE) + (height >= ROOM_FOR_QUEUE)]
    lines = [_head(field, mark, rated="request_rate" in known)] if height >= LEAST_WITH_HEAD else []
    rows = height - len(lines) - 1
    lower = rows // (2 + len(known)) if known else 0
    # p50 as an area and p99 as a line over it, scaled to the largest value so that the tail is not cut off.
    p50 = Curve(field.values("request_p50"), HOST_SOFT, filled=True)
    both = [p50, Curve(field.values("request_p99"), HOST_CHART)]
    lines += field.chart(both, rows - lower * len(known), _top(both), lambda value: duration(value / 1e3))
    for name in known:
        ink, words = (DEVICE_CHART, "/s") if name == "request_rate" else (WAITING, " wait")
        lines += _amount_chart(field, name, lower, ink, words)
    return [*lines, field.axis(lambda line: _reading(field, line))]


def _head(field: Field, mark: float | None, *, rated: bool) -> Line:
    """The legend of the latency chart; while the mark is within the chart, an arrow at its moment instead."""
    line, marked = Line("latency".rjust(SCALE - 2), DIM).add("  "), field.span.cell(mark)
    if marked is None:
        line.add("█", HOST_SOFT).add(" p50  ", FAINT).add("─", HOST_CHART).add(" p99  ", FAINT)
        return line.add("█", DEVICE_CHART).add(" req/s", FAINT) if rated else line
    line.to(SCALE + marked).add("▼", BRIGHT)
    return line.add(" mark", DIM) if marked + 6 <= field.span.cells else line


def _amount_chart(field: Field, name: str, rows: int, ink: Style, words: str) -> list[Line]:
    def text_of(value: float) -> str:
        return f"{count(value) if value >= 1 else f'{value:g}'}{words}"

    curve = Curve(field.values(name), ink, filled=True)
    return field.chart([curve], rows, _top([curve]), text_of)


def _top(layers: Sequence[Curve]) -> float:
    return nice_ceiling(max((value for layer in layers for value in layer.values if value is not None), default=0.0))


def _reading(field: Field, line: Line) -> Line:
    for name in ("p50", "p99"):
        value = field.at_cursor(f"request_{name}")
        line.add(f"{name} ", DIM).add(duration(None if value is None else value / 1e3).rjust(7), TEXT).add("  ")
    line.add(significant(field.at_cursor("request_rate")), TEXT).add(" req/s  ", DIM)
    return line.add(significant(field.at_cursor("request_queue")), TEXT).add(" queued", DIM)
