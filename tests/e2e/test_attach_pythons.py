"""One attach at least to each version of Python that the hook knows, where one is at hand.

Which ones are is decided by tests/interpreters.py; AITOP_TEST_PYTHONS=path:path names more. A stand-in for torch
is enough here: what the hook does with the real one does not depend on the way in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attach_targets import STAND_IN, Victim, leftovers, torch_stand_in, why_no_gdb
from interpreters import VERSIONS, interpreters

from aitop.attach.attempt import WAYS
from aitop.attach.entrance import Attachment, deliver, install
from aitop.attach.refusal import AttachRefused
from aitop.attach.ways import WayIn, gdb
from aitop.sources.process_status import read_status

pytestmark = pytest.mark.e2e


def python(version: str) -> str:
    """An interpreter of that version; skips where there is none."""
    path = interpreters().get(version)
    if path is None:
        pytest.skip(f"no Python {version} at hand (AITOP_TEST_PYTHONS names interpreters)")
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., Victim]]:
    victims: list[Victim] = []

    def begin(kind: str, path: str, **more: object) -> Victim:
        victims.append(Victim(kind, path, **more))
        return victims[-1]

    yield begin
    for victim in victims:
        victim.kill()


def in_and_out(victim: Victim, ways: tuple[WayIn, ...] = WAYS) -> Attachment:
    came = deliver(victim.pid, "install", STAND_IN, timeout=20, torch=False, ways=ways)
    assert came.answer == "installed"
    assert deliver(victim.pid, "remove", (), timeout=20, ways=ways).answer == "removed"
    return came


def unharmed(victim: Victim) -> None:
    assert victim.goes_on()
    code, out, err = victim.end()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("bad 0 same True"), out
    assert leftovers(victim.pid) == []


@pytest.mark.parametrize("kind", ["timers", "longsleep"])
@pytest.mark.parametrize("version", VERSIONS)
def test_each_python_is_entered_and_left(start: Callable[..., Victim], version: str, kind: str) -> None:
    victim = start(kind, python(version))
    ways = {in_and_out(victim).way for _ in range(3 if kind == "timers" else 1)}
    if version == "3.14" and kind == "timers":
        assert ways == {"remote-debug"}
    unharmed(victim)


@pytest.mark.parametrize("linked", ["static", "shared"])
def test_both_ways_of_linking_python_are_entered(start: Callable[..., Victim], linked: str) -> None:
    path = next((path for name, path in interpreters().items() if name.endswith(linked)), None)
    if path is None:
        pytest.skip(f"no {linked} Python at hand (AITOP_TEST_PYTHONS names interpreters)")
    victim = start("busy", path)
    in_and_out(victim)
    unharmed(victim)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_hook_itself_says_in_each_python_whether_torch_is_ready(version: str, tmp_path: Path) -> None:
    """The real hook's files are loaded by that Python, from source where its bytecode is another."""
    code = torch_stand_in(tmp_path, "print('ready', flush=True)\nwhile not sys.stdin.closed and sum(range(99)): pass")
    with subprocess.Popen([python(version), "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            with pytest.raises(AttachRefused) as refusal:
                install(process.pid, timeout=0.6)
            # The stand-in is no torch: the hook came in, looked, and did not stay.
            assert "hook" in refusal.value.reason, refusal.value.reason
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["variable", "option"])
def test_an_owner_who_switched_pep_768_off_is_obeyed(how: str) -> None:
    path = python("3.14")
    # An option that is not on the command line: only the interpreter's own memory tells.
    code = "import os, sys; print('ready', flush=True); sys.stdin.read()"
    if how == "variable":
        environment = {**os.environ, "PYTHON_DISABLE_REMOTE_DEBUG": "1"}
        command = [path, "-c", "import os; os.environ.pop('PYTHON_DISABLE_REMOTE_DEBUG');" + code]
    else:
        environment, command = {**os.environ}, [path, "-X", "disable-remote-debug", "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(AttachRefused, match="switched remote debugging off") as refusal:
            deliver(process.pid, "install", STAND_IN, timeout=1, torch=False)
        assert refusal.value.state == "denied"
        process.communicate()
    assert process.returncode == 0


def test_gdb_queues_the_line_where_nothing_else_can(
    start: Callable[..., Victim], monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := why_no_gdb():
        pytest.skip(why)
    monkeypatch.setattr(gdb, "on_x86_64", lambda: False)
    victim = start("allocating", sys.executable)
    came = in_and_out(victim, (gdb.Gdb(),))
    assert came.way == "gdb"
    status = read_status(victim.pid)
    assert status is not None and status.tracer == 0 and status.state in "RS"
    unharmed(victim)


# Mounts and pids of its own, as in a container: what it knows as /tmp is another folder outside.
CONTAINER = """
set -e
mount --make-rprivate /
mount -t tmpfs none {away}
mount --bind {away} /tmp
exec {python} -u -c "import os, sys; print(os.getpid(), flush=True)
while not os.path.exists('/tmp/stop'): sum(range(999))
print(sorted(os.listdir('/tmp')), [m for m in sys.modules if 'aitop' in m])"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces here")
def test_a_target_in_namespaces_of_its_own_is_entered(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    script = CONTAINER.format(away=away, python=sys.executable)
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        if outer.stdout.readline() != "1\n":
            pytest.skip("no namespaces to be had here")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        inner = int(children[0])
        try:
            assert deliver(inner, "install", STAND_IN, timeout=20, torch=False).answer == "installed"
            assert deliver(inner, "remove", (), timeout=20).answer == "removed"
            Path(f"/proc/{inner}/root/tmp/stop").touch()
            assert outer.communicate(timeout=20)[0] == "['stop'] []\n"
        finally:
            if outer.poll() is None:
                os.kill(inner, 9)
    assert outer.returncode == 0
