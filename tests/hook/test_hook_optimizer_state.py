"""What is in the way of an optimizer: denormal numbers in its state, and steps that a scaler leaves out."""

from __future__ import annotations

import pytest
import torch
from hook_runs import Net, long_after
from torch import nn

import aitop.hook
from aitop.hook.measures.denormals import Denormals
from aitop.hook.measures.scaler import Scaler


def denormals_of(session):
    """The share after a look, each long after the one before."""
    measure = next(measure for measure in session.measures if isinstance(measure, Denormals))
    measure.look(long_after())
    return measure.facts().get("denormals")


def test_denormal_numbers_in_the_state_of_an_optimizer_are_counted(watched):
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    assert denormals_of(watched.session) is None, "no state yet"
    for _ in range(8):
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
    assert denormals_of(watched.session) == 0.0
    for state in optimizer.state.values():
        state["exp_avg"].flatten()[::8] = 1e-40
        state["exp_avg_sq"].zero_()
    assert denormals_of(watched.session) == 1.0, "one number slows its whole register"
    optimizer.state[model.weight]["exp_avg"][32:] = 0.0
    assert denormals_of(watched.session) == pytest.approx(0.5, abs=0.05)
    assert watched.facts().own_optimizer is False


@pytest.mark.parametrize(
    "state",
    [
        torch.full((64,), 1e-40, dtype=torch.float64),
        torch.full((64,), 1e-40)[::2],
        torch.full((64,), 1e-40, device="meta"),
        torch.full((8, 8), 1e-40).to_sparse(),
        nn.Parameter(torch.full((64,), 1e-40)),
        torch.full((3,), 1e-40),
        "a word",
    ],
    ids=["double", "strided", "meta", "sparse", "subclass", "few", "no tensor"],
)
def test_only_plain_numbers_in_memory_are_looked_at(watched, state):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(4):
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
    optimizer.state[model.weight]["mine"] = state
    assert denormals_of(watched.session) is None


def test_a_tensor_whose_memory_is_gone_is_not_looked_at(watched):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(4):
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
    freed = torch.full((4096,), 1e-40)
    freed.untyped_storage().resize_(0)
    optimizer.state[model.weight]["mine"] = freed
    assert denormals_of(watched.session) is None


def scaled(times, bad=()):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for number in range(times):
        loss = model(torch.randn(4, 8)).square().mean()
        scaler.scale(loss * float("inf") if number in bad else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def scaler_of(session) -> Scaler:
    return next(measure for measure in session.measures if isinstance(measure, Scaler))


with_scaler = pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="torch 2.2 has none for the CPU")


@with_scaler
def test_steps_that_a_scaler_leaves_out(unhooked):
    original = vars(torch.amp.GradScaler)["_maybe_opt_step"]
    plain = scaled(10, bad=(4, 7))
    assert aitop.hook.install("run") == "installed"
    session = aitop.hook._session
    assert scaler_of(session).facts() == {}
    for without, with_hook in zip(plain, scaled(10, bad=(4, 7)), strict=True):
        assert torch.equal(without, with_hook)
    assert scaler_of(session).facts() == {"scaler_skips": 2}
    aitop.hook.remove()
    assert vars(torch.amp.GradScaler)["_maybe_opt_step"] is original


@with_scaler
def test_a_step_left_out_is_a_step(watched):
    scaled(10, bad=(4, 7))
    records = watched.records()
    assert len(records) == 9
    assert watched.facts().scaler_skips == 2
