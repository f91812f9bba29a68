"""Code of small programs that start processes: a run with workers, something that sleeps."""

from __future__ import annotations

# Stands for a loader worker: torch gives its workers this name.
NAME_WORKER = "open('/proc/self/comm', 'w').write('pt_data_worker')"
FORK_TWO = f"""import os, time
for _ in range(2):
    if os.fork() == 0:
        {NAME_WORKER}
        time.sleep(60)
        os._exit(0)
print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    sum(range(10000))
"""
SPAWN_TWO = f"""
import multiprocessing as mp, os, time
def work(queue):
    {NAME_WORKER}
    queue.put(1)
    time.sleep(60)
if __name__ == "__main__":
    context = mp.get_context("METHOD")
    queue = context.Queue()
    for _ in range(2):
        context.Process(target=work, args=(queue,), daemon=True).start()
    queue.get(), queue.get()
    print("ready", flush=True)
    time.sleep(60)
"""
SLEEP = "import time; print('ready', flush=True); time.sleep(60)"
