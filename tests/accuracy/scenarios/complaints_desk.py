"""An asyncio service that tells the mood of texts, and cuts them into pieces letter by letter.

--fixed remembers the pieces of texts that come again.
"""

import asyncio
import random
import re

import torch
from torch import nn

from runlog import RunLog, arguments


class Cutter:
    def __init__(self, words, remember):
        self.pieces = {word[:end]: number for number, word in enumerate(words) for end in range(1, 5)}
        self.known = {} if remember else None

    def cut(self, text):
        ids = []
        for word in re.findall(r"\w+", text.lower()):
            while word:
                for end in range(len(word), 0, -1):
                    if word[:end] in self.pieces:
                        ids.append(self.pieces[word[:end]] % 2000)
                        word = word[end:]
                        break
                else:
                    word = word[1:]
        return ids[:256]

    def __call__(self, text):
        if self.known is None:
            return self.cut(text)
        if text not in self.known:
            self.known[text] = self.cut(text)
        return self.known[text]


class Mood(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(2000, 96), nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 3))

    def forward(self, ids):
        return self.out(self.table(ids).mean(1))


class Desk:
    def __init__(self, args, log):
        letters = "etaoinshrdlucm"
        words = ["".join(random.choices(letters, k=random.randint(2, 11))) for _ in range(4000)]
        self.texts = [" ".join(random.choices(words, k=args.words)) for _ in range(40)]
        self.cutter, self.net, self.log = Cutter(words, args.fixed), Mood().eval(), log
        self.inbox = asyncio.Queue(32)

    async def customers(self):
        while True:
            await self.inbox.put(random.choice(self.texts))

    async def answer(self):
        while True:
            text = await self.inbox.get()
            ids = torch.tensor([self.cutter(text)])
            with torch.inference_mode():
                mood = self.net(ids).softmax(-1)
            if self.log.step(mood.max()):
                break
            await asyncio.sleep(0)

    async def run(self):
        customers = asyncio.create_task(self.customers())
        await self.answer()
        customers.cancel()


def main():
    args = arguments(__doc__, words=150)
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    async def serve():
        await Desk(args, RunLog(args)).run()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
