"""What the examples of retries and replies come to, on every cluster."""

from __future__ import annotations

#: notify_partner: the attempt at which the partner heard of each payment, and those given up.
HEARD = {"payment-0": 1, "payment-1": 2, "payment-2": 1, "payment-3": 1, "payment-4": 2}
GIVEN_UP = ["payment-5"]
#: compensation: orders by what became of them.
COMPENSATED = {
    "delivered": [f"order-{n}" for n in range(8) if n % 3 != 2],
    "refunded": [f"order-{n}" for n in range(8) if n % 3 == 2],
}
#: saga: how each trip ended.
SAGAS = {"trip-0": "booked", "trip-1": "undone", "trip-2": "booked", "trip-3": "undone"}
#: why_not_dual_write: orders and messages of each way.
DUAL_WRITES = {
    "save_then_send": (1, 0),
    "send_then_save": (0, 1),
    "send_inside_the_database_transaction": (0, 1),
    "send_again_when_in_doubt": (1, 2),
    "escrow": (1, 1),
}
#: ordered_retry: the bookings of each account, the attempts at the wrong one, the dead letters.
ORDERED = (
    {f"account-{n}": [0, 1, 2, 3, 4] if n else [0, 1, 2, 4] for n in range(4)},
    [1, 2, 3],
    {"3": "ValueError: the amount is no number"},
)
