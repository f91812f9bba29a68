"""The verdict pane: what costs most time, where, and what to do about it."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.style import Style

from aitop.model.snapshot import Snapshot
from aitop.model.source import SOURCE_NAMES
from aitop.model.units import factor, percent, plural
from aitop.model.verdict import Diagnosis, Verdict, Where, by_reason
from aitop.ui.panes.since_mark import since_mark
from aitop.ui.state import View, serves
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, GAIN, LOSS, NOTICE, TEXT
from aitop.ui.theme.themes import Appearance
from aitop.ui.widgets.line import Line, hanging, key_words, rule, shorten, spread, wrapped
from aitop.ui.widgets.pane import WHOLE_JOB, Drawing, Pane
from aitop.ui.words import confidence_dots, label, one_line, place, state_lines


def unjudged_lines(diagnosis: Diagnosis, width: int) -> list[Line]:
    """The verdicts that could not be judged, grouped by what was missing."""
    lines: list[Line] = []
    for reason, ids in by_reason(diagnosis.abstained):
        lines += hanging(Line("  ? ", FAINT), f"{one_line(reason)}: {', '.join(ids)}", width, DIM)
    return lines


ROOM_FOR_SHARE = 60
LEAST_CODE = 8
ROOM_FOR_ALL, MOST_OF_ONE = 12, 20
LEADING_FIGURE = re.compile(r"\d+ %")
CLAUSE_END = re.compile(r"[:;,] ")


class VerdictPane(Pane):
    """The primary verdict in a few lines, the others after 'also'. Without a verdict, what the rules wait for."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if not self.framed:
            return Drawing(tiny_lines(view, width))
        verdicts = shown_verdicts(view)
        if view.snapshot is None or not verdicts:
            lines = looking_lines(view, width, height)
        elif height >= ROOM_FOR_ALL:
            lines = all_lines(verdicts, view.snapshot.diagnosis, width, view.appearance)
        else:
            lines = verdict_lines(verdicts, width, height, view.appearance)
        scope = None if view.pids() is None else WHOLE_JOB
        return Drawing(lines, "Verdict", since_mark(view, width - 14), scope=scope)


def shown_verdicts(view: View) -> tuple[Verdict, ...]:
    """The verdicts, without those about other ranks if the screen is narrowed to a rank."""
    if view.snapshot is None:
        return ()
    verdicts = view.snapshot.diagnosis.verdicts
    if view.rank is None:
        return verdicts
    return tuple(verdict for verdict in verdicts if not verdict.ranks or view.rank in verdict.ranks)


def verdict_lines(verdicts: tuple[Verdict, ...], width: int, height: int, appearance: Appearance) -> list[Line]:
    """The first verdict: headline, line of code, best fix, and evidence if there is room; then the other verdicts."""
    primary = verdicts[0]
    lines = [headline(primary, width)]
    if primary.where:
        lines.append(where_line(primary.where[0], width))
    lines.extend(fix_line(primary, width, appearance))
    also = also_line(verdicts[1:], width) if height > 3 else None
    room = height - len(lines) - (1 if also else 0)
    lines.extend(Line("  ").add(shorten(one_line(text), width - 2), DIM) for text in primary.evidence[: max(0, room)])
    if also:
        del lines[max(1, height - 1) :]
        lines.append(also)
    return lines[:height]


def all_lines(verdicts: tuple[Verdict, ...], diagnosis: Diagnosis, width: int, appearance: Appearance) -> list[Line]:
    """Every verdict with its evidence, one below the other, then what could not be judged."""
    lines: list[Line] = []
    for verdict in verdicts:
        lines += [*verdict_lines((verdict,), width, MOST_OF_ONE, appearance), Line()]
    silent = unjudged_lines(diagnosis, width)
    return [*lines, rule("could not be judged", width), *silent] if silent else lines


def headline(verdict: Verdict, width: int) -> Line:
    """A verdict in one line: id, subtype, share of the time and title; at the right predicted gain and confidence."""
    text, style = label(verdict)
    left = Line(text, style)
    if verdict.subtype:
        left.add(f" {verdict.subtype}", BRIGHT)
    left.add("  ")
    title = one_line(verdict.title)
    if verdict.share is not None and "%" not in title:
        left.add(f"{percent(verdict.share)} ", figure_style(verdict))
    figure = LEADING_FIGURE.match(title)
    if figure:
        left.add(figure.group(), figure_style(verdict))
        title = title[figure.end() :]
    right = _gain_and_confidence(verdict, roomy=False)
    words = _clauses(title, width - left.width - right.width)
    roomy = _gain_and_confidence(verdict, roomy=True)
    if left.width + cell_len(words) + roomy.width <= width:
        right = roomy
    return spread(left.add(words, TEXT), right, width)


def _clauses(text: str, width: int) -> str:
    """The text, cut after the last clause that fits into `width`; uncut if not even the first clause fits."""
    ends = [match.start() for match in CLAUSE_END.finditer(text) if cell_len(text[: match.start()]) <= width]
    return text if cell_len(text) <= width or not ends else text[: ends[-1]]


def _gain_and_confidence(verdict: Verdict, *, roomy: bool) -> Line:
    line = Line("  ")
    if verdict.speedup is not None and verdict.severity != "info":
        before, after = ("fix it: up to ", " as fast") if roomy else ("", "")
        line.add(before, DIM).add(factor(verdict.speedup), GAIN).add(after, DIM).add("   ")
    return line.add("confidence " if roomy else "", DIM).join(confidence_dots(verdict.confidence))


def figure_style(verdict: Verdict) -> Style:
    """The style of a verdict's share: red for lost time, but not for time well spent (severity "info")."""
    return BRIGHT if verdict.severity == "info" else LOSS


def where_line(where: Where, width: int) -> Line:
    """A line of user code: function, place, source text, and its share of the samples."""
    share = f"{percent(where.share)} of samples" if where.share is not None and width >= ROOM_FOR_SHARE else ""
    right = Line(share, DIM)
    room = width - 4 - len(place(where)) - (right.width + 2 if right.width else 0)
    line = Line("  ").add(shorten(one_line(where.function), max(4, room)), BRIGHT).add("  ").add(place(where), TEXT)
    room = width - line.width - right.width - 4
    if where.text and room >= LEAST_CODE:
        line.add("  ").add(shorten(one_line(where.text), room), DIM)
    return spread(line, right, width)


def fix_line(verdict: Verdict, width: int, appearance: Appearance) -> list[Line]:
    """The fix with the largest predicted speedup, in one line with that speedup; empty if no fix is known."""
    if not verdict.fixes:
        return []
    best = max(verdict.fixes, key=lambda fix: fix.speedup or 0.0)
    right = Line(key_words("⏎ why", appearance), DIM)
    gain = Line("  predicts ", DIM).add(factor(best.speedup), GAIN) if best.speedup is not None else Line()
    room = width - 2 - gain.width - right.width - 2
    line = Line("→ ", GAIN).add(shorten(one_line(best.text), room), TEXT).join(gain)
    return [spread(line, right, width)]


def also_line(others: tuple[Verdict, ...], width: int) -> Line | None:
    """The other verdicts in one line, with the number of those that do not fit; None if there are none."""
    if not others:
        return None
    line = Line("also ", DIM)
    for number, verdict in enumerate(others):
        part = Line(" · ", FAINT) if number else Line()
        part.add(verdict.id, TEXT)
        if verdict.share is not None:
            part.add(f" {percent(verdict.share)}", DIM)
        if verdict.where:
            part.add(f" {place(verdict.where[0])}", DIM)
        if line.width + part.width + 8 > width and number:
            return line.add(f" +{len(others) - number}", DIM)
        line.join(part)
    return line.fit(width) if line.width > width else line


def looking_lines(view: View, width: int, height: int) -> list[Line]:
    """What is shown without a verdict: that all are about other ranks; else how much was sampled, and what the rules
    still need.
    """
    snapshot = view.snapshot
    if snapshot is None:
        return [Line("looking…", BRIGHT).add("  nothing has come in yet", DIM)]
    if snapshot.diagnosis.verdicts:
        return about_others(view, snapshot.diagnosis.verdicts, width)[:height]
    lines = [Line("looking… ", BRIGHT).add(seen_so_far(snapshot), DIM)]
    failing = [
        Line("  ").join(line)
        for name in SOURCE_NAMES
        if (status := view.source(name)) is not None and status.state not in ("ok", "absent")
        for line in state_lines(name, status, width - 2)
    ]
    rest = [*failing, *unjudged_lines(snapshot.diagnosis, width)]
    room = height - 1
    if len(rest) > room > 0:
        ids = [abstained.id for abstained in snapshot.diagnosis.abstained]
        waiting = f"  {len(ids)} verdicts wait for more: {', '.join(ids)}"
        rest = [*rest[: room - 1], Line(shorten(waiting, width), FAINT)]
    return [*lines, *rest][:height]


def about_others(view: View, verdicts: tuple[Verdict, ...], width: int) -> list[Line]:
    """That no verdict is about the rank that the screen is narrowed to, and which ranks they are about."""
    ranks = sorted({rank for verdict in verdicts for rank in verdict.ranks})
    about = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    ids = ", ".join(dict.fromkeys(verdict.id for verdict in verdicts))
    text = f"{len(verdicts)} {'are' if len(verdicts) > 1 else 'is'} about {about}: {ids} · 0 shows all"
    none = Line(shorten(f"No verdict is about rank {view.rank}", width), BRIGHT)
    return [none, *wrapped(text, width, DIM)]


def seen_so_far(snapshot: Snapshot) -> str:
    """How much was seen so far: seconds, stack samples, requests or steps."""
    parts = [f"{snapshot.window:.0f} s"]
    parts.append(plural(snapshot.stacks.samples if snapshot.stacks else 0, "stack sample"))
    if snapshot.serving is not None and serves(snapshot):
        parts.append(plural(len(snapshot.serving.requests), "request"))
    elif snapshot.steps is not None and snapshot.steps.count is not None:
        parts.append(plural(snapshot.steps.count, "step"))
    return " · ".join(parts)


def tiny_lines(view: View, width: int) -> list[Line]:
    """The verdict for a tiny terminal in which nothing else fits: a few words per line."""
    snapshot = view.snapshot
    lines: list[Line] = []
    if snapshot is not None and snapshot.target.ended:
        lines.append(Line(shorten(f"ended: {snapshot.target.ended}", width), NOTICE))
    if view.paused:
        lines.append(Line("PAUSED", NOTICE))
    verdicts = shown_verdicts(view)
    if snapshot is not None and not verdicts and snapshot.diagnosis.verdicts:
        return [*lines, *about_others(view, snapshot.diagnosis.verdicts, width)]
    if snapshot is None or not verdicts:
        words = "looking…" if snapshot is None else f"looking… {seen_so_far(snapshot)}"
        return [*lines, *wrapped(words, width)]
    primary = verdicts[0]
    text, style = label(primary)
    lines.append(Line(shorten(text, width), style))
    figures = Line()
    if primary.share is not None and primary.severity != "info":
        figures.add(f"{percent(primary.share)} lost ", LOSS)
    if primary.speedup is not None and primary.severity != "info":
        figures.add(f"fix {factor(primary.speedup)}", GAIN)
    if figures.width:
        lines.append(figures)
    if primary.where:
        lines.append(Line(shorten(place(primary.where[0]), width), BRIGHT))
    lines.extend(wrapped(one_line(primary.title), width, DIM))
    return lines
