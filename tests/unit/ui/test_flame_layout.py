"""The flame view's layout, the forest it is made from, and whose stacks are shown."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from aitop.model.snapshot import CallNode, Phases, ProcessStacks, Stacks, ThreadShare, ThreadTree
from aitop.ui.panes.code.call_tree import Settled, forest, tree_rows, way_to
from aitop.ui.panes.code.flame import flame_lines, icicle, in_order, neighbour, node_line, row_of, zoomed
from aitop.ui.state import EVERYBODY, Who, next_part, next_thread

LIB = "/usr/lib/python3.11/site-packages/torch/a.py"


MINE = "/home/ada/train.py"


def call(function, samples, *below, file=MINE):
    return CallNode(
        function=function, file=file, line=7, samples=samples, user=file == MINE, children=tuple(below)
    )  # fmt: skip


@st.composite
def calls(draw, depth=3):
    below = draw(st.lists(calls(depth=depth - 1), max_size=3)) if depth else []
    unique = list({(child.function, child.file): child for child in below}.values())
    own = draw(st.integers(0, 50))
    file = draw(st.sampled_from([MINE, LIB]))
    name = draw(st.text("abcdefgh漢", min_size=1, max_size=12))
    return call(name, max(1, own + sum(child.samples for child in unique)), *unique, file=file)


def job(*trees, beside=()):
    processes = tuple(
        ProcessStacks(
            pid=pid, role="rank" if pid == 1 else "loader-worker", samples=tree.samples, phases=Phases(), tree=tree
        )
        for pid, tree in enumerate(trees, 1)
    )  # fmt: skip
    shares = tuple(ThreadShare(pid=1, thread=name, samples=9, active=active, gil=0.4) for name, _, active in beside)
    others = tuple(ThreadTree(pid=1, role="rank", thread=name, samples=9, tree=tree) for name, tree, _ in beside)
    return Stacks(seconds=2.0, samples=99, processes=processes, threads=shares, trees=others)


@settings(max_examples=25, deadline=None)
@given(st.lists(calls(), min_size=1, max_size=3), st.integers(1, 200))
def test_cells_lie_in_their_row_and_under_their_parent_and_never_overlap(trees, width):
    nodes = forest(job(*trees))
    rows = icicle(nodes, width)
    assert sum(cell.width for cell in rows[0]) == width
    parents = {}
    for row in rows:
        taken = 0
        for cell in row:
            assert cell.x >= taken and cell.width > 0
            taken = cell.x + cell.width
            above = parents.get(cell.node.path[:-1])
            if above is not None:
                assert above.x <= cell.x and taken <= above.x + above.width
            assert abs(cell.width - cell.share * width) <= 1
            parents[cell.node.path] = cell
        assert taken <= width
    for letters in (True, False):
        lines = flame_lines(rows, None, None, letters=letters, wanted="")
        assert all(line.width <= width for line in lines)


@settings(max_examples=20, deadline=None)
@given(st.lists(calls(), min_size=1, max_size=2), st.lists(st.sampled_from([(0, 1), (0, -1), (1, 0), (-1, 0)])))
def test_arrows_never_lead_out(trees, moves):
    nodes = forest(job(*trees))
    rows = icicle(nodes, 80)
    path = rows[0][0].node.path
    for across, down in moves:
        path = neighbour(rows, path, across, down)
        assert row_of(rows, path) >= 0
        way, whole = zoomed(nodes, path)
        assert whole == [way[-1]] and icicle(whole, 80)[0][0].width == 80
        assert way[-1].path == path
        assert node_line(way[-1], 80).width == 80


def test_siblings_stay_in_place_when_the_numbers_change():
    tree = call("main", 100, call("a", 60), call("b", 40))
    changed = call("main", 100, call("b", 70), call("a", 30))
    orders = [[node.function for node in in_order(forest(job(one))[0].children[0].children)] for one in (tree, changed)]
    assert orders == [["a", "b"], ["a", "b"]]


def test_runs_of_library_functions_are_one_node():
    run = call("backward", 9, call("_engine", 8, call("C.run", 8, file=LIB), file=LIB), file=LIB)
    node = forest(job(call("main", 10, run)))[0].children[0].children[0]
    assert (node.name, node.frames, node.samples, node.children) == ("backward › C.run", 3, 9, ())
    assert (node.origin, node.own, node.share) == ("torch", False, 0.9)


def test_the_insides_of_libraries_are_folded_until_they_are_opened():
    inside = call("step", 5, call("one", 3, file=LIB), call("two", 2, file=LIB), file=LIB)
    nodes = forest(job(call("main", 10, inside)))

    def names(folds):
        return [(row.node.function, row.state) for row in tree_rows(nodes, folds, Settled())]

    assert names({}) == [("main", "open"), ("main", "open"), ("step", "closed")]
    path = nodes[0].children[0].children[0].path
    assert names({path: True})[2:] == [("step", "open"), ("one", "leaf"), ("two", "leaf")]
    assert names({nodes[0].path: False}) == [("main", "closed")]
    assert [row.node.function for row in tree_rows(nodes, {}, Settled(), "two")] == ["main", "main", "step", "two"]


def test_rows_change_places_only_for_more_than_a_trifle():
    settled = Settled()

    def order(**weights):
        return settled.order("list", list(weights), lambda name: name, lambda name: weights[name])

    assert order(a=10, b=9) == ["a", "b"]
    assert order(a=10, b=11) == ["a", "b"]
    assert order(a=10, b=11, c=5) == ["a", "b", "c"]
    assert order(a=10, b=13, c=1) == ["b", "a", "c"]
    assert order(c=1) == ["c"]


def test_the_choice_cycles_through_parts_processes_and_threads():
    spin, idle = call("spin", 9), call("wait", 9)
    stacks = job(call("main", 10), call("load", 8), beside=(("spinner", spin, 0.9), ("sleeper", idle, 0.0)))
    parts, who = [], EVERYBODY
    for _ in range(4):
        who = next_part(stacks, None, who)
        parts.append(who.words())
    assert parts == ["main", "workers", "others", ""]
    threads, who = [], Who("other")
    for _ in range(4):
        who = next_thread(stacks, None, who)
        threads.append(who.words())
    assert threads == ["process 1", "1 sleeper", "1 spinner", "others"]
    assert [node.name for node in forest(stacks)] == ["main", "worker", "spinner"]
    assert [node.name for node in forest(stacks, None, Who("other", 1, "sleeper"))] == ["1 sleeper"]
    assert forest(stacks)[2].gil == 0.4
    assert next_part(msgspec.structs.replace(stacks, processes=()), None, Who("main")).words() == "others"


def test_a_node_that_is_gone_gives_way_to_the_one_above_it():
    nodes = forest(job(call("main", 10, call("a", 6))))
    gone = (*nodes[0].children[0].path, ("b", MINE))
    assert way_to(nodes, gone)[-1].function == "main"
