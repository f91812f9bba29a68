"""What the lines around a model's call are for, read from the structure of the code."""

from __future__ import annotations

import time
from textwrap import dedent

import pytest

from aitop.sources.code import dataflow
from aitop.sources.code.dataflow import functions
from aitop.stacks.dataflow import ModelCalls


def calls(text: str, *, model: str = "MODEL", update: str = "UPDATE") -> tuple[ModelCalls, dict[str, int]]:
    """The model's calls of the function with the line marked `# MODEL`, and the other marked lines."""
    text = dedent(text).lstrip("\n")
    marks: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line:
            for mark in line.partition("#")[2].split():
                marks.setdefault(mark, []).append(number)
    [flow] = functions("a.py", text, marks[model][:1]).flows
    lines = {mark: numbers[0] for mark, numbers in marks.items()}
    return ModelCalls(flow, marks[model], marks.get(update, [])), lines


def test_lines_whose_value_goes_into_the_models_call_feed_it() -> None:
    model_calls, at = calls("""
        def train(net, opt, files):
            x = first(files)
            while True:
                loss = net(x).mean()  # MODEL
                opt.zero_grad()
                loss.backward()  # UPDATE
                opt.step()
                note = summary(loss)  # note
                raw = files.pop()  # read
                x = decode(raw)  # decode
        """)
    assert model_calls.feeds(at["read"]) and model_calls.feeds(at["decode"])
    assert not model_calls.feeds(at["note"])
    assert not any(model_calls.answers(line) for line in at.values())


def test_an_environment_makes_the_next_input_of_the_last_output() -> None:
    model_calls, at = calls("""
        def learn(net, opt, pipe):
            state = START
            while True:
                logs, gains = [], []
                for _ in range(32):
                    odds = net(state)  # MODEL
                    pick = odds.sample()
                    pipe.send(pick)
                    logs.append(odds.log_prob(pick))  # keep
                    state, gain = pipe.recv()  # environment
                    gains.append(gain)
                for gain in gains:
                    total = gain + 0.9 * total  # returns
                loss = -(torch.stack(logs) * total).sum()
                loss.backward()  # UPDATE
                opt.step()
        """)
    assert model_calls.answers(at["environment"])
    assert not model_calls.answers(at["keep"]) and not model_calls.answers(at["returns"])


def test_what_lies_between_a_model_and_its_loss_is_no_environment() -> None:
    model_calls, at = calls("""
        def train(net, opt, bank, batches):
            for rows in batches:
                out = net(rows)  # MODEL
                hard = bank.nearest(out.detach())  # search
                loss = contrast(out, hard)  # MODEL
                loss.backward()  # UPDATE
                opt.step()
        """)
    assert not model_calls.answers(at["search"])


def test_an_environment_carries_something_over_and_what_only_converts_does_not() -> None:
    model_calls, at = calls("""
        def play(net, world, cells):
            s = world.begin()
            while True:
                x = tensor(s)  # observe
                odds = Categorical(logits=net(x))  # MODEL
                a = odds.sample().item()  # sample
                s, reward = world.act(a)  # step
                s = [cell.push(s) for cell in cells]  # several
        """)
    assert all(model_calls.answers(at[mark]) for mark in ("observe", "sample", "step", "several"))
    assert [model_calls.carries(at[mark]) for mark in ("observe", "sample", "step", "several")] == [
        False,
        False,
        True,
        True,
    ]


def test_environments_in_processes_behind_pipes() -> None:
    model_calls, at = calls("""
        def gather(net, pipes, seen):
            while True:
                for _ in range(64):
                    picks = net(seen)  # MODEL
                    for pipe, pick in zip(pipes, picks):
                        pipe.send(pick)
                    answers = [each.recv() for each in pipes]  # environment
                    seen = torch.stack([answer[0] for answer in answers])
        """)
    assert model_calls.answers(at["environment"])


def test_acting_and_learning_in_one_loop() -> None:
    model_calls, at = calls("""
        class Agent:
            def run(self):
                while True:
                    action = self.net(self.seen).argmax()  # MODEL
                    self.advance(action)  # environment
                    for rows in self.memory.draw(4):
                        loss = (self.net(rows.seen) - rows.goal).square().mean()  # MODEL
                        loss.backward()  # UPDATE
                        self.opt.step()

            def advance(self, action):
                seen, reward = self.world.go(action)
                self.memory.add(self.seen, action, reward)
                self.seen = seen
        """)
    assert model_calls.answers(at["environment"])


def test_a_variable_of_a_comprehension_is_no_other_of_that_name() -> None:
    model_calls, at = calls("""
        def learn(net, opt, world, memory):
            state = START
            for step in range(1_000_000):
                if random.random() < 0.1:
                    picks = [world.draw() for _ in range(len(world))]  # explore
                else:
                    picks = net(state).argmax()  # MODEL
                state = world.go(picks)  # environment
                memory.add(state, picks)
                if step % 10 == 0:
                    rows = memory.draw(128)  # replay
                    best, _ = net(rows.states).max()  # MODEL
                    loss = (net(rows.states) - best).mean()  # MODEL
                    loss.backward()  # UPDATE
                    opt.step()
        """)
    assert model_calls.answers(at["environment"])
    assert not model_calls.answers(at["replay"])


def test_values_passed_from_acting_to_learning_are_no_model_input() -> None:
    model_calls, at = calls("""
        def run(policy, world):
            while True:
                seen, values = act(policy, world)  # MODEL
                gains = advantages(values)  # gains
                learn(policy, seen, gains)  # MODEL UPDATE
        """)
    assert not model_calls.feeds(at["gains"]) and not model_calls.answers(at["gains"])


def test_printing_and_logging_do_not_count_as_dataflow() -> None:
    model_calls, at = calls("""
        def train(net, opt, rows):
            at = 0
            x = rows[:8]
            while True:
                loss = net(x)  # MODEL
                loss.backward()  # UPDATE
                opt.step()
                print(loss, at)
                note(loss, at)
                x = decode(rows[at : at + 8])  # decode
                at += 8
        """)
    assert model_calls.feeds(at["decode"]) and not model_calls.answers(at["decode"])


def test_metrics_and_replay_memories_do_not_answer_the_model() -> None:
    model_calls, at = calls("""
        def learn(net, opt, loader, scores):
            for x, y in loader:  # data
                out = net(x)  # MODEL
                loss = cost(out, y)  # MODEL
                loss.backward()  # UPDATE
                opt.step()
                scores.update(out.argmax(1), y)  # metric
        """)
    assert not model_calls.answers(at["metric"]) and not model_calls.answers(at["data"])
    model_calls, at = calls("""
        def learn(policy, opt, world, memory):
            state = world.reset()
            while True:
                action = policy(state).argmax()  # MODEL
                following, gain = world.step(action)  # environment
                memory.push(state, action, gain, following)
                state = following
                seen, done, gains, after = memory.sample(128)  # sample
                goal = gains + policy(after).max(1)  # MODEL
                loss = cost(policy(seen)[done], goal)  # MODEL
                loss.backward()  # UPDATE
                opt.step()
        """)
    assert model_calls.answers(at["environment"]) and not model_calls.answers(at["sample"])


def test_picking_examples_by_their_loss_is_no_environment() -> None:
    model_calls, at = calls("""
        def train(net, opt, pool):
            weights = [1.0] * len(pool)
            while True:
                rows = draw(pool, weights)  # draw
                losses = net(rows)  # MODEL
                losses.mean().backward()  # UPDATE
                opt.step()
                weights = update(weights, losses)  # weigh
        """)
    assert not model_calls.feeds(at["draw"]) and not model_calls.feeds(at["weigh"])
    assert not model_calls.answers(at["draw"]) and not model_calls.answers(at["weigh"])


def test_a_method_of_the_model_between_two_of_its_calls_is_no_environment() -> None:
    model_calls, at = calls("""
        def train(net, opt, images):
            while True:
                features = net(images)  # MODEL
                regions = net.propose(features)  # propose
                loss = net.classify(features, regions)  # MODEL
                loss.backward()  # UPDATE
                opt.step()
        """)
    assert not model_calls.answers(at["propose"]) and not model_calls.feeds(at["propose"])


def test_what_is_drawn_from_a_replay_memory_is_data_though_the_policy_filled_it() -> None:
    model_calls, at = calls("""
        def train(agent, env, memory, state):
            while True:
                action = agent.act(state)  # MODEL
                after, reward = env.step(action)  # step
                memory.add(state, action, reward)  # keep
                state = after
                batch = memory.sample(64)  # draw
                agent.learn(batch)  # MODEL UPDATE
        """)
    assert model_calls.feeds(at["draw"]) and not model_calls.answers(at["draw"])
    assert model_calls.answers(at["step"]) and not model_calls.feeds(at["step"])


def test_text_that_is_not_python_has_no_dataflow() -> None:
    assert functions("a.py", "for for\x00", [1]) == ((), ())
    assert functions("a.py", "x" + "[0]" * 300_000, [1]) == ((), ())


def test_only_the_functions_around_the_lines_are_read() -> None:
    text = dedent("""\
        def outer(net):
            def inner(x):
                return net(x)
            return inner
        class Model:
            def first(self):
                pass
            def second(self):
                if self:
                    pass
        x = outer(Model())
        """)
    spans = [
        [(flow.first, flow.last) for flow in functions("a.py", text, lines).flows]
        for lines in ([3], [4, 1], [9, 3], [11])
    ]
    assert spans == [[(2, 3)], [(1, 4)], [(2, 3), (8, 10)], [(1, 11)]]
    assert functions("a.py", text, [99]).flows == functions("a.py", text, []).flows == ()


def test_a_call_of_the_collector_is_seen_under_any_name() -> None:
    text = dedent("""
        import gc
        import gc as tidy
        from gc import collect as empty

        def train(net, gadget):
            gc.collect()
            freed = tidy.collect(2)
            if net:
                empty()
            gadget.collect()
            return collect()
        """)
    [flow] = functions("a.py", text, [7]).flows
    lines = text.splitlines()
    assert [lines[each.first - 1].strip() for each in flow.statements if each.collects] == [
        "gc.collect()",
        "freed = tidy.collect(2)",
        "empty()",
    ]


def test_comprehensions_in_comprehensions_are_read_at_once():
    """Each read three times by the one around it would take minutes."""
    rows = "batch"
    for level in range(40):
        rows = f"[x{level} for x{level} in {rows}]"
    model_calls, at = calls(f"""
        def train(net, batches):
            for batch in batches:
                rows = {rows}  # rows
                net(rows)  # MODEL
        """)
    assert model_calls.feeds(at["rows"])


def test_loops_in_loops_are_read_at_once():
    """Each in its own rounds of all others would take years."""
    depth = 60
    heads = (f"{'    ' * level}for x{level} in rows:" for level in range(depth))
    source = "total = 0\n" + "\n".join(heads) + f"\n{'    ' * depth}total = total + x0\n"
    (flow,) = functions("x.py", source, [1]).flows
    assert next(each.uses for each in flow.statements if each.first == depth + 2) == (1, 2, depth + 2)


@pytest.mark.parametrize("statement", ["x{0}=1\n", "x{0}=x;", "if x:x{0}=1\n"])
def test_a_table_of_variables_is_not_followed_for_minutes(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow, "MOST_LOOKS", 200_000)
    table = "".join(statement.format(number) for number in range(4_000))
    before = time.process_time()
    read = functions("x.py", f"{table}\ndef f(net):\n    y = net(1)\n", [1])
    assert time.process_time() - before < 5
    assert len(read.spans) == 2 and read.flows == ()


def test_what_an_expression_assigns_feeds_as_a_statement_would() -> None:
    model_calls, at = calls("""
        def train(net, opt, batches):
            while (batch := next(batches, None)) is not None:  # take
                loss = net(batch).mean()  # MODEL
                loss.backward()  # UPDATE
                opt.step()
        """)
    assert model_calls.feeds(at["take"])


@pytest.mark.parametrize(
    ("lines", "apart"),
    [
        ("for row in rows:\n    scores.append(net(encode(row)).item())  # MODEL", True),
        ("for row in rows:\n    told = encode(row)\n    total = max(total, net(told))  # MODEL", True),
        ("while at < len(rows):\n    scores[at] = net(rows[at].values)  # MODEL\n    at += 1", True),
        ("return [net(row).argmax() for row in rows]  # MODEL", True),
        ("return net(rows)  # MODEL", None),
        ("return [float(one) for one in net(rows)]  # MODEL", None),
        ("told = net(rows)  # MODEL\nreturn [one.item() for one in told]", None),
        ("return [one.item() for one in told], net(rows)  # MODEL", None),
        ("for _ in range(20):\n    ids = torch.cat([ids, net(ids).argmax(-1)])  # MODEL", False),
        ("for _ in range(20):\n    new = net(ids).argmax(-1)  # MODEL\n    ids = torch.cat([ids, new])", False),
        ("for step in range(20):\n    image = image - net(image, step)  # MODEL", False),
        ("for _ in range(20):\n    game.play(net(game.view()))  # MODEL", False),
        ("for game in games:\n    game.play(net(game.view()))  # MODEL", False),
        ("for word in words:\n    out, state = net(word, state)  # MODEL", False),
    ],
)
def test_calls_of_the_model_in_a_loop_that_do_not_need_each_other(lines: str, apart: bool | None) -> None:
    body = lines.replace("\n", "\n    ")
    given = "net, rows, ids, image, game, games, words, state, told, scores"
    model_calls, at = calls(f"import torch\ndef handle({given}):\n    {body}\n")
    assert model_calls.apart(at["MODEL"]) is apart


@pytest.mark.parametrize("needs", [False, True])
def test_methods_of_the_same_object_do_not_make_calls_need_each_other(needs: bool) -> None:
    model_calls, at = calls(f"""
        class Scorer:
            def score(self, rows):
                for row in rows:
                    told = self.encode({"self.last" if needs else "row"})
                    self.last = self.net(told)  # MODEL
        """)
    assert model_calls.apart(at["MODEL"]) is not needs
