"""What a process runs, told from its command line and its libraries."""

import pytest

from aitop.sources import procfs
from aitop.sources.host.command_lines import Invocation, invocation, kind_of


@pytest.mark.parametrize(
    ("path", "framework"),
    [
        ("/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", "torch"),
        ("/venv/lib/libtorch.so.2.1", "torch"),
        ("/venv/lib/python3.11/site-packages/jaxlib/xla_extension.so", "jax"),
        ("/venv/lib/python3.11/site-packages/jaxlib/mlir/_mlir_libs/_mlir.so", "jax"),
        ("/venv/lib/python3.11/site-packages/tensorflow/libtensorflow_framework.so.2", "tensorflow"),
        ("/home/me/libtorch_project/other.so", None),
        ("/usr/lib/libc.so.6", None),
    ],
)
def test_framework_from_a_memory_map(path, framework):
    line = f"7f00-7f01 r-xp 00000000 08:01 42    {path}\n"
    assert procfs.framework_of(line.encode()) == framework


def test_a_mapped_file_may_have_any_name():
    python = b"7f10-7f20 rw-p 00000000 08:01 42    /usr/lib/libpython3.11.so.1.0\n7f20-7f30 rw-p 00000000 00:00 0 \n"
    assert procfs.interpreter_data(b"7f00-7f01 r--p 00000000 08:01 42    /tmp/a\rb c\nnothing\n" + python) == (
        range(0x7F10, 0x7F20),
        range(0x7F20, 0x7F30),
    )


@pytest.mark.parametrize(
    ("exe", "mapped", "version"),
    [
        ("/usr/bin/python3.11", b"", "3.11"),
        ("/usr/bin/python3.13t", b"", "3.13"),
        ("/usr/bin/python3.12 (deleted)", b"", "3.12"),
        ("/usr/bin/python3", b"", None),
        ("/usr/bin/blender", b"7f00 r-xp /usr/lib/libpython3.10.so.1.0\n", "3.10"),
        (None, None, None),
    ],
)
def test_python_version(exe, mapped, version):
    assert procfs.python_version_of(exe, mapped) == version


def test_command_line_is_shown_in_one_line_without_control_characters():
    assert procfs.shown(("python", "-c", "a\n\x1b[31mb")) == "python -c a ·[31mb"
    assert procfs.shown((), "kworker") == "[kworker]"
    assert len(procfs.shown(("x" * 5000,))) == procfs.LONGEST_COMMAND


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py --lr 1", Invocation("script", "train.py")),
        ("python -u -X dev -W error /a/train.py", Invocation("script", "/a/train.py")),
        ("python -uB train.py", Invocation("script", "train.py")),
        ("python -Xdev train.py", Invocation("script", "train.py")),
        ("python -m torch.distributed.run x.py", Invocation("module", "torch.distributed.run")),
        ("python -Bm pkg", Invocation("module", "pkg")),
        ("python -mpkg", Invocation("module", "pkg")),
        ("python -c pass", Invocation("code", "pass")),
        ("python -", Invocation("stdin", "")),
        ("python", Invocation("stdin", "")),
        ("python -c", Invocation("code", "")),
        ("python -X", Invocation("stdin", "")),
    ],
)
def test_what_python_runs(line, expected):
    assert invocation(line.split()) == expected


@pytest.mark.parametrize(
    ("line", "python", "kind"),
    [
        ("/venv/bin/python /venv/bin/torchrun train.py", True, "launcher"),
        ("python -m torch.distributed.launch train.py", True, "launcher"),
        ("python -m accelerate.commands.launch train.py", True, "launcher"),
        ("mpirun -n 2 python train.py", False, "launcher"),
        ("python train.py --launcher torchrun", True, "python"),
        ("python train_wandb.py wandb", True, "python"),
        ("/venv/bin/wandb-core --port 1", False, "helper"),
        ("python -m wandb.sdk.service", True, "helper"),
        ("python /venv/lib/python3.11/site-packages/torch/_inductor/compile_worker/__main__.py", True, "helper"),
        (
            "python -u /venv/lib/python3.11/site-packages/ray/_private/log_monitor.py --session-dir=/tmp/ray",
            True,
            "helper",
        ),
        ("ray::DashboardAgent", True, "helper"),
        ("ray::ServeReplica:ranker:Ranker", True, "python"),
        ("bash train.sh", False, "foreign"),
        ("ray::train", True, "python"),
        ("python -B -c from|multiprocessing.resource_tracker|import|main;main(5)", True, "helper"),
        ("python -c from|multiprocessing.spawn|import|spawn_main;spawn_main() --multiprocessing-fork", True, "python"),
        ("python -c from|", True, "python"),
    ],
)
def test_kind_of_command(line, python, kind):
    assert kind_of([word.replace("|", " ") for word in line.split()], python) == kind
