"""The parts of the bench of servers: its clients, its cases, and how it holds a report against them."""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from serving_cases import CASE_BY_NAME, CASES
from serving_run import LOAD, Answer, free_port, quantile
from serving_verdicts import Row, figures, predicted, row_of

SLOW_SECONDS = 0.05


class Slow(BaseHTTPRequestHandler):
    """Answers after a fixed time, the request for "stream" in two chunks with that time between them, "burst" in
    the same two at once.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = asked.get("status", 200)
        self.send_response(status)
        if self.path in ("/stream", "/burst"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            first, second = b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n"
            if self.path == "/burst":
                self.wfile.write(first + second)
                return
            self.wfile.write(first)
            time.sleep(SLOW_SECONDS)
            self.wfile.write(second)
            return
        time.sleep(SLOW_SECONDS)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that has gone is no error."""


@pytest.fixture
def port():
    with Server(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def sent(port, tmp_path, *options, path="/fixed"):
    file = tmp_path / "answers.jsonl"
    command = [sys.executable, str(LOAD), str(port), path, *options, "--seconds", "1.5", "--out", str(file)]
    subprocess.run(command, check=True, timeout=60)
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_client_that_waits_notes_how_long_each_answer_took(port, tmp_path):
    answers = sent(port, tmp_path, "--clients", "1")
    seconds = [one["end"] - one["due"] for one in answers]
    assert all(one["status"] == 200 for one in answers)
    assert len({one["crc"] for one in answers}) == 1
    assert min(seconds) >= SLOW_SECONDS
    assert all(after["due"] >= before["end"] for before, after in itertools.pairwise(answers))


def test_what_the_client_itself_is_late_is_not_the_servers(port, tmp_path):
    answers = sent(port, tmp_path, "--clients", "1")
    assert all(one["due"] <= one["sent"] < one["first"] <= one["arrived"] <= one["end"] for one in answers)
    # On a full machine the server is late now and then.
    assert min(one["arrived"] - one["sent"] for one in answers) == pytest.approx(SLOW_SECONDS, abs=0.005)


def test_requests_at_random_do_not_wait_for_each_other(port, tmp_path):
    answers = sent(port, tmp_path, "--rate", "40")
    # One after the other, no more than thirty fit into the time.
    assert len(answers) > 35
    gaps = [after["due"] - before["due"] for before, after in itertools.pairwise(answers)]
    assert max(gaps) > 2 * sum(gaps) / len(gaps)


def test_the_first_byte_of_a_stream_comes_before_the_last(port, tmp_path):
    answers = sent(port, tmp_path, "--clients", "1", path="/stream")
    seen = [one["end"] - one["first"] for one in answers if one["first"] is not None]
    # On a full machine the client itself may read late now and then.
    assert len(seen) > len(answers) / 2 and statistics.median(seen) > 0.8 * SLOW_SECONDS


def test_parts_that_were_read_together_do_not_tell_when_the_first_came(port, tmp_path):
    answers = sent(port, tmp_path, "--clients", "1", path="/burst")
    # The client may be woken between two parts now and then, or between reading its clock and the kernel's.
    assert sum(one["first"] is None for one in answers) > len(answers) / 2
    assert sum(one["arrived"] > one["sent"] for one in answers) > 0.9 * len(answers)


def test_a_checksum_is_of_what_is_asked_for(port, tmp_path):
    answers = sent(port, tmp_path, "--clients", "1", "--answer", "(o)[nk]", path="/stream")
    assert {one["crc"] for one in answers} == {zlib.crc32(b"o")}


def test_an_error_is_noted_as_one(port, tmp_path):
    answers = sent(port, tmp_path, "--clients", "1", "--more", '{"status": 503}')
    assert {one["status"] for one in answers} == {503}


def test_a_server_that_is_not_there_is_noted(tmp_path):
    answers = sent(free_port(), tmp_path, "--rate", "20")
    assert answers
    assert all(one["status"] == 0 and one["failure"] for one in answers)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_names_lines_and_a_change_that_exist(case):
    assert not case.guilty or len(case.guilty_lines()) == len(case.guilty)
    assert not case.change or case.mended_command() != case.command
    assert (case.load is None) != (case.clients is None)


def answers_of(*seconds):
    return [
        Answer(end=10.0 + number, seconds=2 * each, served=each, first=each, status=200, crc=1)
        for number, each in enumerate(seconds)
    ]


def report_of(case, *, line=None, pid=7, severity="warning", **verdict):
    place = {"pid": pid, "file": str(case.script), "line": line} if line else None
    first = {"severity": severity, "subtype": None, "where": [place] if place else [], "processes": [pid], **verdict}
    return {
        "window_s": 15.0,
        "verdicts": [first],
        "serving": {"basis": "hook", "latency_ms": {"p50": 10.0, "p95": 29.0, "p99": 30.0}},
    }


def test_the_expected_verdict_at_its_line_and_process_is_flawless():
    case = CASE_BY_NAME["review_scores:sleep"]
    (line,) = case.guilty_lines()
    report = report_of(case, line=line, id="latency-tail", subtype="event-loop")
    row = row_of(case, 3, report, answers_of(0.01, 0.01, 0.03), model=7)
    assert row.flawless(), row
    assert row.latency == {"p50": (10.0, 10.0), "p95": (29.0, 30.0), "p99": (30.0, 30.0)}
    assert row.seen == {"p50": 20.0, "p95": 60.0, "p99": 60.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "latency-tail", "subtype": "collector"},
        {"id": "compute-bound"},
        {"id": "latency-tail", "subtype": "event-loop", "line": 1},
        {"id": "latency-tail", "subtype": "event-loop", "pid": 8},
    ],
)
def test_another_cause_line_or_process_is_a_flaw(wrong):
    case = CASE_BY_NAME["review_scores:sleep"]
    report = report_of(case, **{"line": min(case.guilty_lines()), **wrong})
    assert not row_of(case, 3, report, answers_of(0.01), model=7).flawless()


def test_what_no_request_is_known_of_is_right_only_without_the_hook():
    case = CASE_BY_NAME["review_scores:sleep"]
    report = report_of(case, line=min(case.guilty_lines()), id="host-bound", subtype="event-loop")
    assert row_of(case, 2, report, answers_of(0.01), model=7).flawless()
    assert not row_of(case, 3, report, answers_of(0.01), model=7).right


@pytest.mark.parametrize(("severity", "quiet"), [("info", True), ("warning", False), ("critical", False)])
def test_a_healthy_server_gets_no_warning(severity, quiet):
    case = CASE_BY_NAME["review_scores"]
    row = row_of(case, 3, report_of(case, id="queue-bound", severity=severity), answers_of(0.01), model=7)
    assert row.flawless() is quiet


def test_the_gain_is_that_of_the_fix_which_is_tried():
    case = CASE_BY_NAME["ranking_queue:single"]
    fixes = [
        {"text": "one replica more", "speedup": 1.9},
        {"text": "more at once", "speedup": 4.0, "setting": {"name": "max_batch_size", "to": 16}},
    ]
    assert predicted(case, [{"fixes": fixes}]) == (4.0, 16)
    assert predicted(case, [{"fixes": fixes[:1]}]) == (None, None)
    assert case.mended_command(16)[-2:] == ("--batch", "16")


def test_bars_are_missed_by_what_is_wrong_only():
    good = Row(
        "review_scores:sleep",
        3,
        "",
        "",
        True,
        True,
        True,
        latency={"p50": (10.5, 10.0), "p95": (29.0, 30.0), "p99": (29.0, 30.0)},
    )
    bad = Row(
        "review_scores:loop",
        3,
        "",
        "",
        False,
        False,
        True,
        latency={"p50": (12.0, 10.0), "p95": (29.0, 30.0), "p99": (None, 30.0)},
    )
    assert not any(figure.missed() for figure in figures([good]))
    missed = {figure.what for figure in figures([good, bad]) if figure.missed()}
    assert missed == {
        "tier 3: first verdict right", "tier 3: line right", "tier 3: p50 more than 10 % from the clients'",
        "tier 3: p99 more than 10 % from the clients'",
    }  # fmt: skip


def test_what_is_told_of_no_request_misses_the_bars():
    silent = [Row(name, 3, "", "", True, True, True) for name in ("review_scores:sleep", "ranking_queue:single")]
    missed = {figure.what: figure.spread for figure in figures(silent) if figure.missed()}
    assert missed == {
        **{
            f"tier 3: {name} more than 10 % from the clients'":
            "of 2: review_scores:sleep unknown ranking_queue:single unknown"
            for name in ("p50", "p95", "p99")
        },
        "tier 3: predicted gains more than 25 % off": "of 1: ranking_queue:single unknown",
    }  # fmt: skip
    assert not any(figure.missed() for figure in figures([replace(row, tier=2) for row in silent]))


def test_a_quantile_of_nothing_is_not_known():
    assert quantile([], 0.5) is None
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
