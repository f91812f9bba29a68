"""The table of tests/bench/all.py: what was measured, of aitop and of a peer, and their ratio."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Figures = Mapping[str, Any]
ATTACHERS = {"memray": "`memray attach`", "gdb": "gdb (PyRun_SimpleString)"}


class Row(NamedTuple):
    """`ours` and `theirs` in one unit, less is better; `theirs` None where the peer is missing or gave no figure.

    `bar` is the most that ours may be, None where there is none; `spread` the range of ours in words.
    """

    what: str
    unit: str
    ours: float | None
    peer: str = ""
    theirs: float | None = None
    bar: float | None = None
    spread: str = ""


def hook(figures: Figures) -> Iterable[Row]:
    """hook_cost.py: added time of a step, ratios of step times."""
    for model, found in figures.items():
        step = f"{found['plain']['step_us'] / 1000:.1f} ms step of {_model(model)}"
        ours = found["hook"]
        what = f"added to a {step} by timing its phases"
        yield Row(what, "µs", ours["added_us"], "TraceML", _get(found, "traceml", "added_us"))
        yield Row(what, "µs", ours["added_us"], "torch.profiler", _get(found, "profiler", "added_us"))
        if "own_us" in ours:
            yield Row(
                "the same as the hook itself tells it", "µs", ours["own_us"], bar=10.0 if model == "mlp" else None
            )
        if "everything" in found:
            slower = (found["everything"]["ratio"] - 1) * 100
            spread = f"{(found['everything']['low'] - 1) * 100:.1f} to {(found['everything']['high'] - 1) * 100:.1f}"
            theirs = _get(found, "py-spy", "ratio")
            theirs = None if theirs is None else (theirs - 1) * 100
            what = f"{step} slower by `aitop record`: hook, stacks, all samples"
            yield Row(what, "%", slower, "py-spy record -r 20 --nonblocking", theirs, spread=spread)


def steps(figures: Figures) -> Iterable[Row]:
    """hook_cost_steps.py: microseconds that the hook adds, from single steps with and without it in turns."""
    what = "added to a step of a small MLP, told from single steps in turns"
    if "in_all" in figures:
        yield Row(what, "µs", figures["in_all"], bar=10.0, spread=f"{figures['counted_share']:.0%} only counted")
    yield Row(f"{what}, where each one is timed", "µs", figures.get("timed"))


def everything(figures: Figures) -> Iterable[Row]:
    """everything_cost.py: what the screen with all sources takes, hook aside."""
    for model, found in figures.items():
        ours = found["aitop"]
        spread = f"{(ours['low'] - 1) * 100:.1f} to {(ours['high'] - 1) * 100:.1f}"
        theirs = _get(found, "py-spy", "ratio")
        theirs = None if theirs is None else (theirs - 1) * 100
        what = f"step of {_model(model)} slower by the screen and all that feeds it, but for the hook"
        yield Row(what, "%", (ours["ratio"] - 1) * 100, "py-spy record -r 20 --nonblocking", theirs, spread=spread)


def monitor(figures: Figures) -> Iterable[Row]:
    """monitor_cost.py: CPU, memory and bytes to the terminal of monitors with their children."""
    cpu = {name: statistics.fmean(one["cpu"]) * 100 for name, one in figures.items()}
    both = cpu["nvitop"] + cpu["py-spy top"] if {"nvitop", "py-spy top"} <= set(cpu) else None
    what = "CPU of watching at 1 Hz, a core's"
    yield Row(what, "%", cpu["aitop"], "nvitop and py-spy top side by side", both)
    yield Row(what, "%", cpu["aitop"], "nvitop", cpu.get("nvitop"))
    yield Row(what, "%", cpu["aitop"], "py-spy top", cpu.get("py-spy top"))
    memory = {name: one["own_memory"] / 1e6 for name, one in figures.items()}
    yield Row("memory of the watcher", "MB", memory["aitop"], "nvitop", memory.get("nvitop"), bar=80.0)
    written = {name: statistics.fmean(one["written"]) / 1e3 for name, one in figures.items()}
    yield Row("written to the terminal", "kB/s", written["aitop"], "nvitop", written.get("nvitop"))
    yield Row("written to the terminal", "kB/s", written["aitop"], "py-spy top", written.get("py-spy top"))


def first_frame(figures: Figures) -> Iterable[Row]:
    """first_frame.py: pairs of seconds, of the first frame and the first figure."""
    for at, what in ((0, "until something is on the screen"), (1, "until a measured figure is")):
        seconds = {}
        for name, starts in figures.items():
            seen = [start[at] for start in starts if start[at] is not None]
            if len(seen) == len(starts):
                seconds[name] = statistics.median(seen)
        for peer in ("nvitop", "py-spy top"):
            yield Row(what, "s", seconds.get("aitop"), peer, seconds.get(peer), bar=0.5 if at == 0 else None)


def attach(figures: Sequence[Figures]) -> Iterable[Row]:
    """attach_peers.py: how long until in, and how long the run was held up."""
    by_name = {way["name"]: way for way in figures}
    ours = by_name["aitop"]
    for name, words in ATTACHERS.items():
        theirs = by_name.get(name, {"acks": [], "held": []})
        yield Row("until code is in a run under way", "ms", _median(ours["acks"]), words, _median(theirs["acks"]))
        # Ours includes the run's own steps, as theirs do; an undisturbed run's longest is in the row below.
        worst = f"longest {max(ours['held']):.1f}" if ours["held"] else ""
        yield Row("a step held up by that", "ms", _median(ours["held"]), words, _median(theirs["held"]), spread=worst)
    nothing = by_name.get("nothing", {"held": []})
    yield Row("longest step meanwhile", "ms", _median(ours["held"]), "nobody attaches", _median(nothing["held"]))
    for way in figures:
        if way["harm"]:
            yield Row(f"{way['name']}: {way['harm']}", "", None)


def tree(figures: Figures) -> Iterable[Row]:
    """tree_cost.py: CPU of a tick with 1 and 64 processes."""
    one, many = (sum(figures[count].values()) for count in ("1", "64"))
    yield Row("CPU of a tick with 64 processes, of one with 1", "times", many / one, bar=4.0)


def hour(figures: Figures) -> Iterable[Row]:
    """monitor_hour.py."""
    what = f"memory after {figures.get('minutes', 60) // 15 * 15} min of samples (with the bench's own)"
    yield Row(what, "MB", figures["memory_mb"], bar=80.0)
    yield Row("CPU of a tick, engine and screen", "ms", figures["tick_ms"])


def verdicts(figures: Figures) -> Iterable[Row]:
    """verdicts.py: shares that are not right, by tier."""
    rows = figures["rows"]
    for tier in sorted({row["tier"] for row in rows}, reverse=True):
        marks = [row["right"] for row in rows if row["tier"] == tier]
        wrong = marks.count(False)
        yield Row(f"first verdict wrong at tier {tier}, of {len(marks)} planted faults and healthy runs", "", wrong)


ROWS: dict[str, Callable[[Any], Iterable[Row]]] = {
    "hook": hook,
    "steps": steps,
    "everything": everything,
    "monitor": monitor,
    "first-frame": first_frame,
    "attach": attach,
    "tree": tree,
    "hour": hour,
    "verdicts": verdicts,
}


def to_markdown(results: Mapping[str, Any]) -> str:
    """The whole page: machine, versions, the table, when each bench ran."""
    machine, benches = results["machine"], results["benches"]
    if not benches:
        return "no results\n"
    known: dict[str, str | None] = {}
    for bench in sorted(benches.values(), key=lambda one: str(one["when"])):
        known |= bench["versions"]
    there = ", ".join(f"{name} {version}" for name, version in known.items() if version)
    lines = [
        f"{machine['machine']}; {machine['system']}; Python {machine['python']}; GPU: {machine['gpu']}.",
        f"Versions: {there}.",
    ]
    if missing := [name for name, version in known.items() if not version]:
        lines.append(f"Not installed: {', '.join(missing)}.")
    lines += ["", "| measured | aitop | beside it | its figure | its figure / aitop's |", "|---|--:|---|--:|--:|"]
    for name, make in ROWS.items():
        lines += [_line(row) for row in make(benches[name]["figures"])] if name in benches else []
    when = (f"{name} {one['when']}{' (quick)' * one['quick']}" for name, one in benches.items())
    return "\n".join([*lines, "", f"Run: {'; '.join(when)}."]) + "\n"


def _line(row: Row) -> str:
    ours = "–" if row.ours is None else f"{_number(row.ours)} {row.unit}".rstrip()
    ours += f" ({row.spread})" if row.spread else ""
    if row.peer:
        theirs = "missing" if row.theirs is None else f"{_number(row.theirs)} {row.unit}".rstrip()
        return f"| {row.what} | {ours} | {row.peer} | {theirs} | {_ratio(row.ours, row.theirs)} |"
    bar = f"at most {_number(row.bar)} {row.unit}".rstrip() if row.bar is not None else ""
    return f"| {row.what} | {ours} | {'aimed at' if bar else ''} | {bar} | |"


def _ratio(ours: float | None, theirs: float | None) -> str:
    """Of what is measurably more than nothing."""
    if ours is None or theirs is None or ours <= 0 or theirs <= 0:
        return "–"
    return f"{theirs / ours:.0f}×" if theirs / ours >= 10 else f"{theirs / ours:.2g}×"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _model(name: str) -> str:
    return {"mlp": "a small MLP", "transformer": "a small transformer"}.get(name, name)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _get(figures: Figures, name: str, key: str) -> float | None:
    return figures[name][key] if name in figures else None
