"""Fabricated jobs of many ranks, one of them late or keeping all others waiting."""

from __future__ import annotations

import random

import msgspec
from sample_parts import START

from aitop.model.host import ProcessSample
from aitop.model.ranks import RankPhases, Ranks, RankView, Standing, Standstill
from aitop.model.stacks import Frame, StackDump, ThreadStack

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
    return ProcessSample(pid=3720 + number, ppid=3700, started=START, role="rank", name="python",
                         command="python train.py", rank=number, state="S", channel="futex_do_wait")  # fmt: skip


def job(snapshot, count, *, late=3, gpu=False, **fields):
    """This snapshot with so many ranks, one of them late."""
    views = tuple(rank_view(number, number == late % count, gpu=gpu) for number in range(count))
    ranks = Ranks(ranks=views, world_size=2 * count, steps=118, step=STEP, exchange=0.006, calls=0.001, uneven=0.1)
    host = msgspec.structs.replace(snapshot.host, processes=tuple(process(number) for number in range(count)))
    return msgspec.structs.replace(snapshot, ranks=ranks, host=host, **fields)


def standing(number, odd):
    guarded = Frame("train", "/home/ada/train.py", 90, True, "dist.all_reduce(loss)", "if step % 10 == 0:")
    frames = (Frame("read", "/home/ada/data.py", 31, True, "batch = queue.get()"), QUEUE) if odd else (guarded, REDUCE)
    return Standing(
        pid=3720 + number, rank=number, role="rank", doing="own" if odd else "collective", frames=frames,
        call="Queue.get" if odd else "all_reduce", where=frames[0], state="S", channel="futex_do_wait", step=88,
    )  # fmt: skip


def hanging(snapshot, count, odd=3):
    """This snapshot with so many ranks; all but one stand in all_reduce."""
    standings = tuple(standing(number, number == odd % count) for number in range(count))
    table = tuple(dict.fromkeys(frame for rank in standings for frame in rank.frames))
    threads = tuple(
        ThreadStack(pid=rank.pid, thread="MainThread", main=True, frames=tuple(map(table.index, rank.frames)))
        for rank in standings
    )
    dump = StackDump(time=START, frames=table, threads=threads)
    return job(snapshot, count, standstill=Standstill(seconds=41.0, usual=0.31, ranks=standings), dump=dump)
