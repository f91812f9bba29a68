"""The matrix of ranks and the view of a hang."""

import random

import msgspec
import sample_snapshots as samples

from aitop.model.host import ProcessSample
from aitop.model.ranks import RankPhases, Ranks, RankView, Standing, Standstill
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.ui.layout import plan

STEP = 0.2
QUEUE = Frame("Queue.get", "/usr/lib/python3.11/queue.py", 171)
REDUCE = Frame("all_reduce", "/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2906)


def rank_view(number, late, *, gpu=False):
    """A rank that is late by its data."""
    random_ = random.Random(number)
    data = (0.13 if late else 0.01) + random_.uniform(0, 0.004)
    waits = 0.004 if late else 0.124 - random_.uniform(0, 0.004)
    return RankView(
        rank=number, pid=3720 + number, step=14_208, p50=STEP, work=0.19 if late else 0.07,
        phases=RankPhases(data_wait=data, forward=0.021, backward=0.033, optimizer=0.002, outside=0.004, wait=waits),
        lateness=0.12 if late else 0.001 * random_.uniform(0, 1), latest=1.0 if late else 0.0, cpu=1.03 + 0.01 * number,
        rss=3 << 30, gpu=number if gpu else None, gpu_busy=0.41 if gpu else None, gpu_memory=39 << 30 if gpu else None,
        skew=tuple((0.12 if late and at > 40 else 0.002) + random_.uniform(0, 0.02) for at in range(120)),
    )  # fmt: skip


def process(number):
    return ProcessSample(pid=3720 + number, ppid=3700, started=samples.START, role="rank", name="python",
                         command="python train.py", rank=number, state="S", channel="futex_do_wait")  # fmt: skip


def job(count, *, late=3, gpu=False, **fields):
    """A snapshot of so many ranks, one of them late."""
    one = samples.two_ranks()
    views = tuple(rank_view(number, number == late % count, gpu=gpu) for number in range(count))
    ranks = Ranks(ranks=views, world_size=2 * count, steps=118, step=STEP, exchange=0.006, calls=0.001, uneven=0.1)
    host = msgspec.structs.replace(one.host, processes=tuple(process(number) for number in range(count)))
    return msgspec.structs.replace(one, ranks=ranks, host=host, **fields)


def standing(number, odd):
    guarded = Frame("train", "/home/ada/train.py", 90, True, "dist.all_reduce(loss)", None, "if step % 10 == 0:")
    frames = (Frame("read", "/home/ada/data.py", 31, True, "batch = queue.get()"), QUEUE) if odd else (guarded, REDUCE)
    return Standing(
        pid=3720 + number, rank=number, role="rank", doing="own" if odd else "collective", frames=frames,
        call="Queue.get" if odd else "all_reduce", where=frames[0], state="S", channel="futex_do_wait", step=88,
    )  # fmt: skip


def hanging(count, odd=3):
    """All ranks but one stand in all_reduce."""
    found = tuple(standing(number, number == odd) for number in range(count))
    table = tuple(dict.fromkeys(frame for one in found for frame in one.frames))
    threads = tuple(
        ThreadStack(pid=one.pid, thread="MainThread", main=True, frames=tuple(map(table.index, one.frames)))
        for one in found
    )
    dump = StackDump(time=samples.START, frames=table, threads=threads)
    return job(count, standstill=Standstill(seconds=41.0, usual=0.31, ranks=found), dump=dump)


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


async def test_one_process_has_no_matrix(look_at):
    async with look_at(samples.input_bound(), size=(120, 36)) as eyes:
        assert not eyes.app.screen.query_one("#ranks").display


async def test_a_rank_that_is_not_measured_has_dashes(look_at):
    whole = job(2)
    ranks = msgspec.structs.replace(whole.ranks, ranks=(whole.ranks.ranks[1], RankView(rank=0, pid=3720)))
    async with look_at(msgspec.structs.replace(whole, ranks=ranks), size=(80, 24)) as eyes:
        unknown = next(line for line in eyes.pane("ranks").splitlines() if line.split()[1:2] == ["0"])
        assert set(unknown.split()[2:-1]) == {"–"}


def test_the_matrix_has_room_at_every_size():
    for width, height in ((80, 24), (120, 36), (200, 50)):
        for ranks in (2, 8, 64):
            boxes = plan(width, height, ranks=ranks)
            assert boxes["ranks"].height >= min(ranks + 3, 7), (width, height, ranks)
            assert sum(box.width * box.height for box in boxes.values()) <= width * height
        assert "ranks" not in plan(width, height, ranks=1)


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


async def test_ranks_that_get_on_are_not_called_hanging(look_at):
    moving = msgspec.structs.replace(hanging(2, odd=1), standstill=None)
    async with look_at(moving, size=(80, 24)) as eyes:
        await eyes.press("h")
        assert " HANG " not in eyes.pane("standing") and "if it hangs" in eyes.pane("standing")
