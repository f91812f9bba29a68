"""Builds the fake libnvidia-ml.so.1 and says which environment a program needs to run on it. See README.md."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCENARIOS = HERE / "scenarios"
SOURCES = ("scenario.c", "session.c", "device.c", "activity.c")
LIBRARY = "libnvidia-ml.so.1"


class NoCompilerError(Exception):
    """There is no C compiler on this machine."""


def scenarios() -> list[str]:
    """Names of the scenarios that lie ready."""
    return sorted(path.stem for path in SCENARIOS.glob("*.txt") if not path.stem.startswith("base-"))


def scenario_path(scenario: str | Path) -> Path:
    """The file of a scenario given by name or path."""
    named = SCENARIOS / f"{scenario}.txt"
    return named if named.is_file() else Path(scenario).resolve()


def write_scenario(path: Path, text: str) -> Path:
    """Write a scenario file; it may include those that lie ready."""
    lines = [line.strip() for line in text.strip().splitlines()]
    for number, line in enumerate(lines):
        words = line.split()
        if len(words) == 2 and words[0] == "include" and not words[1].startswith("/"):
            lines[number] = f"include {SCENARIOS / words[1]}"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def missing_functions(path: Path) -> list[str]:
    """Functions that the library for this scenario must not have, included files counted in."""
    missing: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "missing":
            missing.add(words[1])
        elif len(words) == 2 and words[0] == "include":
            missing.update(missing_functions(path.parent / words[1]))
    return sorted(missing)


def build(missing: list[str]) -> Path:
    """The folder with the library without `missing`, built if it is not there yet. Raises NoCompilerError."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler (cc, gcc or clang) to build the fake NVML with")
    script = "{ global: nvml*; local: " + "".join(f"{name}; " for name in missing) + "*; };\n"
    key = hashlib.sha256(script.encode())
    for name in ("fake.h", *SOURCES):
        key.update((HERE / name).read_bytes())
    cache = Path(tempfile.gettempdir()) / f"aitop-fake-nvml-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise PermissionError(f"{cache} belongs to somebody else")
    folder = cache / key.hexdigest()[:16]
    if (folder / LIBRARY).is_file():
        return folder
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        version_script = Path(scratch) / "exports.map"
        version_script.write_text(script, encoding="utf-8")
        built = Path(scratch) / LIBRARY
        sources = [str(HERE / name) for name in SOURCES]
        linking = [f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={version_script}"]
        command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", *linking]
        subprocess.run([*command, "-o", str(built), *sources], check=True)
        folder.mkdir(exist_ok=True)
        built.replace(folder / LIBRARY)  # whole or not at all, even if two tests build it at once
    return folder


def environment(scenario: str | Path, log: Path | None = None, **variables: str) -> dict[str, str]:
    """This process's environment, made so that a child finds the fake NVML with `scenario` (a name or a path).

    `log` gets one line a call: seconds, thread, function, device, code. `variables` are for `$NAME` pids.
    """
    path = scenario_path(scenario)
    folder = build(missing_functions(path))
    before = os.environ.get("LD_LIBRARY_PATH")
    made = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{folder}:{before}" if before else str(folder),
        "FAKE_NVML_SCENARIO": str(path),
        **variables,
    }
    if log is not None:
        made["FAKE_NVML_LOG"] = str(log)
    return made
