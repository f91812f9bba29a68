"""Ask the server `serve` for labels of texts, as several clients that think between two requests, until it is gone."""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time

VOCABULARY, LENGTH, USERS = 4096, 96, 1_000_000
THINKING = 0.08  # mean seconds between an answer and the next request


def ask(port: int, seed: int) -> None:
    """Ask, think, and ask again."""
    chance = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        while True:
            tokens = [chance.randrange(VOCABULARY) for _ in range(LENGTH)]
            body = json.dumps({"user": chance.randrange(USERS), "tokens": tokens})
            connection.request("POST", "/classify", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
            time.sleep(chance.expovariate(1 / THINKING))
    except (OSError, http.client.HTTPException):
        return


def main(port: int, clients: int, seed: int) -> None:
    for number in range(clients):
        threading.Thread(target=ask, args=(port, seed + number)).start()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
