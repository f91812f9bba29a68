"""What each way to start aitop imports: no library, and no part of aitop, that it does not need yet."""

import subprocess
import sys

import pytest


def test_neither_the_screen_nor_the_names_of_kept_runs_load_openssl():
    code = """
import sys
import aitop.ui.app
from aitop.diagnosis.run_summary import digest
assert digest("train.py") == digest("train.py") != digest("train.pz") and len(digest("\\udce4")) == 16
loaded = [line for line in open("/proc/self/maps") if "libcrypto" in line or "libssl" in line]
assert not loaded, loaded
import asyncio, ssl, hashlib
assert ssl.create_default_context() and asyncio.run(asyncio.sleep(0, True))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SCREEN = ("textual", "rich", "pynvml", "torch")


EXPLAIN = "from aitop import cli; cli.run(['explain', 'oom-risk'])"


DIAGNOSE = "from aitop import cli; cli.parse(['diagnose', '--pid', '1'])"


SCREEN_ALONE = "import aitop.cli, aitop.commands.monitor, aitop.ui.app, aitop.engine.feed"


WITHOUT_SCREEN = "import aitop.cli, aitop.commands.headless, aitop.engine.live, aitop.outputs.text"


FEW_NEED = ("asyncio", "concurrent", "hashlib", "html", "jinja2", "logging", "pickletools", "pynvml", "ssl", "textual")


@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("import aitop", ("msgspec", "torch", "argparse")),
        ("from aitop import cli; cli.build_parser()", (*SCREEN, "prometheus_client", "opentelemetry")),
        (DIAGNOSE, ("aitop.commands.demo", "aitop.commands.export", "aitop.commands.doctor")),
        (EXPLAIN, SCREEN),
        (WITHOUT_SCREEN, FEW_NEED),
        # The screen is there before rules and sources are.
        (SCREEN_ALONE, ("aitop.diagnosis.rules", "aitop.engine.core", "aitop.engine.live", "aitop.attach")),
    ],
    ids=["the package", "the command line", "a verb", "explain", "without a screen", "the screen"],
)
def test_nothing_is_imported_that_is_not_needed_yet(code, others):
    prefixes = tuple(f"{one}." for one in others)
    code += f"; import sys; print([name for name in sys.modules if f'{{name}}.'.startswith({prefixes})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_imports_are_not_searched_for_garbage():
    code = """
import gc, sys
from aitop.__main__ import main

def collections():
    return sum(generation["collections"] for generation in gc.get_stats())

before, sys.argv = collections(), ["aitop", "--help"]
try:
    main()
except SystemExit:
    print("collections:", collections() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.rpartition("collections:")[2]) < 5
