"""How often to sample."""

from aitop.sources.stacks.pace import CORES, CREDIT_SECONDS, LONGEST_INTERVAL, QUICK_SECONDS, Budget, rate_of


def spent(cpu: float, windows: int) -> list[tuple[float, float]]:
    """(start, interval) of windows of two seconds that cost `cpu` each."""
    budget, now, found = Budget(0.0), 0.0, []
    for _ in range(windows):
        interval = budget.spend(cpu, now, now + 2.0)
        found.append((now, interval))
        now += max(2.0, interval)
    return found


def test_the_first_windows_come_back_to_back():
    assert [interval for _, interval in spent(0.1, 5)] == [0.0] * 5


def test_later_the_cost_stays_within_the_budget():
    windows = spent(0.1, 60)
    (begin, _), (end, _) = windows[20], windows[-1]
    assert 39 * 0.1 / (end - begin) <= CORES * 1.05
    assert windows[-1][1] > 2.0


def test_cheap_windows_are_never_put_off():
    assert max(interval for _, interval in spent(CORES * 2.0, 200)) == 0.0


def test_news_never_takes_longer_than_the_screen_waits_before_it_says_stale():
    assert max(interval for _, interval in spent(2.0, 50)) == LONGEST_INTERVAL


def test_a_rest_does_not_save_up_more_than_the_first_credit():
    budget = Budget(0.0)
    assert budget.spend(0.0, 0.0, 1e6) == 0.0
    assert budget.spend(CREDIT_SECONDS + 0.03, 1e6, 1e6 + 2.0) > 2.0
    assert budget.tight


def test_at_first_a_few_processes_are_sampled_more_often():
    assert rate_of(0.0, 1) == rate_of(QUICK_SECONDS - 1.0, 3) == 50
    assert rate_of(QUICK_SECONDS, 1) == rate_of(QUICK_SECONDS, 64) == 20


def test_many_processes_are_not_sampled_more_often_together():
    assert [rate_of(0.0, processes) for processes in (3, 5, 8, 64)] == [50, 30, 20, 20]
