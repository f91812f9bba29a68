"""What a server does: its figures, where its turns and requests spend their time, and its latencies."""

from __future__ import annotations

from aitop.model.serving import Serving, ServingBasis
from aitop.model.snapshot import Series, Snapshot
from aitop.model.source import SourceName
from aitop.model.units import NOT_YET, duration
from aitop.ui.panes.serving.charts import SCALE, SERIES, over_time
from aitop.ui.panes.serving.composition import kinds_line, request_of, turn_of
from aitop.ui.panes.serving.figures import figure_lines
from aitop.ui.panes.serving.histogram import LEAST_ROWS, LEAST_WIDTH, histogram, tail_causes
from aitop.ui.state import View
from aitop.ui.theme.palette import DIM, TEXT
from aitop.ui.widgets.chart_pane import ChartPane
from aitop.ui.widgets.line import Line, wrap
from aitop.ui.widgets.pane import Drawing
from aitop.ui.words import state_line, waits_for_target

BASES: dict[ServingBasis, tuple[str, SourceName | None]] = {
    "hook": ("timed in the process", "hook"),
    "metrics": ("from the server's /metrics", None),
    "stacks": ("estimated from stacks", "stacks"),
}
"""Where figures come from in words, and the source that may be stale."""
LEAST_CHART = 2
ROOM_FOR_LEGEND = 10
ROOM_FOR_MORE = 14
"""Rows from which on the parts of turns have a legend, and requests and kinds of turns a bar of their own."""
GAP = 3


class ServingPane(ChartPane):
    """Figures on top, the parts of turns and requests, and below them the charts beside the histogram."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        self.moments = ()
        snapshot = view.snapshot
        serving = snapshot.serving if snapshot else None
        if snapshot is None or serving is None:
            return Drawing([Line(NOT_YET if snapshot is None else "nothing is served here", DIM)], "Serving")
        bars = _bars(view, serving, width, height)
        lines = figure_lines(view, serving, width, max(1, min(6, height - len(bars) - LEAST_CHART, (height + 1) // 2)))
        lines += bars
        lines += self._charts(view, snapshot, serving, width, height - len(lines))
        words, source = BASES[serving.basis]
        note = Line("hook waiting for the target", TEXT) if waits_for_target(view.source("hook")) else Line(words, DIM)
        return Drawing(lines, _title(serving), note, view.stale(source) if source else None)

    def _charts(self, view: View, snapshot: Snapshot, serving: Serving, width: int, height: int) -> list[Line]:
        """Charts over time and the histogram, beside each other where there is room; else why there are none."""
        if height < LEAST_CHART:
            return []
        timed = any(snapshot.series.get(name, Series()).times for name in SERIES)
        latencies = [request.seconds for request in serving.requests]
        causes, letters = tail_causes(snapshot.diagnosis), view.look.mono
        mark = view.mark.time if view.mark else None
        if not timed:
            drawn = histogram(latencies, causes, width, height, letters=letters)
            return drawn or _why_no_charts(view, snapshot, serving, width)[:height]
        beside = latencies and height >= LEAST_ROWS and (width - GAP) // 2 >= LEAST_WIDTH
        left = (width - GAP) * 3 // 5 if beside else width
        if beside and width - GAP - left < LEAST_WIDTH:
            left = width - GAP - LEAST_WIDTH
        below = height * 2 // 5 if latencies and not beside and height >= 2 * LEAST_ROWS + 1 else 0
        field = self.field(snapshot, SERIES, left, SCALE)
        lines = over_time(field, height - below, mark)
        if not beside:
            return lines + histogram(latencies, causes, width, below, letters=letters)
        right = histogram(latencies, causes, width - GAP - left, height, letters=letters)
        return [line.fit(left).to(left + GAP).join(other) for line, other in zip(lines, right, strict=True)]


def _bars(view: View, serving: Serving, width: int, height: int) -> list[Line]:
    """Bars of what turns and requests consist of: as many as there is room for."""
    letters = view.look.mono
    turn, request = turn_of(serving.iterations), request_of(serving.requests)
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


def _title(serving: Serving) -> str:
    latency = serving.latency
    return f"Serving · {duration(latency.p50)} p50 · {duration(latency.p99)} p99" if latency else "Serving"


def _why_no_charts(view: View, snapshot: Snapshot, serving: Serving, width: int) -> list[Line]:
    """What the charts wait for."""
    if serving.basis == "hook":
        texts = [f"{NOT_YET} no request was answered in the last {duration(round(snapshot.window))}"]
    else:
        texts = ["single requests are seen with the hook only"]
        status = view.source("hook")
        texts += [state_line("hook", status).text] if status is not None and status.state != "ok" else []
    return [Line(line, DIM) for text in texts for line in wrap(text, width)]
