"""What each script of `scripts/` suffers from on a GPU, and its fix."""

from __future__ import annotations

from pathlib import Path

from scenario import HEALTHY, Scenario

SCRIPTS = Path(__file__).resolve().parent / "scripts"
PROGRAMS = Path(__file__).resolve().parent / "programs"


def _script(name: str, *rest: object, **more: object) -> Scenario:
    return Scenario(name, SCRIPTS / f"{name}.py", *rest, **more)


# Beside what is the matter with memory.
MEMORY = ("oom-risk", "sync-stall", "launch-bound", "python-overhead")
SCENARIOS = (
    _script("gpu_compute_bound", HEALTHY, fixed=False),
    _script("gpu_healthy", HEALTHY, fixed=False),
    # Smoothing less would give the same.
    _script(
        "gpu_sync_stall",
        "sync-stall",
        accepted=("python-overhead", "host-bound"),
        guilty=("losses.append(loss.item())",),
    ),
    _script("gpu_transfer_bound", "transfer-bound", guilty=("images = batch.to(args.device",)),
    # The graph is what torch.compile(mode="reduce-overhead") makes as well, less what it fuses.
    _script("gpu_launch_bound", "launch-bound", accepted=("python-overhead",), remedy="CUDA graphs"),
    _script("gpu_memory_bandwidth", "memory-bandwidth-bound", remedy="bfloat16"),
    _script("gpu_precision", "precision", remedy="TF32|float16"),
    _script(
        "gpu_fragmentation", HEALTHY, beside=("fragmentation", "oom-risk", "sync-stall", "launch-bound"), fixed=False
    ),
    _script("gpu_oom_risk", HEALTHY, fixed=False, beside=MEMORY),
    _script("gpu_underbatched", "underbatched", accepted=("launch-bound", "sync-stall")),
    _script("gpu_input_bound", "input-bound", guilty=("time.sleep(ROUND_TRIP)",), remedy="num_workers"),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
# The condition that must be among the verdicts.
MUST_SAY = {"gpu_fragmentation": "fragmentation", "gpu_oom_risk": "oom-risk"}


def _program(name: str, *rest: object, **more: object) -> Scenario:
    return Scenario(name, PROGRAMS / f"{name}.py", *rest, fixed=False, **more)


# What only recordings are kept of: other runs of prove.py, and programs in other people's style.
SEEN = (
    # The first form of gpu_sync_stall: each of many heads was read from the device, which made 9 % of a difference.
    Scenario("many_heads", SCRIPTS / "gpu_sync_stall.py", "launch-bound", fixed=False),
    Scenario("nccl", SCRIPTS / "gpu_steady.py", "launch-bound", fixed=False),
    Scenario("decode_graphs", SCRIPTS / "gpu_steady.py", HEALTHY, fixed=False),
    _program("chat", "launch-bound", accepted=("underbatched",)),
    _program(
        "jax_train", "host-bound", guilty=("rows = rows + 0.1", "return (rows - rows.mean"), beside=("input-bound",)
    ),
    _program("pets", "input-bound", ("workers", "transform"), guilty=("def __getitem__",)),
)
RECORDED = {scenario.name: scenario for scenario in (*SCENARIOS, *SEEN)}
