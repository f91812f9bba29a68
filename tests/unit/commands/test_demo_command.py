"""`aitop demo`: how it ends."""

import argparse
import os

import pytest

from aitop.commands import demo
from aitop.errors import (
    NoTargetError,
)


def test_a_demo_ends_with_the_exit_code_of_its_screen(monkeypatch):
    monkeypatch.setattr("aitop.commands.monitor.check_terminal", lambda instead: None)
    monkeypatch.setattr("aitop.sources.host.target.look", lambda pid: None)
    monkeypatch.setattr("aitop.commands.monitor.watch", lambda targets, args: 1)
    assert demo.look_at(os.getpid(), argparse.Namespace()) == 1


def test_a_demo_that_a_signal_ends_says_so(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(NoTargetError, match="was ended by SIGKILL before its first step"), demo.running(script, []):
        pass
