"""The jobs of a cluster on the screen, from a server that answers as Prometheus does."""

from __future__ import annotations

import base64
import re
import threading
from contextlib import asynccontextmanager

import pytest
import sample_serving as serving
import sample_snapshots as samples
from eyes import Eyes
from fake_prometheus import COMPUTE, HANG, INPUT, Rank, four_jobs, large, served, vector
from hostile_text import EVIL, assert_safe
from keys_of_screens import CLASSES, heard_from

from aitop.model.fleet import FleetRank
from aitop.sources.prometheus.address import parse
from aitop.sources.prometheus.fleet import FleetReader
from aitop.ui.app import FleetApp

NEVER = 1e6


class FleetEyes(Eyes):
    """With what was copied, and the table."""

    def __init__(self, app, pilot):
        super().__init__(app, pilot)
        self.copied = []

    def marked(self):
        """The row under the cursor."""
        return next(line for line in self.text().split("\n") if line.startswith("│ ▸"))

    def words(self, number=2):
        """The first words of the rows of the table."""
        lines = [line[2:].split()[:number] for line in self.text().split("\n")[3:] if line.startswith("│")]
        return [" ".join(words) for words in lines if words and words[0] not in ("│", "ssh")]


@asynccontextmanager
async def looking(fake, size=(120, 24), until=" ranks on "):
    app = FleetApp(FleetReader(parse(fake.url), 3600.0), NEVER)
    async with app.run_test(size=size) as pilot:
        eyes = FleetEyes(app, pilot)
        app.copy_to_clipboard = eyes.copied.append
        await eyes.until(until)
        yield eyes


async def test_what_wastes_most_comes_first():
    with served() as fake:
        async with looking(fake) as eyes:
            for size in ((80, 24), (120, 36), (200, 50)):
                await eyes.resize(*size)
                assert eyes.words(1) == ["▸", "loader-7", "ddp-8", "fine-1"]
                text = eyes.text()
                for words in (
                    "STALLED 2 of 2",
                    "input-bound/workers",
                    "decode.py:41",
                    "2.8×",
                    "1 job stalled",
                    "4.8 device-hours",
                ):
                    assert words in text


async def test_every_size_is_drawn():
    with served() as fake:
        async with looking(fake) as eyes:
            for size in ((1, 1), (9, 3), (20, 5), (39, 9), (60, 60), (240, 12)):
                await eyes.resize(*size)
                for keys in (("down", "enter"), ("slash", "x", "enter"), ("escape", "escape", "home")):
                    await eyes.press(*keys)
                    assert {len(row) for row in eyes.text().split("\n")} == {size[0]}
            assert type(eyes.app.screen).__name__ == "FleetScreen"


async def test_the_ranks_of_a_job_over_its_nodes_with_the_straggler():
    with served() as fake:
        async with looking(fake) as eyes:
            await eyes.press("down", "down", "enter")
            await eyes.until("The others wait 40 % of a step for rank 3 on gpu-b")
            assert eyes.words() == ["▸ 3", "0 gpu-a", "1 gpu-a", "2 gpu-b"]
            assert "ssh -t gpu-b aitop --pid 803   c copies it" in eyes.text()
            await eyes.press("c")
            assert eyes.copied == ["ssh -t gpu-b aitop --pid 803"]
            await eyes.press("down", "enter")
            assert eyes.copied[1:] == ["ssh -t gpu-a aitop --pid 800"]
            await eyes.press("escape")
            await eyes.until("ddp-8")


async def test_c_copies_the_command_for_the_worst_rank_of_a_job():
    with served() as fake:
        async with looking(fake) as eyes:
            await eyes.press("down", "down", "c")
            await eyes.until("ssh -t gpu-b aitop --pid 803   (copied")
            assert eyes.copied == ["ssh -t gpu-b aitop --pid 803"]


async def test_a_copy_goes_to_the_terminal_as_it_understands_it():
    """Only base64 gets there, whatever the text."""
    with served() as fake:
        app = FleetApp(FleetReader(parse(fake.url), 3600.0), NEVER)
        async with app.run_test() as pilot:
            written = []
            app._driver.write = written.append
            app.screen.show_command(FleetRank(node="gpu-b", rank=3, pid=803))
            await pilot.pause()
    (code,) = [output for output in written if output.startswith("\x1b]52;c;")]
    assert base64.b64decode(code[7:].rstrip("\a")).decode() == "ssh -t gpu-b aitop --pid 803"


async def test_a_node_that_is_no_host_gets_into_no_command():
    with served(Rank("j", "a;reboot", 0, 7, verdicts=(INPUT,))) as fake:
        async with looking(fake, until="on 1 node") as eyes:
            await eyes.press("c")
            await eyes.until("there is no rank with a node and a pid")
            await eyes.press("enter")
            await eyes.until("its node or pid is not known")
    assert eyes.copied == []


async def test_without_devices_it_says_what_the_order_is():
    with served(Rank("j", "n", 0, 7, verdicts=(INPUT,)), Rank("k", "n", 0, 8, verdicts=(COMPUTE,))) as fake:
        async with looking(fake) as eyes:
            assert "stalled first, then by the share of the first verdict" in eyes.text()
            assert "wasted in" not in eyes.text()


async def test_the_filter_leaves_the_rows_that_match():
    with served() as fake:
        async with looking(fake) as eyes:
            await eyes.press("slash", *"gpu-b")
            assert eyes.words(1) == ["hung-9", "ddp-8", "fine-1"]
            await eyes.press("enter")
            assert "Jobs · 4 · /gpu-b 3 match" in eyes.text()
            await eyes.press("escape")
            assert len(eyes.words(1)) == 4
            await eyes.press("slash", *"input", "escape")
            assert len(eyes.words(1)) == 4


async def test_keys_choose_the_column_to_sort_by_and_turn_the_order_round():
    with served() as fake:
        async with looking(fake) as eyes:
            await eyes.press("end", ">")
            assert eyes.words(1) == ["ddp-8", "▸", "hung-9", "loader-7"]
            assert "by job" in eyes.text()
            await eyes.press("I")
            assert eyes.words(1) == ["loader-7", "hung-9", "▸", "ddp-8"]
            await eyes.press(*">>>>")
            assert "by wasted" in eyes.text()
            assert eyes.words(1) == ["loader-7", "ddp-8", "hung-9", "▸"]
            await eyes.press(*"<<<<<<")
            assert eyes.words(1)[:2] == ["hung-9", "loader-7"]


async def test_asked_again_it_shows_what_is_new_and_the_cursor_stays_on_its_job():
    with served() as fake:
        async with looking(fake) as eyes:
            await eyes.press("down", "down")
            fake.change(*[rank for rank in four_jobs() if rank.job != "loader-7"], Rank("new", "n", 0, 5, 0.9))
            await eyes.press("r")
            await eyes.until("new")
            assert [row for row in eyes.words() if row.startswith("▸")] == ["▸ ddp-8"]


async def test_the_verdict_above_the_ranks_is_that_of_the_last_answer():
    with served(Rank("j", "n", 0, 7, verdicts=(INPUT,))) as fake:
        async with looking(fake, until="on 1 node") as eyes:
            await eyes.press("enter")
            await eyes.until("job j · input-bound/workers")
            fake.change(Rank("j", "n", 0, 7, verdicts=(COMPUTE,)))
            await eyes.press("r")
            await eyes.until("job j · compute-bound")


async def test_what_was_seen_stays_when_prometheus_is_gone_and_it_says_how_old_it_is():
    with served() as fake:
        async with looking(fake, (160, 24)) as eyes:
            fake.answer = lambda handler: handler.reply(503, b"<html>busy</html>")
            await eyes.pilot.pause(0.12)
            await eyes.press("r")
            await eyes.until("is no Prometheus")
            assert re.search(r"\d m?s old · http://127\.0\.0\.1", eyes.text())
            assert len(eyes.words(1)) == 4
            await eyes.press("down", "enter")
            await eyes.until("HTTP 503")
            await eyes.press("escape")
            fake.answer = None
            await eyes.press("r")
            await eyes.until_gone(" old · ")


@pytest.mark.parametrize("keys", [(), ("slash", *"zzz", "enter")], ids=["no jobs", "none matches"])
async def test_an_empty_table_says_that_prometheus_is_gone(keys):
    with served(*([] if not keys else four_jobs())) as fake:
        fake.answer = None if keys else lambda handler: handler.reply(200, watching(fake), "application/json")
        async with looking(fake, (160, 24), until=" on ") as eyes:
            await eyes.press(*keys)
            assert ("no row matches" if keys else "no AI job runs on 3 nodes") in eyes.text()
            fake.answer = lambda handler: handler.reply(503, b"<html>busy</html>")
            await eyes.press("r")
            await eyes.until(" old · http://127.0.0.1")


def watching(fake):
    """Answers that three nodes are watched, and that there is no job."""
    return vector([({}, 3.0)] if "aitop_jobs" in fake.asked[-1] else [])


async def test_nothing_but_a_sentence_where_there_never_was_an_answer():
    with served() as fake:
        fake.answer = lambda handler: handler.reply(401, b"")
        async with looking(fake, (80, 24), until="") as eyes:
            await eyes.until("lets nobody ask without the right name and password")
            await eyes.until("(HTTP 401): put them into the URL")
            await eyes.press("down", "enter", "c", "slash", "a", "enter", "I", ">", "q")
    assert eyes.app.return_code == 0


async def test_a_slow_answer_holds_nothing_up_and_is_asked_for_once():
    with served() as fake:
        async with looking(fake) as eyes:
            gate, asked = threading.Event(), len(fake.asked)
            fake.answer = lambda handler: (gate.wait(5), handler.reply(200, b"", "application/json"))
            await eyes.press("r", "r", "r", "down", "slash", *"ddp")
            assert eyes.words(1) == ["ddp-8"]
            assert len(fake.asked) - asked <= 1
            gate.set()


async def test_no_label_passes_anything_on_to_the_terminal():
    evil = [
        Rank(f"j{EVIL}", f"n{EVIL}", 0, 7, 0.5, wait=0.1, verdicts=((f"v{EVIL}", EVIL, "critical", EVIL, 3, 0.5, 2.0),))
    ]
    with served(*evil, Rank("k", "m", 0, 8, verdicts=(HANG, COMPUTE))) as fake:
        async with looking(fake) as eyes:
            assert_safe(eyes.app.screen)
            await eyes.press("c")
            assert_safe(eyes.app.screen)
            await eyes.press("enter")
            await eyes.until("its node or pid")
            assert_safe(eyes.app.screen)


async def test_the_end_of_many_jobs_is_a_key_away():
    with served(*large(100)) as fake:
        async with looking(fake, (80, 24)) as eyes:
            assert "800 ranks on 100 nodes" in eyes.text()
            first = eyes.marked()
            await eyes.press("end")
            last = eyes.marked()
            assert first != last
            await eyes.press("pageup")
            assert eyes.marked() not in (first, last)
            await eyes.press("home")
            assert eyes.marked() == first


async def test_every_key_asks_for_what_its_binding_says(monkeypatch):
    with served() as fake:
        async with looking(fake) as eyes:
            for names in (("FleetScreen", "TableScreen"), ("RanksScreen",)):
                with monkeypatch.context() as deaf:
                    for name in names:
                        asked, wanted = await heard_from(eyes, CLASSES[name], deaf)
                        assert asked == wanted
                await eyes.press("enter")


async def test_help_lists_the_keys():
    with served() as fake:
        async with looking(fake) as eyes:
            await eyes.press("question_mark")
            await eyes.until("the job's ranks over all its nodes")


@pytest.mark.parametrize("sample", [samples.two_ranks, serving.engine], ids=["training", "server"])
async def test_the_ranks_elsewhere_of_a_job_that_is_watched_here(sample, look_at, monkeypatch):
    monkeypatch.setenv("NODE_NAME", "gpu-a")
    snapshot = sample()
    pids = [process.pid for process in snapshot.host.processes]
    here = [Rank("9", "gpu-a", rank, pid, wait=0.4) for rank, pid in enumerate(pids[:2])]
    with served(*here, Rank("9", "gpu-b", 2, 77, wait=0.02), Rank("8", "gpu-c", 0, pids[0])) as fake:
        fake.answer = lambda handler: whose(fake, handler, pids)
        async with look_at(snapshot) as eyes:
            await eyes.press("E")
            await eyes.until("no Prometheus server is named")
            eyes.app.screen._cluster = FleetReader(parse(fake.url))
            await eyes.press("E")
            await eyes.until("The others wait 40 % of a step for rank 2 on gpu-b")
            await eyes.press("escape")
            await eyes.until("Verdict")
            fake.answer = lambda handler: handler.reply(200, vector([]), "application/json")
            await eyes.press("E")
            await eyes.until("does not know this job")


def whose(fake, handler, pids):
    """Answers which job has these processes of gpu-a, and then as always."""
    query = fake.asked[-1]
    assert "|".join(map(str, pids)) in query
    assert 'node="gpu-a"' in query
    fake.answer = None
    handler.reply(200, vector([({"exported_job": "9", "job": "aitop"}, float(len(pids)))]), "application/json")
