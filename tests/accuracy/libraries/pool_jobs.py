"""A pool of processes whose jobs are short, and each of them brings a large table along."""

import multiprocessing
from functools import partial

import numpy as np

TABLE = np.random.default_rng(7).standard_normal(1_500_000, dtype=np.float32)


def score(start, *, table, weights):
    total = 0.0
    for step in range(300):
        window = table[start + step : start + step + weights.size]
        total += float(np.tanh(window @ weights))
    return total


def main():
    weights = np.zeros(64, dtype=np.float32)
    rng = np.random.default_rng(0)
    with multiprocessing.Pool(2) as pool:
        while True:
            starts = rng.integers(0, TABLE.size - 1000, size=16).tolist()
            totals = pool.map(partial(score, table=TABLE, weights=weights), starts, chunksize=1)
            weights += 1e-3 * float(np.mean(totals)) + 1e-3


if __name__ == "__main__":
    main()
