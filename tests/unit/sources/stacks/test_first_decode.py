"""Several feeds of one exporter may be the first to decode an answer: msgspec must have its types by then.

msgspec learns a type when it first decodes it, and crashes the whole process if another thread decodes it meanwhile.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

STRESS = """
import importlib.util, sys, threading
sys.setswitchinterval(1e-6)
name, count, threads = sys.argv[1], 20, 12
answers = {
    "aitop.sources.stacks.speedscope": (
        b'{"profiles": [{"name": "a", "samples": [[0]]}], "shared": {"frames": [{"name": "f"}]}}', frozenset()
    ),
    "aitop.sources.stacks.dump": (
        b'[{"pid": 1, "thread_id": 1, "thread_name": "a", "os_thread_id": 1, "active": true, "owns_gil": false, '
        b'"frames": [{"name": "f", "filename": "x", "line": 1}]}]',
    ),
}
source = importlib.util.find_spec(name)
importlib.import_module(name)
for number in range(count):
    spec = importlib.util.spec_from_file_location(f"{name}_{number}", source.origin)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    barrier = threading.Barrier(threads)
    def first():
        barrier.wait()
        for _ in range(20):
            module.parse(*answers[name])
    running = [threading.Thread(target=first) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
print("done")
"""


@pytest.mark.parametrize("module", ["aitop.sources.stacks.speedscope", "aitop.sources.stacks.dump"])
def test_threads_that_are_the_first_to_decode_do_not_crash(module):
    done = subprocess.run([sys.executable, "-c", STRESS, module], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
