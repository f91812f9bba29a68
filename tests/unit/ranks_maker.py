"""Several ranks as the engine sees them: with steps of the hook, without the hook, and while they stand."""

import msgspec
from snapshot_builder import line, process, snapshot, stacks

from aitop.engine.history import History
from aitop.engine.snapshot.ranks import ranks_view
from aitop.model.host import HostSample, MachineSample
from aitop.model.snapshot import CallNode, Phases, Target
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.model.steps import DdpInfo, HookFacts, HookSample, StepRecord

PIDS = (100, 101)
BACKWARD = Frame("_engine_run_backward", "/lib/python3.11/site-packages/torch/autograd/graph.py", 9)
BARRIER = Frame("barrier", "/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9)
DDP = "/lib/python3.11/site-packages/torch/nn/parallel/distributed.py"
# Data wait, backward pass and step of each rank: the second one comes late, as it waits for its data.
LATE_BY_INPUT = ((0.0, 0.07, 0.08), (0.05, 0.02, 0.08))


def user_frame(number, guarded=None):
    return Frame("train", "/x/train.py", number, True, None, guarded)


def ranks_host(time, **fields):
    """Two ranks of which the host sees nothing move, unless `fields` say so."""
    fields = {"voluntary_switches": 0.0, "main_cpu": 0.0, "state": "S", "channel": "futex_do_wait"} | fields
    ranks = tuple(process(pid, rank=rank, local_rank=rank, world_size=2, local_world_size=2, **fields)
                  for rank, pid in enumerate(PIDS))  # fmt: skip
    return HostSample(time=time, processes=ranks, machine=MachineSample(cores=2))


def past_of_ranks(*rank_steps, until=1000.0, ddp=None):
    """Ranks with steps of (data_wait, backward, seconds), all ending at the same moments."""
    past = History(Target(pid=PIDS[0], command="x"))
    past.add(ranks_host(until, voluntary_switches=50.0))
    for pid, (data, backward, seconds) in zip(PIDS, rank_steps, strict=False):
        records = tuple(
            StepRecord(index=number, end=until - (40 - number) * seconds, seconds=seconds, data_wait=data, forward=0.01,
                       backward=backward, backwards=1, communication=0.0, communication_apart=0.0)
            for number in range(40)
        )  # fmt: skip
        facts = HookFacts(way="attach", python="3", torch="2", world_size=2, ddp=ddp or DdpInfo(backward=0.02))
        past.add(HookSample(time=until, pid=pid, steps=records, facts=facts))
    return past


def seen(past, **fields):
    """A Snapshot with what the engine makes of this past of ranks."""
    return snapshot(ranks=ranks_view(past, 1000.0), **fields)


def of_both(lines):
    """The stacks of both ranks, with these lines."""
    made = stacks(lines)
    return msgspec.structs.replace(
        made, processes=tuple(msgspec.structs.replace(made.processes[0], pid=pid) for pid in PIDS)
    )


def without_hook(*used, lines, delay=0.0, library=DDP, **fields):
    """Ranks whose main threads use so much of a core, looked at from outside. `library` is on their stacks."""
    past = History(Target(pid=PIDS[0], command="x"))
    ranks = [
        process(pid, rank=rank, local_rank=rank, world_size=2, local_world_size=2, main_cpu=cpu, run_delay=delay)
        for rank, (pid, cpu) in enumerate(zip(PIDS, used, strict=True))
    ]
    sample = HostSample(time=1000.0, processes=tuple(ranks), machine=MachineSample(cores=2))
    past.add(sample)
    below = CallNode(function="forward", file=library, line=9, samples=50)
    tree = CallNode(function="main", file="/x/train.py", line=40, samples=100, user=True, children=(below,))
    sampled = of_both(lines)
    processes = tuple(msgspec.structs.replace(each, tree=tree) for each in sampled.processes)
    sampled = msgspec.structs.replace(sampled, processes=processes)
    return seen(past, stacks=sampled, working=PIDS, phases=Phases(), host=sample, **fields)


def model(*shares):
    """A line of the forward pass in each rank, with its share."""
    return [
        line("model", share, pid=pid, phase="forward", activity="native", number=40)
        for pid, share in zip(PIDS, shares, strict=True)
    ]


def with_calls(*rank_calls, estimated=False):
    """Ranks whose steps of 0.1 s have collectives of these lengths, and no other waits."""
    past = past_of_ranks((0.0, 0.02, 0.1), (0.0, 0.02, 0.1))
    for pid, calls in zip(PIDS, rank_calls, strict=True):
        steps = [
            msgspec.structs.replace(step, communication=sum(calls), communication_apart=sum(calls),
                                    collective_calls=calls, collectives=len(calls), estimated=estimated)
            for step in past.hooks[pid].steps
        ]  # fmt: skip
        past.hooks[pid].steps.clear()
        past.hooks[pid].steps.extend(steps)
    return past


def still(*frames, steps=False, seconds=8, dumped=999.0, **fields):
    """Ranks that stand with these stacks for so many seconds; with `steps`, they made some before."""
    past = (
        past_of_ranks((0.0, 0.02, 0.05), (0.0, 0.02, 0.05), until=990.0)
        if steps
        else History(Target(pid=1, command="x"))
    )
    for second in range(seconds):
        past.add(ranks_host(1000.0 - seconds + 1 + second, **fields))
    table = tuple(dict.fromkeys(frame for stack in frames for frame in stack))
    threads = tuple(
        ThreadStack(pid=pid, thread="MainThread", main=True, frames=tuple(table.index(frame) for frame in stack))
        for pid, stack in zip(PIDS, frames, strict=False)
    )
    if threads:
        past.add(StackDump(time=dumped, frames=table, threads=threads))
    return past
