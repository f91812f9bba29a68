"""What a killed process leaves of a profile goes, and nothing else."""

from __future__ import annotations

import os
import time

from process_numbers import ended_process

from aitop.hook.measures import burst
from aitop.sources.ring.burst import NAME, OLD_SECONDS, remove_leftovers


def made(folder, name, age=2 * OLD_SECONDS):
    path = folder / name
    path.mkdir()
    (path / "trace.json").write_text("{")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_only_old_folders_of_processes_that_are_gone(tmp_path):
    gone = ended_process()
    left = made(tmp_path, f"aitop-burst-{gone}-abc_1")
    untouched = [
        made(tmp_path, f"aitop-burst-{os.getpid()}-abc"),
        made(tmp_path, f"aitop-burst-{gone}-young", age=1.0),
        made(tmp_path, f"aitop-other-{gone}-abc"),
        made(tmp_path, "aitop-burst-abc"),
    ]
    link = tmp_path / f"aitop-burst-{gone}-link"
    link.symlink_to(untouched[0])
    remove_leftovers(str(tmp_path))
    assert not left.exists() and link.is_symlink() and all((path / "trace.json").exists() for path in untouched)
    remove_leftovers(str(tmp_path / "missing"))


def test_the_hook_names_its_folder_so():
    folder = burst._folder()
    try:
        match = NAME.fullmatch(os.path.basename(folder))
        assert match is not None and int(match[1]) == os.getpid()
    finally:
        os.rmdir(folder)
