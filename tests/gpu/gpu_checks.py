"""The checks of prove.py: each is a function that returns figures with their bars, or raises SkippedError."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
from expectation import row_of
from gpu_box import Box, SkippedError
from gpu_scenarios import BY_NAME, MUST_SAY, RECORDED, SCENARIOS, SCRIPTS
from launch import Training
from recorded import recording_name
from results import Figure
from scenario import Scenario
from trim import trimmed
from verdict_gains import gain
from verdicts import ticks_of

from aitop.attach.entrance import install, remove
from aitop.attach.refusal import AttachRefused
from aitop.engine.live import LiveFeed, Options
from aitop.engine.torch_profile import take_profile
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.outputs.recording import RecordingWriter
from aitop.sources.host.target import look

START_SECONDS = 60.0
WATCH_SECONDS = 9.0
# How often costs are measured, and for how long each time.
ROUNDS, COST_SECONDS = 16, 0.9
RATE_SECONDS = 1.5
GIGABYTE = 1 << 30
CYCLES, LEAST_LOSSES = 200, 1000
# gpu_compute_bound: layers, width and samples, as in the script.
DEPTH, WIDTH, BATCH = 8, 4096, 8192


@dataclass(frozen=True)
class Check:
    """One thing to prove. It needs "cuda" (a device that computes), "nvml", or both; it may take so many `seconds`."""

    name: str
    about: str
    needs: tuple[str, ...]
    seconds: float
    run: Callable[[Box], Iterable[Figure]]


CHECKS: list[Check] = []


def check(
    name: str, about: str, seconds: float, needs: tuple[str, ...] = ("cuda",)
) -> Callable[[Callable[[Box], Iterable[Figure]]], Callable[[Box], Iterable[Figure]]]:
    """Add a function to the checks."""

    def add(run: Callable[[Box], Iterable[Figure]]) -> Callable[[Box], Iterable[Figure]]:
        CHECKS.append(Check(name, about, needs, seconds, run))
        return run

    return add


# Runs and watches.


@contextlib.contextmanager
def running(box: Box, script: str, *arguments: object) -> Iterator[Training]:
    """One of our scripts from its first step on."""
    with tempfile.TemporaryDirectory(prefix="prove-") as folder:
        training = Training(SCRIPTS / f"{script}.py", *box.arguments, *arguments, log=Path(folder) / "log")
        try:
            yield training.wait_steps(1, timeout=START_SECONDS)
        finally:
            training.stop()


@contextlib.contextmanager
def watching(
    training: Training, options: Options | None = None, record_to: Path | None = None
) -> Iterator[list[Snapshot]]:
    """Snapshots of a run, added as they come; recorded as well, for whoever has no device and has to mend something."""
    snapshots: list[Snapshot] = []
    target = look(training.pid)
    feed = LiveFeed([target], options or Options(), RecordingWriter(record_to, target) if record_to else None)
    feed.start(snapshots.append)
    try:
        yield snapshots
    finally:
        feed.stop()


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for something. Raises AssertionError where it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


def hooked(snapshots: Sequence[Snapshot]) -> bool:
    """Whether the hook is in by the last Snapshot."""
    status = snapshots[-1].sources.get("hook") if snapshots else None
    return status is not None and status.state == "ok"


def recent(snapshots: Sequence[Snapshot]) -> list[StepRecord]:
    """Steps of the last Snapshot that were timed."""
    steps = snapshots[-1].steps if snapshots else None
    return [step for step in steps.recent if not step.estimated] if steps else []


def ends(file: Path) -> list[int]:
    """When each step of gpu_steady ended (ns)."""
    data = file.read_bytes() if file.exists() else b""
    return [number for (number,) in struct.iter_unpack("=q", data[: len(data) // 8 * 8])]


def rate(file: Path, seconds: float) -> float:
    """Steps a second in the next seconds, or in as many as three steps take."""
    first = len(ends(file))
    time.sleep(seconds)
    until(lambda: len(ends(file)) >= first + 3, 20.0, "three steps of the run")
    taken = ends(file)[first:]
    return (len(taken) - 1) / (taken[-1] - taken[0]) * 1e9


def apart(ours: float, theirs: float) -> float:
    """How far two figures are apart, in percent of the second."""
    return 100.0 * abs(ours / theirs - 1.0)


# The device and what the driver says of it.


@check("devices", "What the driver says of the device, beside nvidia-smi.", 20, needs=("nvml",))
def devices(box: Box) -> Iterator[Figure]:
    device = box.device()
    fields = msgspec.structs.asdict(device)
    absent = sorted(name for name, value in fields.items() if value is None)
    given = len(fields) - len(absent)
    yield Figure("figures that the driver gives", given, least=10, spread=f"without {', '.join(absent) or 'none'}")
    program = shutil.which("nvidia-smi")
    if program is None or device.memory_total is None:
        return
    asked = [program, f"--id={box.index}", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout.strip().isdigit():
        theirs = float(done.stdout) * 2**20
        yield Figure("memory, from that of nvidia-smi", apart(device.memory_total, theirs), "%", most=1)


@check("gpm", "How busy the device is, beside `nvidia-smi dmon` in the same seconds.", 60, needs=("cuda", "nvml"))
def gpm(box: Box) -> Iterator[Figure]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise SkippedError("nvidia-smi is not installed")
    options = Options(stacks=False, hook=False)
    with running(box, "gpu_compute_bound") as run, watching(run, options, box.recording("gpm")) as snapshots:
        time.sleep(3.0)
        first = len(snapshots)
        # Columns of its own first, those of the counters asked for (2 SM, 5 tensor, 10 memory) last.
        command = [program, "dmon", "-i", str(box.index), "-s", "u", "-c", "6"]
        done = subprocess.run([*command, "--gpm-metrics=2,5,10"], capture_output=True, text=True, check=False)
        counters = done.returncode == 0
        if not counters:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        rows = [line.split() for line in done.stdout.splitlines() if line.strip() and not line.startswith("#")]
        seen = [s.gpu.devices[box.index] for s in snapshots[first:] if s.gpu is not None]
    if not rows or not seen:
        raise SkippedError(f"nvidia-smi dmon gives nothing here: {done.stderr.strip()[-200:]}")
    yield _beside("busy", [device.busy for device in seen], [row[1] for row in rows])
    if counters:
        ours = [device.gpm for device in seen if device.gpm is not None]
        for column, name in ((-3, "sm_active"), (-2, "tensor_active"), (-1, "dram_active")):
            yield _beside(name, [getattr(sample, name) for sample in ours], [row[column] for row in rows])


def _beside(name: str, ours: Sequence[float | None], theirs: Sequence[str]) -> Figure:
    """How far our mean share is from the mean of a column of nvidia-smi's, in points."""
    shares = [100.0 * share for share in ours if share is not None]
    column = [float(word) for word in theirs if word.replace(".", "", 1).isdigit()]
    if not shares or not column:
        return Figure(f"{name}, from that of nvidia-smi", None, "points", most=10)
    mine, smi = statistics.fmean(shares), statistics.fmean(column)
    return Figure(
        f"{name}, from that of nvidia-smi", abs(mine - smi), "points", most=10, spread=f"{mine:.0f}, {smi:.0f}"
    )


@check("allocator", "The memory that torch's allocator takes, beside what the driver says.", 60, needs=("cuda", "nvml"))
def allocator(box: Box) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        more = Path(folder) / "more"
        with (
            running(box, "gpu_allocating", "--more", more) as run,
            watching(run, record_to=box.recording("allocator")) as snapshots,
        ):

            def now() -> tuple[int, int] | None:
                shot = snapshots[-1] if snapshots else None
                held = shot.allocators if shot is not None else ()
                used = shot.gpu.devices[box.index].memory_used if shot is not None and shot.gpu is not None else None
                return (held[0].reserved, used) if held and used is not None else None

            until(now, 30.0, "figures of the allocator and the driver")
            time.sleep(3.0)
            before = now()
            more.touch()
            time.sleep(6.0)
            after = now()
    assert before is not None and after is not None
    taken, driver = after[0] - before[0], after[1] - before[1]
    yield Figure("what two more gigabytes add to the allocator's", apart(taken, 2 * GIGABYTE), "% apart", most=1)
    yield Figure("what they add to the driver's", apart(driver, 2 * GIGABYTE), "% apart", most=5)


# Times of the hook.


@check("phases", "Phases on the device's clock, beside kernels that torch.profiler times in the same run.", 90)
def phases(box: Box) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        with running(box, "gpu_compute_bound", "--profile", profile) as run:
            with watching(run, record_to=box.recording("phases")) as snapshots:

                def timed() -> list[StepRecord]:
                    return [step for step in recent(snapshots) if step.device_optimizer is not None]

                until(lambda: len(timed()) >= 30, 40.0, "steps that are timed on the device")
                steps = timed()
            Path(f"{profile}.ask").touch()
            until(profile.exists, 40.0, "the script's own profile")
            theirs = json.loads(profile.read_text())
    for name in ("forward", "backward", "optimizer"):
        ours = statistics.median(getattr(step, f"device_{name}") for step in steps)
        words = f"{1e3 * ours:.3g} ms, {1e3 * theirs[name]:.3g} ms by torch.profiler"
        yield Figure(f"{name}, from torch.profiler's", apart(ours, theirs[name]), "%", most=5, spread=words)


@check("mfu", "Operations a second of a loop whose operations are known.", 60)
def mfu(box: Box) -> Iterator[Figure]:
    with running(box, "gpu_compute_bound") as run, watching(run, record_to=box.recording("mfu")) as snapshots:
        until(lambda: snapshots and snapshots[-1].steps and snapshots[-1].steps.flops_per_second, 40.0, "operations")
        time.sleep(6.0)
        steps = recent(snapshots)
        view = snapshots[-1].steps
    assert view is not None and view.flops_per_second is not None
    seconds = statistics.fmean(step.seconds for step in steps)
    # Forward, gradients of weights, gradients of inputs: none of the latter for the first layer.
    known = 2.0 * BATCH * WIDTH**2 * (3 * DEPTH - 1) / seconds
    yield Figure("operations a second, from those known", apart(view.flops_per_second, known), "%", most=10)
    words = f"of {box.name}"
    yield Figure("of what the device can do (MFU)", None if view.mfu is None else 100 * view.mfu, "%", spread=words)


def _slower(
    file: Path,
    enter: Callable[[], object],
    leave: Callable[[], object],
    name: str,
    bar: float,
    rounds: int,
    each: float,
) -> Iterator[Figure]:
    """How much longer a step of the run takes while something is in, for so many seconds each round.

    Steps that a host launches one by one scatter by a tenth from second to second, so there are many rounds, and a bar
    is missed only where chance does not explain it. How much chance may explain has a bar of its own.
    """
    ratios, last = [], rate(file, COST_SECONDS)
    for _ in range(rounds):
        enter()
        try:
            inside = rate(file, each)
        finally:
            leave()
        after = rate(file, COST_SECONDS)
        ratios.append((last + after) / 2 / inside)
        last = after
    mean, error = statistics.fmean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    words = f"mean {mean:.3f} ± {error:.3f} of {len(ratios)} rounds, steps of {1e3 / last:.3g} ms"
    yield Figure(f"{name}, at least", mean - 2 * error, "×", most=bar, spread=words)
    yield Figure(f"{name}: error of the mean", error, "×", most=bar - 1)


def _hook_cost(box: Box, *arguments: object) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ends"
        with running(box, "gpu_steady", "--ends", file, *arguments) as run:
            time.sleep(2.0)
            enter, leave = partial(install, run.pid), partial(remove, run.pid)
            yield from _slower(file, enter, leave, "a step with the hook in", 1.01, ROUNDS, COST_SECONDS)


@check("hook-cost", "What the hook costs a run of short steps.", 60)
def hook_cost(box: Box) -> Iterator[Figure]:
    return _hook_cost(box)


@check("hook-cost-graphs", "What the hook costs a run that replays its steps as CUDA graphs.", 60)
def hook_cost_graphs(box: Box) -> Iterator[Figure]:
    return _hook_cost(box, "--graph", 1)


@check("watch-cost", "What all sources together cost a run that launches its operations one by one.", 90)
def watch_cost(box: Box) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ends"
        with running(box, "gpu_steady", "--ends", file) as run, contextlib.ExitStack() as watch:
            time.sleep(2.0)
            enter = partial(_enter, watch, run)
            yield from _slower(
                file, enter, watch.close, "a step while it is watched", 1.03, ROUNDS // 2, 2 * COST_SECONDS
            )


def _enter(watch: contextlib.ExitStack, run: Training) -> None:
    watch.enter_context(watching(run))


@check("after-profile", "The speed of a run after a profile.", 60)
def after_profile(box: Box) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ends"
        with (
            running(box, "gpu_steady", "--ends", file) as run,
            watching(run, Options(stacks=False, gpu=False)) as snapshots,
        ):
            until(partial(hooked, snapshots), 20.0, "the hook")
            time.sleep(2.0)
            before = rate(file, 2 * RATE_SECONDS)
            take_profile(run.pid, 20)
            time.sleep(2.0)
            after = rate(file, 2 * RATE_SECONDS)
    yield Figure("steps a second after a profile, of those before", after / before, "×", least=0.95)


# Loops of other kinds.


@check("decode-graphs", "A decoding loop in CUDA graphs, in which no module is called.", 60)
def decode_graphs(box: Box) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ends"
        with running(box, "gpu_steady", "--ends", file, "--decode", 1) as run:
            time.sleep(2.0)
            before = rate(file, 2.0)
            with watching(run, record_to=box.recording("decode-graphs")) as snapshots:
                time.sleep(WATCH_SECONDS)
                during = rate(file, 2.0)
                last = snapshots[-1]
    said = [f"{verdict.id} {verdict.severity}" for verdict in last.diagnosis.verdicts]
    untrue = [words for words in said if not words.endswith("info")]
    first = last.diagnosis.verdicts[0] if last.diagnosis.verdicts else None
    right = first is not None and RECORDED["decode_graphs"].accepts(first.id, first.subtype)
    claimed = last.steps.count if last.steps is not None and last.steps.basis == "hook" else 0
    yield Figure("first verdict is right", float(right), least=1, spread=", ".join(said))
    yield Figure("steps claimed of a run that makes none", claimed, most=0)
    yield Figure("untrue warnings", len(untrue), most=0, spread=", ".join(untrue))
    yield Figure("speed while it is watched", during / before, "×", least=0.97)


@check("nccl", "A world of one over NCCL: collectives are counted, and nothing waits for anybody.", 60)
def nccl(box: Box) -> Iterator[Figure]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    with running(box, "gpu_steady", "--nccl", 1) as run, watching(run, record_to=box.recording("nccl")) as snapshots:
        time.sleep(WATCH_SECONDS)
        last, alive = snapshots[-1], run.alive()
    untrue = [v.id for v in last.diagnosis.verdicts if v.id in ("hang", "comm-bound", "straggler")]
    counted = [step.collectives or 0 for step in recent(snapshots)]
    ddp = last.facts.ddp if last.facts is not None else None
    yield Figure("runs that went on", float(alive), least=1)
    yield Figure("collectives a step, or what DDP says of itself", max([*counted, float(ddp is not None)]), least=1)
    yield Figure("untrue verdicts on an exchange", len(untrue), most=0, spread=", ".join(untrue))


@check("attaches", "200 times in and out of a run under load: the same losses, bit for bit.", 120)
def attaches(box: Box) -> Iterator[Figure]:
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        file, alone = Path(folder) / "ends", Path(folder) / "alone"
        with running(box, "gpu_steady", "--ends", file) as run:
            for _ in range(CYCLES):
                try:
                    install(run.pid)
                    remove(run.pid)
                except AttachRefused:
                    refused += 1
            until(lambda: len(ends(file)) > LEAST_LOSSES, 60.0, "as many steps as are compared")
            losses = Path(f"{file}.losses")
            Path(f"{losses}.ask").touch()
            until(losses.exists, 20.0, "the losses")
            disturbed, alive = losses.read_bytes(), run.alive()
        with running(box, "gpu_steady", "--ends", alone, "--steps", len(disturbed) // 4) as run:
            run.wait(60.0)
        undisturbed = Path(f"{alone}.losses").read_bytes()
    compared = min(len(disturbed), len(undisturbed)) // 4
    other = sum(disturbed[4 * n : 4 * n + 4] != undisturbed[4 * n : 4 * n + 4] for n in range(compared))
    yield Figure("runs harmed", float(not alive), most=0)
    yield Figure("times in and out", CYCLES - refused, least=0.95 * CYCLES, spread=f"{refused} refused")
    yield Figure("losses that differ", other, most=0, spread=f"of {compared}")
    yield Figure("losses compared", compared, least=LEAST_LOSSES)


# Verdicts.


def verdict(scenario: Scenario, box: Box) -> Iterator[Figure]:
    """Watch the script, keep a recording, and measure its fix."""
    scenario = replace(scenario, args=(*scenario.args, *box.arguments))
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / recording_name(scenario.name, 3)
        process = Training(scenario.script, *scenario.args, log=Path(folder) / "log")
        try:
            process.wait_steps(1, timeout=START_SECONDS)
            ticks = ticks_of(process, Options(), WATCH_SECONDS, raw)
            ended = not process.alive()
        finally:
            process.stop()
        if ended:
            raise AssertionError(f"the script has ended: {process.output()[-300:]}")
        try:
            trimmed(raw, box.out / "recordings" / raw.name, BY_NAME)
        except ValueError as error:
            # As it is, it is larger and names folders of this machine, but nobody may have this device again.
            shutil.copy(raw, box.out / "recordings" / raw.name)
            print(f"not trimmed: {error}", flush=True)
    row, warned = row_of(scenario, 3, ticks), {each.id for each in ticks[-1].verdicts if each.severity != "info"}
    must = MUST_SAY.get(scenario.name)
    words = ", ".join([row.said, *row.others])
    if must is None:
        yield Figure("first verdict is right", float(row.right), least=1, spread=f"{words}; expected {row.expected}")
    else:
        yield Figure("says what it must", float(must in warned), least=1, spread=f"{words}; expected {must}")
    if row.right_line is not None:
        yield Figure("its line is right", float(row.right_line), least=1, spread=str(row.where))
    yield Figure("untrue warnings", len(row.alarms), most=0, spread=", ".join(row.alarms))
    if scenario.fixed:
        plain, fixed = gain(scenario, 2, 2.0)
        foreseen = f"predicted {row.predicted:.2f}" if row.predicted is not None else "none predicted"
        words = f"{plain:.3g} → {fixed:.3g} steps/s, {foreseen}"
        yield Figure("what its fix gives", fixed / plain, "×", spread=words)


CHECKS += [
    Check(scenario.name.removeprefix("gpu_").replace("_", "-"),
          f"The verdict on {scenario.script.name}, and what its fix gives.",
          ("cuda", "nvml"), 90.0, partial(verdict, scenario))
    for scenario in SCENARIOS
]  # fmt: skip
