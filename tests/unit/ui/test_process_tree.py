"""The process tree: order, folding, sorting, filtering, columns, and what narrowing leaves. Pure functions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitop.model.gpu import GpuDevice, GpuProcess, GpuSample
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.snapshot import Phases, ProcessStacks, Snapshot, Stacks, Steps, Target
from aitop.ui.panes.gpu import GpuPane, devices_for
from aitop.ui.panes.processes import ProcessRow, age_text, fit, heading, process_rows
from aitop.ui.panes.step import steps_for
from aitop.ui.state import View, family, process_words
from aitop.ui.widgets.table import Order, row_line

WALL = 1000.0


def process(pid: int, ppid: int, role: Any, **more: Any) -> ProcessSample:
    return ProcessSample(
        pid=pid, ppid=ppid, role=role, **{"started": WALL - 90 + pid / 100, "name": "python", "command": "c"} | more
    )


JOB = (
    process(10, 1, "launcher", name="torchrun", cpu=0.0, rss=90),
    process(22, 11, "loader-worker", rank=1, cpu=0.5),
    process(11, 10, "rank", rank=1, cpu=0.2, rss=1000, threads=4),
    process(12, 10, "rank", rank=0, cpu=0.9, rss=2000, threads=8),
    process(20, 12, "loader-worker", rank=0, cpu=0.1, rss=50),
    process(21, 12, "loader-worker", rank=0, cpu=None, command="python decode.py"),
    process(30, 10, "helper", name="wandb-core"),
)


def of(processes: tuple[ProcessSample, ...], **given: Any) -> Snapshot:
    return Snapshot(
        tick=1, time=1.0, wall=WALL, window=1.0, target=Target(pid=10, command="torchrun"),
        host=HostSample(time=1.0, processes=processes, machine=MachineSample(cores=4)),
        steps=Steps(basis="hook", phases=Phases(forward=1.0), pid=12), **given,
    )  # fmt: skip


def shown(rows: list[ProcessRow]) -> list[str]:
    return [row.guide + row.label for row in rows]


def test_a_long_line_of_descendants_is_drawn_to_its_end() -> None:
    deep = tuple(process(10 + depth, 9 + depth, "helper") for depth in range(3000))
    assert shown(process_rows(of(deep)))[-1] == "  " * 2998 + "└ python"


def test_ranks_come_in_their_order_with_their_workers_below_and_others_last() -> None:
    assert shown(process_rows(of(JOB))) == [
        "launcher",
        "├ rank 0",
        "│ ├ worker 0",
        "│ └ worker 1",
        "├ rank 1",
        "│ └ worker 0",
        "└ wandb-core",
    ]


def test_a_servers_processes_are_called_by_their_parts() -> None:
    server = (
        process(10, 1, "rank", rank=0, part="API server"),
        process(11, 10, "other", part="engine"),
        process(12, 11, "other", part="worker", started=WALL - 50),
        process(13, 11, "other", part="worker", started=WALL - 60),
        process(14, 10, "helper", name="resource_track"),
    )
    assert shown(process_rows(of(server))) == [
        "API server",
        "├ engine",
        "│ ├ worker 0",
        "│ └ worker 1",
        "└ resource_track",
    ]


def test_a_folded_process_stands_for_all_below_it() -> None:
    rows = process_rows(of(JOB), folded={12})
    folded = next(row for row in rows if row.process.pid == 12)
    assert (folded.folded, folded.process.rss, folded.process.cpu) == (2, 2050, pytest.approx(1.0))
    assert {20, 21}.isdisjoint(row.process.pid for row in rows)
    top = process_rows(of(JOB), folded={10})
    assert [row.folded for row in top] == [6]


def test_siblings_are_sorted_by_a_column_and_what_is_not_measured_comes_last() -> None:
    def pids(order: Order) -> list[int]:
        return [row.process.pid for row in process_rows(of(JOB), order=order)]

    assert pids(Order("cpu")) == [10, 12, 20, 21, 11, 22, 30]
    assert pids(Order("cpu", True)) == [10, 11, 22, 12, 20, 21, 30]
    assert pids(Order("pid")) == [10, 11, 22, 12, 20, 21, 30]


def test_the_filter_keeps_the_way_to_what_it_found_even_below_folded_ones() -> None:
    rows = process_rows(of(JOB), wanted="decode", folded={10})
    assert [(row.process.pid, row.matches) for row in rows] == [(10, False), (12, False), (21, True)]
    assert process_rows(of(JOB), wanted="nothing like it") == []


def test_use_of_devices_is_added_up_and_a_process_on_none_has_none() -> None:
    devices = tuple(
        GpuDevice(
            index=i, processes=(GpuProcess(pid=12, memory=100, sm=0.2 + 0.1 * i), GpuProcess(pid=11, memory=None))
        )
        for i in (0, 1)
    )
    rows = {row.process.pid: row.gpu for row in process_rows(of(JOB, gpu=GpuSample(time=0.0, devices=devices)))}
    assert (rows[12].memory, rows[12].sm) == (200, pytest.approx(0.3))
    assert (rows[11].memory, rows[11].sm) == (None, None)
    assert rows[20] is None


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=14), st.sets(st.integers(1, 12)))
def test_every_process_is_shown_once_or_counted_in_a_folded_one(pairs: list[tuple[int, int]], folded: set[int]) -> None:
    parents = dict(pairs)
    # What the source gives has no circles: a parent started before its child.
    tree = tuple(process(pid, ppid if ppid < pid else 0, "other") for pid, ppid in parents.items())
    rows = process_rows(of(tree), folded=folded)
    pids = [row.process.pid for row in rows]
    assert len(pids) == len(set(pids))
    assert len(pids) + sum(row.folded for row in rows) == len(tree)


@pytest.mark.parametrize("width", [20, 30, 45, 60, 76, 90, 120, 200])
def test_columns_fit_their_width_and_stand_under_their_headings(width: int) -> None:
    shape = fit(width, gpu=True)
    head = heading(shape, Order())
    assert head.width <= width
    for row in process_rows(of(JOB)):
        line = row_line(row, shape, width, cursor=False, chosen=False).text
        assert len(line) == width
        if row.process.pid == 12 and len(shape) > 1:
            end = head.text.index("cpu") + 3
            assert line[end - 3 : end] == "90%"


def test_columns_that_tell_least_go_first() -> None:
    headings = [{column.heading for column, _ in fit(width, gpu=True)} for width in (26, 60, 120)]
    assert headings[0] < headings[1] < headings[2]
    assert "cpu" in headings[0]
    assert not any(column.heading.startswith("gpu") for column, _ in fit(200, gpu=False))


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (3, "3 s"), (59, "59 s"), (90, "1 m"), (7300, "2 h"), (200000, "2 d")]
)
def test_ages_are_short(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text


def test_a_chosen_process_takes_what_is_below_it_along() -> None:
    assert family(JOB, 12) == {12, 20, 21}
    assert family(JOB, 20) == {20}
    assert family(JOB, 999) == {999}
    assert process_words(of(JOB), 12) == "rank 0 +2"
    assert process_words(of(JOB), 22) == "worker 0 of rank 1"
    assert process_words(of(JOB), 999) == "process 999"


def test_steps_of_another_rank_come_from_its_stacks_or_are_called_the_jobs() -> None:
    bare = of(JOB)
    assert steps_for(bare, None) == (bare.steps, None)
    assert steps_for(bare, frozenset({12, 20})) == (bare.steps, None)
    assert steps_for(bare, frozenset({11})) == (bare.steps, "whole job")
    other = ProcessStacks(pid=11, role="rank", samples=9, phases=Phases(backward=0.5))
    steps, whose = steps_for(of(JOB, stacks=Stacks(seconds=1.0, samples=9, processes=(other,))), frozenset({11}))
    assert whose is None
    assert (steps.basis, steps.pid, steps.phases.backward) == ("stacks", 11, 0.5)


def test_devices_are_those_of_the_processes_where_any_lists_them() -> None:
    used = GpuDevice(index=0, processes=(GpuProcess(pid=12),))
    free = GpuDevice(index=1, processes=None)
    sample = GpuSample(time=0.0, devices=(used, free))
    assert devices_for(sample, frozenset({12})) == ((used,), None)
    assert devices_for(sample, frozenset({11})) == ((used, free), "whole job")
    for chosen, scope in ((11, "whole job"), (None, None)):
        assert GpuPane(id="gpu").draw(View(snapshot=of(JOB, gpu=sample), chosen=chosen), 80, 20).scope == scope


def test_rates_of_a_new_process_look_different_from_unsupported_figures() -> None:
    new = process(40, 10, "other", started=WALL - 1)
    lines = [
        row_line(row, fit(100, gpu=False), 100, cursor=False, chosen=False).text
        for row in process_rows(of((new, process(41, 10, "other", started=WALL - 60))))
    ]
    assert ["…" in line for line in lines] == [False, True]
    assert ["–" in line for line in lines] == [True, True]
