"""Two runs: chance is not taken for a change, a real one is found with its parts, which add up, and its line."""

import functools
import json
import random

import pytest
from msgspec.structs import replace
from past_maker import noise_of

from aitop import cli
from aitop.diagnosis.comparison_words import comparison_text, in_a_sentence
from aitop.diagnosis.run_comparison import compare_runs
from aitop.diagnosis.run_summary import run_of
from aitop.engine.totals import UnitSeries
from aitop.model.ledger import Entry, Ledger
from aitop.model.run import Cores, LineShare, Run, StackNode, Units
from aitop.model.serving import Percentiles
from aitop.model.snapshot import Snapshot, Target
from aitop.model.steps import StepRecord
from aitop.model.verdict import Verdict, Where
from aitop.outputs.html.comparison import comparison_html
from aitop.outputs.report import as_json

SEEDS = 200


LOOP, SLOW = ("train.py", 10, "main", "loss.backward()"), ("train.py", 20, "main", "tidy(batch)")


CORES = Cores(others=0.1, machine=8.0)


def place(file, line, function, text):
    return Where(pid=1, file=f"/proj/{file}", line=line, function=function, text=text)


def series(records):
    units = UnitSeries("step")
    units.add([StepRecord(index=0, end=0.0, **record) for record in records])
    return units.units()


@functools.cache
def units_of(seed, host, compute, count, loads, like, spread):
    """The steps of such a run, which many tests compare."""
    parts = {"forward": 0.02, "backward": compute - 0.03, "optimizer": 0.01, "host": host}
    own = [noise_of(count, f"{seed} {part}", like=like, spread=spread / 5) for part in parts]
    rows = []
    for off, *offs in zip(noise_of(count, seed, like=like, spread=spread), *own, strict=True):
        row = {name: length * off * each for (name, length), each in zip(parts.items(), offs, strict=True)}
        rows.append(
            {"seconds": sum(row.values()), **{name: row[name] for name in parts if name != "host"}, **dict(loads)}
        )
    return series(rows)


def made(seed, *, host=0.02, compute=0.08, count=300, samples=32, like=0.6, spread=0.05, **changes):
    """A run whose steps compute, and then spend time on a line of the host: all phases with one noise and their own."""
    loads = () if samples is None else (("samples", samples),)
    units = units_of(seed, host, compute, count, loads, like, spread)
    lines = (
        LineShare(phase="backward", where=place(*LOOP), share=0.9, off=0.1),
        LineShare(phase="host", where=place(*SLOW), share=1.0, off=0.1),
    )
    known = {"file": "run", "command": "python train.py", "kind": "training", "watched": 30.0, "ended": 0.0}
    return Run(**{**known, "units": units, "rest": {"host": 1.0}, "lines": lines, **changes})


def test_a_run_on_no_cores_is_not_possible():
    assert made(1, cores=Cores(others=0.0, machine=2.0)).is_sound
    assert not made(1, cores=Cores(others=0.0, machine=0.0)).is_sound


def test_what_is_too_few_is_counted_in_stretches():
    def run(file, each, *stretches):
        return Run(
            file=file,
            command="python train.py",
            kind="training",
            watched=30.0,
            ended=0.0,
            units=Units(kind="step", each=each, seconds=stretches),
        )

    # Samples sorted by length, the longest first: half of the run looks like warm-up.
    falling = run("a", 64, *(6.4 - 0.1 * index for index in range(17)), *(1.0,) * 17)
    steady = run("b", 1, *(0.1,) * 40)
    for change in (compare_runs(falling, steady).change, compare_runs(steady, falling).change):
        assert change.reason == "17 stretches of 64 steps of a are too few: it takes 20"
        assert change.record_s == pytest.approx(30.0 * 40 / 17)
    few = compare_runs(run("c", 1, *(0.1,) * 12), steady).change
    assert few.reason == "12 steps of c are too few: it takes 20"


@pytest.mark.slow
@pytest.mark.parametrize("like", [0.0, 0.6, 0.9])
def test_the_same_code_is_hardly_ever_called_faster_or_slower(like):
    outcomes = [
        compare_runs(made(seed, like=like), made(seed + SEEDS, like=like)).change.verdict for seed in range(SEEDS)
    ]
    assert sum(outcome in ("same", "cannot-tell") for outcome in outcomes) >= 0.95 * SEEDS


def test_a_slower_line_of_five_percent_is_found():
    right = []
    for seed in range(40):
        compared = compare_runs(made(seed), made(seed + SEEDS, host=0.0255))
        line = compared.lines[0].where
        right.append(compared.change.verdict == "slower" and line is not None and line.line == SLOW[1])
        assert compared.change.range[0] < compared.change.ratio < compared.change.range[1]
    assert sum(right) >= 0.8 * len(right)


def paced(run, **paces):
    """The run with other lengths of its phases, those not named by the pace of `rest`."""
    units, rest = run.units, paces.get("rest", 1.0)
    columns = zip(units.seconds, *units.phases.values(), strict=True)
    outside = [(seconds - sum(inside)) * paces.get("host", rest) for seconds, *inside in columns]
    phases = {name: tuple(value * paces.get(name, rest) for value in part) for name, part in units.phases.items()}
    seconds = tuple(map(sum, zip(outside, *phases.values(), strict=True)))
    return replace(run, units=replace(units, seconds=seconds, phases=phases))


def test_a_change_of_all_phases_is_that_of_the_run_unless_it_is_large():
    """Runs of the same code differ by some per cent from one to the next, which nothing within them shows."""
    outcomes = {
        pace: {compare_runs(made(seed), paced(made(seed + SEEDS), rest=pace)).change.verdict for seed in range(20)}
        for pace in (1.05, 1.25, 0.75)
    }
    assert outcomes[1.05] <= {"same", "cannot-tell"}
    assert (outcomes[1.25], outcomes[0.75]) == ({"slower"}, {"faster"})


def test_a_slower_phase_is_told_from_a_run_that_is_quicker_in_all_else():
    before, after = made(1, spread=0.01), paced(made(2, spread=0.01), rest=0.99, backward=1.10)
    compared = compare_runs(before, after)
    assert compared.change.verdict == "slower" and compared.change.range[1] > 0.95
    assert compared.change.reason.startswith("told by backward alone (4.")
    assert in_a_sentence(compared) == "1.04× slower than run"
    # No figure where the whole may be as long as before.
    assert in_a_sentence(replace(compared, change=replace(compared.change, range=(0.96, 1.02)))) == "slower than run"
    assert compare_runs(after, before).change.verdict == "faster"


def test_what_changed_by_more_than_chance_has_a_star():
    """The answer of the whole may still be open."""
    said = comparison_text(compare_runs(made(1), made(2, host=0.025)))
    (line,) = [line for line in said.splitlines() if "train.py:20" in line]
    assert line.endswith(" *") and "* changed by more than chance" in said
    same = comparison_text(compare_runs(made(1, spread=0.0), made(2, spread=0.0)))
    assert "*" not in same


def beside(run, often, seed, slows=0.5):
    """The run beside another program that takes half of the machine `often`, for a few stretches each time."""
    chance, units, share = random.Random(seed), run.units, 0.0
    shares = []
    for index in range(len(units.seconds)):
        share = (0.5 if chance.random() < often else 0.0) if index % 4 == 0 else share
        shares.append(share)
    longer = [1 + slows * share for share in shares]
    seconds = tuple(a * b for a, b in zip(units.seconds, longer, strict=True))
    phases = {name: tuple(a * b for a, b in zip(of, longer, strict=True)) for name, of in units.phases.items()}
    others = tuple(a * b for a, b in zip(seconds, shares, strict=True))
    cores = Cores(others=sum(others) / sum(seconds) * 2, machine=2.0)
    return replace(run, units=replace(units, seconds=seconds, phases=phases, others=others), cores=cores)


@pytest.mark.parametrize(("host", "wanted"), [(0.02, ("same", "cannot-tell")), (0.027, ("slower",))])
def test_the_cost_of_other_programs_is_learnt_from_the_stretches(host, wanted):
    """Other programs make one run 5 % slower and the other 15 %: 7 % by the run itself is told from that."""
    right, holds = [], []
    for seed in range(40):
        was, now = beside(made(seed), 0.2, seed), beside(made(seed + SEEDS, host=host), 0.6, seed + SEEDS)
        change = compare_runs(was, now).change
        right.append(change.verdict in wanted)
        holds.append(change.range[0] <= 0.1 / (host + 0.08) <= change.range[1])
    assert sum(right) >= 0.8 * 40 and sum(holds) >= 0.93 * 40, (sum(right), sum(holds))


@pytest.mark.parametrize("after", [made(2), made(2, host=0.05), made(2, host=0.0, samples=64)])
def test_the_parts_add_up(after):
    compared = compare_runs(made(1), after)
    whole = compared.after.mean_ms - compared.before.mean_ms
    for parts in (compared.phases, compared.causes, compared.lines):
        assert sum(part.delta_ms for part in parts) == pytest.approx(whole, abs=1e-9)
        assert sum(part.before_ms for part in parts) == pytest.approx(compared.before.mean_ms)


def test_a_line_is_the_same_where_it_has_moved():
    moved = LineShare(phase="host", where=place(SLOW[0], 27, *SLOW[2:]), share=1.0, off=0.1)
    lines = compare_runs(made(1), made(2, lines=(moved,))).lines
    [part] = [part for part in lines if part.where and part.where.text == SLOW[3]]
    assert (part.where.line, part.before_ms > 0, part.after_ms > 0) == (27, True, True)


def test_a_loaders_lines_take_the_time_that_the_step_waits_for_them():
    def entry(phase, share, where, **changes):
        known = {"lane": "main", "activity": "native", "basis": "sampled", "pid": 1, "low": share, "high": share}
        return Entry(phase=phase, share=share, where=place(*where), **{**known, **changes})

    waits, decode = ("train.py", 5, "main", "for batch in loader"), ("decode.py", 5, "decode", "unpack(raw)")
    entries = (
        entry("host", 0.5, waits, activity="wait-queue"),
        entry("backward", 0.5, LOOP),
        entry("host", 0.3, decode, lane="producers", activity="python"),
        entry("host", 0.1, ("decode.py", 9, "read", "file.read()"), lane="producers", activity="wait-disk"),
        entry("host", 0.6, ("decode.py", 20, "run", "queue.get()"), lane="producers", activity="wait-queue"),
    )
    ledger = Ledger(pid=1, thread="MainThread", unit="step", entries=entries)
    seen = Snapshot(
        tick=1, time=9.0, wall=9.0, window=9.0, target=Target(pid=1, command="python train.py"), ledgers=(ledger,)
    )
    run = run_of(seen)
    assert run.rest == {"host": 0.5, "backward": 0.5}
    shares = {(line.phase, line.where.text): line.share for line in run.lines}
    expected = {("host", decode[3]): 0.75, ("host", "file.read()"): 0.25, ("backward", LOOP[3]): 1.0}
    assert shares == pytest.approx(expected)


def test_twice_the_batch_is_compared_by_the_sample():
    compared = compare_runs(made(1, samples=32), made(2, host=0.02, compute=0.14, samples=64))
    assert (compared.change.verdict, compared.change.at_equal_load) == ("faster", True)
    assert compared.change.ratio == pytest.approx(1.25, rel=0.03)
    assert (compared.change.load.before, compared.change.load.after) == (32, 64)
    assert compare_runs(made(1, samples=None), made(2, samples=None)).change.at_equal_load is None


def served(seed, *, seconds, rate, **changes):
    """A server whose requests take so long, with so many a second."""
    run = made(seed, samples=None, host=0.2 * seconds, compute=0.8 * seconds, concurrency=rate * seconds, **changes)
    return replace(run, units=replace(run.units, kind="request"))


@pytest.mark.parametrize(
    ("seconds", "rate", "verdict", "equal"),
    [
        pytest.param(0.2, 40, "cannot-tell", False, id="more came"),
        pytest.param(0.05, 10, "cannot-tell", False, id="fewer came"),
        pytest.param(0.2, 20, "slower", True, id="slower, as many came"),
        pytest.param(0.2, 10, "slower", True, id="slower, as many at a time"),
        pytest.param(0.05, 20, "faster", True, id="faster, as many came"),
        pytest.param(0.05, 30, "faster", False, id="faster though more came"),
        pytest.param(0.2, 15, "slower", False, id="slower though fewer came"),
    ],
)
def test_latencies_are_compared_where_the_load_allows_it(seconds, rate, verdict, equal):
    compared = compare_runs(served(1, seconds=0.1, rate=20), served(2, seconds=seconds, rate=rate))
    change = compared.change
    assert (change.verdict, change.at_equal_load) == (verdict, equal)
    assert [side.per_s for side in (compared.before, compared.after)] == pytest.approx([20, rate], rel=0.03)
    assert verdict != "cannot-tell" or "the load differs" in change.reason


def test_requests_a_second_and_latencies_are_said():
    runs = [served(seed, seconds=0.1, rate=20, latency=Percentiles(p50=0.09, p95=0.2, p99=0.3)) for seed in (1, 2)]
    compared = compare_runs(*runs)
    assert compared.after.latency_ms.p99 == pytest.approx(300)
    assert "19.8 a second, lately p50 90 ms, p99 300 ms" in comparison_text(compared)


def stacks(**samples):
    """Stacks of a rank: its main function calls these, so often sampled."""
    children = tuple(StackNode(name, "train.py:7", "user", count) for name, count in samples.items())
    whole = sum(samples.values())
    return {"rank": StackNode("all", "", "", whole, (StackNode("main", "train.py:3", "user", whole, children),))}


def test_the_stacks_of_both_runs_are_one_tree_with_what_changed():
    before = made(1, stacks=stacks(compute=240, tidy=60, gone=30))
    after = made(2, host=0.07, stacks=stacks(compute=170, tidy=150, new=10))
    compared = compare_runs(before, after)
    (main,) = compared.stacks["rank"].children
    assert compared.stacks["rank"].after_ms == pytest.approx(compared.after.mean_ms)
    changes = {node.function: node for node in main.children}
    assert list(changes) == ["compute", "tidy", "gone", "new"]
    assert changes["tidy"].before_ms == pytest.approx(compared.before.mean_ms * 60 / 330)
    assert changes["tidy"].after_ms == pytest.approx(compared.after.mean_ms * 150 / 330)
    assert [node.sure for node in changes.values()] == [False, True, True, True]
    assert (changes["gone"].after_ms, changes["new"].before_ms) == (0, 0)
    # A run and itself differ in nothing.
    assert not any(node.sure for node in compare_runs(after, after).stacks["rank"].children[0].children)


def test_what_the_stacks_of_chance_differ_in_is_not_called_a_change():
    before, after = made(1, stacks=stacks(compute=240, tidy=60)), made(2, stacks=stacks(compute=228, tidy=72))
    assert not any(node.sure for node in compare_runs(before, after).stacks["rank"].children[0].children)


def test_the_page_has_the_tables_and_stacks_coloured_by_change():
    named = "<script>alert(1)</script>"
    before = made(1, stacks=stacks(compute=240, **{named: 60}))
    page = comparison_html(compare_runs(before, made(2, host=0.07, stacks=stacks(compute=170, **{named: 150}))))
    assert "Change by phase" in page and "train.py:20 main" in page
    assert named not in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [flame["name"] for flame in data["flames"]] == ["rank · after", "rank · before"]
    function, place, whose, width, _, was, now, sure = data["flames"][0]["root"][4][0][4][1]
    assert (function, place, whose, sure) == (named, "train.py:7", "user", True)
    assert width == now > was


def kept_waiting(seed, others, *, seconds=0.1, count=300):
    """A run that other programs keep from a core, more and less, for this part of the time on average."""
    units, chance = UnitSeries("step"), random.Random(seed)
    for off in noise_of(count, seed, spread=0.01):
        waits = others * chance.uniform(0.5, 1.5)
        length = seconds * off / (1 - waits)
        units.add([StepRecord(index=0, end=0.0, seconds=length, backward=0.8 * length)], {"waited": waits})
    return made(seed, units=units.units())


def test_the_time_that_others_took_is_not_blamed_on_the_code():
    alone, shared = kept_waiting(1, 0.02), kept_waiting(2, 0.5)
    compared = compare_runs(alone, shared)
    assert compared.change.ratio == pytest.approx(1.0, abs=0.01)
    assert compared.change.verdict == "same"
    # Times are those with waits as before.
    assert compared.before.mean_ms == pytest.approx(100 / 0.98, rel=0.01)
    # Without them a tenth is seen through waits of half the time.
    slower = compare_runs(shared, kept_waiting(3, 0.4, seconds=0.11)).change
    assert slower.verdict == "slower" and slower.ratio == pytest.approx(1 / 1.1, abs=0.01)


def sleeping(seed, seconds):
    """A run that sleeps for so long, and then computes for 2 ms and waits for a core for twice as long."""
    units = UnitSeries("step")
    for off in noise_of(300, seed, spread=0.01):
        length = (seconds + 0.006) * off
        units.add(
            [StepRecord(index=0, end=0.0, seconds=length)],
            {"waited": 0.004 * off / length, "ran": 0.002 * off / length},
        )
    return made(seed, units=units.units(), lines=())


def test_a_thread_that_sleeps_does_not_wait_for_a_core_meanwhile():
    change = compare_runs(sleeping(1, 0.02), sleeping(2, 0.002)).change
    assert change.ratio == pytest.approx(26 / 8, rel=0.02)
    assert compare_runs(sleeping(1, 0.002), sleeping(2, 0.02)).change.ratio == pytest.approx(8 / 26, rel=0.02)


@pytest.mark.parametrize(("others", "verdict"), [(0.5, "slower"), (7.5, "cannot-tell")])
def test_beside_busy_neighbours_a_tenth_may_be_theirs(others, verdict):
    cores = replace(CORES, others=others)
    compared = compare_runs(made(1, cores=cores), made(2, cores=cores, compute=0.087))
    assert compared.change.verdict == verdict
    (backward,) = [part for part in compared.phases if part.phase == "backward"]
    assert (backward.range[0] > 0) == (verdict == "slower")


def test_more_load_by_other_programs_widens_the_interval():
    few, many = (replace(CORES, others=others) for others in (0.0, 4.0))
    change = compare_runs(made(1, cores=few), made(2, cores=many, host=0.03)).change
    assert change.verdict == "cannot-tell"
    assert "other programs kept the machine busy" in change.reason
    # Disturbed alike, a difference counts.
    assert compare_runs(made(1, cores=many), made(2, host=0.04, cores=many)).change.verdict == "slower"


def test_few_or_noisy_units_are_said_with_how_long_to_record():
    change = compare_runs(made(1, count=12), made(2)).change
    assert (change.verdict, change.range) == ("cannot-tell", None)
    assert "it takes 20" in change.reason
    noisy = compare_runs(made(1, count=60, spread=0.5, like=0.9), made(5, count=60, spread=0.5, like=0.9)).change
    assert noisy.verdict == "cannot-tell"
    assert noisy.record_s is None or noisy.record_s > 30


def test_verdicts_and_settings():
    slow = Verdict(id="input-bound", severity="critical", title="", confidence=1, share=0.5, subtype="workers")
    left = Verdict(id="precision", severity="warning", title="", confidence=1, share=0.2)
    new = Verdict(id="compute-bound", severity="info", title="", confidence=1, share=0.9)
    before = made(1, verdicts=(slow, left), settings={"threads": 1, "torch": "2.13"})
    after = made(2, verdicts=(left, new), settings={"threads": 2, "torch": "2.13", "fused": True})
    compared = compare_runs(before, after)
    changes = compared.verdicts.gone, compared.verdicts.new, compared.verdicts.kept
    assert [[one.id for one in each] for each in changes] == [["input-bound"], ["compute-bound"], ["precision"]]
    settings = {setting.name: (setting.before, setting.after) for setting in compared.settings}
    assert settings == {"threads": (1, 2), "fused": (None, True)}
    assert compared.causes[0].id == "input-bound"
    assert compared.causes[0].delta_ms == pytest.approx(-compared.before.mean_ms / 2)
    said = comparison_text(compared)
    assert "gone    input-bound · workers [critical]" in said and "threads: 1 → 2" in said


def test_a_run_without_units_cannot_be_told():
    change = compare_runs(made(1, units=None), made(2)).change
    assert (change.verdict, change.ratio) == ("cannot-tell", None)


def test_json_has_the_keys_of_the_contract():
    said = json.loads(as_json(compare_runs(made(1), made(2, host=0.05))))
    assert said["schema"] == 1
    assert {"before", "after"} <= set(said)
    assert {"ratio", "range", "verdict", "at_equal_load"} <= set(said["change"])
    assert {"phase", "before_ms", "after_ms", "delta_ms", "range"} == set(said["phases"][0])
    assert {"where", "before_ms", "after_ms", "delta_ms"} <= set(said["lines"][0])
    assert set(said["verdicts"]) == {"gone", "new", "kept"}
    assert said["change"]["verdict"] == "slower"


def test_names_of_the_target_cannot_reach_the_terminal():
    hostile = made(2, host=0.05, command="python \x1b[2J train.py", settings={"threads": "\x1b[31m"})
    assert "\x1b" not in comparison_text(compare_runs(made(1), hostile))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "aitop: "),
        (b"noise", "aitop: "),
        (b"{}", "aitop: "),
        (b'{"schema": 1}', "aitop: "),
        (b'{"schema": 1, "run": 3}', "aitop: "),
    ],
)
def test_what_is_neither_recording_nor_report_is_6(tmp_path, capsys, content, words):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    assert cli.run(["compare", str(file), str(file)]) == 6
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1) and words in said.err
