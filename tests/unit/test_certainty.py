"""How large a predicted gain is, and how sure: what stays of a step in any case, and what little is left of it."""

import msgspec
import pytest
from judgements import fired
from snapshot_builder import constant, host, line, loaders, process, snapshot, step, steps

from aitop.diagnosis.causes import between_steps
from aitop.diagnosis.causes import input_bound as input_bound
from aitop.diagnosis.evidence import COLD, left_cold
from aitop.model.snapshot import Phases


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


def at_a_wait(per_second, share=0.72, step_seconds=None):
    """A run whose thread waits so often a second for a service, for `share` of the time."""
    sends = [line("tell", share, activity="wait-network", position="after")]
    phases = Phases(forward=0.9 - share, backward=0.05, outside=share + 0.05)
    records = None if step_seconds is None else steps(100, step_seconds, forward=(1.0 - share) * step_seconds)
    seen = snapshot(records, phases=phases, lines=sends, main_samples=400)
    machine = msgspec.structs.replace(seen.host, processes=(process(cpu=0.4, voluntary_switches=per_second),))
    return msgspec.structs.replace(seen, host=machine)


def test_what_little_runs_after_each_wait_may_run_faster_without_it():
    """130 waits a second for 72 % of the time: what is left between two of them fills the caches again at first."""
    assert COLD in fired(between_steps.host_io(at_a_wait(130.0))).evidence
    assert COLD not in fired(between_steps.host_io(at_a_wait(20.0))).evidence


def test_only_as_many_waits_count_as_there_are_steps():
    """One call may wait a hundred times: of a step of 50 ms at least 14 are left, whatever the kernel counts."""
    assert COLD not in fired(between_steps.host_io(at_a_wait(2000.0, step_seconds=0.05))).evidence
    assert COLD in fired(between_steps.host_io(at_a_wait(2000.0, step_seconds=0.005))).evidence


def test_work_of_the_thread_itself_leaves_cold_caches_once_a_step():
    assert left_cold(at_a_wait(0.0, step_seconds=0.005), 0.72, computed=True)
    assert not left_cold(at_a_wait(0.0, step_seconds=0.05), 0.72, computed=True)
    assert not left_cold(at_a_wait(0.0), 0.72, computed=True), "steps are not counted"


def test_a_machine_that_does_not_count_waits_changes_nothing():
    assert not left_cold(at_a_wait(None), 0.72) and not left_cold(at_a_wait(0.0), 0.72)
    assert not left_cold(msgspec.structs.replace(at_a_wait(130.0), host=None), 0.72)
