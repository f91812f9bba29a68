"""The files that `aitop export --print` gives, as the programs take them that they are for; and what promtool says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml
from exported_job import JOB
from prometheus_client import CollectorRegistry, generate_latest
from recorded_runs import snapshots_of

from aitop import cli
from aitop.outputs.prometheus.families import JobsCollector

pytestmark = pytest.mark.e2e
DEPLOYMENTS = files("aitop.commands").joinpath("deployments")


def text_of(name: str) -> str:
    return DEPLOYMENTS.joinpath(name).read_text(encoding="utf-8")


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not on the PATH")


@needs("promtool")
@pytest.mark.parametrize("name", ["serve", "simulated-gpu"])
def test_promtool_finds_nothing_to_object_to_in_the_metrics(name):
    collector, registry = JobsCollector("n1"), CollectorRegistry()
    for snapshot in snapshots_of(name):
        collector.take(JOB, snapshot)
    registry.register(collector)
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=generate_latest(registry), capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")


@needs("promtool")
def test_promtool_takes_the_alerts(tmp_path):
    (tmp_path / "alerts.yaml").write_text(text_of("alerts.yaml"))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "alerts.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs("systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    unit = text_of("aitop-export.service").replace("/opt/aitop/bin/aitop", sys.executable)

    def complaints(text: str) -> list[str]:
        (tmp_path / "aitop-export.service").write_text(text)
        command = ["systemd-analyze", "verify", str(tmp_path / "aitop-export.service")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return [line for line in done.stderr.splitlines() if "aitop-export" in line]

    assert complaints(unit.replace("Restart=", "Restarts=")), "a mistake is noticed"
    assert complaints(unit) == []


# Notes how it was called, and ends with what is in the file STATUS.
FAKE = """#!/bin/sh
echo "${0##*/} $*" >> CALLS
read status < STATUS
exit $status
"""
ASKS, STARTS, STOPS = "systemctl is-active", "systemd-run", "systemctl stop aitop-export"


@pytest.mark.parametrize(
    ("context", "status", "called"),
    [
        ("prolog_slurmd", 3, [ASKS, STARTS]),
        ("prolog_slurmd", 0, [ASKS]),
        ("epilog_slurmd", 0, [STOPS]),
        ("epilog_slurmd", 1, [STOPS]),
        ("", 0, []),
    ],
    ids=["prolog", "prolog of a second job", "epilog", "epilog without an exporter", "neither"],
)
def test_slurms_prolog_starts_the_exporter_and_its_epilog_stops_it_and_neither_fails(tmp_path, context, status, called):
    script, calls = tmp_path / "aitop.sh", tmp_path / "calls"
    script.write_text(text_of("slurm.sh"))
    calls.touch()
    (tmp_path / "status").write_text(f"{status}\n")
    for name in ("systemctl", "systemd-run"):
        fake = tmp_path / name
        fake.write_text(FAKE.replace("CALLS", str(calls)).replace("STATUS", str(tmp_path / "status")))
        fake.chmod(0o755)
    # /bin/sh stands for aitop: something that may be run.
    environment = {"PATH": str(tmp_path), "SLURM_SCRIPT_CONTEXT": context, "SLURM_JOB_ID": "1", "AITOP": "/bin/sh"}
    done = subprocess.run(["/bin/sh", str(script)], env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    made = calls.read_text().splitlines()
    assert len(made) == len(called) and all(call.startswith(start) for call, start in zip(made, called, strict=True))
    if STARTS in called:
        assert "--unit=aitop-export" in made[-1] and "/bin/sh export --all --textfile " in made[-1]


def test_the_daemon_set_has_what_reading_other_pods_takes():
    documents = list(yaml.safe_load_all(text_of("kubernetes.yaml")))
    (pod,) = [document["spec"]["template"]["spec"] for document in documents if document["kind"] == "DaemonSet"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert cli.parse(container["command"][1:]).prometheus.endswith(f":{container['ports'][0]['containerPort']}")


def test_kubernetes_takes_the_daemon_set():
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    documents = list(yaml.safe_load_all(text_of("kubernetes.yaml")))
    for document in documents:
        schemas.validate(document, "1.28", strict=True)
    documents[-1]["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(schemas.ValidationError):
        schemas.validate(documents[-1], "1.28", strict=True)
