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
    with context.Pool(2) if kind == "pool" else ProcessPoolExecutor(2, mp_context=context) as pool:
        # Until the pool has started, the main process works as well.
        list(pool.map(prepare, range(2)))
        print("step 1: the pool prepares", flush=True)
        while time.monotonic() < until:
            list(pool.map(prepare, range(64)))


if __name__ == "__main__":
    main()
