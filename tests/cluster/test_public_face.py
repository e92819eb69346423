"""``import escrowmq``: quick, without Spark or Ray, and the same names for tools and at run time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import escrowmq

SOURCE = Path(escrowmq.__file__).read_text()


def test_importing_the_package_loads_neither_ray_nor_spark() -> None:
    program = (
        "import sys, escrowmq; escrowmq.Message; escrowmq.TransactionState; escrowmq.EscrowMQError\n"
        "print(sorted({'ray', 'pyspark', 'pydantic', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_working_with_a_cluster_does_not_load_spark() -> None:
    program = "import sys, escrowmq; escrowmq.start_local; escrowmq.connect; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_java_is_found_without_the_packages_of_spark() -> None:
    program = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'numpy', 'pandas', 'raydp'): sys.modules[name] = None\n"
        "import escrowmq; print(escrowmq.spark.find_java.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "find_java"


def test_every_name_of_spark_can_be_had() -> None:
    assert set(escrowmq.spark.__all__) == set(escrowmq.spark._MODULE_OF)
    for name in escrowmq.spark.__all__:
        assert getattr(escrowmq.spark, name) is not None


def test_every_public_name_can_be_had() -> None:
    for name in escrowmq.__all__:
        assert getattr(escrowmq, name) is not None
    assert set(escrowmq.__all__) <= set(dir(escrowmq))


def test_type_checkers_see_the_names_that_exist_at_run_time() -> None:
    block = next(node for node in ast.parse(SOURCE).body if isinstance(node, ast.If))
    shown = {alias.name for line in block.body if isinstance(line, ast.ImportFrom) for alias in line.names}
    assert shown == set(escrowmq.__all__) - {"__version__"} == set(escrowmq._MODULE_OF)


def test_an_unknown_name_is_an_attribute_error() -> None:
    try:
        escrowmq.start_remote  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError as error:
        assert "start_remote" in str(error)
    else:
        raise AssertionError("no error")
