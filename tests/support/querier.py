"""The application's side of feedback: what it says about a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escrowmq.feedback.states import TransactionState, TxStatusQuerier


class Calls(TxStatusQuerier):
    """A querier made of a function."""

    def __init__(self, function: Callable[[str, str], Any]) -> None:
        self.function = function

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        state: TransactionState = self.function(tx_id, query_id)
        return state
