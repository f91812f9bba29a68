"""Runs any program on the fake NVML: `python tests/fakes/nvml/run.py h200-busy -- aitop --pid 4242`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import fake_nvml


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="?", help="a name from --list, or the path of a scenario file")
    parser.add_argument("--list", action="store_true", help="names of the scenarios that lie ready")
    parser.add_argument("--log", type=Path, help="write one line for every call into this file")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    command = words[end + 1 :]
    arguments = parser.parse_args(words[:end])
    if arguments.list:
        print("\n".join(fake_nvml.scenarios()))
        return
    if arguments.scenario is None or not command:
        parser.error("give a scenario, --, and a command")
    if not fake_nvml.scenario_path(arguments.scenario).is_file():
        parser.error(f"no such scenario: {arguments.scenario}")
    os.execvpe(command[0], command, fake_nvml.environment(arguments.scenario, log=arguments.log))


if __name__ == "__main__":
    main()
