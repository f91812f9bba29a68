"""Calls into torch.distributed, in a group of one."""

from __future__ import annotations

import gc
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from hook_runs import Net, Watched, loader
from torch import nn
from torch.distributed import all_reduce as imported_by_name

import aitop.hook


@pytest.fixture
def group(tmp_path, unhooked):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def patched():
    own = torch._C._distributed_c10d
    return {**vars(own.ProcessGroup), **vars(own.Work)}


class Logged(dist.ProcessGroup):
    """A group written in Python. Its base calls the method of the subclass unless it is called by that."""

    def __init__(self):
        super().__init__(0, 1)
        self.calls = 0

    def allreduce(self, tensors, options=None):
        self.calls += 1
        return super().allreduce(tensors, options or dist.AllreduceOptions())


def test_a_group_of_the_programs_own_calls_the_one_below_it_once(group):
    watched = Watched()
    try:
        own = Logged()
        with pytest.raises(RuntimeError, match="No backend"):
            own.allreduce([torch.ones(2)])
        assert own.calls == 1
    finally:
        watched.ring.close()


def train(model, after):
    """Eight steps, each with what is done `after` its backward."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows, labels in loader():
        loss = nn.functional.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        after(loss.detach().clone())
        optimizer.step()


def test_calls_waits_and_lines_are_seen_and_everything_is_put_back(group):
    before = patched()
    watched = Watched()
    try:
        waiting = []

        def after(loss):
            imported_by_name(loss)
            waiting.append(dist.all_reduce(torch.ones(256), async_op=True))
            waiting.pop().wait()
            dist.barrier()

        train(Net(), after)
        records = watched.records()
        assert len(records) == 7
        assert {record.collectives for record in records} == {3}
        assert all(0 < record.communication == record.communication_apart < record.seconds for record in records)
        facts = watched.facts()
        assert "collective" in facts.watches
        sites = {(site.name, site.line): site for site in facts.calls if site.kind == "collective"}
        first = after.__code__.co_firstlineno
        assert sites["all_reduce", first + 1].bytes == 4 * 8
        assert sites["all_reduce", first + 2].bytes == 1024 * 8
        assert {name for name, _ in sites} == {"all_reduce", "barrier", "wait"} or ("all_reduce", first + 3) in sites
        assert all(site.calls in (0, 8) for site in sites.values())
        assert {site.function.rpartition(".")[2] for site in sites.values()} == {"after"}
        # The hook saw the last of these begin; the group counts those from before too.
        assert watched.ring.read(time.monotonic()).sequence == dist.group.WORLD._get_sequence_number_for_group() == 24
    finally:
        aitop.hook.remove()
        watched.ring.close()
    now = patched()
    assert now.keys() == before.keys()
    assert all(now[name] is before[name] for name in before)


def test_a_group_that_the_program_leaves_is_let_go_and_the_next_one_is_followed(tmp_path, watched):
    def stay(name, calls):
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/{name}", rank=0, world_size=1)
        watched.session.look(time.monotonic_ns())
        train(Net(), lambda loss: [dist.all_reduce(loss) for _ in range(calls)])
        group = weakref.ref(dist.group.WORLD)
        assert watched.ring.read(time.monotonic()).sequence == group()._get_sequence_number_for_group() == 8 * calls
        dist.destroy_process_group()
        gc.collect()
        return group()

    assert stay("first", 2) is None
    assert stay("second", 1) is None


def test_a_group_that_is_joined_later_is_seen_too(tmp_path, watched):
    train(Net(), lambda loss: None)
    assert {record.communication for record in watched.records()} == {None}
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        watched.session.look(time.monotonic_ns())
        assert "collective" in watched.facts().watches
        train(Net(), dist.all_reduce)
        assert {record.collectives for record in watched.records()[1:]} == {1}
    finally:
        aitop.hook.remove()
        dist.destroy_process_group()
