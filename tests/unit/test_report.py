"""The report says what the snapshot says, in the fixed schema, and is safe to print and to open."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from aitop import __version__
from aitop.diagnosis.catalogue import PARTS
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.snapshot import Cost, Phases, Snapshot, Steps, Target
from aitop.model.source import SourceStatus
from aitop.model.verdict import Abstention, Diagnosis, Fix, Verdict, Where
from aitop.outputs.html import to_html
from aitop.outputs.report import report_of, to_json
from aitop.outputs.text import BAR, WIDTH, to_text

INPUT_BOUND = Verdict(
    id="input-bound",
    subtype="workers",
    severity="critical",
    title="64 % of each step waits for data",
    share=0.64001,
    speedup=2.77777,
    confidence=0.9,
    where=(
        Where(pid=4250, file="/x/decode.py", line=41, function="D.__getitem__", share=0.81, text="img = decode(p)"),
    ),
    evidence=("data wait is 64 % of step time", "0 of 4 batches ready"),
    fixes=(Fix(text="num_workers 2 → 6", speedup=2.4), Fix(text="decode once, not every epoch")),
    ranks=(0,),
)


TOO_SHORT = (Abstention(id="memory-leak", reason="too short"), Abstention(id="oom-risk", reason="too short"))


def process(pid, role, rank):
    return ProcessSample(pid=pid, ppid=1, started=1.0, role=role, rank=rank, name="python", command="python train.py")


def snapshot(**changes) -> Snapshot:
    fields = {
        "tick": 15,
        "time": 100.0,
        "wall": 1.7e9,
        "window": 15.0,
        "target": Target(pid=4242, command="python train.py"),
        "kind": "training",
        "sources": {
            "host": SourceStatus(time=1.0, source="host", state="ok"),
            "gpu": SourceStatus(time=1.0, source="gpu", state="absent", reason="NVML is not here"),
            "stacks": SourceStatus(time=1.0, source="stacks", state="denied", reason="no right", remedy="sudo aitop"),
        },
        "host": HostSample(
            time=99.0,
            processes=(process(4242, "rank", 0), process(4250, "loader-worker", 0), process(4260, "helper", None)),
            machine=MachineSample(cores=8),
        ),
        "steps": Steps(
            basis="hook",
            count=312,
            p50=0.0212,
            p95=0.0601,
            per_second=4.2,
            samples_per_second=67.0,
            tokens_per_second=6700.0,
            flops_per_second=4.1e13,
            mfu=0.41,
            phases=Phases(data_wait=0.64, forward=0.1, backward=0.2, optimizer=0.02, outside=0.04),
        ),
        "cost": Cost(monitor_cpu=0.021, hook_us_per_step=6.1, target_slowdown=0.001),
        "diagnosis": Diagnosis(verdicts=(INPUT_BOUND,), abstained=TOO_SHORT),
    }
    return Snapshot(**{**fields, **changes})


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
            "outside": 0.04,
        },
        "basis": "hook",
    },
    "verdicts": [
        {
            "id": "input-bound",
            "subtype": "workers",
            "severity": "critical",
            "share": 0.64,
            "speedup": 2.778,
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
                {"text": "num_workers 2 → 6", "speedup": 2.4},
                {"text": "decode once, not every epoch", "speedup": None},
            ],
            "ranks": [0],
        }
    ],
    "cost": {"monitor_cpu": 0.021, "hook_us_per_step": 6.1, "target_slowdown": 0.001},
}


def test_json_is_the_documented_schema():
    said = json.loads(to_json(report_of(snapshot())))
    assert said.pop("abstained") == [{"id": rule, "reason": "too short"} for rule in ("memory-leak", "oom-risk")]
    assert said == DOCUMENTED


def test_json_of_a_first_tick_has_every_key_and_no_zero_for_unknown():
    bare = Snapshot(tick=0, time=1.0, wall=1.0, window=0.0, target=Target(pid=1, command="x"))
    said = json.loads(to_json(report_of(bare)))
    assert said.keys() == json.loads(to_json(report_of(snapshot()))).keys()
    assert said["target"]["processes"] == said["verdicts"] == []
    assert set(said["step"].pop("phases").values()) == {None}
    assert set(said["step"].values()) == {None}
    assert set(said["cost"].values()) == {None}
    assert {source["state"] for source in said["sources"].values()} == {"absent"}


def test_json_has_no_number_that_json_has_not():
    broken = snapshot(steps=Steps(basis="hook", phases=Phases(), p50=float("nan"), per_second=float("inf")))
    said = json.loads(to_json(report_of(broken)), parse_constant=lambda word: pytest.fail(word))
    assert said["step"]["p50_ms"] is None


def test_text_says_verdict_place_reason_fix_and_what_is_missing():
    text = to_text(report_of(snapshot()))
    for words in (
        "python train.py\npid 4242 · training · 1 loader worker · 15 s watched",
        "INPUT-BOUND · workers   [critical]   64 % of step time · up to 2.8× faster without it · confidence 90 %",
        "  at   D.__getitem__  /x/decode.py:41  81 %  pid 4250\n         img = decode(p)",
        "  why  0 of 4 batches ready",
        "  fix  num_workers 2 → 6 (predicted: 2.4×)\n  fix  decode once, not every epoch",
        "Step (from hook): 4.2 step/s · 6,700 tokens/s · 41 % MFU · 21 ms p50 · 60 ms p95 · 312 steps seen",
        "  data             64 %  " + "█" * 26,
        "Not measured:\n  gpu absent: NVML is not here\n  stacks denied: no right → sudo aitop",
        "Could not be judged:\n  too short: memory-leak, oom-risk",
        "Watching cost 2.1 % of a core, 6.1 µs a step in the target, 0.10 % of its step time.",
    ):
        assert words in text
    assert text.index("INPUT-BOUND") < text.index("Step (from hook)") < text.index("Not measured")
    assert "transfer" not in text


@pytest.mark.parametrize("share", [1e12, -5.0])
def test_a_share_that_cannot_be_makes_no_endless_bar(share):
    text = to_text(report_of(snapshot(steps=Steps(count=3, basis="hook", phases=Phases(data_wait=share)))))
    assert text.count("█") <= BAR


def test_text_without_a_verdict_says_so():
    text = to_text(report_of(snapshot(diagnosis=Diagnosis(), steps=None, cost=Cost())))
    assert "NO VERDICT: nothing that was seen stands out." in text
    assert "Step" not in text
    assert "Watching" not in text


def test_text_says_when_evidence_is_wanting():
    silent = Diagnosis(abstained=(Abstention(id="input-bound", reason="3 steps so far"),))
    assert "NO VERDICT: not enough was seen" in to_text(report_of(snapshot(diagnosis=silent)))


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n<script>alert(1)</script>\u202e\x9b31m"


def hostile():
    verdict = Verdict(
        id="input-bound",
        severity="warning",
        title=HOSTILE,
        confidence=0.5,
        where=(Where(pid=1, file=HOSTILE, line=1, function=HOSTILE, text=HOSTILE),),
        evidence=(HOSTILE,),
        fixes=(Fix(text=HOSTILE),),
    )
    return snapshot(
        target=Target(pid=1, command=HOSTILE, ended=HOSTILE),
        sources={"gpu": SourceStatus(time=1.0, source="gpu", state="failed", reason=HOSTILE, remedy=HOSTILE)},
        diagnosis=Diagnosis(verdicts=(verdict,), abstained=(Abstention(id="x", reason=HOSTILE),)),
    )


def test_text_passes_no_control_character_of_the_target_on():
    text = to_text(report_of(hostile()))
    assert "owned" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


def test_html_stands_alone_and_escapes_the_target():
    for shot in (snapshot(), hostile(), snapshot(diagnosis=Diagnosis(), steps=None)):
        page = to_html(report_of(shot))
        parser = _Tags()
        parser.feed(page)
        parser.close()
        assert {"html", "h1", "section"} <= parser.tags
        assert "script" not in parser.tags
        assert parser.links == []
        assert "url(" not in page
        assert "\x1b" not in page
        assert len(page) < 40_000
    assert "decode.py:41" in to_html(report_of(snapshot()))
    assert "width:64.0%" in to_html(report_of(snapshot()))


def test_html_explains_its_verdicts():
    page = to_html(report_of(snapshot()))
    assert "<summary>About input-bound: the step waits for its data</summary>" in page
    assert "<pre>DataLoader(..., num_workers=6, persistent_workers=True,\n           prefetch_factor=4" in page
    assert [part in page for part in PARTS] == [True] * 5
    assert "About" not in to_html(report_of(snapshot(diagnosis=Diagnosis())))


def test_long_words_do_not_break_and_lines_stay_legible():
    shot = snapshot(
        diagnosis=Diagnosis(verdicts=(Verdict(id="a", severity="info", title="word " * 100, confidence=1.0),))
    )
    assert max(len(line) for line in to_text(report_of(shot)).splitlines()) <= WIDTH
