"""The header line: which run this is, how fast it goes, and the state of each source."""

from __future__ import annotations

from rich.style import Style

from aitop.diagnosis.comparison_words import in_a_sentence
from aitop.model.serving import Serving
from aitop.model.source import SOURCE_NAMES
from aitop.model.units import NOT_SUPPORTED, NOT_YET, count, duration, plural
from aitop.ui.panes.since_mark import OUTCOMES, change, field_of
from aitop.ui.state import View, serves
from aitop.ui.theme.palette import BRAND, BRIGHT, DIM, LOSS, NOTICE, TEXT
from aitop.ui.widgets.line import Line, shorten, spread
from aitop.ui.words import share_text, short_command, significant, state_mark

BRAND_WIDTH = 9
MOST_COMMAND, MOST_BESIDE_ENGINE = 26, 12
MOST_ENGINE = 24
MOST_FILTER = 16


def banner_line(view: View, width: int) -> Line:
    """Says that the target has ended, above its last Snapshot; empty while it lives."""
    ended = view.snapshot.target.ended if view.snapshot else None
    words = f" target ended: {ended} · this is the last picture"
    return Line(shorten(words, width), NOTICE).to(width, style=NOTICE) if ended else Line()


def header_line(view: View, width: int) -> Line:
    """The header: command, pid, ranks and workers (or a server's engine), rates, and the state of each source.

    The less important parts are left out if there is no room.
    """
    who, rates = _who(view), _rates(view)
    state = _state(view).join(_sources(view, short=False))
    engine = view.snapshot.engine if view.snapshot else None
    command = shorten(_command(view), MOST_COMMAND if engine is None else MOST_BESIDE_ENGINE)
    least = BRAND_WIDTH + len(command) + state.width + 2
    for parts, least_parts in ((rates, 2), (who, 1), (rates, 1), (who, 0), (rates, 0)):
        # Before the first rate is dropped, shorten the command: how fast the run goes matters more.
        name = MOST_BESIDE_ENGINE if parts is rates and least_parts == 0 else len(command)
        needed = least - max(0, len(command) - name)
        while len(parts) > least_parts and needed + sum(part.width + 3 for part in (*who, *rates)) > width:
            parts.pop()
    if least > width:
        state = _state(view).join(_sources(view, short=True))
    right = Line()
    for part in rates:
        right.join(part).add("   ")
    right.join(state)
    room = width - 2 - right.width - BRAND_WIDTH - sum(part.width + 3 for part in who)
    left = Line(" aitop ", BRAND).add(" ").add(shorten(_command(view), room), BRIGHT)
    for part in who:
        left.add(" · ", DIM).join(part)
    return spread(left, Line("  ").join(right), width)


def _command(view: View) -> str:
    if view.title:
        return view.title
    return short_command(view.snapshot.target.command) if view.snapshot else "…"


def _who(view: View) -> list[Line]:
    snapshot = view.snapshot
    if snapshot is None:
        return []
    parts = [Line(shorten(snapshot.engine, MOST_ENGINE), BRIGHT)] if snapshot.engine else []
    parts.append(Line(f"pid {snapshot.target.pid}", DIM))
    if snapshot.host is not None and serves(view.snapshot):
        parts.append(Line(plural(len(snapshot.host.processes), "process", "processes"), DIM))
    elif snapshot.host is not None:
        ranks = sum(process.role == "rank" for process in snapshot.host.processes)
        workers = sum(process.role == "loader-worker" for process in snapshot.host.processes)
        whole = (snapshot.ranks.world_size if snapshot.ranks is not None else None) or ranks
        of = f"rank {view.rank} of {whole}" if view.rank is not None else plural(ranks, "rank")
        parts.append(Line(of, BRIGHT if view.rank is not None else DIM))
        parts.append(Line(plural(workers, "worker"), DIM))
    return parts


def _rates(view: View) -> list[Line]:
    snapshot = view.snapshot
    if snapshot is not None and snapshot.standstill is not None:
        return [Line(f"nothing has run for {duration(snapshot.standstill.seconds)}", LOSS)]
    if snapshot is not None and snapshot.serving is not None and serves(snapshot):
        return _served(view, snapshot.serving)
    steps = snapshot.steps if snapshot else None
    if snapshot is None or steps is None or steps.per_second is None:
        hook = view.source("hook")
        never = hook is not None and hook.state in ("absent", "denied")
        return [Line(f"{(NOT_SUPPORTED if never else NOT_YET).rjust(4)} step/s", DIM)]
    word = "req" if snapshot.kind == "inference" else "step"

    def figure(text: str, word: str, field: str, style: Style = TEXT) -> Line:
        by = change(view, field_of(f"steps.{field}"), is_speed=True, points=field == "mfu")
        return Line(text, style).add(f" {word}", DIM).join(by)

    parts = [figure(significant(steps.per_second, 4), f"{word}/s", "per_second", BRIGHT), *_beside_last_run(view)]
    if steps.tokens_per_second is not None:
        parts.append(figure(significant(steps.tokens_per_second, 5), "tokens/s", "tokens_per_second"))
    elif steps.samples_per_second is not None:
        parts.append(figure(significant(steps.samples_per_second, 5), "samples/s", "samples_per_second"))
    if steps.mfu is not None:
        parts.append(figure(share_text(steps.mfu), "MFU", "mfu"))
    if steps.count is not None:
        parts.append(Line(f"{word} ", DIM).add(count(steps.count).rjust(6), TEXT))
    return parts


def _served(view: View, serving: Serving) -> list[Line]:
    rate = Line(significant(serving.requests_per_second), BRIGHT).add(" req/s", DIM)
    parts = [rate.join(change(view, field_of("serving.requests_per_second"))), *_beside_last_run(view)]
    if serving.latency is not None:
        parts.append(Line("p99 ", DIM).add(duration(serving.latency.p99).rjust(7), TEXT))
    if serving.tokens_per_second is not None:
        parts.append(Line(significant(serving.tokens_per_second, 5), TEXT).add(" tokens/s", DIM))
    if serving.queue is not None:
        parts.append(Line(significant(serving.queue), TEXT).add(" queued", DIM))
    return parts


def _beside_last_run(view: View) -> list[Line]:
    """How fast the run is compared with the last one of the same script; empty until that can be told."""
    words = in_a_sentence(view.compared) if view.compared is not None else None
    return [Line(words, OUTCOMES[view.compared.change.verdict])] if view.compared and words else []


def _state(view: View) -> Line:
    narrowed = view.narrowed()
    notices = (
        f"only {narrowed}" if narrowed is not None else None,
        f"/{shorten(view.filter, MOST_FILTER)}" if view.filter else None,
        view.recording,
        "PAUSED" if view.paused else None,
        None if view.live else "REPLAY",
    )
    line = Line()
    for notice in filter(None, notices):
        line.add(f" {notice} ", NOTICE).add("  ")
    return line


def _sources(view: View, *, short: bool) -> Line:
    line = Line()
    for name in SOURCE_NAMES:
        glyph, style = state_mark(view.source(name))
        line.add(name[:1] if short else name, DIM).add(glyph, style).add(" ")
    return line
