"""memory-leak: what grows steadily is one, warming up and noise are none."""

from __future__ import annotations

import pytest
from judgements import fired
from snapshot_builder import constant, snapshot, steps

from aitop.diagnosis.conditions import memory
from aitop.model.snapshot import GrowthSite, Series


def growing(per_second, noise=0.0, count=20):
    values = tuple(1e9 + index * per_second + (noise if index % 2 else -noise) for index in range(count))
    return Series(times=tuple(1000.0 - count + index for index in range(count)), values=values)


SITE = GrowthSite(file="/x/train.py", line=40, function="main", text="history.append(loss)", keeps_graph=True)


def test_steady_growth_is_a_leak_at_the_growing_line():
    verdict = fired(memory.leak(snapshot(steps(), series={"rss": growing(10e6)}, growth_sites=(SITE,))))
    assert verdict.where[0].line == 40
    assert "loss.item()" in verdict.fixes[0].text
    assert verdict.severity == "critical"


@pytest.mark.parametrize("series", [growing(0.0, 1e6), growing(1e4), growing(1e6, 40e6), constant(2e9)])
def test_noise_is_not_a_leak(series):
    assert memory.leak(snapshot(steps(), series={"rss": series})) is None


def test_growth_that_levels_off_is_warming_up():
    values = tuple(1e9 + 300e6 * (1 - 0.8**index) for index in range(20))
    series = Series(times=tuple(float(981 + index) for index in range(20)), values=values)
    assert memory.leak(snapshot(steps(), series={"rss": series}, growth_sites=(SITE,))) is None


def test_short_growth_needs_a_line_that_explains_it():
    assert memory.leak(snapshot(steps(), series={"rss": growing(10e6, count=8)})) is None
    assert fired(memory.leak(snapshot(steps(), series={"rss": growing(10e6, count=8)}, growth_sites=(SITE,))))


@pytest.mark.parametrize("text", ["losses.append(loss.item())", "self.total += loss.item()", "seen.append(len(batch))"])
def test_numbers_explain_no_growth(text):
    numbers = GrowthSite(file="/x/train.py", line=40, function="main", text=text)
    series = {"rss": growing(10e6, count=14)}
    assert memory.leak(snapshot(steps(), series=series, growth_sites=(numbers,))) is None


def test_a_line_that_keeps_no_graph_needs_a_while():
    cache = GrowthSite(file="/x/train.py", line=40, function="main", text="self.cache.append(batch)")
    assert memory.leak(snapshot(steps(), series={"rss": growing(10e6, count=8)}, growth_sites=(cache,))) is None
    lasting = snapshot(steps(), series={"rss": growing(10e6, count=14)}, growth_sites=(cache,))
    assert fired(memory.leak(lasting)).where[0].line == 40


def test_unexplained_growth_is_critical_only_when_it_lasts():
    assert fired(memory.leak(snapshot(steps(), series={"rss": growing(50e6, count=24)}))).severity == "warning"
    assert fired(memory.leak(snapshot(steps(), series={"rss": growing(50e6, count=55)}))).severity == "critical"
