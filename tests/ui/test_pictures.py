"""The states of the screen as pictures. `python -m pytest tests/ui/test_pictures.py --new-pictures` draws them anew.

What is compared is what can be seen: each cell's character, colours and weight. The SVG is for people: open it, or its
differing twin under the temporary folder that a failure names.
"""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
import sample_serving as servers
import sample_snapshots as samples
from eyes import Eyes
from fake_prometheus import Still
from pictures import fleet_svg, picker_svg, svg

from aitop.engine.replay import ReplayFeed, last_snapshot
from aitop.model.settings import Settings
from aitop.sources.replay import Recording
from aitop.ui.app import ReplayApp

FOLDER = Path(__file__).parent / "snapshots"
RECORDINGS = Path(__file__).parents[1] / "recordings"
STYLE = re.compile(r"\.terminal-\d+-(r\d+) \{([^}]*)\}")
DARK = Settings(theme="dark", ascii=False)
TEXT = re.compile(r'<text class="terminal-\d+-(r\d+)" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>')
CELL = 12.2  # units of the picture
GROUND = re.compile(r'<rect fill="([^"]+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"')


def recorded(name):
    """The last picture of a recording."""
    return last_snapshot(Recording(RECORDINGS / f"{name}.jsonl.gz"))


def source_around(_pid, _file, line):
    return [
        (number, f"line_{number} = work({number})  # as the target sees it") for number in range(line - 5, line + 6)
    ]


STATES = {
    "waiting": (samples.waiting, (120, 36), ()),
    "no-gpu-no-hook": (samples.no_gpu_no_hook, (120, 36), ()),
    "stale": (samples.stale, (120, 36), ()),
    "paused": (samples.input_bound, (120, 36), ("space",)),
    "ended": (samples.ended, (120, 36), ()),
    "gpu-run": (lambda: recorded("simulated-gpu"), (120, 36), ()),
    "healthy": (lambda: recorded("healthy"), (120, 36), ()),
    "small": (samples.input_bound, (80, 24), ()),
    "large": (samples.eight_gpus, (200, 50), ()),
    "two-ranks": (samples.two_ranks, (120, 36), ("2",)),
    "ranks": (samples.many_ranks, (200, 50), ()),
    "hang": (samples.hang, (120, 36), ("h",)),
    "serving": (servers.engine, (120, 36), ()),
    "serving-small": (servers.engine, (80, 24), ()),
    "serving-large": (servers.with_gpu, (200, 50), ()),
    "serving-metrics": (servers.from_metrics, (120, 36), ()),
    "evidence": (samples.input_bound, (120, 36), ("enter",)),
    "light": (samples.input_bound, (120, 36), ("C",)),
    "help": (samples.input_bound, (120, 36), ("question_mark",)),
    "tree": (samples.input_bound, (120, 36), ("t",)),
    "zoomed": (samples.input_bound, (100, 30), ("tab", "z")),
}


@pytest.fixture
def look_same(request, tmp_path):
    """Compare a picture with the one that is kept, or keep it where that is asked for."""

    def compare(name, drawn):
        picture = FOLDER / f"{name}.svg"
        if request.config.getoption("--new-pictures", default=False):
            FOLDER.mkdir(exist_ok=True)
            picture.write_text(unnumbered(drawn), encoding="utf-8")
            return
        assert picture.is_file(), f"there is no {picture.name} yet: draw it with --new-pictures"
        seen, wanted = cells(drawn), cells(picture.read_text(encoding="utf-8"))
        if seen != wanted:
            twin = tmp_path / f"{name}.svg"
            twin.write_text(drawn, encoding="utf-8")
            rows = [f"{w}\n{s}" for w, s in zip(rows_of(wanted), rows_of(seen), strict=False) if w != s]
            raise AssertionError(f"{name} looks different ({twin}):\n" + ("\n".join(rows) or "only its colours"))

    return compare


def unnumbered(drawn):
    """The same picture without what is another number at every drawing."""
    return re.sub(r"terminal-\d+", "terminal-1", drawn)


def cells(drawn):
    """What can be seen: the character and the style of each cell that is not blank; and the ground of each."""
    styles = {name: style.strip().rstrip(";") for name, style in STYLE.findall(drawn)}
    texts = {
        (float(y), round(float(x) / CELL) + at): (letter, styles.get(name, ""))
        for name, x, y, text in TEXT.findall(drawn)
        for at, letter in enumerate(unescape(text))
        if letter not in " \xa0"
    }
    grounds = {
        (float(y), round(float(x) / CELL) + at): colour
        for colour, x, y, width in GROUND.findall(drawn)
        for at in range(round(float(width) / CELL))
    }
    return texts, grounds


def rows_of(seen):
    """The text of a picture, row by row."""
    rows = {}
    for (y, column), (letter, _) in sorted(seen[0].items()):
        rows[y] = rows.get(y, "").ljust(column) + letter
    return list(rows.values())


@pytest.mark.parametrize("state", list(STATES))
def test_a_state_looks_as_it_did(look_same, state):
    make, size, keys = STATES[state]
    look_same(state, svg(make(), size, keys=keys, source_around=source_around, settings=DARK))


async def test_a_replay_looks_as_it_did(look_same):
    recording = Recording(RECORDINGS / "slow-loader.jsonl.gz")
    feed = ReplayFeed(recording)
    app = ReplayApp(feed, title="replay of slow-loader.jsonl.gz", settings=DARK)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("space")
        eyes = Eyes(app, pilot)
        await eyes.until_true(lambda: feed.position().duration and not feed._outline._thread.is_alive(), "an outline")
        feed.seek_to(12.0)
        await eyes.until_true(
            lambda: feed.position().seeking is None and getattr(app.screen.view.snapshot, "tick", None) == 15,
            "the picture of tick 15",
        )
        app.screen._follow()
        await pilot.pause()
        look_same("replay", app.export_screenshot())
    feed.stop()


def test_the_picker_looks_as_it_did(look_same):
    look_same("picker", picker_svg(samples.candidates(), (100, 12), DARK))


@pytest.mark.parametrize(("name", "keys"), [("fleet", ()), ("fleet-ranks", ("down", "down", "enter"))])
def test_the_fleet_looks_as_it_did(look_same, name, keys):
    look_same(name, fleet_svg(Still(), (120, 24), DARK, keys))


def test_a_letter_or_a_colour_makes_a_picture_different():
    drawn = svg(samples.waiting(), (80, 24), settings=DARK)
    assert cells(drawn) == cells(unnumbered(drawn))
    assert cells(drawn) != cells(drawn.replace("looking", "lacking"))
    ink = next(style for style in re.findall(r"fill: (#[0-9a-f]{6})", drawn))
    assert cells(drawn) != cells(drawn.replace(ink, "#123456"))
