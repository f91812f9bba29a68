"""`aitop fleet --once`: what it prints, its exit codes, and that no password is ever printed."""

import json

import pytest
from fake_prometheus import COMPUTE, Rank, served, vector

from aitop.cli import run

SECRET = "s3cr3t"
pytestmark = pytest.mark.usefixtures("settings_file")


def test_the_table(capsys):
    with served() as fake:
        assert run(["fleet", "--prometheus", fake.url, "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["JOB", "hung-9", "loader-7", "ddp-8", "fine-1"]
    assert lines[2].split() == [
        "loader-7",
        "ada",
        "gpu-a",
        "4",
        "2.56",
        "h",
        "input-bound/workers",
        "decode.py:41",
        "2.8×",
    ]
    assert "STALLED 2 of 2" in lines[1]
    assert lines[6] == "11 ranks on 2 of 2 nodes; wasted in the last 1 h: 4.8 device-hours"


def test_the_json(capsys):
    with served() as fake:
        assert run(["fleet", "--prometheus", fake.url.replace("//", f"//ada:{SECRET}@"), "--format", "json"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out)
    assert SECRET not in out
    assert (report["schema"], report["prometheus"], report["window_s"]) == (1, fake.url, 3600.0)
    assert report["wasted_device_hours"] == 4.78
    hung, loader, *_ = report["jobs"]
    assert (hung["job"], hung["stalled"], hung["verdict"]["id"]) == ("hung-9", 2, "hang")
    assert loader == {
        "job": "loader-7", "user": "ada", "nodes": ["gpu-a"], "ranks": 4, "stalled": 0, "lost_ratio": 0.64,
        "wasted_device_hours": 2.56,
        "verdict": {
            "id": "input-bound", "subtype": "workers", "severity": "critical", "share": 0.64, "speedup": 2.8,
            "where": {"file": "/home/ada/train/decode.py", "line": 41},
        },
    }  # fmt: skip


def test_what_is_not_measured_is_null(capsys):
    with served(Rank("j", "", 0, 7, verdicts=(COMPUTE,)), Rank("k", "n", 0, 8)) as fake:
        run(["fleet", "--prometheus", fake.url, "--format", "json"])
        first, second = json.loads(capsys.readouterr().out)["jobs"]
        run(["fleet", "--prometheus", fake.url, "--once"])
    assert (first["nodes"], first["lost_ratio"], first["wasted_device_hours"]) == ([], None, None)
    assert first["verdict"]["where"] is None
    assert second["verdict"] is None
    assert "wasted in the last 1 h: not measured" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_that_a_terminal_obeys_is_printed(form, capsys):
    evil = "\x1b]0;owned\x07\x9b31m\u202e\r\n\x00"
    with served(
        Rank(f"j{evil}", f"n{evil}", 0, 7, 0.5, verdicts=((evil, evil, "critical", evil, 3, 0.5, 2.0),))
    ) as fake:
        assert run(["fleet", "--prometheus", fake.url, "--once", "--format", form]) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_the_time_to_look_back(capsys):
    with served() as fake:
        fake.window = 600.0
        assert run(["fleet", "--prometheus", fake.url, "--once", "--over", "10m"]) == 0
    assert "wasted in the last 10 m: 0.8 device-hours" in capsys.readouterr().out


def test_the_address_of_the_settings(capsys, settings_file):
    with served() as fake:
        settings_file(f'prometheus = "{fake.url.replace("//", f"//ada:{SECRET}@")}"')
        assert run(["fleet", "--once"]) == 0
        assert {header["Authorization"] for header in fake.headers} == {"Basic YWRhOnMzY3IzdA=="}
    assert run(["config"]) == 0
    out = capsys.readouterr().out
    assert f'prometheus = "{fake.url.replace("//", "//ada:***@")}"' in out
    assert SECRET not in out


@pytest.mark.parametrize(
    ("arguments", "answer", "code", "words"),
    [
        (["--once"], None, 2, "no Prometheus server is named: use --prometheus"),
        (["--prometheus", f"http://a:{SECRET}@h:99999", "--once"], None, 2, "its host or its port cannot be read"),
        (["--prometheus", f"http://a:{SECRET}@h/?x", "--once"], None, 2, "not a URL such as"),
        (["--prometheus", f"ftp://a:{SECRET}@h", "--once"], None, 2, "begins neither with http"),
        (["--prometheus", "URL", "--once", "--over", "3s"], None, 2, "is not a time from 60s to 720h"),
        (["--prometheus", "URL", "--every", "10ms"], None, 2, "is not a time from 1s to 720h"),
        (["--prometheus", "URL"], None, 2, "the screen needs a terminal"),
        (["--prometheus", "URL", "--once"], (200, vector([])), 5, "knows of no node that aitop watches now"),
        (["--prometheus", "URL", "--once"], (403, b""), 4, "lets nobody ask"),
        (["--prometheus", "URL", "--once"], (502, b"bad gateway"), 1, "is no Prometheus"),
        (["--prometheus", "http://127.0.0.1:1", "--once"], None, 1, "cannot reach Prometheus at http://127.0.0.1:1"),
    ],
)
def test_every_failure_is_a_sentence_and_a_code(arguments, answer, code, words, capsys):
    with served() as fake:
        if answer is not None:
            fake.answer = lambda handler: handler.reply(*answer, "application/json")
        url = fake.url.replace("//", f"//ada:{SECRET}@")
        try:
            ended = run(["fleet", *[url if word == "URL" else word for word in arguments]])
        except SystemExit as error:
            ended = error.code
    captured = capsys.readouterr()
    assert (ended, captured.out) == (code, "")
    assert words in captured.err
    assert SECRET not in captured.err
    assert "Traceback" not in captured.err


def test_a_wrong_setting_is_not_repeated(capsys, settings_file):
    settings_file(f'prometheus = "ftp://ada:{SECRET}@h"')
    assert run(["fleet", "--once"]) == 2
    err = capsys.readouterr().err
    assert "line 1: prometheus must be a URL such as http://" in err
    assert SECRET not in err
