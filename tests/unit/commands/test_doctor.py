"""The doctor: each state of each line from the kernel's own texts, and what it writes."""

from __future__ import annotations

import io
import json
import resource
import subprocess
import threading
from pathlib import Path

import pytest
from confinement_maker import confinement

from aitop import cli
from aitop.attach.entrance import Survey
from aitop.attach.refusal import AttachRefused
from aitop.attach.ways import Obstacle
from aitop.commands import doctor
from aitop.commands.doctor import machine as machine_checks
from aitop.commands.doctor import process, report, rights
from aitop.commands.doctor.ptrace_trial import PtraceTrial
from aitop.commands.doctor.report import Check, fault, not_needed
from aitop.model.host import CgroupSample
from aitop.sources.access import Confinement, read_confinement
from aitop.sources.nvml import count_cards, without_driver
from aitop.sources.nvml.abilities import Abilities, DeviceAbilities
from aitop.sources.source import SourceError

GOOD = PtraceTrial(None, None)
REFUSED = PtraceTrial("EACCES", "EPERM")
FILTERED = PtraceTrial(None, "EPERM")
CAPABLE = 1 << 19


def by_name(checks) -> dict[str, Check]:
    return {check.name: check for check in checks}


def rights_lines(tried: PtraceTrial, here: Confinement) -> dict[str, Check]:
    cause = rights.cause_of(tried, here)
    return by_name([rights.ptrace(tried, here, cause), *rights.facts(here, cause)])


def machine(tmp_path: Path, **texts: str) -> str:
    """A root folder with these files; `__` in a name stands for a slash. Links are written as `-> text`."""
    for name, text in texts.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)
    return str(tmp_path)


STATUS = "Name:\tpython\nTracerPid:\t{tracer}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{caps}\nSeccomp:\t{seccomp}\n"
NOBODY = STATUS.format(tracer=0, uid=1000, caps="0000000000000000", seccomp=0)
FIRST = {"proc__self__ns__pid": "-> pid:[4026531836]", "proc__self__ns__user": "-> user:[4026531837]"}


def test_a_user_on_a_plain_machine(tmp_path):
    files = {"proc__self__status": NOBODY, "proc__self__cgroup": "0::/user.slice\n"}
    here = read_confinement(machine(tmp_path, **files, **FIRST), {})
    assert here == confinement(yama=None)


def test_root_in_a_docker_container_under_a_filter_and_a_profile(tmp_path):
    files = {
        "proc__self__status": STATUS.format(tracer=7, uid=0, caps="00000000a80425fb", seccomp=2),
        "proc__self__cgroup": "12:memory:/docker/abc\n",
        "proc__self__ns__pid": "-> pid:[4026532999]",
        "proc__self__ns__user": "-> user:[4026531837]",
        "proc__sys__kernel__yama__ptrace_scope": "1\n",
        "proc__self__attr__current": "docker-default (enforce)\n",
    }
    here = read_confinement(machine(tmp_path, **files), {})
    assert (here.container, here.own_pids, here.own_users) == ("docker", True, False)
    assert (here.uid, here.capable, here.seccomp, here.tracer, here.yama) == (0, False, True, 7, "1")
    assert here.profile == "docker-default (enforce)"


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc__self__cgroup": "0::/kubepods.slice/pod1\n"}, {}, "kubernetes"),
        ({"run__.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {}, "docker"),
        ({"proc__self__ns__pid": "-> pid:[4026532111]"}, {}, "container"),
        ({"proc__self__attr__current": "unconfined"}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_kind_of_container(tmp_path, files, environment, kind):
    here = read_confinement(machine(tmp_path, **files), environment)
    assert here.container == kind
    assert here.profile is None


@pytest.mark.parametrize(
    ("tried", "here", "faults", "remedy"),
    [
        (GOOD, confinement(), (), None),
        (GOOD, confinement(yama="1", capabilities=CAPABLE), (), None),
        (GOOD, confinement(seccomp=True, container="docker", own_pids=True), (), None),
        (REFUSED, confinement(yama="1"), ("ptrace", "yama", "capability"), "sudo sysctl kernel.yama.ptrace_scope=0"),
        (REFUSED, confinement(yama="2"), ("ptrace", "yama", "capability"), "sudo setpriv --reuid=1000 "),
        (REFUSED, confinement(yama="3", capabilities=CAPABLE), ("ptrace", "yama"), "aitop run -- CMD"),
        (REFUSED, confinement(yama="3"), ("ptrace", "yama"), "reboot"),
        (FILTERED, confinement(seccomp=True), ("ptrace", "seccomp"), "aitop run -- CMD"),
        (
            FILTERED,
            confinement(seccomp=True, container="docker", own_pids=True),
            ("ptrace", "seccomp", "capability"),
            "docker run --user 0 --cap-add SYS_PTRACE … --security-opt seccomp=unconfined",
        ),
        (
            REFUSED,
            confinement(yama="1", container="podman", own_pids=True),
            ("ptrace", "yama", "capability"),
            "n run --cap",
        ),
        (
            REFUSED,
            confinement(yama="1", container="kubernetes", own_pids=True),
            ("ptrace", "yama", "capability"),
            "securityContext: {runAsUser: 0, capabilities: {add: [SYS_PTRACE]}}",
        ),
        (
            REFUSED,
            confinement(uid=0, yama="1", container="kubernetes", own_pids=True),
            ("ptrace", "yama", "capability"),
            "securityContext: {capabilities: {add: [SYS_PTRACE]}}",
        ),
        (REFUSED, confinement(profile="snap.x (enforce)"), ("ptrace",), "apparmor=unconfined"),
        (REFUSED, confinement(uid=0), ("ptrace", "capability"), "capsh --print"),
        (REFUSED, confinement(container="lxc", own_pids=True), ("ptrace", "capability"), "CAP_SYS_PTRACE"),
    ],
)
def test_the_condition_that_failed_is_at_fault_and_no_other(tried, here, faults, remedy):
    lines = rights_lines(tried, here)
    assert {name for name, line in lines.items() if line.state == "does-not"} == set(faults)
    assert lines["ptrace"].remedy is None if remedy is None else remedy in lines["ptrace"].remedy


def test_a_debugger_around_aitop_is_no_refusal():
    assert rights_lines(FILTERED, confinement(tracer=12))["ptrace"].state == "works"


def test_a_missing_capability_is_no_fault_where_nothing_needs_it():
    assert rights_lines(GOOD, confinement())["capability"].state == "not-needed"


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (confinement(uid=0), "root without CAP_SYS_PTRACE: only root's own processes"),
        (confinement(uid=0, capabilities=CAPABLE), "root without CAP_DAC_OVERRIDE: only root's own processes"),
        (confinement(uid=0, capabilities=CAPABLE | 2), "root: processes of every user"),
        (confinement(uid=54321, capabilities=CAPABLE), "54321 (54321): others' processes need their user, or sudo"),
        (confinement(uid=54321, capabilities=CAPABLE | 2), "54321, who may look at all users'"),
    ],
)
def test_line_of_the_doctor_about_the_user(here, words):
    assert rights_lines(GOOD, here)["user"].reason == words


@pytest.mark.parametrize(
    ("gdb", "fault", "state", "words"),
    [
        ("/usr/bin/gdb", None, "works", "with /usr/bin/gdb"),
        ("/usr/bin/gdb", Obstacle("gdb does not work here: Bad address", "newer"), "does-not", "Bad address"),
        (None, None, "does-not", "gdb is missing"),
    ],
)
def test_on_other_machines_the_hook_needs_a_gdb_that_works(monkeypatch, gdb, fault, state, words):
    monkeypatch.setattr(rights.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(rights.shutil, "which", lambda _: gdb)
    monkeypatch.setattr(rights, "fault_of_gdb", lambda _: fault)
    line = rights.attach()
    assert (line.state, words in line.reason) == (state, True)


def gpus(*devices: DeviceAbilities) -> dict[str, Check]:
    return by_name(machine_checks.nvml_works(Abilities("570.1", devices)))


@pytest.mark.parametrize(
    ("device", "states", "words"),
    [
        (DeviceAbilities(0, "H200", counters="works", mig=False), ("works", "works", "not-needed"), "driver 570.1"),
        (DeviceAbilities(0, "A100", mig=False), ("works", "not-needed", "not-needed"), "Hopper"),
        (DeviceAbilities(0, "T4"), ("works", "not-needed", "not-needed"), "cannot be split"),
        (DeviceAbilities(0, "H", counters="denied"), ("works", "does-not", "not-needed"), "RmProfiling"),
        (DeviceAbilities(0, "H", counters="failed", counters_error="in use"), ("works", "does-not"), "in use"),
        (DeviceAbilities(0, "H", mig=True, slices=2), ("works", "not-needed", "works"), "GPU 0 has 2"),
        (DeviceAbilities(0, "H", mig=True), ("works", "not-needed", "does-not"), "mig -cgi"),
        (DeviceAbilities(0, lost=True), ("does-not",), "--gpu-reset -i 0"),
    ],
)
def test_lines_of_the_doctor_about_nvml(device, states, words):
    lines = gpus(device)
    assert tuple(lines[name].state for name in ("nvml", "gpm", "mig"))[: len(states)] == states
    text = " ".join(f"{line.reason} {line.remedy}" for line in lines.values())
    assert words.replace("RmProfiling", "NVreg_RestrictProfilingToAdminUsers=0") in text


NO_LIBRARY = without_driver(1)


@pytest.mark.parametrize(
    ("error", "present", "here", "state", "remedy"),
    [
        (without_driver(0), 0, confinement(), "not-needed", None),
        (NO_LIBRARY, 1, confinement(), "does-not", "install the NVIDIA driver"),
        (NO_LIBRARY, 1, confinement(container="docker", own_pids=True), "does-not", "docker run --gpus all …"),
        (NO_LIBRARY, 1, confinement(container="kubernetes", own_pids=True), "does-not", "nvidia.com/gpu: 1"),
        (SourceError("denied", "not let in", "ask"), 0, confinement(), "does-not", "usermod -aG"),
        (SourceError("failed", "updated", "reboot the machine"), 1, confinement(), "does-not", "reboot"),
    ],
)
def test_no_nvml_is_a_fault_only_where_there_is_a_card(error, present, here, state, remedy):
    lines = by_name(machine_checks.nvml_missing(error, present, here))
    assert lines["nvml"].state == state
    assert lines["nvml"].remedy is None if remedy is None else remedy in lines["nvml"].remedy
    assert (lines["gpm"].state, lines["mig"].state) == ("not-needed", "not-needed")


def test_cards_are_counted_on_the_bus(tmp_path):
    files = {"a__vendor": "0x10de\n", "a__class": "0x030200\n", "b__vendor": "0x10de\n", "b__class": "0x040300\n"}
    files |= {"c__vendor": "0x8086\n", "c__class": "0x030000\n"}
    root = machine(tmp_path, **{f"sys__bus__pci__devices__{name}": text for name, text in files.items()})
    assert count_cards(root) == 1
    assert count_cards(str(tmp_path / "none")) == 0


@pytest.mark.parametrize(
    ("size", "environment", "encoding", "states"),
    [
        (None, {}, "ascii", ("not-needed", "not-needed", "not-needed")),
        ((120, 36), {"TERM": "xterm-256color"}, "UTF-8", ("works", "works", "works")),
        ((79, 24), {"TERM": "xterm-256color"}, "UTF-8", ("does-not", "works", "works")),
        ((120, 36), {"TERM": "dumb"}, "UTF-8", ("does-not", "not-needed", "not-needed")),
        ((120, 36), {"TERM": "xterm", "NO_COLOR": "1"}, "UTF-8", ("works", "not-needed", "works")),
        ((120, 36), {"TERM": "xterm"}, "ANSI_X3.4-1968", ("works", "works", "does-not")),
        ((120, 36), {"TERM": "linux"}, "UTF-8", ("works", "works", "not-needed")),
    ],
)
def test_lines_of_the_doctor_about_the_terminal(size, environment, encoding, states):
    lines = by_name(machine_checks.terminal_of(size, environment, encoding))
    assert tuple(lines[name].state for name in ("terminal", "colours", "utf-8")) == states
    assert all(line.remedy for line in lines.values() if line.state == "does-not")


def test_limits_are_facts_and_no_fault():
    assert machine_checks.cgroup_of(None).state == "not-needed"
    sample = CgroupSample(version=2, cpu_quota=1.5, memory_limit=2 << 30, memory_used=1 << 30)
    assert machine_checks.cgroup_of(sample).reason == "v2; limits: 1.5 cores; 2.0 GB of memory, 1.0 GB of it used"
    assert machine_checks.cgroup_of(CgroupSample(version=1)).reason == "v1; limits: none"


@pytest.mark.parametrize(
    ("most", "state", "words"),
    [
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "works", "any number"),
        ((1024, 4096), "works", "1024 may be open"),
        ((24, 24), "works", "few for a job of many"),
        ((16, 16), "works", "few for a job of many"),
        ((15, 15), "does-not", "only 15 may be open"),
        ((8, resource.RLIM_INFINITY), "does-not", "ulimit -n 1024"),
        ((8, 512), "does-not", "ulimit -n 512"),
        ((8, 8), "does-not", "--ulimit nofile=1024"),
    ],
)
def test_the_number_of_descriptors(monkeypatch, most, state, words):
    monkeypatch.setattr(resource, "getrlimit", lambda which: most)
    line = machine_checks.descriptors()
    assert line.state == state
    assert words in f"{line.reason} {line.remedy}"


def test_a_limit_on_files_is_told_only_where_it_is_too_low(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert machine_checks.file_size() is None
    monkeypatch.setattr(resource, "getrlimit", lambda which: (0, resource.RLIM_INFINITY))
    assert (machine_checks.file_size().state, machine_checks.file_size().remedy) == (
        "does-not",
        "ulimit -S -f unlimited",
    )
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 1000))
    assert "hard limit" in machine_checks.file_size().remedy


@pytest.mark.parametrize("most", [20 << 20, (1 << 30) + 100])
def test_the_remedy_for_a_limit_on_files_raises_it_in_the_shell(monkeypatch, most):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, most))
    command = f"{machine_checks.file_size().remedy} && ulimit -S -f"
    done = subprocess.run(["bash", "-c", command], preexec_fn=limited, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) * 1024 >= machine_checks.LARGEST_WRITTEN


def test_too_few_threads_are_told(monkeypatch):
    assert machine_checks.threads() is None
    real, count = threading.Thread.start, [3]

    def start(thread):
        count[0] -= 1
        if count[0] < 0:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    line = machine_checks.threads()
    assert (line.state, "only 3 threads" in line.reason, "ulimit -u" in line.remedy) == ("does-not", True, True)
    assert not [thread for thread in threading.enumerate() if thread.name == "aitop-doctor"]


def test_settings_at_fault_are_said(settings_file):
    assert machine_checks.settings_file().state == "not-needed"
    settings_file('theme = "light"\n')
    assert machine_checks.settings_file().state == "works"
    settings_file("theme = 7\n")
    assert machine_checks.settings_file().state == "does-not"
    assert "line 1: theme must be" in machine_checks.settings_file().reason


LADDER = (("remote-debug", "its Python is older than 3.14"), ("signal-frame", None))
SHUT = (("remote-debug", "its Python is older than 3.14"), ("signal-frame", "its shadow stack (CET) is on"))


@pytest.mark.parametrize(
    ("surveys", "states", "words"),
    [
        ([Survey(False, LADDER, "/tmp")], ("works", "not-needed", "works", "works"), "signal-frame comes first"),
        ([Survey(False, LADDER, "/tmp")] * 3, ("works",), "in all 3 processes"),
        ([Survey(False, SHUT, "/tmp")], ("does-not", "does-not", "does-not", "works"), "aitop run -- CMD"),
        ([Survey(True, SHUT, None)], ("works", "not-needed", "not-needed"), "in already"),
        (
            [
                Survey(False, LADDER, "/tmp"),
                Survey(False, (), None, AttachRefused("denied", "it is traced", "end it")),
            ],
            ("does-not",),
            "in 1 of 2 processes: it is traced",
        ),
        ([Survey(False, LADDER, None, AttachRefused("failed", "no folder", "TMPDIR"))], ("does-not",), "TMPDIR"),
    ],
)
def test_the_ways_of_the_hook(surveys, states, words):
    lines = process.hook([(pid, survey) for pid, survey in enumerate(surveys, 1)])
    assert tuple(line.state for line in lines)[: len(states)] == states
    assert words in f"{lines[0].reason} {lines[0].remedy}"


def test_where_a_filter_refuses_ptrace_only_the_way_through_memory_is_open():
    both = Survey(False, (("remote-debug", None), ("signal-frame", None)), "/tmp")
    assert process.closed_to_ptrace(both, None).open == ("remote-debug", "signal-frame")
    assert process.closed_to_ptrace(both, "EPERM").open == ("remote-debug",)
    [line, *_] = process.hook([(1, process.closed_to_ptrace(Survey(False, LADDER, "/tmp"), "EPERM"))])
    assert (line.state, line.remedy) == ("does-not", "start the run with: aitop run -- CMD")


def test_a_sampler_that_is_not_there_or_does_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_checks, "find_py_spy", lambda: str(tmp_path / "py-spy"))
    assert machine_checks.py_spy().state == "does-not"

    def missing():
        raise SourceError("absent", "py-spy is not installed", "pip install py-spy")

    monkeypatch.setattr(machine_checks, "find_py_spy", missing)
    assert machine_checks.py_spy() == Check("py-spy", "does-not", "py-spy is not installed", "pip install py-spy")
    monkeypatch.setattr(machine_checks, "find_py_spy", lambda: "/bin/false")
    assert "leaves with code 1" in machine_checks.py_spy().reason


HOSTILE = [
    fault("process", "1 is \x1b[2Jtrain\u202e.py", "end \x9b31m it"),
    not_needed("gpm", "no\nGPU"),
]


@pytest.mark.parametrize("written", ["text", "json"])
def test_nothing_that_a_terminal_obeys_is_passed_on(monkeypatch, capsys, written):
    monkeypatch.setattr(doctor, "examine", lambda pid: HOSTILE)
    assert cli.run(["doctor", "--format", written]) == 1
    out = capsys.readouterr().out
    assert "train" in out and out.replace("\n", "").isprintable()
    if written == "json":
        assert json.loads(out)["checks"][0]["reason"].isprintable()


def test_a_check_that_is_not_needed_does_not_fail_the_doctor(monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda pid: HOSTILE[1:])
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert cli.run(["doctor"]) == 0


def test_long_lines_are_broken_between_words_under_their_start():
    long = Check("yama", "does-not", "one two three four five six seven eight", "a b")
    assert report.as_text([long], 42).splitlines() == [
        "does not    yama  one two three four five",
        " " * 18 + "six seven eight",
        " " * 18 + "→ a b",
    ]
    assert len(report.as_text([long]).splitlines()) == 2


def test_the_keys_of_the_json_report_stay():
    read = json.loads(report.as_json(HOSTILE, 7))
    assert list(read) == ["schema", "aitop", "ok", "pid", "checks"]
    assert (read["schema"], read["ok"], read["pid"]) == (1, False, 7)
    assert [list(check) for check in read["checks"]] == [["name", "state", "reason", "remedy"]] * 2
    assert read["checks"][1] == {"name": "gpm", "state": "not-needed", "reason": "no GPU", "remedy": None}


def test_a_fault_of_ours_is_no_hung_driver(monkeypatch):
    def fail():
        raise ValueError("not a version")

    monkeypatch.setattr("aitop.sources.nvml.abilities.abilities", fail)
    (nvml, *_) = machine_checks.gpu_checks(confinement())
    assert (nvml.state, nvml.reason) == ("does-not", "NVML cannot be asked: ValueError: not a version")
