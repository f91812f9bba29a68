"""Windows to phases, hot lines, trees and shares of threads."""

import msgspec
import pytest
from stack_maker import USER, frame, looks, stack, window

from aitop.model.snapshot import Phases
from aitop.model.stacks import Flow, Statement, ThreadState
from aitop.stacks.call_tree import MOST_CHILDREN, MOST_DEPTH, call_tree
from aitop.stacks.view import StackView

RANK, WORKER = 100, 101


ROLES = {RANK: "rank", WORKER: "loader-worker"}


TOP = ("user/train.py:90 <module> | main()",)


LOOP = (*TOP, "user/train.py:12 main | for x, y in loader:")


NEXT = "torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__"


WAIT = stack(*LOOP, NEXT, "torch/utils/data/dataloader.py X._get_data", "std/multiprocessing/queues.py Queue.get")


BACK = stack(*TOP, "user/train.py:15 main | loss.backward()", "torch/_tensor.py Tensor.backward")


FORWARD = stack(
    *TOP,
    "user/train.py:14 main | loss = f(net(x), y)",
    "torch/nn/modules/module.py Module._call_impl",
    "user/model.py:8 Net.forward | return torch.relu(self.a(x))",
)


STARTED = (
    *LOOP,
    "torch/utils/data/dataloader.py DataLoader.__iter__",
    "std/multiprocessing/process.py BaseProcess._bootstrap",
    "torch/utils/data/_utils/worker.py _worker_loop",
)


FETCH = "torch/utils/data/_utils/fetch.py fetch"


DECODE = stack(
    *STARTED, FETCH, "user/data.py:20 D.__getitem__ | return decode(i)", "user/data.py:41 decode | px[i] = 3"
)


COLLATE = stack(*STARTED, FETCH, "torch/utils/data/_utils/collate.py default_collate")


IDLE = stack(*STARTED, "std/multiprocessing/queues.py Queue.get", "std/multiprocessing/connection.py wait")


IMPORT = stack(*LOOP, "torch/optim/sgd.py SGD.__init__", "<frozen importlib._bootstrap> _find_and_load", "sympy/a.py x")


def view(*windows, since=0.0, roles=ROLES):
    return StackView().view(windows, roles, since)


def main(pid, *samples):
    return [(pid, "MainThread", True, frames, count) for frames, count in samples]


def test_shares_of_phases_and_the_rest_of_the_samples():
    stacks = view(window(2.0, *main(RANK, (WAIT, 60), (FORWARD, 10), (BACK, 20))), window(4.0, *main(RANK, (WAIT, 10))))
    [process] = stacks.processes
    assert (process.pid, process.role, process.samples, process.idle) == (RANK, "rank", 100, None)
    assert process.phases == Phases(
        data_wait=0.7, forward=0.1, backward=0.2, optimizer=0.0, outside=0.0, transfer=None, communication=None
    )
    assert (stacks.seconds, stacks.samples) == (4.0, 100)


def test_old_windows_do_not_count():
    stacks = view(window(2.0, *main(RANK, (WAIT, 60))), window(4.0, *main(RANK, (BACK, 20))), since=2.0)
    assert stacks.samples == 20
    assert StackView().view([window(2.0, *main(RANK, (WAIT, 60)))], ROLES, 2.0) is None
    assert StackView().view([], ROLES, 0.0) is None


def test_hot_lines_of_ranks_and_workers():
    samples = [*main(RANK, (WAIT, 30), (BACK, 10)), *main(WORKER, (DECODE, 30), (COLLATE, 4), (IDLE, 6))]
    stacks = view(window(2.0, *samples))
    lines = [
        (line.pid, line.function, line.line, line.phase, line.activity, line.work, line.share) for line in stacks.lines
    ]
    assert lines == [
        (RANK, "main", 12, "data_wait", "wait-queue", "hand-over", 0.75),
        (WORKER, "decode", 41, "data_wait", "python", None, 0.75),
        (RANK, "main", 15, "backward", "native", "tensor", 0.25),
        (WORKER, "main", 12, "data_wait", "python", "collate", 0.1),
    ]
    decode = stacks.lines[1]
    assert (decode.file, decode.text, [frame.text for frame in decode.via]) == (
        USER + "data.py",
        "px[i] = 3",
        ["return decode(i)"],
    )
    assert decode.role == "loader-worker"


def test_a_line_knows_how_often_each_window_saw_it():
    stacks = view(window(2.0, *main(RANK, (WAIT, 30))), window(4.0, *main(RANK, (WAIT, 28), (BACK, 2))))
    assert {line.line: line.by_window for line in stacks.lines} == {12: (30, 28), 15: (0, 2)}
    assert stacks.processes[0].by_window == (30, 30)


def test_a_line_knows_in_which_functions_of_libraries_it_ends():
    read = "user/data.py:20 load", "PIL/Image.py Image.open"
    decodes = stack(*TOP, *read, "PIL/ImageFile.py:412 ImageFile.load")
    waits = stack(*TOP, *read, "store/client.py:286 Client.fetch", "std/ssl.py:706 SSLSocket.read")
    elsewhere = [stack(*TOP, "user/data.py:20 load", f"PIL/Image.py Image.other{number}") for number in range(25)]
    samples = [(decodes, 50), (waits, 25), *((one, 1) for one in elsewhere)]
    line = view(window(2.0, *main(RANK, *samples))).lines[0]
    assert [(frame.function, frame.line, share) for frame, share in line.below] == [
        ("ImageFile.load", 412, 0.5),
        ("Client.fetch", 286, 0.25),
    ]


def test_one_line_in_two_positions_is_two_lines():
    model = stack(*TOP, "user/train.py:14 main", "torch/nn/modules/module.py Module._call_impl")
    ahead, behind = (stack(*TOP, f"user/train.py:{at} main", "user/log.py:7 note") for at in (13, 16))
    stacks = view(window(2.0, *main(RANK, (model, 20), (BACK, 20), (ahead, 5), (behind, 5))))
    assert {(line.line, line.position, line.samples) for line in stacks.lines if line.line == 7} == {
        (7, "before", 5),
        (7, "after", 5),
    }


def test_an_idle_worker_says_so_and_has_no_phases():
    stacks = view(window(2.0, *main(RANK, (WAIT, 1)), *main(WORKER, (DECODE, 30), (IDLE, 10))))
    rank, worker = stacks.processes
    assert (rank.role, worker.role, worker.idle, worker.phases) == ("rank", "loader-worker", 0.25, Phases())
    [worker] = view(window(2.0, *main(WORKER, (DECODE, 3))), roles={}).processes
    assert worker.role == "loader-worker", "before the roles are known"


def test_imports_are_no_part_of_any_step():
    stacks = view(window(2.0, *main(RANK, (IMPORT, 90), (BACK, 10))))
    [process] = stacks.processes
    assert (process.samples, process.phases.backward) == (10, 1.0)
    assert [line.line for line in stacks.lines] == [15]
    stacks = view(window(2.0, *main(RANK, (IMPORT, 9))))
    [process] = stacks.processes
    assert (process.samples, process.phases.outside) == (9, 1.0), "it only imports"
    assert [(line.file, line.line, line.share) for line in stacks.lines] == [("/home/ada/proj/train.py", 12, 1.0)]
    trains = stack("user/run.py:1 <module> | import train", "<frozen importlib._bootstrap> _find_and_load", *LOOP, NEXT)
    [process] = view(window(2.0, *main(RANK, (trains, 9)))).processes
    assert process.phases.data_wait == 1.0, "code that trains while it is imported"


def test_other_threads_have_lines_but_no_part_in_the_phases():
    thread = stack("std/threading.py Thread._bootstrap", "user/log.py:7 push | requests.post(url)")
    stacks = view(window(2.0, *main(RANK, (BACK, 20)), (RANK, "uploader", False, thread, 20)))
    assert [(line.thread, line.phase, line.share) for line in stacks.lines] == [
        ("uploader", "outside", 1.0),
        ("MainThread", "backward", 1.0),
    ]
    [process] = stacks.processes
    assert process.phases.backward == 1.0


def test_evaluation_and_saving_count_as_outside():
    below = ("user/train.py:16 main", "user/train.py:30 evaluate")
    inside = stack(*TOP, *below, "torch/nn/modules/module.py Module._call_impl")
    save = stack(*TOP, "user/train.py:40 main | torch.save(s, p)", "torch/serialization.py save")
    stacks = view(window(2.0, *main(RANK, (BACK, 5), (inside, 4), (save, 1))))
    assert stacks.processes[0].phases.outside == 0.5
    assert [(line.phase, line.line) for line in stacks.lines] == [("backward", 15), ("evaluation", 30), ("save", 40)]


def test_evaluation_is_known_from_all_windows_together():
    wait = stack(*TOP, "user/train.py:30 main", "user/score.py:4 score", NEXT)
    run = stack(*TOP, "user/train.py:30 main", "user/score.py:5 score", "torch/nn/modules/module.py Module._call_impl")
    keep = StackView()
    first, second, third = (
        window(time, *main(RANK, (frames, 9))) for time, frames in ((1.0, wait), (2.0, run), (3.0, BACK))
    )
    two = keep.view([first, second], ROLES, 0.0)
    assert {line.phase for line in two.lines} == {"data_wait", "forward"}
    three = keep.view([first, second, third], ROLES, 0.0)
    assert {line.phase for line in three.lines} == {"evaluation", "backward"}


def test_the_tree_joins_lines_of_a_function_and_starts_at_the_process():
    stacks = view(window(2.0, *main(RANK, (WAIT, 30), (BACK, 10)), *main(WORKER, (DECODE, 5))))
    rank, worker = (process.tree for process in stacks.processes)
    assert (rank.function, rank.samples, rank.user) == ("<module>", 40, True)
    [body] = rank.children
    assert (body.function, body.line, body.samples) == ("main", 12, 40)
    assert [child.samples for child in body.children] == [30, 10]
    assert worker.function == "BaseProcess._bootstrap"


def test_the_tree_is_bounded():
    deep = [frame(f"user/a.py:{i} f{i}") for i in range(3 * MOST_DEPTH)]
    tree = call_tree([(deep, 10)])
    depth = 0
    while tree is not None:
        depth += 1
        tree = tree.children[0] if tree.children else None
    assert depth == MOST_DEPTH
    wide = [([frame("user/a.py:1 main"), frame(f"user/a.py:{i} f{i}")], 100) for i in range(5 * MOST_CHILDREN)]
    tree = call_tree(wide)
    assert len(tree.children) == MOST_CHILDREN
    assert call_tree([]) is None


def test_the_call_tree_has_one_root():
    tree = call_tree([(stack("user/a.py:1 f"), 1), (stack("user/a.py:1 g"), 3)])
    assert (tree.function, tree.file, tree.samples) == ("all", "", 4)
    assert [child.function for child in tree.children] == ["g", "f"]


def test_the_same_windows_give_the_same_picture_until_something_changes():
    keep = StackView()
    windows = [window(float(n), *main(RANK, (WAIT, n))) for n in range(1, 4)]
    first = keep.view(windows, ROLES, 0.0)
    assert keep.view(list(windows), dict(ROLES), 0.5) is first
    assert keep.view(windows, {RANK: "launcher"}, 0.0) is not first
    later = keep.view(windows, ROLES, 1.0)
    assert later.samples == 5


def test_threads_beside_the_one_that_steps_have_trees_of_their_own():
    spin = stack("user/train.py:5 spin | while True: pass")
    wait = stack("std/threading.py Thread._bootstrap", "std/threading.py Condition.wait")
    stacks = view(
        window(2.0, *main(RANK, (WAIT, 10)), (RANK, "idle", False, wait, 10), (WORKER, "spinner", False, spin, 5))
    )
    assert [(tree.pid, tree.role, tree.thread, tree.samples) for tree in stacks.trees] == [
        (WORKER, "loader-worker", "spinner", 5), (RANK, "rank", "idle", 10),
    ]  # fmt: skip
    assert (stacks.trees[0].tree.function, stacks.trees[0].tree.user) == ("spin", True)


CALL = "torch/nn/modules/module.py Module._call_impl"


PUTS = stack("user/serve.py:5 main | q.put(x)", "std/queue.py Queue.put", "std/threading.py Condition.wait")


SERVES = stack("user/serve.py:20 worker | net(x)", CALL)


ENCODES = stack("user/serve.py:19 worker | ids = encode(text)")


RESTS = stack("std/concurrent/futures/thread.py _worker")


IN_LOOP = ("user/serve.py:9 main | uvicorn.run(app)", "uvicorn/main.py run", "std/asyncio/base_events.py X._run_once")


LISTENS = stack(*IN_LOOP, "std/selectors.py EpollSelector.select")


SORTS = stack(*IN_LOOP, "std/asyncio/events.py Handle._run", "user/serve.py:38 trim | by_age = sorted(entries)")


APP = (*IN_LOOP, "starlette/routing.py:73 app")


DUMPS = stack(*APP, "std/json/encoder.py:258 JSONEncoder.iterencode")


@pytest.mark.parametrize(
    ("of_main", "of_other", "steps"),
    [
        ([(PUTS, 50)], [(SERVES, 3), (ENCODES, 47)], "Thread-1"),
        ([(PUTS, 50)], [(ENCODES, 50)], "Thread-1"),
        ([(PUTS, 50)], [(ENCODES, 10), (RESTS, 40)], "Thread-1"),
        ([(PUTS, 50)], [(ENCODES, 4), (RESTS, 46)], "MainThread"),
        ([(BACK, 50)], [(SERVES, 50)], "MainThread"),
        ([(ENCODES, 50)], [(PUTS, 50)], "MainThread"),
        ([(PUTS, 50)], [(PUTS, 50)], "MainThread"),
        ([(DUMPS, 45), (LISTENS, 5)], [(SERVES, 20), (RESTS, 30)], "Thread-1"),
        ([(SORTS, 45), (LISTENS, 5)], [(SERVES, 20), (RESTS, 30)], "Thread-1"),
    ],
    ids=[
        "serves beside",
        "encodes beside",
        "now and then",
        "hardly ever",
        "both",
        "main works",
        "nobody",
        "a loop",
        "a handler in a loop",
    ],
)
def test_the_thread_that_steps(of_main, of_other, steps):
    others = [(RANK, "Thread-1", False, frames, count) for frames, count in of_other]
    stacks = view(window(2.0, *main(RANK, *of_main), *others))
    assert [process.thread for process in stacks.processes] == [steps]
    assert stacks.processes[0].samples == 50


@pytest.mark.parametrize(
    ("waited_for", "steps"), [("network", "Thread-1"), ("queue", "Thread-1"), ("native", "MainThread")]
)
def test_a_main_thread_that_waits_to_be_sent_something_does_not_step(waited_for, steps):
    """The stacks show a line that calls into C, such as a poll of sockets. Only the kernel says what it waits for."""
    polls = stack("user/serve.py:17 main | for fd, event in poll.poll():")
    seen = window(
        2.0, *main(RANK, (polls, 50)), (RANK, "Thread-1", False, SERVES, 10), (RANK, "Thread-1", False, RESTS, 40)
    )
    state = ThreadState(pid=RANK, thread="MainThread", main=True, asked=50, running=5, waits={waited_for: 45})
    stacks = view(msgspec.structs.replace(seen, states=(state,)))
    assert [process.thread for process in stacks.processes] == [steps]


def test_what_libraries_do_in_an_event_loop_beside_the_model_is_at_their_line():
    renders = stack(*APP, "starlette/responses.py:200 JSONResponse.render")
    loop = main(RANK, (DUMPS, 30), (renders, 10), (LISTENS, 10))
    stacks = view(window(2.0, *loop, (RANK, "Thread-1", False, SERVES, 20), (RANK, "Thread-1", False, RESTS, 30)))
    [works] = [line for line in stacks.lines if line.thread == "MainThread" and line.handler == "event-loop"]
    assert (works.function, works.line, works.share, works.activity) == ("JSONEncoder.iterencode", 258, 0.8, "python")
    assert [(frame.function, share) for frame, share in works.below] == [
        ("JSONEncoder.iterencode", 0.75),
        ("JSONResponse.render", 0.25),
    ]
    [rests] = [line for line in stacks.lines if line.thread == "MainThread" and line.handler is None]
    assert (rests.line, rests.share, rests.activity) == (9, 0.2, "wait-queue")


def test_of_several_threads_that_work_for_one_that_waits_the_busiest_leads():
    pool = [
        (RANK, f"pool-{n}", False, frames, count)
        for n, busy in enumerate((20, 45, 30))
        for frames, count in ((ENCODES, busy), (RESTS, 50 - busy))
    ]
    assert view(window(2.0, *main(RANK, (PUTS, 50)), *pool)).processes[0].thread == "pool-1"


def test_shares_of_idle_samples_over_time():
    windows = [window(2.0, *main(RANK, (BACK, 10))), window(4.0, *main(RANK, (BACK, 40)))]
    windows += [window(6.0, *main(WORKER, (DECODE, 30), (IDLE, 10))), window(8.0, *main(WORKER, (IDLE, 5)))]
    idle = StackView().idle_over_time(windows, {RANK, WORKER})
    assert {pid: each.values for pid, each in idle.items()} == {RANK: (0.0, 0.0), WORKER: (0.25, 1.0)}
    assert idle[WORKER].times == (6.0, 8.0)
    assert idle.keys() - StackView().idle_over_time(windows, {RANK}).keys() == {WORKER}


def test_a_line_that_calls_the_collector_collects():
    collect, other = stack(*TOP, "user/train.py:24 main"), stack(*TOP, "user/train.py:30 main")
    deeper = stack(*TOP, "user/train.py:24 main", "std/weakref.py finalize.__call__")
    seen = window(2.0, *main(RANK, (BACK, 20), (collect, 60), (other, 10), (deeper, 10)))
    lines = tuple(Statement(first=number, last=number, collects=number == 24) for number in (24, 30))
    flow = Flow(file=frame("user/train.py:24 main").file, first=1, last=90, statements=lines)
    seen_lines = view(msgspec.structs.replace(seen, flows=(flow,))).lines
    samples = {(each.line, each.activity): each.samples for each in seen_lines}
    assert samples[24, "collect"] == 60
    assert sum(count for (_, activity), count in samples.items() if activity == "collect") == 60


FLASK = "flask/app.py Flask.dispatch_request"


@pytest.mark.parametrize(
    ("frames", "apart"),
    [
        ([FLASK, "user/train.py:24 handle", CALL], True),
        (["std/concurrent/futures/thread.py _WorkItem.run", "user/train.py:24 handle", CALL], True),
        # A loop that takes one request after the other looks like one over the parts of a request.
        (["user/train.py:24 handle", CALL], False),
        # A function in between may keep something, or calls the model in a loop whose calls need each other.
        ([FLASK, "user/train.py:24 handle", "user/train.py:95 decode", CALL], False),
        ([FLASK, "user/train.py:24 handle", "user/train.py:104 decode", CALL], False),
        ([FLASK, "user/train.py:104 handle", "user/train.py:24 score", CALL], False),
    ],
)
def test_calls_of_the_model_for_one_request_that_do_not_need_each_other(frames, apart):
    loops = Flow(
        file=frame("user/train.py:24 handle").file,
        first=1,
        last=90,
        statements=(Statement(first=24, last=24, apart=True),),
        loops=((23, 25),),
    )
    plain = msgspec.structs.replace(loops, first=91, last=99, statements=(Statement(first=95, last=95),), loops=())
    needs = msgspec.structs.replace(
        loops, first=100, last=110, statements=(Statement(first=104, last=104),), loops=((103, 105),)
    )
    seen = window(2.0, *main(RANK, (stack(*TOP, *frames), 60)))
    (seen_stacks,) = view(msgspec.structs.replace(seen, flows=(loops, plain, needs))).lines
    assert (seen_stacks.phase, seen_stacks.apart) == ("forward", apart)


def test_shares_of_threads_from_windows_that_asked_and_that_did_not():
    loop = stack("user/train.py:3 main | step()")
    waits = stack("user/train.py:9 publish | time.sleep(1)", "std/queue.py get")
    plain = window(
        10.0, (1, "MainThread", True, loop, 20), (1, "metrics", False, waits, 15), (1, "metrics", False, loop, 5)
    )
    asked = looks(1, "gil", 30, (loop, 25), thread="metrics")(plain)
    nobody = looks(1, "gil", 20)(plain)

    def shares(*windows):
        return StackView().view(windows, {1: "rank"}, 0.0).threads

    assert [(share.thread, share.gil) for share in shares(plain)] == [("MainThread", None), ("metrics", None)]
    assert [(share.thread, share.gil, share.active) for share in shares(plain, asked, nobody)] == [
        ("MainThread", 0.0, 1.0),
        ("metrics", 0.5, 0.25),
    ]


def test_the_kernel_knows_better_than_stacks_whether_a_thread_runs():
    spin = window(10.0, (1, "MainThread", True, stack("user/train.py:3 main"), 20))
    state = ThreadState(pid=1, thread="MainThread", main=True, asked=50, running=10, waits={"network": 40})
    stacks = StackView().view([msgspec.structs.replace(spin, states=(state,))], {1: "rank"}, 0.0)
    assert stacks.threads[0].active == 0.2


def test_the_kernel_says_for_which_part_of_its_time_a_thread_that_could_run_had_a_core():
    window_ = window(2.0, *main(1, (BACK, 50)))
    state = ThreadState(pid=1, thread="MainThread", main=True, asked=50, running=20, waits={}, counted=0.4, delayed=0.1)
    (share,) = view(msgspec.structs.replace(window_, states=(state,))).threads
    assert share.ran == pytest.approx(0.75)
    (unknown,) = view(window_).threads
    assert unknown.ran is None


def test_hundreds_of_threads_that_wait_leave_the_lines_of_the_one_that_works():
    waits = [
        (RANK, f"Thread-{n}", False, stack(f"user/serve.py:{n} handle", "std/threading.py Event.wait"), 20)
        for n in range(1, 301)
    ]
    stacks = view(window(2.0, *main(WORKER, (FORWARD, 10)), *waits))
    assert any(hot_line.pid == WORKER for hot_line in stacks.lines)
    assert [hot_line.samples for hot_line in stacks.lines] == sorted(
        (hot_line.samples for hot_line in stacks.lines), reverse=True
    )


def test_a_torn_stack_with_nothing_but_our_hook_does_not_count():
    torn = stack("<aitop hook>/measures/serving/http.py waited")
    seen = window(2.0, *main(RANK, (BACK, 60), (torn, 2)), (RANK, "beside", False, torn, 5))
    asked = looks(RANK, "gil", 200, (BACK, 100), (torn, 3))(looks(RANK, "cpu", 200, (BACK, 150), (torn, 3))(seen))
    [process] = view(asked).processes
    assert process.samples == 60
    assert [share.thread for share in view(asked).threads] == ["MainThread"]
