"""When torch's loops over the optimizer hooks may be changed, told from the frames of all threads."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from aitop.hook import optimizer as frames

torch = pytest.importorskip("torch")

OPTIMIZER, PROFILER = "/x/torch/optim/optimizer.py", "/x/torch/autograd/profiler.py"
ENTERED, LOOPING = ("wrapper", OPTIMIZER, 0), ("wrapper", OPTIMIZER, 8)
OURS = ("install", "<aitop hook>/__init__.py", 3)


def stack(*calls: tuple[str, str, int]) -> SimpleNamespace:
    """The innermost frame of calls (name, file, lines from the function's first), the innermost first."""
    top = None
    for name, file, line in reversed(calls):
        code = SimpleNamespace(co_name=name, co_filename=file, co_firstlineno=100)
        top = SimpleNamespace(f_code=code, f_lineno=100 + line, f_back=top)
    assert top is not None
    return top


@pytest.mark.parametrize(
    ("calls", "iterated"),
    [
        ((OURS, ENTERED), False),
        ((OURS, LOOPING), True),
        ((OURS, ("hook", "/y/train.py", 1), LOOPING), True),
        ((OURS, ("__enter__", "/y/train.py", 1), LOOPING), True),
        ((OURS, ("step", "/x/torch/optim/sgd.py", 4), LOOPING), False),
        ((OURS, ("step", "/x/torch/optim/sgd.py", 4), ("_use_grad", OPTIMIZER, 3), LOOPING), False),
        ((OURS, ("closure", "/y/train.py", 1), ("step", "/x/torch/optim/lbfgs.py", 9), LOOPING), False),
        ((OURS, ("_optimizer_step_code", OPTIMIZER, 0), LOOPING), False),
        ((OURS, ("__exit__", PROFILER, 2), LOOPING), False),
        ((OURS, ("cast", "/usr/lib/python3/typing.py", 0), LOOPING), False),
        ((OURS, ENTERED, ("step", "/x/torch/optim/adam.py", 9), ("hook", "/y/train.py", 1), LOOPING), True),
    ],
)
def test_only_within_the_loops_is_a_wrong_moment(
    calls: tuple[tuple[str, str, int], ...], iterated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = stack(("wait", "/usr/lib/python3/threading.py", 5))
    monkeypatch.setattr(sys, "_current_frames", lambda: {1: elsewhere, 2: stack(*calls)})
    assert frames.hooks_are_iterated() is iterated


def test_of_a_real_optimizer() -> None:
    seen: list[tuple[str, bool]] = []
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def note(*_: object) -> None:
        seen.append(("hook", frames.hooks_are_iterated()))

    def called(frame: SimpleNamespace, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.endswith((frames.FILE, "autograd/profiler.py")):
            seen.append((code.co_name, frames.hooks_are_iterated()))

    optimizer.register_step_pre_hook(note)
    optimizer.register_step_post_hook(note)
    weight.sum().backward()
    sys.setprofile(called)
    try:
        optimizer.step()
    finally:
        sys.setprofile(None)
    assert [name for name, iterated in seen if iterated] == ["hook", "hook"]
    assert {"wrapper", "__enter__", "__exit__", "_optimizer_step_code"} <= {
        name for name, iterated in seen if not iterated
    }
