"""The HTML report: it stands alone, shows the user's source and what its script draws, and says what is missing."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import msgspec
import pytest
from report_samples import INPUT_BOUND, LEDGER, hostile, snapshot

from aitop.diagnosis.catalogue import PARTS
from aitop.model.ranks import RankPhases, Ranks, RankView
from aitop.model.serving import Percentiles, RequestRecord, Serving
from aitop.model.snapshot import CallNode, Phases, ProcessStacks, Series, Stacks, Steps
from aitop.model.steps import StepRecord
from aitop.model.verdict import Diagnosis
from aitop.outputs.html.charts import MOST_COLUMNS, charts_of
from aitop.outputs.html.page import to_html
from aitop.outputs.ledger_table import tables
from aitop.outputs.report import as_json, report_of
from aitop.ui.theme.palette import CODE_KINDS, PHASES
from aitop.ui.theme.themes import DARK, LIGHT


def page_of(shot, source_around=None):
    return to_html(shot, source_around)


def step(index, **phases):
    return StepRecord(index=index, end=float(index), seconds=0.1, **phases)


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.links = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


@pytest.mark.parametrize("shot", [snapshot(), hostile(), snapshot(diagnosis=Diagnosis(), steps=None)])
def test_the_page_loads_nothing_from_outside(shot):
    page = page_of(shot)
    seen = Tags(page)
    assert {"html", "h1", "section"} <= set(seen.tags)
    assert seen.tags.count("script") == 2
    assert seen.links == []
    assert "url(" not in page and "@import" not in page


def test_the_content_security_policy_allows_only_the_pages_own_script():
    page = page_of(hostile())
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_the_words_of_the_ledger_are_there_without_a_script():
    page = page_of(snapshot(ledgers=(LEDGER,)))
    assert "<td>64 %</td><td>data</td><td>waits for a queue</td><td><code>train.py:41 main</code><br>" in page
    assert "<td>runs native code</td><td></td>" in page and "&lt;1 % in 1 lighter entry" in page


def lines_around(_pid, file, line):
    """A script whose tenth line makes the loader, and a file whose line 41 has markup in it."""
    if file == "/x/decode.py":
        return [(number, f"<b>{number}</b>") for number in range(35, 48)] if line else [(1, "img")]
    return [(10, "loader = DataLoader(data, num_workers=2)")] if line == 0 else None


def test_source_and_the_changed_line_are_shown_and_stay_out_of_json():
    shot = snapshot()
    target = msgspec.structs.replace(shot.target, script="/x/train.py")
    page = page_of(msgspec.structs.replace(shot, target=target), lines_around)
    assert '<span class="guilty"><i>41</i>&lt;b&gt;41&lt;/b&gt;</span>' in page.replace(
        "class=guilty", 'class="guilty"'
    )
    assert "<i>36</i>" in page and "<i>35</i>" not in page
    assert "/x/train.py:10</span><del>- loader = DataLoader(data, num_workers=2)</del>" in page
    assert "<ins>+ loader = DataLoader(data, num_workers=6)</ins>" in page
    assert "num_workers=2)" not in as_json(report_of(shot))


def test_without_source_the_recorded_line_and_the_setting_are_shown():
    for page in (page_of(snapshot()), page_of(snapshot(), lambda _pid, _file, _line: None)):
        assert "<i>41</i>img = decode(p)</span>" in page
        assert "<del>- num_workers=2</del><ins>+ num_workers=6</ins>" in page


def test_the_page_says_what_was_not_measured():
    page = page_of(snapshot(steps=None, series={"rss": Series(times=(99.0,), values=(1.0,))}))
    assert "The ledger: not measured (no right)" in page
    assert "Single steps: not measured" in page
    assert "GPU: not measured (NVML is not here)" in page
    charts = charts_of(snapshot(series={"rss": Series(times=(99.0, 100.0), values=(None, None))}))
    assert charts.over_time == () and charts.gpu == () and charts.latency is None and charts.steps is None


def test_the_charts_hold_what_was_measured():
    tree = CallNode(
        function="main",
        file="/x/train.py",
        line=3,
        samples=10,
        user=True,
        children=(CallNode(function="_call_impl", file="/v/site-packages/torch/nn/m.py", line=9, samples=4),),
    )
    stacks = Stacks(
        seconds=1.0,
        samples=10,
        processes=(ProcessStacks(pid=4242, role="rank", samples=10, phases=Phases(), tree=tree),),
    )
    records = tuple(step(number, data_wait=0.06, forward=0.02, save=0.01) for number in range(1, 301))
    series = {
        "gpu0.busy": Series(times=(90.0, 100.0), values=(0.5, None)),
        "worker7.cpu": Series(times=(90.0,), values=(0.25,)),
    }
    charts = charts_of(
        snapshot(
            ledgers=(LEDGER,),
            stacks=stacks,
            series=series,
            steps=Steps(basis="hook", phases=Phases(), recent=records),
        )
    )
    (account,) = charts.ledgers
    assert [sum(entry["share"] for entry in entries) for _, entries in account["lanes"]] == pytest.approx([1.0, 1.0])
    assert charts.flames[0]["name"] == "rank 0 · pid 4242 · MainThread"
    assert charts.flames[0]["root"] == ["main", "train.py:3", "user", 10, [["_call_impl", "m.py:9", "torch", 4, []]]]
    assert charts.steps is not None and len(charts.steps["columns"]) == MOST_COLUMNS * 100 // 120
    first, last, parts = charts.steps["columns"][0]
    assert (first, last) == (1, 3)
    assert dict(zip([name for name, _ in charts.steps["phases"]], parts, strict=True)) == pytest.approx(
        {"data": 60.0, "forward": 20.0, "save": 10.0, "host": 10.0}
    )
    assert charts.gpu[0]["lines"][0]["points"] == [(-10.0, 0.5), (0.0, None)]
    assert charts.workers[0]["name"] == "pid 7"


@pytest.mark.parametrize(
    ("kind", "title"), [("training", "What makes its data"), ("inference", "What its other threads and processes do")]
)
def test_the_other_lane_has_the_name_it_has_without_a_script(kind, title):
    shot = msgspec.structs.replace(snapshot(ledgers=(LEDGER,)), kind=kind)
    (account,) = charts_of(shot).ledgers
    assert [name for name, _ in account["lanes"]] == ["The thread that does the work", title]
    assert title in tables(shot)[1].title


def test_every_request_is_in_the_histogram():
    seconds = (0.02, 0.021, 0.03, 0.5)
    served = Serving(
        basis="hook",
        latency=Percentiles(p50=0.02, p95=0.5, p99=0.5),
        requests=tuple(RequestRecord(end=1.0, seconds=each) for each in seconds),
    )
    histogram = charts_of(snapshot(serving=served)).latency
    assert sum(histogram["counts"]) == len(seconds) and len(histogram["bounds"]) == len(histogram["counts"]) + 1
    assert histogram["bounds"][0] <= min(seconds) and max(seconds) <= histogram["bounds"][-1]
    bare = msgspec.structs.replace(served, requests=())
    assert "Latencies of single requests: not measured" in page_of(snapshot(serving=bare))


def test_ranks_have_a_row_each_and_only_columns_that_were_measured():
    phases = RankPhases(data_wait=0.01, forward=0.02, backward=0.03, optimizer=0.0, outside=0.0)
    ranks = Ranks(ranks=(RankView(rank=0, pid=1, p50=0.1, phases=phases), RankView(rank=1, pid=2, p50=0.1)))
    page = page_of(snapshot(ranks=ranks))
    assert "<th>rank 0</th>" in page and "<th>rank 1</th>" in page and "<th>data</th>" in page
    assert "<th>wait</th>" not in page and "<th>gpu</th>" not in page


def test_the_hues_are_those_of_the_screen():
    light, dark = page_of(snapshot()).split("prefers-color-scheme: dark", 1)
    first_of_hue = {kind.hue: kind for kind in reversed(PHASES)}.values()
    for kind in (*first_of_hue, *CODE_KINDS):
        assert f"--{kind.key}: {LIGHT.colours[kind.hue]};" in light
        assert f"--{kind.key}: {DARK.colours[kind.hue]};" in dark


def test_many_verdicts_and_long_runs_stay_small():
    records = tuple(step(number, data_wait=0.05) for number in range(4096))
    times = tuple(float(number) for number in range(600))
    series = {f"gpu{number}.busy": Series(times=times, values=times) for number in range(16)}
    verdicts = Diagnosis(verdicts=(INPUT_BOUND,) * 20)
    shot = snapshot(
        series=series, diagnosis=verdicts, steps=Steps(basis="hook", phases=Phases(), recent=records), ledgers=(LEDGER,)
    )
    assert len(page_of(shot)) < 2 << 20


def test_html_explains_its_verdicts():
    page = to_html(snapshot())
    assert "<summary>About input-bound: the step waits for its data</summary>" in page
    assert "<pre>DataLoader(..., num_workers=6, persistent_workers=True,\n           prefetch_factor=4" in page
    assert [part in page for part in PARTS] == [True] * 5
    assert "About" not in to_html(snapshot(diagnosis=Diagnosis()))
