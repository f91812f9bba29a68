"""The screen of a burst: asked for with one key, shown, written to a file."""

import json
import threading

import pytest
import sample_snapshots as samples
from scripted_feeds import RunFeed, ScriptedFeed

from aitop.engine.torch_profile import TakenProfile
from aitop.errors import AitopError
from aitop.model.profile import ClassRow, DeviceUse, Holds, KernelRow, OpRow, Profile
from aitop.ui.theme.palette import STATE_FAILED

HOLDS = Holds(start=0.001, stop=0.08, save=0.03)
TRACE = json.dumps({"traceEvents": []}).encode()


def profile(device: bool = False) -> Profile:
    ops = (
        OpRow(name="aten::addmm", kind="matmul", calls=30, host=0.05, self_host=0.04, device=0.03 if device else None),
        OpRow(name="aten::relu", kind="elementwise", calls=20, host=0.002, self_host=0.002, allocated=4096),
    )
    kernels = (KernelRow(name="sm90_xmma_gemm_bf16", kind="matmul", calls=30, device=0.03),) if device else ()
    return Profile(
        pid=4242,
        steps=5,
        seconds=0.25,
        holds=HOLDS,
        events=1234,
        ops=ops,
        kernels=kernels,
        classes=(
            ClassRow(kind="matmul", seconds=0.04, share=0.95),
            ClassRow(kind="elementwise", seconds=0.002, share=0.05),
        ),
        devices=(DeviceUse(device=0, busy=0.03, idle=0.07, gaps=12, longest_gap=0.01, launch_delay=9e-6),)
        if device
        else (),
        peak_memory=3 << 30,
    )


@pytest.fixture
def profiling():
    """A feed whose burst ends when the test says so."""

    class Feed(RunFeed):
        result: object = TakenProfile(profile(), TRACE)

        def __init__(self, *snapshots):
            super().__init__(*snapshots)
            self.go_on = threading.Event()
            self.go_on.set()

        def profile(self, steps, progress):
            self.asked.append(("profile", steps))
            progress("waiting")
            assert self.go_on.wait(10)
            progress("running")
            if isinstance(self.result, Exception):
                raise self.result
            return self.result

    return Feed(samples.input_bound())


async def test_p_profiles_and_shows_the_dearest_operators(look_at, profiling):
    profiling.go_on.clear()
    async with look_at(feed=profiling) as eyes:
        await eyes.press("p")
        await eyes.until("waiting for the next step to begin")
        profiling.go_on.set()
        await eyes.until("aten::addmm")
        text = eyes.text()
        assert profiling.asked == [("profile", 5)]
        assert "5 steps in 250 ms, 50 ms each" in text
        assert "held for 111 ms" in text
        assert "kernel" not in text
        assert "4.0 KB" in text
        await eyes.press("escape")
        assert "verdict" in eyes.shown()


@pytest.mark.parametrize("away", [False, True], ids=["before it is done", "after it is done"])
async def test_p_comes_back_to_a_profile_under_way_and_starts_another_once_it_was_seen(look_at, profiling, away):
    profiling.go_on.clear()
    async with look_at(feed=profiling) as eyes:
        await eyes.press("p")
        await eyes.until("waiting for the next step to begin")
        screen = eyes.app.screen
        await eyes.press("escape")
        assert "verdict" in eyes.shown()
        if away:
            profiling.go_on.set()
            await eyes.until_true(lambda: screen.pane.profile is not None, "a profile")
        await eyes.press("p")
        profiling.go_on.set()
        await eyes.until("aten::addmm")
        assert profiling.asked == [("profile", 5)]
        await eyes.press("escape", "p")
        await eyes.until("aten::addmm")
        assert profiling.asked == [("profile", 5)] * 2


async def test_a_device_shows_its_gaps_and_kernels(look_at, profiling):
    profiling.result = TakenProfile(profile(device=True), TRACE)
    async with look_at(feed=profiling) as eyes:
        await eyes.press("p")
        await eyes.until("sm90_xmma_gemm_bf16")
        assert "device 0 idle 70 % in 12 gaps, the longest 10 ms; launch to kernel 9 µs" in eyes.text()


async def test_why_there_is_no_profile_is_said(look_at, profiling):
    profiling.result = AitopError("a profiler is already running in the process")
    async with look_at(feed=profiling) as eyes:
        await eyes.press("p")
        await eyes.until("a profiler is already running in the process")


async def test_w_writes_the_trace_and_never_over_another(look_at, profiling, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aitop-4242-1.trace.json").write_bytes(b"mine")
    async with look_at(feed=profiling) as eyes:
        await eyes.press("p")
        await eyes.until("aten::addmm")
        await eyes.press("w")
        await eyes.until("trace written")
    assert (tmp_path / "aitop-4242-1.trace.json").read_bytes() == b"mine"
    assert (tmp_path / "aitop-4242-2.trace.json").read_bytes() == TRACE


async def test_a_trace_that_cannot_be_written_says_so(look_at, profiling, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("aitop.ui.saving.os.open", full)
    async with look_at(feed=profiling) as eyes:
        await eyes.press("p")
        await eyes.until("aten::addmm")
        await eyes.press("w")
        await eyes.until("No space left on device")
        said = next(line for line in eyes.app.screen.pane.drawn if "No space left" in line.text)
        assert any(style == STATE_FAILED for _, style in said.spans)


async def test_a_replay_cannot_be_profiled(look_at):
    async with look_at(feed=ScriptedFeed(samples.input_bound(), live=False)) as eyes:
        assert "p profile" not in eyes.pane("footer") and "pane" in eyes.pane("footer")
        await eyes.press("p")
        assert "only a live run can be profiled" in eyes.text()


async def test_it_comes_back_in_the_colours_chosen_meanwhile(look_at, profiling):
    profiling.go_on.clear()
    async with look_at(feed=profiling) as eyes:
        await eyes.press("p", "escape", "C", "p")
        assert eyes.app.screen.pane.view.appearance == eyes.app.appearance
        profiling.go_on.set()
