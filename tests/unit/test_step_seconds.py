"""Series for charts of minutes."""

from aitop.engine.history import CHART_SECONDS, StepSeconds
from aitop.engine.snapshot.series import LANE_SAMPLES, MOST_LANES, worker_lanes
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.steps import StepRecord
from aitop.stacks.view import StackView


def step(index, end, seconds=0.1, **more):
    return StepRecord(index=index, end=end, seconds=seconds, **more)


def test_steps_are_put_together_by_the_second_in_which_they_end():
    seconds = StepSeconds()
    seconds.add([step(n, 10.0 + n * 0.01, 0.001 * (n + 1)) for n in range(100)])
    assert seconds.series() == {}
    seconds.add([step(100, 11.5, 0.5, save=0.4, evaluation=0.05), step(101, 14.2)])
    found = seconds.series()
    assert found["step_p50"].times == (11.0, 12.0)
    assert [round(value) for value in found["step_p50"].values] == [51, 500]
    assert [round(value) for value in found["step_p95"].values] == [96, 500]
    assert found["step_save"].values == (0.0, 0.4)
    assert found["step_evaluation"].values == (0.0, 0.05)


def test_it_does_not_grow_without_bound():
    seconds = StepSeconds()
    seconds.add(step(n, float(n)) for n in range(2000))
    assert len(seconds.series()["step_p50"].times) == CHART_SECONDS
    assert seconds.series()["step_p50"].times[-1] == 1999.0


def test_each_worker_has_a_lane():
    def host(time, pids):
        workers = tuple(
            ProcessSample(pid=pid, ppid=1, started=0.0, role="loader-worker", name="p", command="p", cpu=0.5)
            for pid in pids
        )
        return HostSample(time=time, processes=workers, machine=MachineSample(cores=2))

    lanes = worker_lanes([host(1.0, [7]), host(2.0, [7, 8])], [], StackView())
    assert lanes["worker7.cpu"].values == (0.5, 0.5)
    assert lanes["worker8.cpu"].values == (None, 0.5)
    assert "worker7.idle" not in lanes
    many = worker_lanes([host(float(n), range(40)) for n in range(300)], [], StackView())
    assert len(many) == MOST_LANES
    assert len(many["worker0.cpu"].times) == LANE_SAMPLES
    assert worker_lanes([], [], StackView()) == {}
