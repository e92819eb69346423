"""One server of each kind for all tests of a worker, and shops on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.database_servers import Server, running
from tests.support.shops import Shop, ShopMaker, closing_shops


@pytest.fixture(scope="session")
def server_of() -> Iterator[Callable[[str], Server | None]]:
    """Servers by kind, each started when a test first asks for it."""
    with ExitStack() as stack:
        started: dict[str, Server | None] = {"sqlite": None}

        def get(kind: str) -> Server | None:
            if kind not in started:
                started[kind] = stack.enter_context(running(kind))
            return started[kind]

        yield get


#: Each database by one of the two ways to reach it; by the other one in make test-long.
DATABASES = [
    ("sqlite", "sqlalchemy"),
    ("postgresql", "plain"),
    ("mariadb", "sqlalchemy"),
    pytest.param(("sqlite", "plain"), marks=pytest.mark.long),
    pytest.param(("postgresql", "sqlalchemy"), marks=pytest.mark.long),
    pytest.param(("mariadb", "plain"), marks=pytest.mark.long),
]


@pytest.fixture(params=DATABASES, ids="-".join)
def database_and_way(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A database, and the way to reach it."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def kind(database_and_way: tuple[str, str]) -> str:
    """The kind of database."""
    return database_and_way[0]


@pytest.fixture
def way(database_and_way: tuple[str, str]) -> str:
    """The way to reach the database."""
    return database_and_way[1]


@pytest.fixture
def make_shop(
    server_of: Callable[[str], Server | None], kind: str, way: str, tmp_path: Path
) -> Iterator[ShopMaker]:
    """Shops on this kind of database."""
    with closing_shops(server_of(kind), tmp_path, way == "plain") as make:
        yield make


@pytest.fixture
def shop(make_shop: ShopMaker) -> Shop:
    """An application's database."""
    return make_shop()
