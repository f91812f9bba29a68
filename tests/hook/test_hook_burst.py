"""A burst in this very process: asked for through the ring, profiled between two steps, gone afterwards."""

from __future__ import annotations

import errno
import json
import os
import threading
import time

import hook_runs
import pytest
import torch

from aitop.engine.torch_profile import take_profile
from aitop.errors import AitopError
from aitop.protocol.burst import MOST_STEPS
from aitop.sources.ring import burst as read
from aitop.sources.source import SourceError

# A machine with many other things to do takes its time.
PATIENCE = 60.0


def memfds() -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return [link for link in links if link == read.MEMFD_LINK]


class Asking(threading.Thread):
    """Somebody who wants a profile of this process while its main thread trains."""

    def __init__(self, steps: int = 3) -> None:
        super().__init__(daemon=True)
        self.steps = steps
        self.taken = None
        self.problem: str | None = None
        self.states: list[str] = []

    def run(self) -> None:
        try:
            self.taken = take_profile(os.getpid(), self.steps, progress=self.states.append)
        except AitopError as error:
            self.problem = str(error)


def train_while(asking: Asking, model, data, optimizer) -> None:
    asking.start()
    go_on_while(asking, model, data, optimizer)


def go_on_while(asking: Asking, model, data, optimizer) -> None:
    deadline = time.monotonic() + PATIENCE
    while asking.is_alive():
        assert time.monotonic() < deadline, "the burst never came to an end"
        hook_runs.train(model, data, optimizer)


@pytest.fixture
def run():
    torch.manual_seed(0)
    model = hook_runs.Net()
    return model, hook_runs.loader(), torch.optim.SGD(model.parameters(), 0.1)


def test_whole_steps_are_profiled(watched, run, capfd):
    asking = Asking()
    train_while(asking, *run)
    assert asking.problem is None
    profile = asking.taken.profile
    calls = {row.name: row.calls for row in profile.ops}
    # Two linear layers a step, and one of them has an input whose gradient is wanted.
    assert (profile.steps, calls["aten::addmm"], calls["aten::mm"]) == (3, 6, 9)
    assert profile.ops[0].allocated is not None
    assert "Optimizer.step#SGD.step" in {event["name"] for event in json.loads(asking.taken.trace)["traceEvents"]}
    assert capfd.readouterr() == ("", "")


def test_losses_are_the_same_with_a_burst_in_between(watched, run):
    model, data, optimizer = run
    train_while(Asking(), model, data, optimizer)
    steps = optimizer.state_dict()
    torch.manual_seed(0)
    again = hook_runs.Net()
    plain = torch.optim.SGD(again.parameters(), 0.1)
    first = hook_runs.train(again, data, plain, times=3)
    torch.manual_seed(0)
    profiled = hook_runs.Net()
    asking = Asking(steps=4)
    asking.start()
    second = hook_runs.train(profiled, data, torch.optim.SGD(profiled.parameters(), 0.1), times=3)
    go_on_while(asking, model, data, optimizer)
    assert second == first
    assert steps["param_groups"][0]["lr"] == 0.1


@pytest.mark.parametrize("reused", [True, False])
def test_what_has_the_number_of_a_descriptor_that_the_program_closed_is_left_alone(watched, run, tmp_path, reused):
    burst = watched.session.burst
    watched.ring.ask_for_burst(7, 2)
    burst.look(time.monotonic_ns())
    number, file = burst._fd, tmp_path / "kept"
    file.write_bytes(b"of the program")
    if reused:
        own = os.open(file, os.O_RDWR)
        os.dup2(own, number)
        os.close(own)
    else:
        os.close(number)
    for _ in range(4):
        hook_runs.train(*run)
    burst.over()
    if reused:
        os.close(number)
    assert file.read_bytes() == b"of the program" and not watched.session._errors.number
    assert burst in watched.session.measures


def test_a_burst_is_asked_for_while_no_descriptor_is_free(watched, run, monkeypatch):
    burst, make = watched.session.burst, os.memfd_create

    def none_free(*args):
        raise OSError(errno.EMFILE, "Too many open files")

    watched.ring.ask_for_burst(7, 2)
    monkeypatch.setattr(os, "memfd_create", none_free)
    watched.session.look(time.monotonic_ns())
    assert not burst.active and burst in watched.session.measures
    monkeypatch.setattr(os, "memfd_create", make)
    watched.session.look(time.monotonic_ns())
    assert burst.active


def test_a_second_burst_follows_and_nothing_is_left_when_the_hook_goes(watched, run):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    for steps in (2, 3):
        asking = Asking(steps)
        train_while(asking, *run)
        assert asking.taken.profile.steps == steps
    watched.session.remove()
    assert memfds() == []
    assert not torch.autograd._profiler_enabled()
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not [name for name in after - before if name.startswith("aitop-burst")]


def test_a_profiler_of_the_users_is_left_alone(watched, run):
    asking = Asking()
    with torch.profiler.profile() as own:
        train_while(asking, *run)
    assert asking.taken is None
    assert "a profiler is already running in the process" in asking.problem
    assert any(event.key == "aten::addmm" for event in own.key_averages())


def test_inference_is_profiled_by_its_forwards(watched):
    model = hook_runs.Net().eval()
    asking = Asking()
    asking.start()
    deadline = time.monotonic() + PATIENCE
    with torch.no_grad():
        while asking.is_alive():
            assert time.monotonic() < deadline, "the burst never came to an end"
            model(torch.ones(4, 8))
    assert asking.problem is None
    assert {row.name: row.calls for row in asking.taken.profile.ops}["aten::addmm"] == 6


def test_a_hook_that_leaves_ends_the_burst(watched, run):
    asking = Asking(steps=MOST_STEPS)
    asking.start()
    model, data, optimizer = run
    while not (watched.session.burst._profile and asking.states):  # it has seen the burst, too
        assert asking.is_alive(), "the burst came to an end too soon"
        hook_runs.train(model, data, optimizer)
    watched.session.remove()
    assert not torch.autograd._profiler_enabled()
    assert memfds() == []
    asking.join(PATIENCE)
    assert "the hook left it meanwhile" in asking.problem


def until_profiling(watched, run, asking):
    """Train until the profile has a whole step in it."""
    deadline = time.monotonic() + PATIENCE
    burst = watched.session.burst
    while burst._profile is None or burst._left > asking.steps - 1:
        assert time.monotonic() < deadline, "the burst never began"
        hook_runs.train(*run)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SourceError("failed", "it made no step")])
def test_a_profile_that_nobody_waits_for_any_more_never_runs(watched, run, monkeypatch, error):
    states = []

    def give_up(*words, **more):
        watched.session.burst.look(time.monotonic_ns())
        states.append(watched.session.burst.active)
        raise error

    monkeypatch.setattr("aitop.engine.torch_profile.wait_for", give_up)
    with pytest.raises((KeyboardInterrupt, AitopError)):
        take_profile(os.getpid(), 3)
    watched.session.burst.look(time.monotonic_ns())
    assert states == [True] and not watched.session.burst.active and memfds() == []
    hook_runs.train(*run, times=2)
    assert watched.session.burst._profile is None


def test_a_forked_child_records_nothing_and_the_profile_ends_with_the_steps_so_far(watched, run):
    fork, asking = os.fork, Asking(steps=MOST_STEPS)
    asking.start()
    until_profiling(watched, run, asking)
    child = os.fork()
    if not child:
        os._exit(int(torch.autograd._profiler_enabled()))
    assert os.waitpid(child, 0)[1] == 0
    asking.join(PATIENCE)
    assert 1 <= asking.taken.profile.steps < MOST_STEPS
    assert os.fork is fork


def test_a_profiler_that_the_program_starts_has_its_own_profile(watched, run):
    asking = Asking(steps=MOST_STEPS)
    prepare = torch.autograd.profiler._prepare_profiler
    asking.start()
    until_profiling(watched, run, asking)
    with torch.profiler.profile() as own:
        hook_runs.train(*run)
    assert any(event.key == "aten::addmm" for event in own.key_averages())
    asking.join(PATIENCE)
    assert asking.taken.profile.steps >= 1
    assert torch.autograd.profiler._prepare_profiler is prepare
