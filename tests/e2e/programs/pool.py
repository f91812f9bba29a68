"""Prepares data with numpy in a pool of processes, while the main process waits for them.

python pool.py (pool|executor) START_METHOD SECONDS
"""

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy


def prepare(seed):
    image = numpy.random.default_rng(seed).random((512, 512))
    for _ in range(4):
        image = numpy.sort(image, axis=0)
        image = numpy.fft.rfft2(image).real
    return float(image.std())


def main():
    kind, method, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    until = time.monotonic() + seconds
    context = multiprocessing.get_context(method)
    print("step 1: it prepares", flush=True)
    if kind == "pool":
        with context.Pool(2) as workers:
            while time.monotonic() < until:
                workers.map(prepare, range(64))
        return
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        while time.monotonic() < until:
            list(executor.map(prepare, range(64)))


if __name__ == "__main__":
    main()
