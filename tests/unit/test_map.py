"""The example of aitop/README.md: from samples of one line that waits for the disk to the sentences that it names."""

import re

import msgspec
from repository import ROOT
from stack_maker import stack, window

from aitop.engine.core import Engine
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.snapshot import Target, Tick
from aitop.model.stacks import Look, StackWindow, ThreadState
from aitop.outputs.text import to_text

MAP = (ROOT / "aitop" / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.sub(r"\s+", " ", MAP.partition("## From a sample to a sentence")[2].partition("\n## ")[0])
PID, NAME = 7, "MainThread"
TOP = "user/train.py:50 <module>"
COMPUTING = (
    (stack(TOP, "user/train.py:25 main", "torch/nn/modules/module.py:1 Module._call_impl"), 13),
    (stack(TOP, "user/train.py:26 main", "torch/_tensor.py:1 Tensor.backward"), 14),
    (stack(TOP, "user/train.py:28 main", "torch/optim/adam.py:1 Adam.step"), 6),
)
WRITING = stack(TOP, "user/train.py:31 main")


def sampled(time: float) -> StackWindow:
    """Two seconds at 20 samples a second, with what the kernel said of the thread and where it was on a core."""
    seen = window(time, *((PID, NAME, True, frames, count) for frames, count in (*COMPUTING, (WRITING, 7))))
    state = ThreadState(pid=PID, thread=NAME, main=True, asked=40, running=34, waits={"disk": 6})
    on_core = Look(pid=PID, kind="cpu", asked=40, stacks=seen.stacks[: len(COMPUTING)])
    return msgspec.structs.replace(seen, states=(state,), looks=(on_core,))


def watched():
    """The last Snapshot of half a minute."""
    engine = Engine(Target(pid=PID, command="python train.py", script="/home/ada/proj/train.py"))
    process = ProcessSample(pid=PID, ppid=1, started=1.0, role="rank", name="python", command="python train.py")
    snapshot = None
    for time in range(10, 40, 2):
        engine.handle(HostSample(time=time, processes=(process,), machine=MachineSample(cores=2)))
        engine.handle(sampled(time))
        snapshot = engine.handle(Tick(time=time, wall=time))
    return snapshot


def test_the_line_becomes_the_verdict_that_the_map_tells_of():
    snapshot = watched()
    (entry,) = [entry for entry in snapshot.ledgers[0].entries if entry.activity == "wait-disk"]
    assert (entry.lane, entry.phase, entry.position, entry.line) == ("main", "host", "after", 31)
    (verdict,) = snapshot.diagnosis.verdicts
    assert verdict.id == "host-io-stall"
    assert f'"{verdict.title}"' in EXAMPLE
    assert f'"{verdict.evidence[0]}"' in EXAMPLE
    assert f'"{verdict.fixes[0].text}" with {verdict.fixes[0].speedup:.2f}×' in EXAMPLE
    assert verdict.title in to_text(snapshot)
