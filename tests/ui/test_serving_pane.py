"""The serving pane: what it shows of a server at every size, and what of one that hardly anything is known of."""

import re
from pathlib import Path

import msgspec
import pytest
import sample_serving as servers
import sample_snapshots as samples
from eyes import Eyes
from hypothesis import given
from hypothesis import strategies as st
from pictures import StillFeed
from rich.cells import cell_len

from aitop.diagnosis.served import idle_share
from aitop.engine.replay import last_snapshot
from aitop.model.ledger import Entry, Ledger
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.settings import Settings
from aitop.model.snapshot import Phases, ProcessStacks, Series, Stacks, ThreadShare
from aitop.model.verdict import Diagnosis
from aitop.sources.replay import Recording
from aitop.ui.app import MonitorApp
from aitop.ui.panes.header import header_line
from aitop.ui.panes.latency_histogram import Cause, axis_for, histogram, tail_causes
from aitop.ui.panes.serving import (
    ServingPane,
    done_in,
    figure_lines,
    held_share,
    kinds_line,
    over_time,
    request_of,
    turn_of,
)
from aitop.ui.panes.since_mark import since_mark
from aitop.ui.state import View, serves
from aitop.ui.theme.palette import LATENCIES, OTHER_CAUSE, TAIL, TAIL_CAUSE
from aitop.ui.theme.themes import THEMES
from aitop.ui.widgets.plot import Field, span_of

HELD = Path(__file__).parents[1] / "accuracy" / "serving" / "recordings" / "ranking_queue_window.jsonl.gz"
SIZES = [(80, 24), (120, 36), (200, 50)]
LAST_WORDS = {(80, 24): "now", (120, 36): "now", (200, 50): "1 s"}
DRAWN_SERVERS = {name: make() for name, make in servers.SERVERS.items()}


async def test_a_server_has_its_pane_where_a_training_has_its_steps(look_at):
    async with look_at(servers.engine(), size=SIZES[0]) as eyes:
        for size in SIZES:
            await eyes.resize(*size)
            for make in servers.SERVERS.values():
                await eyes.give(make())
                assert "serving" in eyes.shown() and "step" not in eyes.shown()
                assert "req/s" in eyes.pane("serving") and "latency" in eyes.pane("serving")
                assert "serving" in eyes.app.screen.panes() and "step" not in eyes.app.screen.panes()


@pytest.mark.parametrize("make", [servers.engine, servers.with_gpu])
async def test_tab_comes_to_every_pane_of_a_server(look_at, make):
    async with look_at(make(), size=SIZES[0]) as eyes:
        for size in SIZES:
            await eyes.resize(*size)
            panes, visited = eyes.app.screen.panes(), []
            for _ in panes:
                await eyes.press("tab")
                visited.append(eyes.app.screen.focused.id)
                assert eyes.app.screen.focused.display
            assert sorted(visited) == sorted(panes)


async def test_the_figures_are_those_of_the_snapshot(look_at):
    async with look_at(servers.engine(), size=SIZES[0]) as eyes:
        for size in SIZES:
            await eyes.resize(*size)
            shown = eyes.pane("serving")
            assert "Serving · 121 ms p50 · 760 ms p99" in shown
            assert "timed in the process" in shown
            rows = {row.split()[1]: row for row in shown.split("\n") if len(row.split()) > 2}
            assert "20.4 req/s" in rows["traffic"] and "816 tokens/s" in rows["traffic"]
            assert "7.40 active" in rows["traffic"] and "2.10 queued" in rows["traffic"]
            assert "latency p50  121 ms  p95  187 ms  p99  760 ms" in shown
            assert "5.80 a batch" in rows["engine"] and "62% KV used" in rows["engine"]
            assert "model 66%" in rows["turn"] and "prep" in rows["turn"]
            if size != (80, 24):
                assert "TTFT    p50   36 ms  p95   61 ms  p99  220 ms" in shown
                assert "ITL     p50  2.1 ms  p95  4.2 ms  p99   16 ms" in shown
                assert "8 under way" in shown and "40 ms ago" in shown
                assert "70% collector █ 20% queue" in shown
                assert "decode 87%" in shown and "prompt" in shown
            assert LAST_WORDS[size] in shown.split("\n")[-2]


async def test_the_header_names_the_engine(look_at):
    async with look_at(servers.engine(), size=SIZES[0]) as eyes:
        for size in SIZES:
            await eyes.resize(*size)
            header = eyes.text().split("\n")[0]
            assert "vllm 0.32.0" in header
            assert "20.4 req/s" in header
            assert "rank" not in header


async def test_the_verdict_names_its_dots_where_there_is_room_behind_a_cut_title(look_at):
    async with look_at(servers.engine(), size=(100, 30)) as eyes:
        assert "the usual 121 ms " in eyes.pane("verdict") and "confidence ●" in eyes.pane("verdict")


async def test_the_whole_screen_shows_what_small_panes_leave_out(look_at):
    async with look_at(servers.engine(), size=(80, 24)) as eyes:
        await eyes.press("tab", "z")
        shown = eyes.pane("serving")
        for words in ("TTFT", "ITL", "■ schedule", "request", "100 ms", "/s▕", "70% collector █ 20% queue"):
            assert words in shown, words


async def test_what_was_not_measured_is_a_dash_with_the_reason(look_at):
    async with look_at(servers.from_stacks(), size=(120, 36)) as eyes:
        shown = eyes.pane("serving")
        assert "– req/s" in shown and "p99       –" in shown
        assert "0.00" not in shown
        assert "estimated from stacks" in shown
        assert "single requests are seen with the hook only" in shown
        assert "sudo sysctl kernel.yama.ptrace_scope=0" in shown


async def test_an_idle_server_has_zeros_and_says_that_nothing_came(look_at):
    async with look_at(servers.idle(), size=(120, 36)) as eyes:
        shown = eyes.pane("serving")
        assert "0.00 req/s" in shown and "0 under way" in shown and "42 s ago" in shown
        assert "no request was answered in the last 30 s" in shown


async def test_a_training_that_serves_keeps_its_steps(look_at):
    async with look_at(servers.training_that_serves(), size=(120, 36)) as eyes:
        assert "step" in eyes.shown() and "serving" not in eyes.shown()
        assert not serves(servers.training_that_serves())
        assert "serving" in eyes.app.screen.panes()
        eyes.app.screen.show_pane("serving")
        await eyes.pilot.pause()
        assert "20.4 req/s" in eyes.pane("serving")


async def test_a_training_has_no_such_pane(look_at):
    async with look_at(samples.input_bound(), size=(120, 36)) as eyes:
        assert "serving" not in eyes.app.screen.panes()
        eyes.app.screen.show_pane("serving")
        await eyes.pilot.pause()
        assert "nothing is served here" in eyes.pane("serving")


def test_a_server_without_a_known_engine_has_its_processes_in_the_header():
    header = header_line(View(servers.plain()), 160).text
    assert "2 processes" in header and "p99  760 ms" in header and "tokens/s" not in header


async def test_a_mark_is_drawn_and_every_figure_shows_its_change(look_at):
    before = servers.engine()
    faster = msgspec.structs.replace(
        before.serving, requests_per_second=30.6, latency=msgspec.structs.replace(before.serving.latency, p99=0.38)
    )
    after = msgspec.structs.replace(before, tick=43, time=before.time + 20, serving=faster)
    async with look_at(before, size=(200, 50)) as eyes:
        await eyes.press("m")
        await eyes.give(after)
        shown = eyes.pane("serving")
        assert re.search(r"│ latency +▼ ", shown), "an arrow above the chart points to the mark"
        assert "30.6 req/s  ▲50%" in shown
        assert "p99  380 ms  ▼50%" in shown
        words = since_mark(eyes.app.screen.view, 110).text
        assert "20.4 → 30.6 req/s" in words and "p99 760 ms → 380 ms" in words
        await eyes.press("M")
        assert "▲50%" not in eyes.pane("serving")


async def test_the_cursor_reads_the_charts(look_at):
    async with look_at(servers.engine(), size=(120, 36)) as eyes:
        eyes.app.screen.show_pane("serving")
        await eyes.press("left", "left")
        bottom = eyes.pane("serving").split("\n")[-2]
        assert " ago " in bottom and "p50" in bottom
        await eyes.press("escape")
        assert " ago " not in eyes.pane("serving").split("\n")[-2]


async def test_the_cursor_reads_the_memory_of_a_server_and_of_no_ranks(look_at):
    async with look_at(servers.engine(), size=(120, 36)) as eyes:
        eyes.app.screen.show_pane("memory")
        await eyes.press("z", "left", "left")
        bottom = next(line for line in eyes.pane("memory").split("\n") if " ago " in line)
        assert "server" in bottom and "ranks" not in bottom


async def test_only_rows_that_changed_are_painted_again(look_at):
    before = servers.engine()
    serving = msgspec.structs.replace(before.serving, alive=9)
    async with look_at(before, size=(120, 36)) as eyes:
        pane = eyes.app.screen.query_one("#serving", ServingPane)
        painted = []
        pane.refresh = lambda *regions, **_: painted.extend(regions)
        await eyes.give(msgspec.structs.replace(before, tick=43, serving=serving))
        assert {region.y for region in painted} == {3}


async def test_it_can_be_read_in_ascii_and_without_colours():
    def pane_text(app):
        pane = app.screen.query_one("#serving", ServingPane)
        return "\n".join("".join(segment.text for segment in pane.render_line(y)) for y in range(pane.size.height))

    app = MonitorApp(StillFeed(servers.engine()), settings=Settings(theme="monochrome", ascii=True))
    async with app.run_test(size=(120, 36)) as pilot:
        eyes = Eyes(app, pilot)
        await eyes.until_true(lambda: app.screen.view.snapshot is not None, "the snapshot")
        # Letters stand for hues: the model's part of a turn, and the cause within the tail.
        assert "M" * 20 in pane_text(app) and "X 70% collector" in pane_text(app)
        for _ in THEMES:
            assert pane_text(app).isascii()
            assert "collect" in pane_text(app) and "p99" in pane_text(app)
            await eyes.press("C")


@given(
    width=st.integers(30, 190),
    height=st.integers(1, 40),
    name=st.sampled_from(list(servers.SERVERS)),
    is_marked=st.booleans(),
)
def test_it_fits_every_field(width, height, name, is_marked):
    snapshot = DRAWN_SERVERS[name]
    drawing = ServingPane(id="serving").draw(View(snapshot, mark=snapshot if is_marked else None), width, height)
    if snapshot.serving.basis == "hook":
        assert len(drawing.lines) <= height
    assert all(cell_len(line.text) <= width for line in drawing.lines)


def test_charts_and_histogram_fill_a_narrow_pane():
    view = View(servers.engine())
    for height in range(12, 32):
        assert len(ServingPane(id="serving").draw(view, 60, height).lines) == height


def test_what_is_not_measured_gives_way_to_what_is():
    view = View(servers.plain())
    lines = [line.text for line in figure_lines(view, view.snapshot.serving, 70, 3)]
    assert [line.split()[0] for line in lines] == ["traffic", "latency", "now"]


# What turns and requests consist of


def test_parts_of_a_turn_add_up_to_it_and_the_wait_before_it():
    turn = IterationRecord(end=1.0, seconds=0.1, idle=0.05, schedule=0.01, model=0.07)
    parts = {kind.key: seconds for kind, seconds in turn_of([turn, turn]).parts}
    assert parts["idle"] == 0.05 and parts["model"] == pytest.approx(0.07) and parts["sample"] is None
    assert parts["rest"] == pytest.approx(0.02)
    assert sum(seconds or 0 for seconds in parts.values()) == pytest.approx(0.15)


def test_without_any_part_there_is_no_bar():
    assert turn_of([]) is None and turn_of([IterationRecord(end=1.0, seconds=0.1)]) is None
    assert request_of([RequestRecord(end=1.0, seconds=0.1)]) is None
    assert kinds_line([IterationRecord(end=1.0, seconds=0.1)], 80, letters=False) is None


def test_a_part_that_some_requests_lack_is_the_mean_of_the_others():
    request = request_of([RequestRecord(end=1.0, seconds=0.1, queue=0.04), RequestRecord(end=1.0, seconds=0.1)])
    parts = {kind.key: seconds for kind, seconds in request.parts}
    assert parts["queue"] == 0.04 and parts["rest"] == pytest.approx(0.06)


def test_where_requests_wait_by_the_ledger_the_request_has_a_queue():
    """In this recording they wait for a batch that does not fill, in a queue of the program's own."""
    last = last_snapshot(Recording(HELD))
    request = request_of(last.serving.requests, held_share(last))
    parts = {kind.key: (seconds or 0.0) / request.seconds for kind, seconds in request.parts}
    main = [entry for entry in last.ledgers[0].entries if entry.lane == "main" and entry.phase != "idle"]
    queue = sum(entry.share for entry in main if entry.phase == "queue") / sum(entry.share for entry in main)
    assert parts["queue"] == pytest.approx(queue, abs=0.02) and queue > 0.9
    assert sum(parts.values()) == pytest.approx(1.0)
    assert held_share(servers.plain()) == 0.0


def entry(activity, share, *, phase="host", lane="main", handler="thread", pid=servers.MAIN):
    return Entry(
        lane=lane, phase=phase, activity=activity, share=share, low=share, high=share, basis="measured", pid=pid,
        handler=handler,
    )  # fmt: skip


def front(*entries, pid=servers.MAIN):
    """A server of whose requests only the arrival was measured, with these entries in the ledger of this process."""
    plain = servers.plain()
    unknown = {"model": None, "preprocess": None, "postprocess": None, "queue": 0.001}
    requests = tuple(msgspec.structs.replace(request, **unknown) for request in plain.serving.requests)
    serving = msgspec.structs.replace(plain.serving, requests=requests)
    ledger = Ledger(pid=pid, thread="Thread-1", unit="request", entries=entries)
    return msgspec.structs.replace(plain, serving=serving, ledgers=(ledger,))


WAITS = (entry("wait-queue", 0.45), entry("python", 0.05), entry("wait-queue", 0.5, phase="idle", handler=None))
BESIDE = tuple(msgspec.structs.replace(waiting, lane="producers") for waiting in WAITS)
LOOP = (
    entry("wait-queue", 0.8, lane="producers", handler=None),
    entry("python", 0.1, lane="producers", handler="event-loop"),
)


def loop_beside_a_model():
    """An event loop that rests for 70 % of the time by the kernel, and longer than there is no request."""
    seen = front(*LOOP, pid=7)
    process = ProcessStacks(pid=servers.MAIN, role="launcher", samples=50, phases=Phases())
    thread = ThreadShare(pid=servers.MAIN, thread="MainThread", samples=50, active=0.3, gil=None)
    return msgspec.structs.replace(
        seen, stacks=Stacks(seconds=2.0, samples=50, processes=(process,), threads=(thread,))
    )


IDLE = idle_share(front().serving)


@pytest.mark.parametrize(
    ("seen", "done"),
    [
        (front(*WAITS), {"wait-queue": 0.9, "python": 0.1}),
        (front(*BESIDE, entry("native", 1.0, pid=7), pid=7), {"wait-queue": 0.9, "python": 0.1}),
        (loop_beside_a_model(), {"wait-queue": (0.7 - IDLE) / (1 - IDLE), "python": 0.1 / (1 - IDLE)}),
        (front(), {}),
    ],
    ids=["by its own ledger", "beside the model's process", "an event loop beside it", "unknown"],
)
def test_what_no_part_of_a_request_says_the_ledger_does(seen, done):
    assert done_in(seen) == pytest.approx(done)
    request = request_of(seen.serving.requests, held_share(seen), done_in(seen))
    parts = {kind.name: (seconds or 0.0) / request.seconds for kind, seconds in request.parts}
    assert sum(parts.values()) == pytest.approx(1.0)
    rest = 1.0 - parts["queue"]
    assert parts["else"] == pytest.approx((1.0 - sum(done.values())) * rest)
    assert parts.get("waits for a queue", 0.0) == pytest.approx(done.get("wait-queue", 0.0) * rest)


async def test_a_front_says_what_its_requests_wait_for(look_at):
    async with look_at(front(*WAITS), size=(120, 36)) as eyes:
        (bar,) = (row for row in eyes.pane("serving").split("\n") if row.split()[1:2] == ["request"])
        assert "waits for a queue 89%" in bar and "else" not in eyes.pane("serving")


# The histogram


def inks(lines, kind):
    """The cells in the hue of a kind."""
    return sum(len(text) for line in lines for text, style in line.spans if style.color == kind.ink.color)


def test_the_histogram_has_every_request_and_its_tail_has_the_cause():
    latencies = [0.1] * 990 + [1.0] * 10
    plain = histogram(latencies, [], 60, 8)
    assert "1000 requests" in plain[0].text and "slowest 10" in plain[0].text
    assert inks(plain[1:-1], LATENCIES) > 0 and inks(plain[1:-1], TAIL) > 0 and inks(plain, TAIL_CAUSE) == 0
    caused = histogram(latencies, [Cause("collector", 0.5, TAIL_CAUSE)], 60, 8)
    assert "slowest 10 of 1,000: █ 50% collector" in caused[0].text
    assert inks(caused[1:-1], TAIL_CAUSE) > 0 and inks(caused[1:-1], TAIL) > 0
    whole = histogram(latencies, [Cause("collector", 1.0, TAIL_CAUSE)], 60, 8)
    assert inks(whole[1:-1], TAIL_CAUSE) > inks(caused[1:-1], TAIL_CAUSE) and inks(whole[1:-1], TAIL) == 0
    assert plain[1].text.split("▕")[0].strip() == "990"


def test_the_tail_has_the_cause_of_the_verdict_and_the_largest_other_one():
    causes = tail_causes(servers.engine().diagnosis)
    assert [(cause.words, cause.share, cause.kind) for cause in causes] == [
        ("collector", 0.7, TAIL_CAUSE),
        ("queue", 0.2, OTHER_CAUSE),
    ]


def test_without_a_verdict_the_tail_has_no_cause():
    for verdicts in ((), (samples.input_verdict(),), (msgspec.structs.replace(servers.tail_verdict(), subtype=None),)):
        assert tail_causes(Diagnosis(verdicts=verdicts)) == []


def test_round_latencies_stand_below_their_buckets():
    lines = histogram([0.05] * 50 + [0.1] * 50 + [1.0], [], 60, 6)
    axis = axis_for(0.05, 1.0, 53)
    for text, seconds in (("100 ms", 0.1), ("1 s", 1.0)):
        assert lines[-1].text.index(text) - 7 == axis.cell(seconds)
    assert axis.bucket(0.1) * axis.cells == axis.cell(0.1)


@given(
    latencies=st.lists(st.floats(min_value=0.0, max_value=1e5), max_size=60),
    width=st.integers(1, 200),
    height=st.integers(1, 30),
    shares=st.lists(st.floats(0.0, 1.0), max_size=3),
    letters=st.booleans(),
)
def test_any_histogram_fits(latencies, width, height, shares, letters):
    causes = [Cause("a cause", share, TAIL_CAUSE) for share in shares]
    lines = histogram(latencies, causes, width, height, letters=letters)
    assert len(lines) in (0, height)
    assert all(cell_len(line.text) <= width for line in lines)


# Charts over time


def test_charts_take_the_rows_they_get():
    snapshot = servers.engine()
    p50 = snapshot.series["request_p50"]
    field = Field(snapshot.series, snapshot.time, span_of([p50], snapshot.time, 60), 9)
    for height in range(2, 20):
        lines = over_time(field, height, snapshot.time - 60)
        assert len(lines) == height
        shown = "\n".join(line.text for line in lines)
        assert ("▼ mark" in shown) is (height >= 4)
        assert ("/s▕" in shown or "/s " in shown) is (height >= 6)
        assert ("wait" in shown) is (height >= 11)
        assert "ms" in shown or " s" in shown


def test_a_rate_that_was_never_measured_has_no_chart():
    snapshot = servers.engine()
    series = {name: values for name, values in snapshot.series.items() if name != "request_rate"}
    series["request_queue"] = Series(times=(snapshot.time,), values=(None,))
    field = Field(series, snapshot.time, span_of([series["request_p50"]], snapshot.time, 60), 9)
    assert "/s" not in "\n".join(line.text for line in over_time(field, 14, None))
