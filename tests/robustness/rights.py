"""Whether `aitop doctor` predicts what then works, for each setting of users, rights and limits.

In each setting (users, capabilities, containers, folders, limits) a small training run is started, and aitop is asked
three things: `doctor --pid` what will work, `diagnose --pid` what then does, and the screen whether it comes up. A
setting is wrong where the doctor was wrong, anything ended in a traceback or in more than a sentence, the run came to
harm, or a file was left in its folders. A setting that needs rights or a program that are missing here is skipped and
named. Some hide /tmp: neither this file nor the Python may lie there, and other users have to be able to run both. Run
it with no other program beside it: in four seconds the hook has to be in.

    sudo python tests/robustness/rights.py [WORD ...]        only settings with these words in their names
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, options, publish  # isort: split

from rights_settings import SETTINGS, Setting, lacking
from terminal import OnTerminal

RUN = Path(__file__).with_name("rights_run.py")
SECONDS = 4
PATIENCE = 60.0
SCREEN = re.compile(r"\bStep\b|\bstep/s\b|Verdict")
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][0-9A-B]|[=>78]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


@dataclass(frozen=True)
class Outcome:
    """What was said and what was so; `complaints` is empty where all is as it should be."""

    setting: str
    doctor: str
    diagnose: str
    screen: str
    complaints: tuple[str, ...]


class Target:
    """The training run of a setting: `pid` as seen from here, `inner` as it sees itself. Use as a context."""

    def __init__(self, setting: Setting, python: str, folder: Path) -> None:
        self._log = folder / "log"
        self.home = folder / "home"
        self.home.mkdir()
        folder.chmod(0o755)
        self.home.chmod(0o777)
        command = [*setting.target, python, str(RUN), *setting.options]
        env = {**os.environ, "HOME": str(self.home), "AITOP_RUN_HOME": str(self.home)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd="/", start_new_session=True
            )
        self.pid, self.inner = self.process.pid, 0

    def __enter__(self) -> Target:
        deadline = time.monotonic() + PATIENCE
        while self.steps() < 3:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"the run did not start: {self._log.read_text()[-300:]}")
            time.sleep(0.1)
        self.inner = int(re.findall(r"^pid (\d+)$", self._log.read_text(), re.MULTILINE)[0])
        family = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        self.pid = next(
            process.pid for process in family if str(RUN) in process.cmdline() and "python" in process.name()
        )
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def steps(self) -> int:
        """How many it has told of."""
        return self._log.read_text().count("step ")

    def files(self) -> set[str]:
        """What lies in its folders."""
        requests = (
            path for folder in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(folder).glob(f".aitop-{self.pid}-*")
        )
        return {str(path) for path in (*self.home.rglob("*"), *requests)}


def command_of(setting: Setting, target: Target, python: str, arguments: Sequence[str]) -> list[str]:
    """aitop in this setting, told of the run by the pid that it has there."""
    inside = ["nsenter", f"--target={target.pid}", *setting.enter] if setting.enter else []
    pid = target.inner if setting.enter else target.pid
    return [*inside, *setting.aitop, python, "-m", "aitop", *(word.format(pid=pid) for word in arguments)]


def asked(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """aitop's answer, without a terminal."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL, cwd="/"
    )


def on_screen(command: Sequence[str], seconds: float) -> tuple[int | None, str]:
    """The exit code of aitop in a terminal of 120 × 36, asked to leave after so many seconds, and all its text.

    Where it ended by itself, the text is what the terminal shows then.
    """
    with OnTerminal(command, before=lambda: os.chdir("/")) as program:
        alone = program.wait(seconds) is not None
        if not alone:
            program.press(b"q")
            program.wait(15)
    return program.code, program.screen.left if alone else ESCAPES.sub("", program.raw.decode("utf-8", "replace"))


def try_out(setting: Setting, python: str) -> Outcome:
    """Start the run, ask the three, look at what is left."""
    with tempfile.TemporaryDirectory(prefix="aitop-rights-") as name, Target(setting, python, Path(name)) as target:
        before = target.files()
        said = asked(command_of(setting, target, python, ("doctor", "--pid", "{pid}", "--format", "json")))
        words = ("diagnose", "--pid", "{pid}", "--for", f"{SECONDS}s", "--format", "json", "--no-gpu")
        with ThreadPoolExecutor() as pool:
            reported = pool.submit(asked, command_of(setting, target, python, words))
            shown = on_screen(command_of(setting, target, python, ("--pid", "{pid}", "--no-gpu")), SECONDS)
            diagnosed = reported.result()
        steps = target.steps()
        time.sleep(0.5)
        wrong = [] if target.steps() > steps else ["the run stands still"]
        wrong += [f"left behind: {path}" for path in sorted(target.files() - before)]
    return judge(setting, said, diagnosed, shown, wrong)


def at_all(setting: Setting, python: str) -> Outcome:
    """The same, whatever goes wrong with it."""
    try:
        return try_out(setting, python)
    except (OSError, LookupError, RuntimeError, subprocess.TimeoutExpired) as error:
        return Outcome(setting.name, "–", "–", "–", (" ".join(str(error).split()),))


def judge(
    setting: Setting,
    said: subprocess.CompletedProcess[str],
    diagnosed: subprocess.CompletedProcess[str],
    screen: tuple[int | None, str],
    wrong: list[str],
) -> Outcome:
    """Hold the doctor's lines against what happened."""
    try:
        lines = {check["name"]: check for check in json.loads(said.stdout)["checks"]}
    except ValueError:
        lines = {}
        wrong.append(f"doctor: {said.returncode} {said.stderr[-300:]}")
    predicted = {name: lines.get(name, {"state": "–"})["state"] == "works" for name in ("process", "stacks", "hook")}
    # Without threads nothing can be done, whatever the process is.
    limited = (1,) if lines.get("threads", {}).get("state") == "does-not" else ()
    predicted["process"] = predicted["process"] and not limited
    state = "does-not" in [check["state"] for check in lines.values()]
    if lines and said.returncode != int(state):
        wrong.append(f"doctor left with {said.returncode}")
    got, sources = _sources(diagnosed, (3, 4, *limited), wrong)
    if got["process"] != predicted["process"]:
        wrong.append(
            f"doctor: process {predicted['process']}; diagnose: {diagnosed.returncode} {diagnosed.stderr.strip()}"
        )
    # With too few descriptors some of what is tried alone works, and all of it together does not.
    scarce = lines.get("descriptors", {}).get("state") == "does-not"
    if got["process"] and not scarce:
        for name in ("stacks", "hook"):
            if got[name] != predicted[name]:
                wrong.append(f"doctor: {name} {lines.get(name)}; diagnose: {sources.get(name)}")
    drawn = bool(SCREEN.search(screen[1]))
    last = screen[1].strip().splitlines()[-1:] or [""]
    if drawn != got["process"] or (drawn and screen[0] != 0) or "Traceback" in screen[1]:
        wrong.append(f"screen: {screen[0]} {last[0][-300:]}")
    if not drawn and (screen[0] not in (2, 3, 4, *limited) or screen[1].strip().count("\n")):
        wrong.append(f"screen: more than one sentence, or exit code {screen[0]}: {screen[1][-400:]}")
    faults = [f"{name}: {check['reason']}" for name, check in lines.items() if check["state"] == "does-not"]
    return Outcome(
        setting.name,
        _short(predicted) + "".join(f"<br>{words}" for words in faults),
        f"{_short(got)} ({diagnosed.returncode})" + f"<br>{diagnosed.stderr.strip()}" * bool(diagnosed.stderr.strip()),
        "drawn" if drawn else f"{screen[0]}: {last[0]}",
        tuple(wrong),
    )


def _sources(
    diagnosed: subprocess.CompletedProcess[str], refusals: tuple[int, ...], wrong: list[str]
) -> tuple[dict[str, bool], dict[str, Any]]:
    if "Traceback" in diagnosed.stderr or diagnosed.stderr.strip().count("\n"):
        wrong.append(f"diagnose: {diagnosed.stderr[-600:]}")
    if not diagnosed.stdout:
        if diagnosed.returncode not in refusals or not diagnosed.stderr.startswith("aitop: "):
            wrong.append(f"diagnose: {diagnosed.returncode} {diagnosed.stderr[-300:]}")
        return dict.fromkeys(("process", "stacks", "hook"), False), {}
    report = json.loads(diagnosed.stdout)
    sources = report["sources"]
    if diagnosed.returncode not in (0, 5):
        wrong.append(f"diagnose left with {diagnosed.returncode}")
    got = {name: sources[name]["state"] == "ok" for name in ("stacks", "hook")}
    # On a full machine the first look may still be to come.
    got["stacks"] = got["stacks"] and bool(report["ledger"])
    return {"process": True, **got}, sources


def _short(what: dict[str, bool]) -> str:
    return ", ".join(name if works else f"no {name}" for name, works in what.items())


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="parts of settings' names (default: all)")
    parser.add_argument("--python", default=sys.executable, help="one that other users can run, with torch and aitop")
    parser.add_argument("-j", "--jobs", type=int, default=3, help="so many settings at a time")
    parser.add_argument("--list", action="store_true", help="only name the settings")
    args = parser.parse_args()
    if args.list:
        print("\n".join(setting.name for setting in SETTINGS))
        return 0
    chosen = [each for each in SETTINGS if not args.words or any(word in each.name for word in args.words)]
    lacks = {setting.name: lacking(setting, args.python) for setting in chosen}
    print("| setting | doctor | diagnose (exit code) | screen | wrong |\n|---|---|---|---|---|", flush=True)
    wrong = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for done in pool.map(partial(at_all, python=args.python), [each for each in chosen if not lacks[each.name]]):
            wrong += [done.setting] if done.complaints else []
            cells = (done.setting, done.doctor, done.diagnose, done.screen, "; ".join(done.complaints) or "–")
            print("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |", flush=True)
    left_out = [f"{name}: {missing}" for name, missing in lacks.items() if missing]
    for words in left_out:
        print(f"left out: {words}")
    spread = f"of {len(chosen) - len(left_out)}, {len(left_out)} left out" + "".join(f"; {name}" for name in wrong)
    judged = len(wrong) if len(left_out) < len(chosen) else None
    return publish(args, [Figure("settings in which something was wrong", judged, most=0, spread=spread)])


if __name__ == "__main__":
    sys.exit(main())
