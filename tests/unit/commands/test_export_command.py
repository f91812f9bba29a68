"""`aitop export`: what it refuses, how it ends, what it says to systemd, and what memory it gives back."""

import os
import platform
import socket
import subprocess
import sys
import weakref
from importlib.resources import files

import pytest

from aitop import cli
from aitop.commands import export
from aitop.commands.export import notify
from aitop.engine import node
from aitop.errors import AitopError


def test_systemd_hears_of_it_where_it_asked(tmp_path, monkeypatch):
    notify("READY=1")
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")
        assert receiver.recv(100) == b"READY=1"
    notify("WATCHDOG=1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say which jobs"),
        (["--all", "--pid", "1"], "say which jobs"),
        (["--all"], "say where to"),
        (["--all", "--prometheus", "nonsense"], "not HOST:PORT"),
        (["--all", "--prometheus", "9464", "--tls-cert", "x"], "--tls-key"),
        (["--all", "--prometheus", "9464", "--tls-cert", "/no/c", "--tls-key", __file__], "cannot read /no/c: No such"),
        (["--all", "--prometheus", "9464", "--tls-cert", __file__, "--tls-key", __file__], f"no HTTPS with {__file__}"),
        (["--all", "--textfile", "x.prom", "--tls-cert", "c", "--tls-key", "k"], "need --prometheus"),
        (["--all", "--prometheus", "192.0.2.1:9464"], "cannot listen on 192.0.2.1:9464: "),
        (["--all", "--textfile", "metrics.txt"], "end in .prom"),
        (["--all", "--textfile", "/nowhere/aitop.prom"], "cannot write"),
    ],
)
def test_wrong_options_of_export_are_refused_with_a_sentence(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr("aitop.engine.node.candidates", lambda gpu_users: [])
    assert cli.run(["export", *arguments]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.parametrize(("words", "seconds"), [("--hook --every 60s", 15.0), ("--every 60s", 60.0), ("--hook", 15.0)])
def test_looks_overlap_where_the_hook_tells_of_requests_however_seldom_they_are_exported(
    words, seconds, tmp_path, monkeypatch
):
    intervals = []

    class Ended(node.Node):
        over = True

        def __init__(self, pids, options, *more):
            intervals.append(options.interval)
            super().__init__([], options, *more)

    monkeypatch.setattr("aitop.engine.node.Node", Ended)
    assert cli.run(["export", "--all", *words.split(), "--textfile", f"{tmp_path}/aitop.prom"]) == 0
    assert intervals == [seconds]


def test_ctrl_c_ends_it_with_0_and_removes_the_text_file(tmp_path, monkeypatch):
    def interrupt(watching):
        (tmp_path / "aitop.prom").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(node.Node, "update", interrupt)
    assert cli.run(["export", "--all", "--textfile", f"{tmp_path}/aitop.prom"]) == 0
    assert not os.listdir(tmp_path)


def test_a_library_that_is_missing_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    for name in [name for name in sys.modules if name.startswith("aitop.outputs.prometheus.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(AitopError, match=r"pip install '\.\[export\]'"):
        export.new_collector("n1")


def test_the_hook_stays_out_whatever_the_settings_say():
    args = cli.parse(["export", "--all", "--textfile", "x.prom"])
    assert not args.settings.hook
    assert cli.parse(["export", "--all", "--hook"]).settings.hook


def test_every_deployment_is_printed(capsys):
    folder = files("aitop.commands").joinpath("deployments")
    assert {file.name for file in folder.iterdir()} == set(export.DEPLOYMENTS.values())
    for name in export.DEPLOYMENTS:
        assert cli.run(["export", "--print", name]) == 0
        assert "aitop" in capsys.readouterr().out


MANY_THREADS = """
import ctypes, re, threading
from aitop.commands.export import use_one_arena
{call}
libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.c_void_p
together = threading.Barrier(8)
def work():
    taken = [bytearray(4000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
text, size = ctypes.c_char_p(), ctypes.c_size_t()
stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, stream)
libc.fclose(stream)
print(len(re.findall(rb"<heap nr=", text.value)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has several arenas")
def test_all_threads_take_memory_from_one_arena():
    arenas = []
    for call in ("use_one_arena()", ""):
        words = [sys.executable, "-c", MANY_THREADS.format(call=call)]
        arenas.append(int(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
    assert arenas[0] == 1 < arenas[1]


class Cyclic:
    """An object in a reference cycle."""

    def __init__(self):
        self.itself = self


def test_what_an_ended_job_left_is_freed_at_once():
    gone = weakref.ref(Cyclic())
    assert gone() is not None
    export.give_memory_back()
    assert gone() is None
