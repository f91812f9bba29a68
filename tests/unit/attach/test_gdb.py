"""gdb as a way in: where it is for, and whether the one that is here works."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from aitop.attach import attempt
from aitop.attach.refusal import AttachRefused
from aitop.attach.ways import gdb


def test_gdb_is_for_other_machines_and_its_absence_says_what_to_install(monkeypatch) -> None:
    python = SimpleNamespace(scratch=object())
    target = SimpleNamespace(pid=42, python=python)
    monkeypatch.setattr(gdb.shutil, "which", lambda _: None)
    monkeypatch.setattr(gdb, "on_x86_64", lambda: True)
    with pytest.raises(AttachRefused, match="gdb is for other machines") as refusal:
        attempt._open_ways(target, [gdb.Gdb()])  # type: ignore[arg-type]
    assert refusal.value.remedy == "aitop run -- CMD"
    monkeypatch.setattr(gdb, "on_x86_64", lambda: False)
    with pytest.raises(AttachRefused, match="gdb is not installed") as refusal:
        attempt._open_ways(target, [gdb.Gdb()])  # type: ignore[arg-type]
    assert refusal.value.remedy == "install gdb, or start it with: aitop run -- CMD"


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("echo '$1 = 1'", None),
        (
            'echo "Couldn\'t write extended state status: Bad address."; exit 1',
            "gdb does not work here: Couldn't write",
        ),
        ("exit 3", "gdb does not work here: it says nothing"),
        ("for p; do case $before in -p) kill -9 $p;; esac; before=$p; done; echo '$1 = 1'", "gdb harms processes here"),
    ],
)
def test_a_gdb_is_tried_on_a_process_of_our_own_before_it_is_used(
    monkeypatch, tmp_path: Path, script: str, fault: str | None
) -> None:
    program = tmp_path / "gdb"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(gdb.shutil, "which", lambda _: str(program))
    python = SimpleNamespace(scratch=object())
    monkeypatch.setattr(gdb, "on_x86_64", lambda: False)
    obstacle = gdb.Gdb().obstacle(SimpleNamespace(pid=42, python=python))  # type: ignore[arg-type]
    if fault is None:
        assert obstacle is None
    else:
        assert obstacle is not None and obstacle.reason.startswith(fault) and "newer gdb" in (obstacle.remedy or "")
