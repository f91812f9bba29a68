"""The matrix of ranks and the view of a hang."""

import msgspec
import sample_ranks
import sample_snapshots as samples
from scripted_feeds import RunFeed, ScriptedFeed

from aitop.diagnosis.conditions.hang import Odd
from aitop.model.ranks import RankView, Standing
from aitop.ui.screens.hang import StandingPane, places
from aitop.ui.state import View


def job(count, **fields):
    return sample_ranks.job(samples.two_ranks(), count, **fields)


def hanging(count, **fields):
    return sample_ranks.hanging(samples.two_ranks(), count, **fields)


def rows(eyes):
    return [line.split()[1:4] for line in eyes.pane("ranks").splitlines()[2:] if line.startswith("│")]


async def test_the_latest_rank_is_on_top_and_is_entered(look_at):
    async with look_at(job(8), size=(120, 36)) as eyes:
        text = eyes.pane("ranks")
        assert "8 here, 8 elsewhere" in text
        assert rows(eyes)[0][:2] == ["3", "120"]
        eyes.app.screen.set_focus(eyes.app.screen.query_one("#ranks"))
        await eyes.press("enter")
        assert eyes.app.screen.view.rank == 3
        await eyes.press("left")
        assert eyes.app.screen.view.rank is None
        await eyes.press("down", "down", "right")
        assert eyes.app.screen.view.rank == int(rows(eyes)[2][1] if rows(eyes)[2][0] in "●▸" else rows(eyes)[2][0])


async def test_a_rank_without_a_number_is_entered(look_at):
    whole = job(2)
    ranks = tuple(msgspec.structs.replace(rank, rank=None, lateness=None) for rank in whole.ranks.ranks)
    nameless = msgspec.structs.replace(whole, ranks=msgspec.structs.replace(whole.ranks, ranks=ranks))
    async with look_at(nameless, size=(120, 36)) as eyes:
        eyes.app.screen.set_focus(eyes.app.screen.query_one("#ranks"))
        await eyes.press("down", "enter")
        assert eyes.app.screen.view.pids() == {3721}
        await eyes.press("escape")
        assert eyes.app.screen.view.pids() is None


async def test_one_process_has_no_matrix(look_at):
    async with look_at(samples.input_bound(), size=(120, 36)) as eyes:
        assert not eyes.app.screen.query_one("#ranks").display


async def test_a_rank_that_is_not_measured_has_dashes(look_at):
    whole = job(2)
    ranks = msgspec.structs.replace(whole.ranks, ranks=(whole.ranks.ranks[1], RankView(rank=0, pid=3720)))
    async with look_at(msgspec.structs.replace(whole, ranks=ranks), size=(80, 24)) as eyes:
        unknown = next(line for line in eyes.pane("ranks").splitlines() if line.split()[1:2] == ["0"])
        assert set(unknown.split()[2:-1]) == {"–"}


async def test_a_hang_is_shown_by_places_with_the_odd_one_first(look_at):
    async with look_at(hanging(8), size=(160, 45)) as eyes:
        await eyes.press("h")
        text = eyes.pane("standing")
        assert "nothing has run for 41 s" in text and "rank 3" in text
        places = [line for line in text.splitlines() if "data.py:31" in line or "train.py:90" in line]
        assert "data.py:31" in places[-2] and "7 ranks" in places[-1] and "if step % 10" in places[-1]
        assert "Queue.get" in eyes.pane("group")
        await eyes.press("down")
        assert "all_reduce" in eyes.pane("group")
        await eyes.press("escape")
        assert eyes.app.screen.query("#verdict")


def test_who_shows_what_was_left_out_stands_with_its_like():
    still = hanging(4).standstill
    odd = Odd("skipped-collective", "rank 3 left out", 0.9, (still.ranks[3], still.ranks[0]), (3,))
    assert [(len(place.members), place.odd) for place in places(still, odd)] == [(1, True), (3, False)]


def test_workers_stand_with_those_of_the_same_rank_whose_number_is_readable():
    whole = hanging(2)
    of = {4100: 0, 4101: 0, 4102: 1, 4103: 1, 4104: None}
    fetching = whole.standstill.ranks[1].frames
    workers = tuple(
        Standing(pid=pid, rank=rank, role="loader-worker", doing="fetching", frames=fetching, where=fetching[0])
        for pid, rank in of.items()
    )
    pane = StandingPane(id="standing")
    pane.set_standstill(msgspec.structs.replace(whole.standstill, workers=workers))
    rows = [pane.row(place, View(), 118).text[2:].split("  ")[0] for place in pane.entries]
    assert rows[-3:] == ["rank 0: 2 workers", "rank 1: 2 workers", "1 worker"]


async def test_a_job_that_stands_still_has_no_rate(look_at):
    for still, words in ((hanging(2), "nothing has run for 41 s"), (job(2), "step/s")):
        async with look_at(still, size=(120, 36)) as eyes:
            header = eyes.pane("header")
            assert words in header and ("step/s" in header) == (words == "step/s")


async def test_ranks_that_get_on_are_not_called_hanging(look_at):
    moving = msgspec.structs.replace(hanging(2, odd=1), standstill=None)
    async with look_at(moving, size=(80, 24)) as eyes:
        await eyes.press("h")
        assert " HANG " not in eyes.pane("standing") and "if it hangs" in eyes.pane("standing")


async def test_what_ranks_are_in_below_python_is_asked_for_by_a_key(look_at):
    class Native(RunFeed):
        asked = ()

        def dump(self):
            return hanging(2, odd=1).dump

        def native(self, pids):
            Native.asked = tuple(pids)
            return dict.fromkeys(pids[:1], ("futex_wait (libc.so.6)", "wait (libgloo.so)"))

    async with look_at(feed=Native(hanging(2, odd=1)), size=(120, 36)) as eyes:
        await eyes.press("h")
        await eyes.until("Queue.get")
        assert not Native.asked, "it stops the process: only when asked"
        await eyes.press("n")
        await eyes.until("below Python, rank 1: futex_wait (libc.so.6) ← wait (libgloo.so)")


async def test_a_replay_offers_no_look_below_python(look_at):
    async with look_at(feed=ScriptedFeed(hanging(2, odd=1), live=False), size=(120, 36)) as eyes:
        await eyes.press("h")
        assert "h look again" in eyes.pane("standing") and "below Python" not in eyes.pane("standing")


async def test_beside_the_title_stands_as_much_as_fits(look_at):
    whole = job(64)
    scaled = msgspec.structs.replace(whole, ranks=msgspec.structs.replace(whole.ranks, efficiency=0.41))
    for size, words, left in (
        ((200, 50), "scaling 41 % · exchange 3 % of a step", "one"),
        ((80, 24), " of 64", "scaling"),
    ):
        async with look_at(scaled, size=size) as eyes:
            eyes.app.screen.set_focus(eyes.app.screen.query_one("#ranks"))
            await eyes.press("z")
            assert words in eyes.pane("ranks").split("\n")[0] and left not in eyes.pane("ranks").split("\n")[0]
