"""The screen, the host, the GPUs and the stacks with the oldest and the newest releases that pyproject.toml allows.

Each in a virtual environment of its own, which sees the rest of this one's packages. torch is not among them: the run
that is watched brings its own (`test_attach_pythons.py` goes through what is installed).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
NAMES = ("textual", "nvidia-ml-py", "py-spy")
TESTS = (
    "tests/ui/test_replay_screen.py",
    "tests/ui/test_evidence_screen.py",
    "tests/unit/ui/test_process_tree.py",
    "tests/gpu/test_nvml_source.py",
    "tests/e2e/test_stack_source.py",
)
# Of some 85 tests of these files: those that need a C compiler or another user may be skipped.
LEAST_PASSED = 75


def allowed():
    """The releases that pyproject.toml allows: name, lowest, and where it ends."""
    text = (ROOT / "pyproject.toml").read_text()
    return [re.search(rf'"({name})>=([\d.]+),<([\d.]+)"', text).groups() for name in NAMES]


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_what_rests_on_them_passes(which, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    wanted = [
        f"{name}=={lowest}.*" if which == "oldest" else f"{name}>={lowest},<{end}" for name, lowest, end in allowed()
    ]
    got = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", *wanted], capture_output=True, text=True, check=False
    )
    if got.returncode:
        pytest.skip(f"these releases cannot be had here: {got.stderr.strip()[-200:]}")
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # Packages of the environment itself come first.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    asked = f"from importlib.metadata import version as v; print(*map(v, {NAMES!r}))"
    versions = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    for version, (_, lowest, end) in zip(versions, allowed(), strict=True):
        assert version.startswith(lowest) or which == "newest"
        assert numbers(lowest) <= numbers(version) < numbers(end)
    options = "addopts=-m 'not slow' --import-mode=importlib --dist=loadfile"
    plain = ["-q", "-rs", "-n", "3", "-p", "no:cacheprovider", "-o", options]
    done = subprocess.run(
        [python, "-m", "pytest", *plain, *TESTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{versions}\n{done.stdout[-3000:]}"
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) >= LEAST_PASSED, done.stdout[-3000:]


def numbers(version):
    return tuple(map(int, version.split(".")))
