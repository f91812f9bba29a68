"""Sums over a run: its units in stretches, waits for a core, and the cores that others use."""

import pytest
from msgspec.structs import replace

from aitop.engine.outline import copied
from aitop.engine.totals import MOST_STRETCHES, UnitSeries, add_cores, mean_cores, shares_of_time
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.run import Cores
from aitop.model.steps import StepRecord


def host(cpu, busy, *, run_delay=None, beside=()):
    """A process with others of the run beside it, on two cores."""
    known = {"ppid": 0, "started": 0.0, "role": "rank", "name": "", "command": ""}
    first = ProcessSample(pid=1, cpu=cpu, main_cpu=cpu, run_delay=run_delay, **known)
    rest = (ProcessSample(pid=2 + number, cpu=used, **known) for number, used in enumerate(beside))
    return HostSample(time=0.0, processes=(first, *rest), machine=MachineSample(cores=2, core_busy=busy))


@pytest.mark.parametrize(
    ("sample", "share"),
    [
        (host(0.5, (0.5, 1.0), run_delay=0.5), 0.5),
        (host(0.5, (1.0, 1.0), run_delay=0.5, beside=(1.0,)), 0.5 * 0.5 / 1.5),
        (host(0.5, (0.5, 1.0), run_delay=0.5, beside=(1.0,)), 0.0),
        (host(0.5, (0.5, 1.0)), None),
        (host(0.5, None, run_delay=0.5), None),
    ],
    ids=["others", "others and workers", "its own workers", "not counted", "cores not known"],
)
def test_waits_for_a_core_are_those_of_whoever_has_it(sample, share):
    assert shares_of_time(sample)[1].get("waited") == (None if share is None else pytest.approx(share))


def test_waits_that_were_not_measured_at_first_are_as_those_later():
    units, unit = UnitSeries("step"), StepRecord(index=0, end=0.0, seconds=2.0)
    units.add([unit] * 50)
    units.add([unit] * 150, {"waited": 0.25})
    seen = units.units()
    assert [waited / seconds for waited, seconds in zip(seen.waited, seen.seconds, strict=True)] == pytest.approx(
        [0.25] * len(seen.seconds)
    )


def test_units_that_take_no_time_wait_for_nothing():
    units = UnitSeries("step")
    units.add([StepRecord(index=0, end=0.0, seconds=0.0)] * 30, {"waited": 0.25})
    assert set(units.units().waited) == {0.0}


def test_cores_are_means_over_the_run():
    sums = add_cores({}, host(None, (0.5, 0.5)))
    assert mean_cores(sums) is None
    for sample in (host(1.0, (0.5, 0.5)), host(0.5, (1.0, 0.5))):
        sums = add_cores(sums, sample)
    assert mean_cores(sums) == Cores(others=0.5, machine=2.0)


def test_a_long_run_takes_little_memory():
    unit = StepRecord(index=0, end=0.0, seconds=0.5, samples=2, data_wait=0.25, others={"environment": 0.125})
    units, by_ones = UnitSeries("step"), UnitSeries("step")
    units.add([unit] * 1000)
    for _ in range(1000):
        by_ones.add([unit])
    seen = units.units()
    assert seen == by_ones.units()
    assert len(seen.seconds) < MOST_STRETCHES
    assert seen.each == 16
    columns = seen.seconds, seen.samples, seen.phases["data"], seen.phases["environment"]
    assert set(zip(*columns, strict=True)) == {(8.0, 32, 4.0, 2.0)}
    other = copied(units)
    other.add([unit] * 16)
    assert units.units() == seen
    # What one unit did not count is not known of its stretch.
    units.add([unit] * 7 + [replace(unit, samples=None)])
    assert units.units().samples is None
