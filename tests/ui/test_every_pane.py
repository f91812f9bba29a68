"""Every pane can be reached at every size, and the ledger pane says where the time goes."""

import msgspec
import pytest
import sample_snapshots as samples
from rich.cells import cell_len

from aitop.model.ledger import Entry, Ledger
from aitop.model.verdict import Where
from aitop.ui.panes.ledger import ACTIVITIES, LANES, entry_line
from aitop.ui.screens.monitor import PANES

SIZES = [(40, 12), (80, 24), (100, 30), (120, 36), (200, 50)]


def entry(share, phase, activity, *, lane="main", line=41, function="load", seconds=None, file="/x/train.py"):
    return Entry(
        lane=lane, phase=phase, activity=activity, share=share, low=share, high=share, basis="sampled",
        pid=4242, seconds=seconds, where=Where(pid=4242, file=file, line=line, function=function),
    )  # fmt: skip


LEDGER = Ledger(
    pid=4242,
    thread="MainThread",
    unit="step",
    length=0.25,
    entries=(
        entry(0.64, "data", "wait-queue", seconds=0.16),
        entry(0.2, "backward", "native", line=77, function="train", seconds=0.05),
        entry(0.15, "host", "wait-lock", line=90, function="log", seconds=0.0375),
        entry(0.9, "data", "python", lane="producers", line=12, function="decode", file="/x/decode.py"),
        entry(0.002, "save", "wait-disk", line=200, function="rare"),
    ),
)


def with_ledger(snapshot):
    return msgspec.structs.replace(snapshot, ledgers=(LEDGER,))


async def test_tab_comes_to_every_pane_and_back_to_the_first(look_at):
    async with look_at(with_ledger(samples.many_ranks()), size=SIZES[0]) as eyes:
        for size in SIZES:
            await eyes.resize(*size)
            beside = eyes.shown()
            visited = []
            for _ in range(len(PANES) - 1):  # one that serves nothing has no serving pane
                await eyes.press("tab")
                pane = eyes.app.screen.focused
                visited.append(pane.id)
                assert pane.display and pane.size.width > 0 and pane.size.height > 0, pane.id
                assert any(line.text.strip(" │╭╮╰╯─▾") for line in pane.drawn), pane.id
            assert sorted(visited) == sorted(set(PANES) - {"serving"})
            assert visited[-1] == "verdict"
            assert eyes.shown() == beside
            await eyes.press("shift+tab")
            assert eyes.app.screen.focused.id == "processes"
            assert ("processes" in beside) is (size == (200, 50))
            await eyes.press("tab")
            assert eyes.shown() == beside


async def test_panes_of_which_a_run_has_nothing_are_left_out(look_at):
    async with look_at(samples.input_bound(), size=(80, 24)) as eyes:
        assert not {"ranks", "ledger"} & set(eyes.app.screen.panes())
        assert "ledger" not in eyes.shown()


@pytest.mark.parametrize(("tabs", "name", "word"), [(3, "data", "of 8 ready"), (4, "memory", "31 GB of 64 GB")])
async def test_a_pane_without_room_gets_the_screen_until_the_next_one(look_at, tabs, name, word):
    async with look_at(samples.input_bound(), size=(80, 24)) as eyes:
        assert name not in eyes.shown()
        await eyes.press(*["tab"] * tabs)
        assert eyes.shown() == {"header", name, "footer"}
        assert word in eyes.pane(name)
        await eyes.press("escape")
        assert eyes.shown() == {"header", "verdict", "step", "gpu", "code", "footer"}


async def test_with_a_zoomed_pane_tab_zooms_the_next_one(look_at):
    async with look_at(samples.input_bound()) as eyes:
        await eyes.press("z", "tab")
        assert eyes.shown() == {"header", "step", "footer"}
        await eyes.press("tab", "z")
        assert {"verdict", "gpu", "code"} <= eyes.shown()


async def test_the_command_palette_has_every_pane(look_at):
    async with look_at(samples.many_ranks(), size=(80, 24)) as eyes:
        commands = {command.help: command for command in eyes.app.get_system_commands(eyes.app.screen)}
        commands["pane: processes"].callback()
        await eyes.pilot.pause()
        assert eyes.shown() == {"header", "processes", "footer"}


async def test_the_ledger_says_where_the_time_goes(look_at):
    async with look_at(with_ledger(samples.input_bound()), size=(80, 24)) as eyes:
        for size in ((80, 24), (120, 36), (200, 50)):
            await eyes.resize(*size)
            assert ("ledger" in eyes.shown()) is (size != (80, 24))
            eyes.app.screen.show_pane("ledger")
            await eyes.pilot.pause()
            shown = eyes.pane("ledger")
            assert "Time · 250 ms a step" in shown
            for words in (
                ("64%", "data", "waits for a queue", "train.py:41"),
                ("15%", "host code", "waits for a lock"),
            ):
                line = next(line for line in shown.split("\n") if words[0] in line)
                assert [word for word in words if word not in line] == []
            order = [shown.index(words) for words in ("64%", "20%", LANES["producers"], "decode.py:12")]
            assert order == sorted(order)
            assert "rare" not in shown and "train.py:200" not in shown
            await eyes.press("escape")


async def test_the_ledger_says_what_its_time_is_divided_by(look_at):
    async with look_at(with_ledger(samples.input_bound()), size=(200, 50)) as eyes:
        for unit, length, title in (
            ("request", 0.033, "a request every 33 ms"),
            ("iteration", 0.033, "33 ms an iteration"),
            ("iteration", None, "an iteration"),
            ("second", 1.0, "wall time"),
        ):
            ledger = msgspec.structs.replace(LEDGER, unit=unit, length=length)
            await eyes.give(msgspec.structs.replace(samples.input_bound(), ledgers=(ledger,)))
            assert f"Time · {title} ─" in eyes.pane("ledger")


@pytest.mark.parametrize("width", [24, 46, 76, 116])
def test_an_entry_of_the_ledger_fits_its_pane(width):
    for activity in ACTIVITIES:
        line = entry_line(
            entry(0.5, "environment", activity, seconds=0.1, file="/x/" + "long" * 9 + ".py"), width, 42, timed=True
        )
        assert cell_len(line.text) <= max(width, 36)
        if width >= 46:
            assert ACTIVITIES[activity] in line.text
            assert ":41" in line.text


async def test_the_rank_chooses_the_ledger_and_the_filter_its_entries(look_at):
    snapshot = samples.two_ranks()
    first, second = (process.pid for process in snapshot.host.processes if process.role == "rank")
    ledgers = (
        msgspec.structs.replace(LEDGER, pid=first),
        msgspec.structs.replace(LEDGER, pid=second, length=0.5),
    )
    async with look_at(msgspec.structs.replace(snapshot, ledgers=ledgers), size=(200, 50)) as eyes:
        assert "Time · 250 ms a step" in eyes.pane("ledger")
        assert f"pid {first}" in eyes.pane("ledger")
        await eyes.press("2")
        assert "Time · 500 ms a step" in eyes.pane("ledger")
        await eyes.press("slash", *"lock", "enter")
        assert "waits for a lock" in eyes.pane("ledger")
        assert "waits for a queue" not in eyes.pane("ledger")
        await eyes.press("slash", "ctrl+u", *"zzz", "enter")
        assert "nothing here matches zzz" in eyes.pane("ledger")
