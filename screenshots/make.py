"""Draws every picture of this folder: `python screenshots/make.py [NAME ...] [-o FOLDER]`. Twice gives the same bytes.

They show the ends of recordings, those of `h100` on a real one: the GPU of `simulated-gpu` is the fake NVML of the
tests, on a run that is real. Only the jobs of the picker and of the fleet are made up. SVG comes from the program
itself; PNG needs a headless Chromium and is left out without it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from pictures import ScreenName, fleet_svg, picker_svg, svg

from aitop.engine.core import Engine
from aitop.model.job import Candidate
from aitop.model.settings import Settings
from aitop.model.snapshot import Snapshot
from aitop.outputs.html.page import to_html
from aitop.sources.replay import read_recording

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
RECORDINGS = TESTS / "recordings"
SCRIPTS = (HERE.parent / "aitop" / "workloads", TESTS / "e2e" / "ranks", TESTS / "gpu" / "scripts")

H100 = "gpu/recordings/gpu_transfer_bound.t3"
PANES = ("verdict", "step", "gpu", "data", "memory", "code")


class Picture(NamedTuple):
    """One picture: the recording it shows the end of, its size in columns and rows, and what is done there first.

    A recording has a name in tests/recordings, or a path below tests.
    """

    name: str
    recording: str = "slow-loader"
    size: tuple[int, int] = (120, 36)
    screen: ScreenName = "monitor"
    zoom: str | None = None
    theme: str = "dark"
    keys: tuple[str, ...] = ()


PICTURES = (
    Picture("monitor-80x24", size=(80, 24)),
    Picture("monitor-120x36"),
    Picture("monitor-200x50", size=(200, 50)),
    Picture("evidence-120x36", screen="evidence"),
    Picture("tree-120x36", screen="tree", zoom="code"),
    Picture("flame-120x36", screen="flame", zoom="code"),
    Picture("processes-120x36", screen="processes"),
    Picture("ranks-120x36", "straggler"),
    Picture("hang-120x36", "hang", screen="hang"),
    Picture("healthy-120x36", "healthy"),
    Picture("serving-80x24", "serve", (80, 24)),
    Picture("serving-120x36", "serve"),
    Picture("serving-200x50", "serve", (200, 50)),
    Picture("zoom-serving", "serve", zoom="serving"),
    Picture("h100-80x24", H100, (80, 24)),
    Picture("h100-120x36", H100),
    Picture("h100-200x50", H100, (200, 50)),
    Picture("simulated-gpu-120x36", "simulated-gpu"),
    Picture("simulated-gpu-200x50", "simulated-gpu", (200, 50)),
    *(Picture(f"zoom-{pane}", "simulated-gpu", zoom=pane) for pane in PANES),
    Picture("light-120x36", "simulated-gpu", theme="light"),
    Picture("colour-blind-120x36", "simulated-gpu", theme="colour-blind"),
    Picture("help-120x36", screen="help"),
)

FLEET: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
    "fleet-80x24": ((80, 24), ()),
    "fleet-120x36": ((120, 36), ()),
    "fleet-200x50": ((200, 50), ()),
    "fleet-ranks-120x36": ((120, 36), ("down", "down", "enter")),
}
"""Pictures of a cluster: size, and the keys that are pressed."""


def last_snapshot(name: str) -> Snapshot:
    """The recording's last picture."""
    folder = TESTS if "/" in name else RECORDINGS
    header, events = read_recording(folder / f"{name}.jsonl.gz")
    engine, last = Engine(header.target), None
    for event in events:
        last = engine.handle(event) or last
    assert last is not None, f"{name} holds no tick"
    return last


def candidates() -> list[Candidate]:
    """Three jobs, as the tests of the screen make them up."""
    sys.path.insert(0, str(HERE.parent / "tests" / "ui"))
    import sample_snapshots  # noqa: PLC0415

    made_up: list[Candidate] = sample_snapshots.candidates()
    return made_up


def around(script: str, line: int) -> list[tuple[int, str]] | None:
    """Lines of the script of that name in this checkout: the recorded path is another machine's."""
    path = next((one for folder in SCRIPTS if (one := folder / Path(script).name).is_file()), None)
    if path is None:
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    if line == 0:
        return list(enumerate(lines, 1))
    first = max(1, line - 6)
    return [(number, lines[number - 1]) for number in range(first, min(len(lines), line + 6) + 1)]


def draw(picture: Picture, folder: Path) -> None:
    """Write NAME.svg, and NAME.png where there is a converter."""
    drawn = svg(
        last_snapshot(picture.recording),
        picture.size,
        screen=picture.screen,
        live=picture.screen != "hang",  # what a recording has of it
        keys=picture.keys,
        zoom=picture.zoom,
        settings=Settings(theme=picture.theme),
        source_around=lambda _pid, file, line: around(file, line),
    )
    keep(folder / picture.name, drawn)


def report(name: Path, recording: str, size: tuple[int, int]) -> None:
    """Write NAME.png: the top of the HTML report, as wide and high as `size`. Needs a Chromium."""
    shot = last_snapshot(recording)
    written = to_html(shot, lambda _pid, file, line: around(file, line))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(written, encoding="utf-8")
        photograph(page, name.with_suffix(".png"), size)
    print(f"{name.name}.png")


def keep(name: Path, drawn: str) -> None:
    """Write both forms of a picture."""
    path = name.with_suffix(".svg")
    path.write_text(drawn, encoding="utf-8")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    if size is not None:
        photograph(path, path.with_suffix(".png"), (round(float(size[1])), round(float(size[2]))))
    print(path.name)


def photograph(page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Write what a browser of this size shows; nothing without a browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return
    with tempfile.TemporaryDirectory() as profile:
        quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
        where = [f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        command = [browser, *quiet, *where, f"--screenshot={picture}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def draw_fleet(name: Path, size: tuple[int, int], keys: tuple[str, ...]) -> None:
    """The jobs of the made-up cluster of the tests, or the ranks of one of them."""
    sys.path.insert(0, str(TESTS / "fakes"))
    import fake_prometheus  # noqa: PLC0415

    keep(name, fleet_svg(fake_prometheus.Still(), size, Settings(theme="dark"), keys))


def main() -> None:
    """Draw the named pictures, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which pictures (default: all)")
    parser.add_argument("-o", "--into", type=Path, default=HERE, metavar="FOLDER", help="where to (default: here)")
    args = parser.parse_args()
    names, folder = args.names, args.into
    for picture in PICTURES:
        if not names or picture.name in names:
            draw(picture, folder)
    if not names or "picker-100x12" in names:
        keep(folder / "picker-100x12", picker_svg(candidates(), (100, 12), Settings(theme="dark")))
    for name, (size, keys) in FLEET.items():
        if not names or name in names:
            draw_fleet(folder / name, size, keys)
    if not names or "report-1000" in names:
        report(folder / "report-1000", "slow-loader", (1000, 1685))


if __name__ == "__main__":
    main()
