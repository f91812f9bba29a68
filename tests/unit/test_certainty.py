"""How large a predicted gain is, and how sure: what stays of a step in any case, and what little is left of it."""

import msgspec
import pytest
from judgements import fired
from snapshot_builder import constant, host, line, loaders, snapshot, step, steps

from aitop.diagnosis.causes import input_bound as input_bound


def test_what_starting_workers_computes_ends_with_it():
    records = [
        step(index, 0.1, data_wait=0.001, loader_start=0.5 if index % 5 == 0 else 0.0, cpu=0.09) for index in range(40)
    ]
    started = [msgspec.structs.replace(one, seconds=0.6, cpu=0.55) if one.loader_start else one for one in records]
    spawning = [line("main", 0.5, phase="data_wait", activity="spawn")]
    crowd = host(2, worker_cpu=0.1, main_cpu=0.9, busy=(1.0, 0.3))
    seen = snapshot(started, workers=2, lines=spawning, host=crowd)
    verdict = fired(input_bound.judge(seen))
    assert verdict.subtype == "respawn" and verdict.speedup == pytest.approx(2.0, rel=0.02)


def test_what_the_process_loads_itself_is_not_left():
    seen = snapshot(
        steps(data_wait=0.06, forward=0.02, cpu=0.1),
        lines=[line("get", 0.6, phase="data_wait")],
        facts=loaders(0),
        host=host(main_cpu=1.0, busy=(1.0, 0.0)),
        series={"main_thread": constant(1.0), "run_delay": constant(0.0)},
    )
    assert fired(input_bound.judge(seen)).speedup == pytest.approx(2.5)
