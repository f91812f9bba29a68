"""What each script of `scripts/` suffers from on a GPU, and its fix."""

from __future__ import annotations

from pathlib import Path

from scenario import HEALTHY, Scenario

SCRIPTS = Path(__file__).resolve().parent / "scripts"


def _script(name: str, *rest: object, **more: object) -> Scenario:
    return Scenario(name, SCRIPTS / f"{name}.py", *rest, **more)


SCENARIOS = (
    _script("gpu_compute_bound", HEALTHY, fixed=False),
    _script("gpu_healthy", HEALTHY, fixed=False),
    _script("gpu_sync_stall", "sync-stall", guilty=("history.append(loss.detach() if args.fixed else loss.item())",)),
    _script("gpu_transfer_bound", "transfer-bound", guilty=("images = batch.to(args.device",)),
    # The graph is what torch.compile(mode="reduce-overhead") makes as well, less what it fuses.
    _script("gpu_launch_bound", "launch-bound", accepted=("python-overhead",), remedy="CUDA graphs"),
    _script("gpu_memory_bandwidth", "memory-bandwidth-bound", remedy="bfloat16"),
    _script("gpu_precision", "precision", remedy="TF32|float16"),
    _script("gpu_fragmentation", HEALTHY, beside=("fragmentation", "oom-risk", "sync-stall", "launch-bound")),
    _script("gpu_oom_risk", HEALTHY, beside=("oom-risk", "launch-bound", "python-overhead"), fixed=False),
    _script("gpu_underbatched", "underbatched", accepted=("launch-bound", "sync-stall")),
    _script("gpu_input_bound", "input-bound", guilty=("time.sleep(ROUND_TRIP)",), remedy="num_workers"),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
# The condition that must be among the verdicts.
MUST_SAY = {"gpu_fragmentation": "fragmentation", "gpu_oom_risk": "oom-risk"}
