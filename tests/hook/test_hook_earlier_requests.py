"""Requests that were under way when the hook came: counted where that can be told, else the number is not known."""

from __future__ import annotations

import asyncio
import gc
import http.client
import subprocess
import sys
import threading
import time
import weakref
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import hook_runs
import pytest
from waiting import until

from aitop.hook.measures.serving.earlier import Earlier

PATIENCE = 10.0


def alive(watched):
    watched.session._send(time.monotonic_ns())
    return watched.ring.read(time.monotonic()).alive


def alive_after_a_request(watched, connection):
    # Longer than between two looks at busy threads, which come with the next request.
    time.sleep(0.1)
    connection.request("GET", "/at-once")
    connection.getresponse().read()
    return alive(watched)


class Waits(BaseHTTPRequestHandler):
    """Answers `/wait` when the server's `go` is set, and all else at once."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/wait":
            self.server.busy += 1
            self.server.go.wait(PATIENCE)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_looking_at_threads_keeps_nothing_of_the_program():
    """Without a garbage collection, which some training loops switch off."""

    def step():
        tensor = Waits.__new__(Waits)
        Earlier(set(), {Waits.do_GET.__code__}, print)
        return weakref.ref(tensor)

    gc.disable()
    try:
        assert step()() is None
    finally:
        gc.enable()


@pytest.fixture
def threads():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Waits)
    server.busy, server.go = 0, threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.go.set()
    server.shutdown()
    server.server_close()


def connected(server, path):
    connection = http.client.HTTPConnection(*server.server_address, timeout=PATIENCE)
    connection.request("GET", path)
    return connection


def test_while_a_thread_may_be_busy_with_an_earlier_request_the_number_is_not_known(unhooked, threads):
    earlier = connected(threads, "/wait")
    until(lambda: threads.busy == 1)
    watched = hook_runs.Watched()
    later = connected(threads, "/at-once")
    later.getresponse().read()
    assert alive(watched) is None
    threads.go.set()
    earlier.getresponse().read()
    until(lambda: alive_after_a_request(watched, later) == 0)
    earlier.close()
    later.close()
    watched.ring.close()


def test_a_thread_that_waits_for_the_next_request_of_its_connection_has_none(unhooked, threads):
    idle = connected(threads, "/at-once")
    idle.getresponse().read()
    watched = hook_runs.Watched()
    later = connected(threads, "/at-once")
    later.getresponse().read()
    # The answer may be here before its thread waits for the next request.
    until(lambda: alive_after_a_request(watched, later) == 0)
    idle.close()
    later.close()
    watched.ring.close()


class Application:
    """An ASGI application that answers `/wait` when it may `go`, and then ends the answer to `/events`."""

    def __init__(self):
        self.busy, self.go = 0, asyncio.Event()

    async def __call__(self, scope, receive, send):
        if scope["path"] == "/wait":
            self.busy += 1
            await asyncio.wait_for(self.go.wait(), PATIENCE)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        if scope["path"] == "/events":
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            self.busy += 1
            await asyncio.wait_for(self.go.wait(), PATIENCE)
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(application):
    """The port of a server of this application, which is ended after the block."""
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan="off"))
    serves = asyncio.create_task(server.serve())
    await soon(lambda: server.started)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serves


async def asked(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    return reader, writer


async def soon(condition):
    for _ in range(int(PATIENCE / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


async def answered(reader, writer):
    assert b"204" in await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.close()


def test_tasks_of_an_event_loop_are_counted(unhooked):
    async def run():
        application = Application()
        async with serving(application) as port:
            waiting = [await asked(port, "/wait") for _ in range(3)]
            await soon(lambda: application.busy == 3)
            watched = hook_runs.Watched()
            assert alive(watched) == 3
            waiting.append(await asked(port, "/wait"))
            await soon(lambda: alive(watched) == 4)
            application.go.set()
            for connection in waiting:
                await answered(*connection)
            # Also without any further request.
            await soon(lambda: alive(watched) == 0)
        watched.ring.close()

    asyncio.run(run())


def test_a_page_of_events_that_was_opened_before_is_no_request_under_way(unhooked):
    async def run():
        application = Application()
        async with serving(application) as port:
            events, waiting = await asked(port, "/events"), await asked(port, "/wait")
            await soon(lambda: application.busy == 2)
            watched = hook_runs.Watched()
            assert alive(watched) == 1
            application.go.set()
            for connection in (events, waiting):
                await answered(*connection)
            await soon(lambda: alive(watched) == 0)
        watched.ring.close()

    asyncio.run(run())


def test_of_a_loop_in_another_thread_they_are_counted_once_it_takes_a_request_up(unhooked):
    watched = []

    async def run():
        application = Application()
        async with serving(application) as port:
            waiting = await asked(port, "/wait")
            await soon(lambda: application.busy == 1)
            await asyncio.to_thread(lambda: watched.append(hook_runs.Watched()))
            assert alive(watched[0]) is None
            await answered(*await asked(port, "/at-once"))
            await soon(lambda: alive(watched[0]) == 1)
            application.go.set()
            await answered(*waiting)
            await soon(lambda: alive(watched[0]) == 0)
        watched[0].ring.close()

    asyncio.run(run())


def test_a_hook_that_leaves_leaves_no_callback_behind(unhooked):
    async def run():
        application = Application()
        async with serving(application) as port:
            waiting = await asked(port, "/wait")
            await soon(lambda: application.busy == 1)
            before = [len(task._callbacks or ()) for task in asyncio.all_tasks()]
            watched = hook_runs.Watched()
            assert alive(watched) == 1
            hook_runs.aitop.hook.remove()
            assert sorted(len(task._callbacks or ()) for task in asyncio.all_tasks()) == sorted(before)
            application.go.set()
            await answered(*waiting)
        watched.ring.close()

    asyncio.run(run())


COLLECTING = """
import gc, threading
from aitop.hook.measures.serving.earlier import Earlier

class Cycle:
    pass

def deeper(levels, call):
    return deeper(levels - 1, call) if levels else call()

def look():
    return Earlier(set(), {look.__code__}, lambda: None).number(1)

ended = threading.Event()
for _ in range(20):
    threading.Thread(target=deeper, args=(5, ended.wait), daemon=True).start()
gc.set_threshold(5)
for _ in range(2000):
    one = Cycle()
    one.itself, one.values = one, threading.local()
    one.values.own = 1
    deeper(10, look)
print(gc.isenabled())
gc.disable()
look()
print(gc.isenabled())
"""


def test_a_collection_in_a_look_at_the_threads_does_not_stop_the_process_for_good():
    """The interpreter locks its threads for the look, and a `threading.local` that is freed waits for that lock."""
    ended = subprocess.run([sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout.split(), ended.returncode) == (["True", "False"], 0), ended.stderr


def test_a_task_that_is_done_counts_no_more_though_the_loop_has_not_said_so():
    """A loop may take up the client's next request before it calls what waits for the task."""

    async def answer(asked):
        await asked

    async def counts():
        asked = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(answer(asked))
        await asyncio.sleep(0)
        earlier = Earlier({answer.__code__}, set(), lambda: None)
        before = earlier.number(1)
        asked.set_result(None)
        await asyncio.sleep(0)
        assert task.done() and earlier.tasks == {task}
        return before, earlier.number(2)

    assert asyncio.run(counts()) == (1, 0)
