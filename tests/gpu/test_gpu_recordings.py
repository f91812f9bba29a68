"""Runs on an NVIDIA H100, recorded on 2026-11-26 (tests/gpu/prove.md): what is said of them, with the hook and without.

Without the hook a copy is native code at work, at a line that makes a batch for all that can be seen: only its line is
right.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_scenarios import MUST_SAY, RECORDED
from recorded import read, scenario_and_tier

RECORDINGS = sorted((Path(__file__).resolve().parent / "recordings").glob("*.t3.jsonl.gz"))
WRONG_WITHOUT_HOOK = {"gpu_transfer_bound": "input-bound/transform"}
NAMES = [scenario_and_tier(path)[0] for path in RECORDINGS]
NOT_RECORDED = {
    "gpu_sync_stall": "its script was mended after the device was gone; many_heads is its first form",
    "gpu_fragmentation": "its script was mended after the device was gone",
    "gpu_input_bound": "the device was gone before its check began",
}
"""Scenarios of which there is no recording, and why."""


def test_every_scenario_has_its_recording_or_a_reason():
    assert sorted(NAMES) == sorted(RECORDED.keys() - NOT_RECORDED.keys())


@pytest.mark.parametrize("tier", [3, 2])
@pytest.mark.parametrize("path", RECORDINGS, ids=NAMES)
def test_a_run_on_a_gpu_is_judged_right(path, tier):
    recorded = read(path, tier, RECORDED)
    row = recorded.row()
    must = MUST_SAY.get(recorded.scenario.name)
    wrong = WRONG_WITHOUT_HOOK.get(recorded.scenario.name) if tier == 2 else None
    assert row.alarms == ([wrong] if wrong else [])
    assert row.right_line is not False
    if must is not None:
        assert must in {row.said, *(name.partition(" ")[0] for name in row.others)}
    elif wrong is None:
        assert row.right, row.answer
