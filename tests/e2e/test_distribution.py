"""Wheel and sdist are built, and each is installed where the checkout is not: what is in there is enough to run."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
RECORDING = str(ROOT / "tests" / "recordings" / "healthy.jsonl.gz")


def run(command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A Python with the build backend, and the folder with what it made of this checkout."""
    folder = tmp_path_factory.mktemp("built")
    run([sys.executable, "-m", "venv", folder / "venv"])
    python = folder / "venv" / "bin" / "python"
    got = subprocess.run([python, "-m", "pip", "install", "-q", "hatchling"], capture_output=True, check=False)
    if got.returncode:
        pytest.skip("hatchling cannot be had here")
    run([python, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", folder / "dist"], cwd=ROOT)
    return python, folder / "dist"


def files_of(wheel):
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("aitop/")}


def test_the_wheel_has_the_package_and_nothing_else(built):
    _, dist = built
    (wheel,) = dist.glob("*.whl")
    listed = run(["git", "ls-files", "aitop"], cwd=ROOT).split() if (ROOT / ".git").exists() else []
    assert set(listed) <= files_of(wheel)
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"aitop"}


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_was_built_runs_where_the_checkout_is_not(built, kind, tmp_path):
    python, dist = built
    (archive,) = dist.glob(kind)
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", tmp_path / "site"]
    run([*install, archive])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    aitop = [sys.executable, "-m", "aitop"]
    where = run([sys.executable, "-c", "import aitop; print(aitop.__file__)"], cwd=tmp_path, env=environment).strip()
    assert where.startswith(str(tmp_path / "site"))
    assert "input-bound" in run([*aitop, "explain", "input-bound"], cwd=tmp_path, env=environment)
    assert "slow-loader" in run([*aitop, "demo", "--list"], cwd=tmp_path, env=environment)
    assert '"schema"' in run([*aitop, "replay", RECORDING, "--format", "json"], cwd=tmp_path, env=environment)
    # The hook's own files are read where they lie, to be sent into the target.
    bundle = "from aitop.attach.payload.bundle import hook_sources; print(len(hook_sources()))"
    assert int(run([sys.executable, "-c", bundle], cwd=tmp_path, env=environment)) > 20


def test_the_sdist_has_the_tests_and_the_documents(built):
    _, dist = built
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"README.md", "SECURITY.md", "pyproject.toml", "tests/conftest.py", "tests/bench/results.py"} <= names
