"""A relay's process: ``python -m tests.fence_trials.relaying JSON``. It ends with its standard input; a line
there names the step before which it kills itself.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

import escrowmq
from escrowmq.actors.outbox.shipping import BrokerShipping
from escrowmq.actors.producer.transactions.numbered import Numbered
from escrowmq.feedback.database.outbox_shards import OutboxShards
from escrowmq.integrations import Outbox, OutboxRelay
from tests.fence_trials.sender import PAUSE_S, Outgoing

#: In order: before the rows get their number, before the batch is sent, between its PREPARE and its COMMIT,
#: before and after the rows are removed.
STEPS = ("mark", "ship", "commit", "finish", "finished")
#: A relay that stands still for longer has lost its shards.
LEASE_S = 2.0


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    told = Outgoing(**json.loads(sys.argv[1]))
    doomed = [""]

    def before(step: str) -> None:
        if doomed[0] == step:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(OutboxShards, "mark", lambda: before("mark"))
    _watch(BrokerShipping, "ship", lambda: before("ship"))
    _watch(Numbered, "commit", lambda: before("commit"))
    _watch(OutboxShards, "finish", lambda: before("finish"), lambda: before("finished"))

    outbox = Outbox(sa.create_engine(told.url), table=told.table)
    with escrowmq.connect(told.address, told.namespace) as cluster:
        _started(OutboxRelay(outbox, cluster, app=told.app, lease_s=LEASE_S))
        for line in sys.stdin:
            doomed[0] = line.strip()
        os._exit(0)


def _started(relay: OutboxRelay) -> None:
    """Whatever runs a service starts it again if the database is away just then."""
    while True:
        try:
            relay.start()
            return
        except sa.exc.SQLAlchemyError:
            time.sleep(PAUSE_S)


def _watch(
    kind: type, name: str, before: Callable[[], None], after: Callable[[], None] = lambda: None
) -> None:
    call = getattr(kind, name)

    def watched(*given: Any, **options: Any) -> Any:
        before()
        result = call(*given, **options)
        after()
        return result

    setattr(kind, name, watched)


if __name__ == "__main__":
    main()
