"""Transaction ids: FMQ's form, and unique for any number of producers and threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from escrowmq.actors.producer.core import instance_id, local_ip, transaction_ids


def test_an_id_names_version_address_start_process_connection_and_number() -> None:
    instance = instance_id("0.1.0", ip="10.0.0.7")
    first = next(transaction_ids(instance))
    version, ip, start, pid, connection, number = first.split("-")
    assert (version, ip, pid, number) == ("0.1.0", "10.0.0.7", str(os.getpid()), "1")
    assert len(start) == 13 and int(connection) >= 1


def test_two_producers_of_one_process_never_share_an_id() -> None:
    one, other = (transaction_ids(instance_id("0.1.0", ip="10.0.0.7")) for _ in range(2))
    assert not {next(one) for _ in range(100)} & {next(other) for _ in range(100)}


def test_many_threads_draw_different_numbers() -> None:
    ids = transaction_ids(instance_id("0.1.0"))
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda _: [next(ids) for _ in range(2_000)], range(8)))
    assert len({tx_id for part in drawn for tx_id in part}) == 16_000


def test_the_address_is_an_address() -> None:
    assert len(local_ip().split(".")) == 4
