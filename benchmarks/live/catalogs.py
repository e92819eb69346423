"""A process that sends a leader many requests for all topics at once: ``python -m benchmarks.live.catalogs``.

200 consumers that are made in one process do the same. It prints the seconds until the last answer, its CPU
time, and the number of topics.
"""

from __future__ import annotations

import json
import sys
import time

import escrowmq
from escrowmq.actors.client.router import Router


def main() -> None:
    address, namespace, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with escrowmq.connect(address, namespace) as cluster:
        router = Router(cluster.info)
        try:
            router.leader_call(0, "whoami", timeout_s=30.0).result(40)  # afterwards the leader is known
            sys.stdin.readline()
            begin, spent = time.monotonic(), time.process_time()
            asked = [router.leader_call(0, "topics", True, timeout_s=60.0) for _ in range(count)]
            found = {len(answer.result(70)) for answer in asked}
            seconds, processor = time.monotonic() - begin, time.process_time() - spent
            figures = {"seconds": round(seconds, 2), "processor_s": round(processor, 2)}
            print(json.dumps(figures | {"topics": sorted(found)}))
        finally:
            router.close()


if __name__ == "__main__":
    main()
