"""Every text of a Snapshot replaced by what a terminal would obey: nothing of it gets to the screen or into a file."""

from __future__ import annotations

import functools
import json
import typing
from html.parser import HTMLParser
from types import NoneType, UnionType

import msgspec
import pytest
import sample_snapshots as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_serving import SERVERS

from aitop.commands.diagnose import render
from aitop.model.job import Candidate
from aitop.model.profile import Holds, KernelRow, OpRow, Profile
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.outputs.profile import profile_text
from aitop.ui.app import PickerApp
from aitop.ui.widgets.pane import Pane

EVERYTHING = samples.ALL | SERVERS
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eab\u2066\u200b\r\n\t\x00</code><script>x</script>[bold]/e"
OPENED_BY = ("enter", "escape", "S", "escape", "T", "escape", "h", "escape", "t", "f")
CONTROLS = st.text(st.characters(categories=("Cc", "Cf", "Zl", "Zp")) | st.sampled_from("a</>&[x]'\""), min_size=1)


@functools.cache
def hints_of(kind):
    return typing.get_type_hints(kind, include_extras=True)


def poisoned(value, hint, evil):
    """`value` with `evil` at the end of every text in it whose type lets it be any text."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return poisoned(value, arguments[0], evil)
    if origin in (typing.Union, UnionType):
        fitting = [one for one in arguments if one is not NoneType]
        return (
            value if value is None or (len(fitting) > 1 and str not in fitting) else poisoned(value, fitting[0], evil)
        )
    if hint is str:
        return value + evil
    if isinstance(value, msgspec.Struct):
        hints = hints_of(type(value))
        changed = {name: poisoned(getattr(value, name), hints[name], evil) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, tuple) and arguments:
        each = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(poisoned(one, kind, evil) for one, kind in zip(value, each, strict=True))
    if isinstance(value, dict) and arguments:
        return {key: poisoned(one, arguments[1], evil) for key, one in value.items()}
    return value


def evil_snapshot(name, evil=EVIL):
    snapshot = EVERYTHING[name]()
    return poisoned(snapshot, type(snapshot), evil)


def test_the_poison_is_in():
    found = evil_snapshot("input_bound")
    assert EVIL in found.target.command
    assert all(verdict.title.endswith(EVIL) for verdict in found.diagnosis.verdicts)


async def test_no_screen_passes_it_on(look_at):
    async with look_at(evil_snapshot("input_bound"), size=(120, 36)) as eyes:
        for name in EVERYTHING:
            await eyes.give(evil_snapshot(name))
            for key in (None, *(OPENED_BY if name in ("measured", "two_ranks", "hang") else ())):
                if key is not None:
                    await eyes.press(key)
                assert_safe(eyes.app.screen)


@pytest.mark.parametrize("form", ["text", "json", "html"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(evil=CONTROLS, name=st.sampled_from(list(EVERYTHING)))
def test_no_report_passes_it_on(form, name, evil):
    written = render(evil_snapshot(name, evil), form)
    assert written.replace("\n", "").isprintable()


DUMP = StackDump(
    time=samples.START,
    frames=(Frame("feed", "/home/ada/data.py", 31, True, "batch = queue.get()"),),
    threads=(ThreadStack(pid=3720, thread="MainThread", main=True, frames=(0,), active=True, gil=True),),
    refused=((3799, "not permitted"),),
)
PROFILE = Profile(
    pid=1, steps=1, seconds=0.1, holds=Holds(start=0.1, stop=0.1, save=0.1), events=9,
    ops=(OpRow(name="aten::addmm", kind="matmul", calls=3, host=0.05, self_host=0.04),),
    kernels=(KernelRow(name="sm90_gemm", kind="matmul", calls=3, device=0.03),),
)  # fmt: skip


async def test_the_choice_of_jobs_and_all_stacks_pass_nothing_on(look_at, feeds):
    app = PickerApp(lambda: [poisoned(job, Candidate, EVIL) for job in samples.candidates()])
    async with app.run_test(size=(120, 20)) as pilot:
        while "3720" not in "".join(line.text for line in app.screen.query_one("#candidates", Pane).drawn):
            await pilot.pause(0.01)
        assert_safe(app.screen)

    class Dumping(feeds["run"]):
        def dump(self):
            return poisoned(DUMP, StackDump, EVIL)

    feed = Dumping(evil_snapshot("input_bound"))
    async with look_at(feed=feed, size=(120, 36)) as eyes:
        await eyes.press("S")
        await eyes.until("3799")
        assert_safe(eyes.app.screen)


def assert_safe(screen):
    assert all(segment.text.isprintable() for row in screen._compositor.render_strips() for segment in row)


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


@pytest.mark.parametrize("name", EVERYTHING)
def test_markup_stays_text(name):
    for evil in (EVIL, "<img src=x onerror=alert(1)>", "\"'></script><script>alert(1)</script>{{ 7 * 7 }}<!--"):
        page = render(evil_snapshot(name, evil), "html")
        seen, clean = Structure(page), Structure(render(evil_snapshot(name, "x"), "html"))
        assert seen.tags == clean.tags
        assert not any(attribute.startswith("on") for _, *attributes in seen.tags for attribute in attributes)
        assert [tag for tag, *_ in seen.tags].count("script") == 2
        json.loads("".join(seen.data))
