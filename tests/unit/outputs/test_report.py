"""The report says what the snapshot says, in the fixed schema, and is safe to print and to open."""

from __future__ import annotations

import json
import typing

import pytest
from report_samples import LEDGER, entry, snapshot

from aitop import __version__
from aitop.model.ledger import ACTIVITIES, Activity, Ledger
from aitop.model.phases import TIMED_ALONE
from aitop.model.snapshot import Cost, Phases, Snapshot, Steps, Target
from aitop.model.units import factor_range
from aitop.model.verdict import Abstention, Diagnosis, Verdict, Where
from aitop.outputs.html.page import to_html
from aitop.outputs.report import as_json, report_of
from aitop.outputs.text import BAR, WIDTH, to_text

DOCUMENTED = {
    "schema": 1,
    "aitop": __version__,
    "window_s": 15.0,
    "target": {
        "pid": 4242,
        "command": "python train.py",
        "kind": "training",
        "processes": [
            {"pid": 4242, "role": "rank", "rank": 0},
            {"pid": 4250, "role": "loader-worker", "rank": 0},
            {"pid": 4260, "role": "helper", "rank": None},
        ],
        "engine": None,
        "working": [],
        "ended": None,
    },
    "sources": {
        "host": {"state": "ok"},
        "gpu": {"state": "absent", "reason": "NVML is not here"},
        "stacks": {"state": "denied", "reason": "no right", "remedy": "sudo aitop"},
        "hook": {"state": "absent", "reason": "nothing was heard of it"},
    },
    "step": {
        "count": 312,
        "p50_ms": 21.2,
        "p95_ms": 60.1,
        "mean_ms": None,
        "per_s": 4.2,
        "samples_per_s": 67.0,
        "tokens_per_s": 6700.0,
        "flops_per_s": 4.1e13,
        "mfu": 0.41,
        "phases": {
            "data_wait": 0.64,
            "transfer": None,
            "forward": 0.1,
            "backward": 0.2,
            "optimizer": 0.02,
            "communication": None,
            **dict.fromkeys((phase.key for phase in TIMED_ALONE), None),
            "outside": 0.04,
        },
        "basis": "hook",
    },
    "ledger": [],
    "serving": None,
    "verdicts": [
        {
            "id": "input-bound",
            "subtype": "workers",
            "severity": "critical",
            "share": 0.64,
            "base": "step",
            "speedup": 2.778,
            "speedup_range": [2.4, 3.1],
            "confidence": 0.9,
            "title": "64 % of each step waits for data",
            "where": [
                {
                    "pid": 4250,
                    "file": "/x/decode.py",
                    "line": 41,
                    "function": "D.__getitem__",
                    "share": 0.81,
                    "text": "img = decode(p)",
                }
            ],
            "evidence": ["data wait is 64 % of step time", "0 of 4 batches ready"],
            "fixes": [
                {
                    "text": "num_workers 2 → 6",
                    "speedup": 2.4,
                    "setting": {"name": "num_workers", "from": 2, "to": 6},
                },
                {"text": "decode once, not every epoch", "speedup": None, "setting": None},
            ],
            "ranks": [0],
            "processes": [4242],
            "parts": [],
            "since": None,
            "full_in": None,
        }
    ],
    "cost": {"monitor_cpu": 0.021, "hook_us_per_step": 6.1, "target_slowdown": 0.001, "seldom": None},
}


def test_json_is_the_documented_schema():
    said = json.loads(as_json(report_of(snapshot())))
    assert said.pop("abstained") == [{"id": rule, "reason": "too short"} for rule in ("memory-leak", "oom-risk")]
    assert said.pop("comparison") is None
    assert said.pop("run")["command"] == said["target"]["command"]
    assert said == DOCUMENTED


def test_json_of_a_first_tick_has_every_key_and_no_zero_for_unknown():
    bare = Snapshot(tick=0, time=1.0, wall=1.0, window=0.0, target=Target(pid=1, command="x"))
    said = json.loads(as_json(report_of(bare)))
    assert said.keys() == json.loads(as_json(report_of(snapshot()))).keys()
    assert said["target"]["processes"] == said["verdicts"] == []
    assert set(said["step"].pop("phases").values()) == {None}
    assert set(said["step"].values()) == {None}
    assert set(said["cost"].values()) == {None}
    assert {source["state"] for source in said["sources"].values()} == {"absent"}


def test_json_has_no_number_that_json_has_not():
    broken = snapshot(steps=Steps(basis="hook", phases=Phases(), p50=float("nan"), per_second=float("inf")))
    said = json.loads(as_json(report_of(broken)), parse_constant=lambda word: pytest.fail(word))
    assert said["step"]["p50_ms"] is None


def test_text_says_verdict_place_reason_fix_and_what_is_missing():
    text = to_text(snapshot())
    for words in (
        "python train.py\npid 4242 · training · 1 loader worker · 15 s watched",
        "INPUT-BOUND · workers   [critical]\n  64 % of each step waits for data\n"
        "  64 % of step time · 2.4–3.1× faster without it · cause 90 % certain\n",
        "  at   D.__getitem__  /x/decode.py:41  81 %  pid 4250\n         img = decode(p)",
        "  why  0 of 4 batches ready",
        "  fix  num_workers 2 → 6 (predicted: 2.4×)\n  fix  decode once, not every epoch",
        "Step (from hook): 4.2 step/s · 6,700 tokens/s · 41 % MFU · 21 ms p50 ·\n  60 ms p95 · 312 steps seen",
        "  data             64 %  " + "█" * 26,
        "Not measured:\n  gpu absent: NVML is not here\n  stacks denied: no right → sudo aitop",
        "Could not be judged:\n  too short: memory-leak, oom-risk",
        "Watching cost 2.1 % of a core, 6.1 µs a step in the target, 0.10 % of its step\ntime.",
    ):
        assert words in text
    assert text.index("INPUT-BOUND") < text.index("Step (from hook)") < text.index("Not measured")
    assert "transfer" not in text


@pytest.mark.parametrize(
    ("base", "words"), [("time", "of the time"), ("tail", "of the tail"), ("request", "of request time")]
)
def test_text_says_what_a_share_is_of(base, words):
    verdict = Verdict(id="a", severity="info", title="t", confidence=0.5, share=0.46, base=base)
    assert f"46 % {words} ·" in to_text(snapshot(diagnosis=Diagnosis(verdicts=(verdict,))))


def test_no_line_of_the_text_is_longer_than_the_page():
    for share in (1e12, -5.0):
        text = to_text(snapshot(steps=Steps(count=3, basis="hook", phases=Phases(data_wait=share))))
        assert text.count("█") <= BAR
    long = Verdict(id="a", severity="info", title="word " * 100, confidence=1.0)
    text = to_text(snapshot(diagnosis=Diagnosis(verdicts=(long,))))
    assert max(map(len, text.splitlines())) <= WIDTH


def test_text_without_a_verdict_says_so():
    text = to_text(snapshot(diagnosis=Diagnosis(), steps=None, cost=Cost()))
    assert "NO VERDICT: nothing that was seen stands out." in text
    assert "Step" not in text and "Watching" not in text
    silent = Diagnosis(abstained=(Abstention(id="input-bound", reason="3 steps so far"),))
    assert "NO VERDICT: not enough was seen" in to_text(snapshot(diagnosis=silent))
    text = to_text(snapshot(ledgers=(LEDGER,), diagnosis=Diagnosis()))
    assert "NO VERDICT: no single cause stands out. Where the time goes is listed below." in text
    assert "train.py:41 main" in text


def test_json_has_the_entries_of_all_ledgers_heaviest_first():
    second = Ledger(pid=4300, thread="Thread-1", unit="second", entries=(entry(1.0, "host", "sleep", pid=4300),))
    said = json.loads(as_json(report_of(snapshot(ledgers=(LEDGER, second)))))
    assert said["target"]["working"] == [
        {"pid": 4242, "thread": "MainThread", "unit": "step", "seconds": 0.0238, "threads": 1},
        {"pid": 4300, "thread": "Thread-1", "unit": "second", "seconds": None, "threads": 1},
    ]
    shares = [entry["share"] for entry in said["ledger"]]
    assert shares == sorted(shares, reverse=True) and len(shares) == 5
    assert said["ledger"][2] == {
        "pid": 4242,
        "lane": "main",
        "phase": "data",
        "activity": "wait-queue",
        "share": 0.64,
        "seconds": 0.0152,
        "basis": "measured",
        "where": {
            "pid": 4242,
            "file": "/x/train.py",
            "line": 41,
            "function": "main",
            "text": "    for images, labels in loader:",
        },
    }
    producers = said["ledger"][0]
    assert (producers["pid"], producers["where"]["pid"]) == (4242, 4250)
    for lane in {(row["pid"], row["lane"]) for row in said["ledger"]}:
        parts = [row["share"] for row in said["ledger"] if (row["pid"], row["lane"]) == lane]
        assert sum(parts) == pytest.approx(1.0)


def test_rounding_leaves_many_small_shares_adding_up():
    many = Ledger(pid=1, thread="t", unit="step", entries=tuple(entry(1 / 700, "host", "python") for _ in range(700)))
    said = json.loads(as_json(report_of(snapshot(ledgers=(many,)))))
    assert sum(entry["share"] for entry in said["ledger"]) == pytest.approx(1.0, abs=1e-3)


def test_text_shows_where_the_time_goes():
    text = to_text(snapshot(ledgers=(LEDGER,)))
    assert (
        """
Where the time of a step goes (pid 4242, MainThread, 24 ms):
   64 %  data      waits for a queue  train.py:41 main
                                        for images, labels in loader:
   36 %  backward  runs native code
    <1 % in 1 lighter entry

What makes its data:
  100 %  data  runs Python  decode.py:41 D.__getitem__
                              img = decode(p)
"""
        in text
    )
    assert text.index("INPUT-BOUND") < text.index("Where the time") < text.index("Step (from hook)")


def test_every_other_working_process_gets_one_row():
    ranks = [
        Ledger(pid=pid, thread="MainThread", unit="second", entries=(entry(1.0, "exchange", "wait-network", pid=pid),))
        for pid in range(1, 12)
    ]
    text = to_text(snapshot(ledgers=tuple(ranks)))
    assert "Where the time goes (pid 1, MainThread):" in text
    assert "  100 %  exchange  waits for network  pid 2\n" in text and "pid 9\n" in text
    assert "pid 10" not in text and "    and 2 more processes\n" in text


def test_the_table_fits_80_columns():
    place = Where(pid=1, file=f"/x/{'long_name' * 9}.py", line=1, function="f" * 90, text="x" * 200)
    wide = Ledger(pid=1, thread="T" * 90, unit="step", entries=(entry(1.0, "environment", "wait-network", place),))
    text = to_text(snapshot(ledgers=(wide,)))
    table = text[text.index("Where the time") : text.index("Step (from")]
    rows = [row for row in table.splitlines() if "T" * 90 not in row]
    assert len(rows) >= 3 and max(map(len, rows)) == WIDTH == 80


def test_a_verdict_names_its_processes_where_several_work():
    second = Ledger(pid=4300, thread="MainThread", unit="step", entries=(entry(1.0, "host", "python", pid=4300),))
    assert "cause 90 % certain\n" in to_text(snapshot(ledgers=(LEDGER,)))
    assert "cause 90 % certain · pid 4242\n" in to_text(snapshot(ledgers=(LEDGER, second)))
    assert "cause 90 % certain · pid 4242</p>" in to_html(snapshot(ledgers=(LEDGER, second)))
    many = Verdict(id="a", severity="info", title="t", confidence=1.0, processes=tuple(range(1, 9)))
    text = to_text(snapshot(ledgers=(LEDGER, second), diagnosis=Diagnosis(verdicts=(many,))))
    assert "cause 100 % certain · pids 1, 2, 3, 4 and 4 more\n" in text


def test_every_activity_has_words():
    assert set(ACTIVITIES) == set(typing.get_args(Activity))


@pytest.mark.parametrize(
    ("speedup", "interval", "words"),
    [
        (2.8, (2.4, 3.1), "2.4–3.1× faster without it"),
        (2.8, None, "up to 2.8× faster without it"),
        (1.3, (0.9, 1.6), "up to 1.6× faster without it"),
        (1.0, (0.9, 1.0), "no faster without it alone"),
        (1.0, None, "no faster without it alone"),
    ],
)
def test_a_gain_is_a_range_where_it_is_known(speedup, interval, words):
    verdict = Verdict(id="a", severity="warning", title="t", confidence=0.95, speedup=speedup, speedup_range=interval)
    text = to_text(snapshot(diagnosis=Diagnosis(verdicts=(verdict,))))
    assert f"  {words} · cause 95 % certain\n" in text


def test_a_narrow_range_is_one_factor():
    assert factor_range(1.9, 2.4) == "1.9–2.4×"
    assert factor_range(2.41, 2.43) == "2.4×"
    assert factor_range(1.05, 1.5) == "1.05–1.5×"
