"""--on VERDICT --exec CMD: when the command runs, what it gets, and that nothing waits for it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from snapshot_builder import snapshot, steps

from aitop.cli import parse
from aitop.commands import alert as alerts
from aitop.commands.alert import Alert, alert_of
from aitop.errors import WrongUsageError
from aitop.model.verdict import Diagnosis, Verdict

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="what root owns is made by root")


def seen(*verdicts):
    """A Snapshot with these verdicts, each an id and a severity."""
    said = tuple(Verdict(id=name, severity=severity, title="t", confidence=0.9) for name, severity in verdicts)
    return msgspec.structs.replace(snapshot(steps()), diagnosis=Diagnosis(verdicts=said))


def lines_of(path):
    """The lines of a file, once there are some."""
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"nothing is in {path}"
        time.sleep(0.02)
    return path.read_text().splitlines()


def triggers(*texts):
    return [alerts.trigger(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "verdict", "runs"),
    [
        ("input-bound", ("input-bound", "info"), True),
        ("input-bound:critical", ("input-bound", "warning"), False),
        ("input-bound:warning", ("input-bound", "critical"), True),
        ("any", ("compute-bound", "info"), False),
        ("any", ("hang", "critical"), True),
        ("regression", ("input-bound", "critical"), False),
    ],
)
def test_which_verdicts_run_it(text, verdict, runs):
    said = Verdict(id=verdict[0], severity=verdict[1], title="t", confidence=0.9)
    assert alerts.trigger(text).matches(said) == runs


def test_the_command_gets_the_report_and_may_use_the_shell(tmp_path):
    alert = Alert(
        triggers("regression"),
        f'cat > {tmp_path}/report; echo "$AITOP_VERDICT $AITOP_SEVERITY $AITOP_PID" > {tmp_path}/told',
    )

    alert.consider(seen(("input-bound", "critical"), ("regression", "warning")))
    alert.finish()

    report = json.loads((tmp_path / "report").read_text())
    assert [verdict["id"] for verdict in report["verdicts"]] == ["input-bound", "regression"]
    assert (tmp_path / "told").read_text() == "regression warning 100\n"


def test_a_verdict_that_comes_and_goes_while_it_runs_waits_for_its_turn(tmp_path):
    alert = Alert(triggers("any"), f"sleep 0.3; echo $AITOP_VERDICT >> {tmp_path}/ran")
    alert.consider(seen(("regression", "warning")))
    alert.consider(seen(("regression", "warning"), ("hang", "critical")))
    alert.consider(seen())
    alert.finish(seen())
    assert lines_of(tmp_path / "ran") == ["regression", "hang"]


def test_it_runs_once_per_dwell_for_each_verdict(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(alerts, "time", SimpleNamespace(monotonic=lambda: now))
    alert = Alert(triggers("any"), f"echo $AITOP_VERDICT >> {tmp_path}/ran")
    both = seen(("regression", "warning"), ("memory-leak", "warning"))
    for _ in range(3):
        alert.consider(both)
        alert.finish()
        now += 0.2 * alerts.DWELL_SECONDS
    assert lines_of(tmp_path / "ran") == ["regression", "memory-leak"]
    now += 0.5 * alerts.DWELL_SECONDS
    alert.consider(both)
    alert.finish()
    assert lines_of(tmp_path / "ran")[2:] == ["regression", "memory-leak"]


def test_at_the_end_all_that_wait_for_their_turn_have_it(tmp_path):
    alert = Alert(triggers("any"), f"echo $AITOP_VERDICT >> {tmp_path}/ran")
    alert.consider(seen(("regression", "warning")))
    alert.finish(seen(("regression", "warning"), ("memory-leak", "warning"), ("hang", "critical")))
    assert lines_of(tmp_path / "ran") == ["regression", "memory-leak", "hang"]


def test_a_command_that_never_ends_is_not_waited_for_and_ends_with_the_monitor(tmp_path):
    alert = Alert(triggers("any"), f"sleep 60 & echo $! > {tmp_path}/pid; wait")
    started = time.monotonic()
    alert.consider(seen(("hang", "critical")))
    alert.consider(seen(("regression", "warning")))
    assert time.monotonic() - started < 30
    pid = int(lines_of(tmp_path / "pid")[0])

    alert.stop()

    assert ends(pid)


def ends(pid):
    """Whether the process ends soon."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("command", "said"),
    [("exit 3", "aitop: the command of --exec ended with code 3: exit 3\n"), ("echo mailed", "mailed\n")],
)
def test_a_failure_is_one_sentence_and_output_does_not_get_into_the_report(capfd, command, said):
    alert = Alert(triggers("hang"), command)
    alert.consider(seen(("hang", "critical")))
    alert.finish()
    assert capfd.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on", "hang"], "--exec CMD need each other"),
        (["--exec", "true"], "--exec CMD need each other"),
        (["--on", "hang", "--exec", " "], "needs a command"),
    ],
)
def test_a_verdict_without_a_command_and_a_command_without_a_verdict_are_wrong_usage(options, words):
    with pytest.raises(WrongUsageError, match=words):
        alert_of(parse(["diagnose", "--pid", "1", *options]))


@pytest.mark.parametrize(("text", "words"), [("regresion", "regression"), ("hang:awful", "critical, warning, info")])
def test_an_unknown_verdict_or_severity_is_wrong_usage(text, words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["diagnose", "--pid", "1", "--on", text, "--exec", "true"])
    assert ended.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "folder", "file", "refused"),
    [
        ("{} now", 0o755, 0o777, True),
        ("sh {}", 0o755, 0o666, True),
        ("sh {}", 0o777, 0o644, True),
        pytest.param("sh {}", 0o755, 0o644, False, marks=AS_ROOT),
        pytest.param("sh {}", 0o1777, 0o644, False, marks=AS_ROOT),
    ],
)
def test_root_does_not_run_what_others_can_change(command, folder, file, refused, tmp_path, monkeypatch):
    script = tmp_path / "there" / "alert.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(file)
    script.parent.chmod(folder)
    monkeypatch.setattr(alerts.os, "geteuid", lambda: 0)
    if refused:
        with pytest.raises(WrongUsageError, match="can be changed by others than root"):
            alert_of(parse(["diagnose", "--pid", "1", "--on", "hang", "--exec", command.format(script)]))
    else:
        assert alert_of(parse(["diagnose", "--pid", "1", "--on", "hang", "--exec", command.format(script)])) is not None


def test_root_does_not_run_a_link_that_others_can_change(tmp_path, monkeypatch):
    (tmp_path / "echo").symlink_to("/bin/echo")
    tmp_path.chmod(0o777)
    monkeypatch.setattr(alerts.os, "geteuid", lambda: 0)
    with pytest.raises(WrongUsageError, match="can be changed by others than root"):
        alert_of(parse(["diagnose", "--pid", "1", "--on", "hang", "--exec", f"{tmp_path}/echo now"]))
    assert alert_of(parse(["diagnose", "--pid", "1", "--on", "hang", "--exec", "echo now"])) is not None
