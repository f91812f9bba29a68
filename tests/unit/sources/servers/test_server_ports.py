"""Only the loopback is asked, and only a port that is the HTTP port of a server that has a `/metrics`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time

import pytest
from process_numbers import ended_process

from aitop.sources import procfs
from aitop.sources.exchange.tcp_table import Connection, ip_address
from aitop.sources.servers import loopback, ports
from aitop.sources.servers.engines import ENGINES, RAY_SERVE, VLLM
from aitop.sources.servers.loopback import MOST_BYTES, get
from aitop.sources.servers.ports import endpoints, loopback_for, named_ports
from aitop.sources.servers.recognition import Server
from aitop.sources.servers.source import ServerSource
from aitop.sources.source import SourceError

BY_NAME = {row.name: row for row in ENGINES}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n"


def server(*commands, engine="vllm", pid=None):
    """This process, or `pid`, as the API server of an engine."""
    row = BY_NAME[engine]
    answering = next(part for part in row.parts if part.answers)
    return Server(row, None, {pid or os.getpid(): answering}, commands)


@contextlib.contextmanager
def listening(host="127.0.0.1", family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.bind((host, 0))
        one.listen()
        yield one.getsockname()[1]


@contextlib.contextmanager
def answering(*pieces, host="127.0.0.1", hold=False):
    """A server that sends these pieces to whoever connects; gives its port and what it was asked."""
    asked: list[bytes] = []
    done = threading.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen()
        listener.settimeout(0.1)

        def serve():
            while not done.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                with connection, contextlib.suppress(OSError):
                    asked.append(connection.recv(65536))
                    for piece in pieces:
                        connection.sendall(piece)
                    if hold:
                        done.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], asked
        finally:
            done.set()
            thread.join()


def test_the_body_comes_back_without_any_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:9")
    with answering(OK, b"one", b" two") as (port, asked):
        assert get("127.0.0.1", port, "/metrics") == "one two"
    (request,) = asked
    assert request.startswith(b"GET /metrics HTTP/1.0\r\n") and b"Host: 127.0.0.1:" in request
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"abc", hold=True) as (port, _):
        assert get("127.0.0.1", port, "/metrics") == "abc", "the server keeps the connection"
    with answering(CHUNKED, b"4;a=b\r\none \r\n", b"B\r\n two\r\nthree\r\n0\r\n\r\n") as (port, _):
        assert get("127.0.0.1", port, "/metrics") == "one  two\r\nthree"


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "absent", "has no /metrics"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "denied", "without a key"),
        (b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://192.0.2.1/\r\n\r\n", "failed", "HTTP 307"),
        (b"HTTP/1.1 500 Oh\r\n\r\n", "failed", "HTTP 500"),
        (CHUNKED + b"4\r\none \r\n", "failed", "was cut off"),
        (CHUNKED + b"4\r\non", "failed", "was cut off"),
        (CHUNKED + b"-4\r\none \r\n0\r\n\r\n", "failed", "was cut off"),
        (CHUNKED + b"0x4\r\none \r\n0\r\n\r\n", "failed", "was cut off"),
        (b"\x16\x03\x01", "failed", "plain HTTP"),
        (b"HTTP/1.1 \xff\xff\r\n\r\n", "failed", "plain HTTP"),
        (b"", "failed", "plain HTTP"),
    ],
)
def test_answers_that_are_no_metrics_are_errors(answer, state, words):
    with answering(answer) as (port, asked), pytest.raises(SourceError, match=words) as raised:
        get("127.0.0.1", port, "/metrics")
    assert raised.value.state == state
    assert len(asked) == 1  # a redirect is not followed


def test_no_more_is_read_than_a_page_may_have(monkeypatch):
    monkeypatch.setattr(loopback, "MOST_BYTES", 1 << 17)
    with answering(OK, b"x" * (1 << 20), hold=True) as (port, _), pytest.raises(SourceError, match="longer than"):
        get("127.0.0.1", port, "/metrics")
    assert MOST_BYTES <= 8 << 20


def test_a_page_that_is_cut_off_gives_no_figures():
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n"
    with answering(head, b"requests 12") as (port, _), pytest.raises(SourceError, match="was cut off"):
        get("127.0.0.1", port, "/metrics")


def test_a_server_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(loopback, "PATIENCE_SECONDS", 0.2)
    with answering(OK, hold=True) as (port, _), pytest.raises(SourceError, match=r"within 0\.2 s"):
        get("127.0.0.1", port, "/metrics")
    with listening() as port:
        closed = port
    with pytest.raises(SourceError, match="refused"):
        get("127.0.0.1", closed, "/metrics")


@pytest.mark.parametrize(
    "address", ["192.0.2.1", "10.0.0.1", "0.0.0.0", "169.254.169.254", "::", "2001:db8::1", "name"]
)
def test_no_other_address_is_ever_asked(address):
    with pytest.raises(ValueError, match=address):
        get(address, 80, "/metrics")


def kernels(packed: bytes) -> str:
    """Bytes of an address as /proc/net/tcp writes them."""
    words = (packed[place : place + 4] for place in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.53", "127.0.0.53"),
        ("192.0.2.1", None),
        ("::", "::1"),
        ("::1", "::1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::ffff:192.0.2.1", None),
        ("2001:db8::1", None),
    ],
)
def test_the_loopback_address_of_a_socket(address, reached):
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    connection = Connection(kernels(packed), 8000, kernels(bytes(len(packed))), 0, "0A", 1)
    assert loopback_for(connection) == reached


@pytest.mark.parametrize("word", ["", "0100007", "zzzzzzzz", "0100007F0100007F"])
def test_invalid_addresses_are_refused(word):
    assert ip_address(word) is None


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ([], {8000}),
        ([("vllm", "serve", "--port", "9001")], {9001}),
        ([("vllm", "serve", "--port=9002"), ("VLLM::EngineCore",)], {9002}),
        ([("vllm", "--port", "x"), ("vllm", "--port"), ("vllm", "--port=70000")], {8000}),
    ],
)
def test_the_port_that_a_command_line_names(commands, found):
    assert named_ports(commands, VLLM) == found
    assert named_ports([], RAY_SERVE) == frozenset()


LISTENS = """
import socket, time
one = socket.create_server(("127.0.0.1", 0))
print("up", one.getsockname()[1], sep="\\n", flush=True)
time.sleep(60)
"""


def test_the_only_port_of_the_process_is_its_http_port(start):
    # Not this process: other tests leave it with ports, such as those of torch's gloo.
    other = start(LISTENS)
    port = int(other.stdout.readline())
    assert endpoints(server(pid=other.pid), VLLM) == [(other.pid, "127.0.0.1", port)]


def test_of_several_ports_only_the_named_one_is_asked(start):
    with listening() as port, listening() as other:
        assert [one.port for one in endpoints(server(("vllm", "--port", str(other))), VLLM)] == [other]
        with pytest.raises(SourceError, match="could be recognised as its HTTP port"):
            endpoints(server(("vllm", "--port", "9")), VLLM)
        process = start("import sys, time; print('up', flush=True); time.sleep(60)")
        with pytest.raises(SourceError, match="could be recognised as its HTTP port"):
            endpoints(server(("vllm", "--port", str(port)), pid=process.pid), VLLM)


def test_what_listens_elsewhere_only_is_not_asked(monkeypatch):
    there = [Connection(kernels(socket.inet_aton("192.0.2.1")), 8000, "00000000", 0, "0A", 5)]
    monkeypatch.setattr(ports, "connections", lambda pid: there)
    monkeypatch.setattr(ports, "own_sockets", lambda pid: frozenset({5}))
    with pytest.raises(SourceError, match="on the loopback") as raised:
        endpoints(server(), VLLM)
    assert raised.value.state == "absent"


def test_another_network_is_not_asked(start, in_another_network):
    other = start([*in_another_network, sys.executable, "-c", LISTENS])
    with pytest.raises(SourceError, match="whose loopback is not ours"):
        endpoints(server(pid=other.pid), VLLM)


def test_a_process_that_may_not_be_looked_into_is_not_said_to_be_in_another_network(monkeypatch):
    links = procfs.link
    # As for a process of another user, or one that is not dumpable.
    monkeypatch.setattr(procfs, "link", lambda path: None if path.startswith("/proc/1/") else links(path))
    monkeypatch.setattr(ports, "why_denied", lambda pid: SourceError("denied", f"process {pid} is closed"))
    with pytest.raises(SourceError, match="process 1 is closed") as raised:
        endpoints(server(pid=1), VLLM)
    assert raised.value.state == "denied"
    with pytest.raises(SourceError, match="has ended") as raised:
        endpoints(server(pid=ended_process()), VLLM)
    assert raised.value.transient, "it is looked for again soon"


def test_the_other_servers_are_asked_where_one_may_not_be(start):
    other = start(LISTENS)
    port = int(other.stdout.readline())
    row = BY_NAME["vllm"]
    part = next(part for part in row.parts if part.answers)
    one = Server(row, None, {ended_process(): part, other.pid: part}, ())
    assert endpoints(one, VLLM) == [(other.pid, "127.0.0.1", port)]


FIGURES = b'vllm:num_requests_running{engine="0"} 3.0\nvllm:request_success_total{engine="0"} 7\n'


def test_a_server_is_asked_seldom_where_it_is_measured_or_slow(monkeypatch):
    with answering(OK, FIGURES) as (port, _):
        asked = server(("vllm", "--port", str(port)))
        measured = ServerSource(lambda: asked, lambda: None, lambda: True, 0.0)
        measured.read()
        slow = ServerSource(lambda: asked, lambda: None, lambda: False, 0.0)
        clock = iter((0.0, 0.1))
        monkeypatch.setattr(time, "monotonic", lambda: next(clock, 0.1))
        slow.read()
    assert (measured.interval, slow.interval) == (8.0, 5.0)


@pytest.mark.parametrize("engine", ["litserve", "uvicorn", "transformers serve", "gunicorn"])
def test_software_without_metrics_is_never_asked(engine):
    with answering(OK, FIGURES) as (_, asked):
        row = BY_NAME[engine]
        one = Server(row, None, {os.getpid(): row.parts[0]}, ())
        with pytest.raises(SourceError, match="knows no /metrics of") as raised:
            ServerSource(lambda: one, lambda: None, lambda: False, 0.0).read()
    assert raised.value.state == "absent" and asked == []


@pytest.mark.parametrize(
    ("answer", "state", "remedy"),
    [
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "absent", "start it with --enable-metrics"),
        (OK + b"process_cpu_seconds_total 3\n", "absent", "start it with --enable-metrics"),
        (b"HTTP/1.0 403 No\r\n\r\n", "denied", None),
    ],
)
def test_a_server_without_figures_is_said_with_what_would_help(answer, state, remedy):
    with answering(answer) as (port, _), pytest.raises(SourceError) as raised:
        ServerSource(
            lambda: server(("sglang", "--port", str(port)), engine="sglang"), lambda: None, lambda: False, 0.0
        ).read()
    assert (raised.value.state, raised.value.remedy) == (state, remedy)


def test_the_source_gives_a_sample_of_each_server():
    with answering(OK, FIGURES) as (port, _):
        source = ServerSource(lambda: server(("vllm", "--port", str(port))), lambda: None, lambda: False, 0.0)
        source.open()
        (sample,) = source.read()
    assert sample.pid == os.getpid()
    assert (sample.gauges, sample.counters) == ({"running": 3.0}, {"requests": 7.0})
    assert source.interval >= 2.0
    with pytest.raises(SourceError) as raised:
        ServerSource(lambda: None, lambda: None, lambda: False, 0.0).read()
    assert raised.value.state == "absent" and raised.value.transient, "it is looked for again soon"
