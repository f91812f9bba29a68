"""Ask the server `serve` for labels of texts, as several clients that think between two requests, until it is gone."""

from __future__ import annotations

import asyncio
import json
import random
import sys

VOCABULARY, LENGTH, USERS, CLIENTS = 4096, 96, 1_000_000, 4
THINKING = 0.08  # mean seconds between an answer and the next request


async def ask(port: int, seed: int) -> None:
    """Ask, think, and ask again, over one connection."""
    chance = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        tokens = [chance.randrange(VOCABULARY) for _ in range(LENGTH)]
        body = json.dumps({"user": chance.randrange(USERS), "tokens": tokens}).encode()
        writer.write(b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
        await asyncio.sleep(chance.expovariate(1 / THINKING))


async def main(port: int) -> None:
    await asyncio.gather(*(ask(port, seed) for seed in range(CLIENTS)), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
