"""Looks at a disk's free space: one at a time, and none of them ends anything."""

from __future__ import annotations

import errno
import threading

from escrowmq.replication.host.maintenance import RoomWatch


def test_before_the_first_look_there_is_room_and_afterwards_it_is_known() -> None:
    watch = RoomWatch("room", lambda: 100, lambda: 1_000)
    assert watch.free_bytes is None
    watch.look()
    assert (watch.free_bytes, watch.size_bytes, watch.problem) == (100, 1_000, "")


def test_an_error_is_told_and_the_last_value_stays() -> None:
    found: list[int | OSError] = [100, OSError(errno.EIO, "bad sector"), 50]

    def free() -> int:
        one = found.pop(0)
        if isinstance(one, OSError):
            raise one
        return one

    watch = RoomWatch("room", free, lambda: 1_000)
    watch.look()
    watch.look()
    assert watch.free_bytes == 100 and "bad sector" in watch.problem
    watch.look()
    assert (watch.free_bytes, watch.problem) == (50, "")


def test_a_look_that_hangs_is_told_delays_no_start_and_no_stop() -> None:
    goes_on, looks, now = threading.Event(), [0], [0.0]

    def free() -> int:
        looks[0] += 1
        goes_on.wait(30.0)
        return 7

    watch = RoomWatch("room", free, lambda: 1_000, lambda: now[0], hangs_s=0.05)
    watch.start()
    assert watch.problem == "" and watch.free_bytes is None
    now[0] = 61.0
    assert watch.problem == "it has not answered for 61 s"
    watch.stop(0.05)
    assert looks == [1], "no second one begins meanwhile"
    goes_on.set()
    watch.stop(5.0)
    assert watch.problem == "" and all(thread.name != "room" for thread in threading.enumerate())


def test_a_file_that_two_looks_miss_is_told_once() -> None:
    found, told = ["", "log", "", "log", "log", "log"], list[str]()
    watch = RoomWatch(
        "room",
        lambda: 100,
        lambda: 1_000,
        missing=lambda: found.pop(0),
        on_missing=told.append,
        hangs_s=0.05,
    )
    for _ in range(4):
        watch.look()
    assert told == [], "files also go in the ordinary course, between a look at the table and one at the disk"
    watch.look()
    watch.start()
    watch.stop(5.0)
    assert told == ["log"] and found == ["log"], "nobody looks any more"
