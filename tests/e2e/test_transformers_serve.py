"""`transformers serve` with a tiny random model made on the spot: known as what it is, its requests measured."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest
from serving_run import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECONDS, TOKENS, CLIENTS = 8.0, 8, 2


# A model of two layers and a tokenizer of single bytes. Made in a process of its own: pytest is to have no torch.
MAKE_MODEL = """
import sys, tokenizers, transformers
folder = sys.argv[1]
letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *sorted(letters)])}
tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[], unk_token="<unk>"))
tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
    chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
).save_pretrained(folder)
config = transformers.LlamaConfig(
    vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
)
transformers.LlamaForCausalLM(config).save_pretrained(folder)
"""


@pytest.fixture
def model(tmp_path: Path, printed) -> Path:
    """The folder with the model."""
    for package, reason in (("openai", "transformers serve needs the client's types"), ("transformers", None)):
        if find_spec(package) is None:
            pytest.skip(reason or f"{package} is not installed")
    printed(dict(os.environ), MAKE_MODEL, tmp_path / "model")
    return tmp_path / "model"


def test_it_is_known_and_its_requests_are_those_of_the_clients(model: Path, start, diagnose):
    port = free_port()
    program = Path(sys.executable).with_name("transformers")
    process = start(
        [sys.executable, str(program), "serve", str(model), "--port", str(port), "--device", "cpu"], wait=False
    )
    chat = {"model": str(model), "messages": [{"role": "user", "content": "hello"}], "max_tokens": TOKENS}
    asked = urllib.request.Request(
        f"http://localhost:{port}/v1/chat/completions", json.dumps(chat).encode(), {"Content-Type": "application/json"}
    )
    until = time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(asked, timeout=60).read()
            break
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None and time.monotonic() < until, "the server does not answer"
            time.sleep(0.3)
    waits: list[float] = []
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            begin = time.monotonic()
            urllib.request.urlopen(asked, timeout=60).read()
            waits.append(time.monotonic() - begin)

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        # Again where the machine has served in fits and starts meanwhile.
        for _ in range(3):
            first = len(waits)
            report = diagnose(process.pid, SECONDS)
            p50 = 1e3 * median(waits[first:])
            serving = report["serving"] or {"latency_ms": {"p50": 0.0}, "concurrency": 0.0}
            figures = serving["latency_ms"]["p50"], serving["concurrency"]
            if figures == (pytest.approx(p50, rel=0.25), pytest.approx(CLIENTS, rel=0.3)):
                break
    finally:
        over.set()
        for client in clients:
            client.join()

    assert report["target"]["engine"] == f"transformers serve {version('transformers')}"
    assert report["target"]["kind"] == "inference"
    assert [member["part"] for member in report["target"]["processes"]] == ["API server"]
    serving = report["serving"]
    assert serving["basis"] == "hook"
    assert serving["concurrency"] == pytest.approx(CLIENTS, rel=0.3)
    assert serving["latency_ms"]["p50"] == pytest.approx(p50, rel=0.25)
