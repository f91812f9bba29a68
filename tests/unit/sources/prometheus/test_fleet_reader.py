"""What Prometheus answers becomes jobs and ranks; what is hostile, broken or slow becomes a sentence."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace

import pytest
from fake_prometheus import COMPUTE, HANG, INPUT, Rank, served, vector

from aitop.errors import AitopError, NotEnoughEvidenceError, NotPermittedError
from aitop.model.fleet import by_waste
from aitop.sources.prometheus import client
from aitop.sources.prometheus.address import parse, without_password
from aitop.sources.prometheus.client import ask
from aitop.sources.prometheus.fleet import FleetReader, detail, jobs_of, page, ranks_of

SECRET = "s3cr3t"


def reader(fake, window=3600.0):
    return FleetReader(parse(fake.url), window)


def test_the_page_of_jobs():
    with served() as fake:
        fleet = reader(fake).jobs()
    jobs = {job.job: job for job in fleet.jobs}
    assert [job.job for job in by_waste(fleet.jobs)] == ["hung-9", "loader-7", "ddp-8", "fine-1"]
    assert jobs["hung-9"].stalled == 2
    assert (jobs["ddp-8"].nodes, jobs["ddp-8"].ranks) == (("gpu-a", "gpu-b"), 4)
    loader = jobs["loader-7"]
    assert (loader.lost, loader.wasted) == (pytest.approx(0.64), pytest.approx(2.56))
    assert (loader.finding.name, loader.finding.place) == ("input-bound/workers", "decode.py:41")
    assert (loader.finding.share, loader.finding.speedup) == (pytest.approx(0.64), 2.8)
    assert (fleet.ranks, fleet.nodes, fleet.wasted) == (11, 2, pytest.approx(2.56 + 1.2 + 1 + 0.02))


def test_a_page_asks_for_a_few_rows_a_job_and_nothing_else():
    with served() as fake:
        reader(fake).jobs()
        assert sorted(fake.asked) == sorted(page(3600.0).values())
    assert all("by (" in query for query in page(3600.0).values())


def test_the_verdict_of_a_job_is_the_first_of_its_ranks_and_a_hang_has_no_share():
    with served(Rank("j", "n", 0, 7, verdicts=(COMPUTE, INPUT))) as fake:
        (job,) = reader(fake).jobs().jobs
    assert (job.finding.name, job.finding.place) == ("compute-bound", "")
    hung = Rank("j", "n", 0, 7, stalled=True, verdicts=(HANG,))
    with served(hung, Rank("j", "m", 1, 8, verdicts=(COMPUTE,))) as fake:
        (job,) = reader(fake).jobs().jobs
    assert (job.finding.name, job.finding.share, job.finding.speedup) == ("hang", None, None)


def test_all_ranks_wait_for_one_on_another_machine():
    elsewhere = ("comm-bound", "elsewhere", "critical", "/x/train.py", 9, 0.7, 3.0)
    ranks = [Rank("j", f"n{at}", at, 10 + at, wait=0.02 if at == 2 else 0.7) for at in range(4)]
    ranks = [replace(rank, verdicts=(INPUT if rank.rank == 2 else elsewhere,)) for rank in ranks]
    with served(*ranks) as fake:
        (job,) = reader(fake).jobs().jobs
    assert (job.finding.name, job.finding.place) == ("straggler/input-bound", "decode.py:41")
    assert (job.finding.share, job.finding.speedup) == (pytest.approx(0.68), None)
    with served(*(replace(rank, wait=0.7) for rank in ranks)) as fake:
        (job,) = reader(fake).jobs().jobs
    assert job.finding.name == "comm-bound/elsewhere", "they wait alike: for the exchange"


@pytest.mark.parametrize("verdict", ["device-fault", "host-memory", "hang"])
def test_a_critical_verdict_is_shown_though_the_job_also_waits_for_one_rank(verdict):
    critical = (verdict, "", "critical", "", 0, None, None)
    waits = {0: 0.5, 1: 0.5, 2: 0.2, 3: 0.5}
    ranks = [Rank("j", "n", at, 10 + at, wait=wait, verdicts=(COMPUTE,)) for at, wait in waits.items()]
    with served(*ranks) as fake:
        assert reader(fake).jobs().jobs[0].finding.name == "straggler/compute-bound"
    with served(*ranks[:3], replace(ranks[3], verdicts=(critical,))) as fake:
        (job,) = reader(fake).jobs().jobs
    assert (job.finding.name, job.finding.severity) == (verdict, "critical")


def test_the_critical_verdict_of_the_late_rank_itself_is_what_the_others_wait_for():
    loader = ("input-bound", "workers", "critical", "/x/decode.py", 41, 0.7, 3.0)
    late = Rank("j", "n", 0, 10, wait=0.02, verdicts=(loader,))
    with served(late, *(Rank("j", "m", at, 10 + at, wait=0.7, verdicts=(COMPUTE,)) for at in (1, 2, 3))) as fake:
        (job,) = reader(fake).jobs().jobs
    assert (job.finding.name, job.finding.severity) == ("straggler/input-bound", "critical")


def test_a_job_names_its_users():
    with served(Rank("j", "n", 0, 7, user="eve"), Rank("j", "m", 1, 8, user="ada"), Rank("k", "n", 0, 9)) as fake:
        assert [job.user for job in reader(fake).jobs().jobs] == ["ada, eve", None]


def test_a_rank_that_may_not_be_looked_into():
    with served(Rank("j", "n", 0, 7, up=False), Rank("j", "n", 1, 8)) as fake:
        assert [rank.watched for rank in reader(fake).ranks("j").ranks] == [False, True]
        assert reader(fake).jobs().jobs[0].ranks == 2


def test_nodes_without_a_job_are_no_error():
    with served() as fake:
        idle = vector([({}, 12.0)])
        fake.answer = lambda handler: handler.reply(
            200, idle if "aitop_jobs" in handler.path else vector([]), "application/json"
        )
        fleet = reader(fake).jobs()
    assert (fleet.jobs, fleet.watching, fleet.nodes) == ((), 12, 0)


def test_a_serious_verdict_goes_before_lighter_ones_that_many_ranks_have():
    ranks = [Rank("j", "n", rank, 10 + rank, verdicts=(COMPUTE,)) for rank in range(64)]
    with served(*ranks, Rank("j", "n", 64, 99, verdicts=(INPUT,))) as fake:
        (job,) = reader(fake).jobs().jobs
    assert job.finding.name == "input-bound/workers"
    assert job.finding.share == pytest.approx(0.64 / 65)


def test_without_devices_waste_is_not_measured_and_the_verdict_orders():
    light = ("transfer-bound", "", "warning", "a.py", 1, 0.2, 1.2)
    with served(Rank("a", "n", 0, 1, verdicts=(light,)), Rank("b", "n", 0, 2, verdicts=(INPUT,))) as fake:
        fleet = reader(fake).jobs()
    assert [job.job for job in by_waste(fleet.jobs)] == ["b", "a"]
    assert {job.wasted for job in fleet.jobs} == {None}
    assert fleet.wasted is None


def test_the_ranks_of_a_job():
    with served() as fake:
        ranks = reader(fake).ranks("ddp-8").ranks
    assert [(rank.rank, rank.node, rank.pid) for rank in ranks] == [
        (0, "gpu-a", 800), (1, "gpu-a", 801), (2, "gpu-b", 802), (3, "gpu-b", 803),
    ]  # fmt: skip
    assert ranks[3].wait == 0.02
    assert ranks[3].step == pytest.approx(0.25)
    assert ranks[3].finding.place == "loop.py:12"
    assert ranks[0].lost == 0.3


@pytest.mark.parametrize("job", ['a"b', "a\\b", "{}", "a\nb", 'x"} or vector(1) or y{z="', "ü\u2028"])
def test_no_name_of_a_job_gets_out_of_its_quotes(job):
    with served(Rank(job, "n", 0, 7)) as fake:
        assert [rank.pid for rank in reader(fake).ranks(job).ranks] == [7]
    for query in detail(job).values():
        assert json.dumps(job, ensure_ascii=False) in query


def test_without_any_exporter_the_command_to_start_one_is_named():
    with served() as fake:
        fake.answer = lambda handler: handler.reply(200, vector([]), "application/json")
        with pytest.raises(NotEnoughEvidenceError, match="knows of no node that aitop watches now: run `aitop export"):
            reader(fake).jobs()


def success(result, kind="vector"):
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


ELEMENT = {"metric": {"job": "j", "node": "n"}, "value": [1.0, "1"]}
ANSWERS = {
    "a login page": (200, b"<html><form>log in</form></html>", "is no Prometheus"),
    "an empty body": (200, b"", "is no Prometheus"),
    "an empty object": (200, b"{}", "is no Prometheus"),
    "a list": (200, b"[]", "is no Prometheus"),
    "deep nesting": (200, b'{"status":"success","data":' + b"[" * 100_000, "is no Prometheus"),
    "not UTF-8": (200, b'{"status":"\xff\xfe"}', "is no Prometheus"),
    "no data": (200, b'{"status":"success"}', "holds no vector"),
    "a matrix": (200, success([], "matrix"), "holds no vector"),
    "a scalar": (200, success([1, "1"], "scalar"), "is no Prometheus"),
    "a number for a label": (200, success([{**ELEMENT, "metric": {"job": 1}}]), "is no Prometheus"),
    "a value that is no pair": (200, success([{**ELEMENT, "value": "1"}]), "is no Prometheus"),
    "a number for a value": (200, success([{**ELEMENT, "value": [1, 1]}]), "is no Prometheus"),
    "half a surrogate": (200, b'{"status":"success","error":"\\ud800"}', "is no Prometheus"),
    "an error": (422, b'{"status":"error","error":"too many samples"}', "cannot answer: too many samples: a shorter"),
    "an endless error": (422, json.dumps({"status": "error", "error": "x" * 9999}).encode(), "cannot answer: x{300}:"),
    "another page": (404, b"404 page not found\n", r"HTTP 404, text/html"),
    "overload": (503, b"", "HTTP 503"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_one_sentence(name):
    status, body, words = ANSWERS[name]
    with served() as fake:
        fake.answer = lambda handler: handler.reply(status, body)
        with pytest.raises(AitopError, match=words) as caught:
            reader(fake).jobs()
    assert type(caught.value) is AitopError
    assert len(str(caught.value)) < 600


def test_a_redirect_is_not_followed():
    with served() as fake, served() as other:
        fake.answer = lambda handler: handler.reply(302, b"", Location=other.url)
        with pytest.raises(AitopError, match="redirects to another address"):
            reader(fake).jobs()
        assert other.asked == []


@pytest.mark.parametrize("status", [401, 403])
def test_http_401_and_403_ask_for_name_and_password(status):
    with served() as fake:
        fake.answer = lambda handler: handler.reply(status, b"")
        with pytest.raises(NotPermittedError, match="name and password"):
            reader(fake).jobs()


def test_impossible_numbers_are_left_out():
    rows = {
        "user": [({"job": "j"}, 1.0)],
        "up": [
            ({"job": "j", "node": "n"}, 2.0), ({"job": "k"}, -1.0), ({"node": "n"}, 1.0), ({"job": "l"}, 1e300),
            ({"job": "m"}, 0.3),
        ],
        "stalled": [({"job": "j"}, 1e9)],
        "lost": [({"job": "j"}, -0.5)],
        "wasted": [],
        "verdict": [({"job": "j", "severity": "fatal", "verdict": "x"}, 3.0), ({"job": "j", "severity": "info"}, 1.0)],
        "speedup": [],
            "late": [({"job": "j", "verdict": "x"}, -3.0)],
    }  # fmt: skip
    (job,) = jobs_of({name: [client.Row(*row) for row in each] for name, each in rows.items()})
    assert (job.job, job.ranks, job.stalled, job.lost, job.finding) == ("j", 2, 2, None, None)


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "one", "", "1e999"])
def test_values_that_are_no_finite_numbers_are_left_out(text):
    with served() as fake:
        body = success([ELEMENT, {**ELEMENT, "value": [1.0, text]}])
        fake.answer = lambda handler: handler.reply(200, body, "application/json")
        assert [row.value for row in ask(parse(fake.url), {"up": "up"})["up"]] == [1.0]


def test_labels_of_any_length_and_kind():
    rows = {name: [] for name in detail("j")}
    rows["up"] = [client.Row({"node": "n" * 100_000, "rank": "-1", "pid": "9" * 99}, 1.0), client.Row({}, 1.0)]
    long, bare = ranks_of(rows)
    assert (len(long.node), long.rank, long.pid) == (500, None, None)
    assert (bare.node, bare.rank, bare.pid) == ("", None, None)


def test_an_endless_answer_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(client, "MOST_BYTES", 100_000)

    def pour(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" " * 65536)
        except OSError:
            handler.close_connection = True

    with served() as fake:
        fake.answer = pour
        with pytest.raises(AitopError, match="is larger than"):
            reader(fake).jobs()


@pytest.mark.parametrize("slow", ["silent", "headers", "body"])
def test_a_slow_answer_is_given_up_after_the_time_limit(slow):
    def drip(connection):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n" + b"\r\n" * (slow == "body")
        try:
            connection.recv(9999)
            connection.sendall(b"" if slow == "silent" else head)
            while True:
                connection.sendall(b"" if slow == "silent" else b"x")
                time.sleep(0.02)
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: drip(server.accept()[0]), daemon=True).start()
        began = time.monotonic()
        with pytest.raises(AitopError, match=r"gave no whole answer within 0\.3 s"):
            ask(parse(f"http://127.0.0.1:{server.getsockname()[1]}"), {"up": "up", "again": "up"}, patience=0.3)
    assert time.monotonic() - began < 10


def test_a_refused_connection_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(AitopError, match=rf"cannot reach Prometheus at http://127.0.0.1:{port}: Connection refused"):
        ask(parse(f"http://127.0.0.1:{port}"), {"up": "up"})


def test_something_that_speaks_no_http():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet():
            connection, _ = server.accept()
            connection.recv(9999)
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            connection.close()

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(AitopError, match="is no Prometheus"):
            ask(parse(f"http://127.0.0.1:{server.getsockname()[1]}"), {"up": "up"})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://prom:9090", "http://prom:9090"),
        ("prom:9090", "http://prom:9090"),
        ("https://prom/thanos/", "https://prom/thanos"),
        (f"http://ada:{SECRET}@prom:9090/x", "http://prom:9090/x"),
        ("http://[::1]:9090", "http://[::1]:9090"),
    ],
)
def test_an_address_is_shown_without_its_password(text, shown):
    address = parse(text)
    assert address.shown == shown
    assert SECRET not in f"{address} {address!r}"


@pytest.mark.parametrize(
    "text",
    ["", "http://", "ftp://prom", "http://prom:99999", "http://prom:x", "http://[::1", "http://p/?a=b", "http://p\nq/",
     "file:///etc/passwd", "http://:9090", "http://" + "a" * 70 + ".x", "http://a..b"],
)  # fmt: skip
def test_invalid_addresses_are_refused(text):
    with pytest.raises(ValueError, match=r"in it|read|begins|names"):
        parse(text)


def test_name_and_password_go_into_the_header_and_nowhere_else():
    with served() as fake:
        url = fake.url.replace("//", f"//ada:{SECRET}%20x@")
        FleetReader(parse(url), 3600.0).jobs()
        assert {headers["Authorization"] for headers in fake.headers} == {"Basic YWRhOnMzY3IzdCB4"}
        fake.answer = lambda handler: handler.reply(500, b"")
        with pytest.raises(AitopError) as caught:
            FleetReader(parse(url), 3600.0).jobs()
    assert SECRET not in str(caught.value)
    assert without_password(url) == fake.url.replace("//", "//ada:***@")
    assert without_password(fake.url) == fake.url
