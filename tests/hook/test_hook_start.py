"""The hook in programs of their own: by import, and by the environment that `aitop run` gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aitop.hook

SITE = Path(aitop.hook.__file__).parent / "site"
ROOT = SITE.parent.parent.parent

pytestmark = pytest.mark.e2e

REPORT = """
import json, os, sys
links = []
for name in os.listdir("/proc/self/fd"):
    try:
        links.append(os.readlink("/proc/self/fd/" + name))
    except OSError:
        pass
hook = sys.modules.get("_aitop_hook")
session = getattr(hook, "_session", None)
print(json.dumps({
    "hook": hook is not None,
    "installed": session is not None and not session.gone,
    "way": session and session._way,
    "ring": any("aitop-hook" in link for link in links),
    "site_on_path": any(entry.endswith("hook/site") for entry in sys.path),
    "finders": [type(finder).__name__ for finder in sys.meta_path],
    "sitecustomize": sys.modules["sitecustomize"].__file__ if "sitecustomize" in sys.modules else None,
}), flush=True)
"""


def run(code, *, path=(), **variables):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AITOP_RUN")}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_import_before_torch_and_removal():
    code = "import sys; import aitop.hook; assert 'torch' not in sys.modules\n" + REPORT + "\nimport torch\n" + REPORT
    code += "\nassert aitop.hook.remove() == 'removed'\n" + REPORT
    (before, after, removed), errors = run(code, path=[ROOT])
    assert (before["installed"], after["installed"], after["way"], after["ring"]) == (False, True, "import", True)
    assert after["hook"]
    assert "TorchWatch" in before["finders"] and "TorchWatch" not in after["finders"]
    assert not removed["hook"] and not removed["ring"]
    assert errors == ""


def test_a_program_started_by_run():
    code = REPORT + "\nimport torch\n" + REPORT
    (before, after), errors = run(code, path=[SITE], AITOP_RUN="1")
    assert (before["hook"], before["installed"], before["ring"]) == (True, False, False)
    assert (after["installed"], after["way"], after["ring"], after["site_on_path"]) == (True, "run", True, False)
    assert errors == ""


def test_little_is_imported_into_a_program_that_has_no_torch():
    code = "import sys; names = list(sys.modules); import json; print(json.dumps(names))"
    with_hook, without = (run(code, path=[SITE], **variables)[0][0] for variables in ({"AITOP_RUN": "1"}, {}))
    assert not {"typing", "contextlib", "importlib.util"} & (set(with_hook) - set(without))


def test_without_the_variable_nothing_is_added():
    (report,), errors = run(REPORT, path=[SITE])
    assert not report["hook"] and not report["ring"] and not report["site_on_path"]
    # Nothing waits for torch.
    assert "TorchWatch" not in report["finders"]
    assert errors == ""


@pytest.mark.parametrize("variables", [{"AITOP_RUN": "1"}, {}])
def test_the_users_own_sitecustomize_runs_too(tmp_path, variables):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.users_own = __name__\n")
    code = "import sys; assert sys.users_own == 'sitecustomize'\n" + REPORT
    (report,), errors = run(code, path=[SITE, tmp_path], **variables)
    assert report["sitecustomize"] == str(tmp_path / "sitecustomize.py")
    assert errors == ""


def test_a_hook_that_cannot_be_loaded_is_left_out(tmp_path):
    site = tmp_path / "hook" / "site"
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text((SITE / "sitecustomize.py").read_text())
    (tmp_path / "hook" / "__init__.py").write_text("raise ValueError\n")
    (report,), errors = run(REPORT, path=[site], AITOP_RUN="1")
    assert not report["hook"]
    assert errors == ""


SPAWNING = """
import sys, os
import torch, torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset
sys.path.insert(0, {here!r})

if __name__ == "__main__":
    from hook_children import Looking, rank
    for report in DataLoader(Looking(), num_workers=1, batch_size=None, multiprocessing_context="{method}"):
        print(report)
    mp.start_processes(rank, nprocs=1, start_method="{method}")
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_get_no_hook_and_spawned_ranks_do(tmp_path, method):
    script = tmp_path / "train.py"
    script.write_text(SPAWNING.format(here=str(Path(__file__).parent), method=method))
    environment = {**os.environ, "PYTHONPATH": str(SITE), "AITOP_RUN": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    worker, trained = (line.split() for line in done.stdout.splitlines())
    assert worker == ["worker", "no-ring"]
    assert trained == ["rank", "own-ring" if method == "spawn" else "no-ring"]
