"""Every text of a Snapshot replaced by what a terminal would obey: nothing of it gets to the screen or into a file."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
import sample_parts as parts
import sample_snapshots as samples
from choosing import choosing
from hostile_text import EVERYTHING, EVIL, assert_safe, evil_snapshot, poisoned
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_feeds import RunFeed

from aitop.commands.diagnose import render
from aitop.model.job import Candidate
from aitop.model.profile import Holds, KernelRow, OpRow, Profile
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.outputs.profile import profile_text

OPENED_BY = ("enter", "escape", "S", "escape", "T", "escape", "h", "escape", "t", "f")
CONTROLS = st.text(st.characters(categories=("Cc", "Cf", "Zl", "Zp")) | st.sampled_from("a</>&[x]'\""), min_size=1)


def test_the_poison_is_in():
    snapshot = evil_snapshot("input_bound")
    assert EVIL in snapshot.target.command
    assert all(verdict.title.endswith(EVIL) for verdict in snapshot.diagnosis.verdicts)


async def test_no_screen_passes_it_on_and_markup_is_shown_as_it_is(look_at):
    async with look_at(evil_snapshot("input_bound"), size=(120, 36)) as eyes:
        for name in EVERYTHING:
            await eyes.give(evil_snapshot(name))
            for key in (None, *(OPENED_BY if name in ("measured", "two_ranks", "hang") else ())):
                if key is not None:
                    await eyes.press(key)
                assert_safe(eyes.app.screen)
        assert "[bold]/e" in eyes.text()


@pytest.mark.parametrize("form", ["text", "json", "html"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(evil=CONTROLS, name=st.sampled_from(list(EVERYTHING)))
def test_no_report_passes_it_on(form, name, evil):
    written = render(evil_snapshot(name, evil), form)
    assert written.replace("\n", "").isprintable()


DUMP = StackDump(
    time=parts.START,
    frames=(Frame("feed", "/home/ada/data.py", 31, True, "batch = queue.get()"),),
    threads=(ThreadStack(pid=3720, thread="MainThread", main=True, frames=(0,), active=True, gil=True),),
    refused=((3799, "not permitted"),),
)
PROFILE = Profile(
    pid=1, steps=1, seconds=0.1, holds=Holds(start=0.1, stop=0.1, save=0.1), events=9,
    ops=(OpRow(name="aten::addmm", kind="matmul", calls=3, host=0.05, self_host=0.04),),
    kernels=(KernelRow(name="sm90_gemm", kind="matmul", calls=3, device=0.03),),
)  # fmt: skip


async def test_the_choice_of_jobs_and_all_stacks_pass_nothing_on(look_at):
    async with choosing(lambda: [poisoned(job, Candidate, EVIL) for job in samples.candidates()]) as eyes:
        assert "3720" in eyes.pane("candidates")
        assert_safe(eyes.app.screen)

    class Dumping(RunFeed):
        def dump(self):
            return poisoned(DUMP, StackDump, EVIL)

    feed = Dumping(evil_snapshot("input_bound"))
    async with look_at(feed=feed, size=(120, 36)) as eyes:
        await eyes.press("S")
        await eyes.until("3799")
        assert_safe(eyes.app.screen)


def test_a_profile_passes_nothing_on():
    assert profile_text(poisoned(PROFILE, Profile, EVIL)).replace("\n", "").isprintable()


class Structure(HTMLParser):
    """The tags of a page with the names of their attributes, and what the script reads."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.data = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1] == ("script", "type", "id"):
            self.data.append(data)


MARKUP = EVIL + "<img src=x onerror=alert(1)>" + "\"'></script><script>alert(1)</script>{{ 7 * 7 }}<!--"


@pytest.mark.parametrize("name", EVERYTHING)
def test_markup_stays_text_in_a_page(name):
    hostile, plain = (Structure(render(evil_snapshot(name, text), "html")) for text in (MARKUP, "x"))
    assert hostile.tags == plain.tags
    assert not any(attribute.startswith("on") for _, *attributes in hostile.tags for attribute in attributes)
    assert [tag for tag, *_ in hostile.tags].count("script") == 2
    json.loads("".join(hostile.data))
