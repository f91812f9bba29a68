"""What Flight Recorder and numbers of collectives say of a hang."""

from __future__ import annotations

import json
import os
import pickle
import socket

import msgspec
import pytest
from snapshot_builder import snapshot

from aitop.diagnosis.conditions.hang import hang
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.ranks import ExchangeNotes, FlightRecord, Standing, Standstill
from aitop.sources.exchange import flight_recorder, tcp_table
from aitop.sources.exchange.flight_recorder import MOST_FRAMES, flight_record, last_of, prefixes, read_plain
from aitop.sources.stacks.dump import innermost, parse

FRAMES = [
    {"name": "all_reduce", "filename": "/lib/torch/distributed/distributed_c10d.py", "line": 3},
    {"name": "step", "filename": "/x/train.py", "line": 9},
]


def entry(number, state="completed", **fields):
    return {"frames": FRAMES, "process_group": ("0", "default_pg"), "collective_seq_id": number, "state": state,
            "profiling_name": "nccl:all_reduce", "retired": state == "completed", **fields}  # fmt: skip


def dump(*entries):
    return pickle.dumps({"version": "2.10", "pg_status": {}, "entries": list(entries)}, protocol=2)


def test_the_collective_that_a_rank_waits_in_is_read_from_its_dump():
    last = last_of(dump(entry(7), entry(8, "scheduled"), entry(9, "scheduled")), 1, 3)
    assert last == FlightRecord(pid=1, rank=3, call="all_reduce", state="scheduled", sequence=9, group="default_pg",
                                 waiting=True, where="train.py:9")  # fmt: skip
    assert last_of(dump(entry(7)), 1, 3).waiting is False
    assert last_of(dump(), 1, 3) is None


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize(
    "data", [pickle.dumps(Evil()), b"", b"\x80\x02}q\x00(", b"no pickle", pickle.dumps([1]), dump(entry(2**70))]
)
def test_nothing_in_a_dump_is_run_and_what_is_none_is_refused(data):
    with pytest.raises(ValueError):
        last_of(data, 1, 0)


def test_plain_values_are_read_whatever_the_protocol():
    value = {
        "a": [1, -5, 2**40, 1.5, None, True, False, "ä"],
        "b": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "c": {},
    }
    for protocol in (2, 3, 4, 5):
        assert read_plain(pickle.dumps([value, value], protocol=protocol)) == [value, value]
    typed = b"\x80\x02ctorch.jit._pickle\nbuild_intlist\n](K\x01K\x02e\x85R."
    assert read_plain(typed) == [1, 2]


def test_unpickling_many_marks_on_a_long_stack_is_not_quadratic():
    class Counted(list):
        copied = 0

        def __getitem__(self, place):
            found = super().__getitem__(place)
            self.copied += len(found) if isinstance(place, slice) else 0
            return found

    stack = Counted([None] * 5000 + [[]])
    for _ in range(100):
        stack.append(flight_recorder._MARK)
        flight_recorder._gather("APPENDS", None, stack)
    assert len(stack) == 5001 and stack.copied < 5000


def test_a_small_dump_cannot_become_a_large_one(monkeypatch):
    converted = []
    real = msgspec.convert
    monkeypatch.setattr(msgspec, "convert", lambda *given: converted.append(given[0]) or real(*given))
    many = entry(4, "scheduled", frames=FRAMES * 1000)
    assert last_of(dump(*[many] * 1000, entry(5)), 1, 3).sequence == 4
    assert len(converted) == 1, "the frames of all the others are the same ones"
    with pytest.raises(ValueError):
        last_of(dump(entry(4, frames=FRAMES * MOST_FRAMES)), 1, 3)


def test_a_key_that_takes_for_ever_to_look_up_is_none():
    doubled = b"".join(b"q" + bytes([place]) + b"h" + bytes([place]) + b"\x86" for place in range(60))
    with pytest.raises(ValueError, match="no text"):
        read_plain(b"\x80\x02}K\x01K\x01\x86" + doubled + b"K\x01s.")


def test_a_dump_of_this_very_process_is_found_and_an_older_one_is_not(tmp_path, monkeypatch):
    (tmp_path / "rank_0").write_bytes(dump(entry(4, "started")))
    given = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank_"}
    monkeypatch.setattr("aitop.sources.procfs.environ", lambda pid: given)
    assert flight_record(os.getpid(), 0).sequence == 4
    assert flight_record(os.getpid(), 1) is None
    os.utime(tmp_path / "rank_0", (1, 1))
    assert flight_record(os.getpid(), 0) is None
    assert prefixes({"HOME": "/home/x"})[0] == "/home/x/.cache/torch/comm_lib_trace_rank_"


def alike(*sequences, gpu=None, **fields):
    ranks = tuple(
        Standing(pid=100 + rank, rank=rank, role="rank", doing="collective", call="backward", sequence=sequence)
        for rank, sequence in enumerate(sequences)
    )
    return hang(snapshot([], standstill=Standstill(seconds=9.0, ranks=ranks, **fields), gpu=gpu)).verdict


def test_of_ranks_in_the_same_call_the_one_with_fewer_collectives_is_behind():
    sentence = alike(812, 811, 812)
    assert (sentence.subtype, sentence.ranks) == ("skipped-collective", (1,))
    assert "last collective called: 811 by rank 1; 812 by rank 0, 2" in sentence.evidence
    assert alike(812, 812).subtype == alike(812, None).subtype == "exchange"


def test_what_flight_recorder_and_the_driver_say_is_evidence():
    flights = tuple(FlightRecord(pid=1, rank=rank, call="all_reduce", state="started", sequence=5 - rank, group="pg",
                                 waiting=True, where="train.py:9") for rank in (0, 1))  # fmt: skip
    devices = (GpuDevice(index=0, xid=(31,)), GpuDevice(index=1, xid=(13, 79), mine=True))
    gpu = GpuSample(time=1.0, devices=devices)
    sentence = alike(None, None, gpu=gpu, notes=ExchangeNotes(time=1.0, flights=flights))
    assert sentence.ranks == (1,)
    assert "Flight Recorder of rank 1: all_reduce at train.py:9, number 4 of pg, started" in sentence.evidence
    assert [words for words in sentence.evidence if "Xid" in words] == ["GPU 1 reported Xid 13, 79"]
    others = (flights[0], msgspec.structs.replace(flights[1], group="pairs"))
    assert alike(None, None, notes=ExchangeNotes(time=1.0, flights=others)).subtype == "exchange", "counted apart"


def test_frames_below_python_are_those_above_its_newest():
    frames = [{"name": "0x7f00", "module": "/lib/libc.so.6"}, {"name": "0x7f01", "module": "/lib/libc.so.6"},
              {"name": "gloo::wait(int)", "module": "/x/libtorch_cpu.so"}, {"name": "step", "module": None},
              {"name": "PyEval", "module": "/lib/libpython3.so"}]  # fmt: skip
    threads = [{"frames": frames[2:], "os_thread_id": 8}, {"frames": frames, "os_thread_id": 7}]
    assert innermost(parse(json.dumps(threads).encode()), 7) == ("libc.so.6", "gloo::wait (libtorch_cpu.so)")
    assert innermost([], 7) == ()


def row(local, remote, state, inode):
    """A line of /proc/net/tcp."""
    return (
        f"  0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 x 20 4 30 10 -1"
    )


STORE, FAR, NONE = "0100007F:7148", "0A00A8C0:9C40", "00000000:0000"
SIX = "0000000000000000FFFF00000100007F"


@pytest.mark.parametrize(
    ("rows", "local"),
    [
        ([row("00000000:7148", NONE, "0A", 7), row("0100007F:9C40", STORE, "01", 8), row(STORE, FAR, "06", 0)], True),
        ([row("00000000:7148", NONE, "0A", 7), row(f"{SIX}:9C40", f"{SIX}:7148", "01", 8)], True),
        ([row("00000000:7148", NONE, "0A", 7), row("0100007F:9C40", STORE, "01", 8), row(STORE, FAR, "01", 9)], False),
        ([row("00000000:7148", NONE, "0A", 5), row("0100007F:9C40", STORE, "01", 8)], False),
        ([row("00000000:7148", NONE, "0A", 7), row("0100007F:9C40", "0A00A8C0:7148", "01", 8)], False),
        ([row("00000000:7148", NONE, "0A", 7), "damaged", row("0100007F:X", STORE, "01", 8)], False),
        ([], False),
    ],
    ids=["loopback", "mapped", "one-from-afar", "store-of-another", "store-afar", "damaged", "nothing"],
)
def test_ranks_that_all_meet_by_the_loopback_are_of_this_machine(monkeypatch, rows, local):
    table = "\n".join(["  sl  local_address rem_address", *rows]).encode()
    monkeypatch.setattr(tcp_table.procfs, "read", lambda path: table if path.endswith("/net/tcp") else b"")
    monkeypatch.setattr(tcp_table, "own_sockets", lambda pid: frozenset({7, 8, 9} if pid == 100 else ()))
    assert tcp_table.meet_on_this_machine([100]) is local


def test_sockets_of_a_process_are_found_in_its_network():
    with socket.create_server(("127.0.0.1", 0)) as store, socket.create_connection(store.getsockname()[:2]) as rank:
        assert os.fstat(rank.fileno()).st_ino in tcp_table.own_sockets(os.getpid())
        assert tcp_table.meet_on_this_machine([os.getpid()])
    assert not tcp_table.meet_on_this_machine([])
