"""The option that rewrites scenarios."""

from __future__ import annotations

import pytest

from tests.scenarios.runner import REWRITE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(REWRITE, action="store_true", help="write down what the scenarios say now")
