"""Pages of the site that are made from something else: README, the API reference, the command line, examples.

Hooks of MkDocs (mkdocs.yml). What cannot be made fails the build: a public name without a page or without a
docstring, an error without a recipe, a link to a file that has no page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

#: Page of the reference -> title, introduction, public names of ``escrowmq``; a page of ``MODULES`` has all
#: of its module. Each public name stands on one page.
REFERENCE: dict[str, tuple[str, str, str]] = {
    "cluster": ("Clusters", "Start one, connect to one.", "start_local connect Cluster LocalCluster"),
    "producer": (
        "Producers",
        "Send messages, alone or with a local transaction. [Guide](../guide.md#transactions).",
        "Producer AsyncProducer Transaction TransactionRequest TransactionResult PreparedTransaction "
        "TransactionResults PreparedTransactions SentMany TxStatusQuerier ProducerStatistics",
    ),
    "consumer": (
        "Consumers",
        "Read what is committed. [Guide](../guide.md#consumers).",
        "Consumer AsyncConsumer RetryPolicy StreamRecord ConsumerStatistics Replies Reply",
    ),
    "share-consumer": (
        "Share consumers",
        "Take single messages, and settle each by itself. [Guide](../guide.md#share-groups).",
        "ShareConsumer AsyncShareConsumer ShareRecord ShareConsumerStatistics",
    ),
    "admin": ("Administration", "Topics, transactions, groups, replicas, nodes.", "Admin"),
    "values": (
        "Messages and records",
        "What goes in and what comes out.",
        "Message ConsumerRecord RecordMetadata TopicInfo OpenTransaction TransactionState",
    ),
    "settings": (
        "Settings",
        "Each setting's default and reason is in [configuration](../configuration.md).",
        "Config load_config BrokerConfig ProducerConfig ConsumerConfig ShareConsumerConfig ChannelConfig",
    ),
    "databases": (
        "Databases",
        "[Fence](../guide.md#the-fence), [inbox](../guide.md#the-inbox), [outbox](../guide.md#the-outbox).",
        "",
    ),
    "testing": ("Testing", "A cluster in memory. [Testing your service](../testing.md).", ""),
    "ray-data": ("Ray Data", "Datasets of topics. [Guide](../guide.md#ray-data).", ""),
    "spark": (
        "Spark",
        "Sessions. Sources and sinks are in [Spark](../spark.md).",
        "spark_session stop_session",
    ),
    "errors": ("Error classes", "What to do about each: [errors](../errors.md).", ""),
}
#: Page -> public module.
MODULES = {
    "databases": "escrowmq.integrations",
    "ray-data": "escrowmq.ray_data",
    "testing": "escrowmq.testing",
}
_OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)\)")
_FROM_ROOT = re.compile(r"\]\((?:docs/)?([\w./-]+)((?:#[\w-]+)?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that no file holds."""
    made = {"index.md": _from_root("README.md"), "contributing.md": _from_root("CONTRIBUTING.md")}
    made |= {f"reference/{page}.md": text for page, text in _reference()}
    made["reference/command-line.md"] = _command_line()
    for path in _shown():
        language = "yaml" if path.suffix == ".yaml" else "python"
        made[_page_of(path)] = (
            f"# {path.name}\n\n`{path.relative_to(ROOT)}`\n\n```{language}\n{path.read_text()}```\n"
        )
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from docs/ to files above it go to the pages that show these."""
    if "/" in page.file.src_uri:  # ``../`` leads to docs/ there
        return markdown
    return _OUTSIDE.sub(lambda found: f"]({_page_of(ROOT / found[1])})", markdown)


def _shown() -> list[Path]:
    """Files outside of docs/ that have a page."""
    return [*sorted((ROOT / "examples").glob("[a-z]*.py")), ROOT / "ray_cluster.yaml"]


def _page_of(path: Path) -> str:
    if path not in _shown():
        raise PluginError(f"{path.relative_to(ROOT)} has no page: name it in docs/site/pages.py")
    return f"files/{path.stem}.md"


def _from_root(name: str) -> str:
    """A file of the root, with the links of the site; what has no page is named and not linked."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2]
        if (ROOT / "docs" / target).is_file():
            return f"]({target}{anchor})"
        if target in ("README.md", "CONTRIBUTING.md"):
            return f"]({'index' if target == 'README.md' else 'contributing'}.md{anchor})"
        if ROOT / target in _shown():
            return f"]({_page_of(ROOT / target)})"
        return "]"

    text = _FROM_ROOT.sub(link, (ROOT / name).read_text())
    return re.sub(r"\[([^][]*)\](?![(\[:])", r"\1", text)


def public_names() -> dict[str, list[str]]:
    """Page -> the public names on it. Raises PluginError for one that stands on none, or on two."""
    import importlib

    import escrowmq

    pages = {page: names.split() for page, (_, _, names) in REFERENCE.items()}
    errors = [name for name in escrowmq.__all__ if _is_error(getattr(escrowmq, name))]
    pages["errors"] = [f"escrowmq.{name}" for name in errors]
    for page, module in MODULES.items():
        pages[page] = [f"{module}.{name}" for name in importlib.import_module(module).__all__]
    for page in pages.keys() - MODULES.keys() - {"errors"}:
        pages[page] = [f"escrowmq.{name}" for name in pages[page]]
    shown = [name for names in pages.values() for name in names]
    wanted = {f"escrowmq.{name}" for name in escrowmq.__all__ if not name.startswith("__")}
    wanted |= {name for page in MODULES for name in pages[page]}
    if wrong := sorted(wanted ^ set(shown)) or sorted({name for name in shown if shown.count(name) > 1}):
        raise PluginError(f"each public name stands on one page of REFERENCE; look at {', '.join(wrong)}")
    return pages


def undocumented() -> list[str]:
    """Public functions, classes, methods and properties without a docstring of their own."""
    missing = []
    for names in public_names().values():
        for name in names:
            thing = _found(name)
            if not thing.__doc__:
                missing.append(name)
            for member, value in vars(thing).items() if inspect.isclass(thing) else ():
                callable_ = inspect.isfunction(value) or isinstance(
                    value, property | classmethod | staticmethod
                )
                if callable_ and not member.startswith("_") and not value.__doc__:
                    missing.append(f"{name}.{member}")
    return missing


def errors_without_recipe() -> list[str]:
    """Public errors that have no section in docs/errors.md; there is one for no other."""
    sections = set(re.findall(r"^### (\w+)$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE))
    errors = {name.rpartition(".")[2] for name in public_names()["errors"]} - {"EscrowMQError"}
    return sorted(errors ^ sections)


def _reference() -> Iterator[tuple[str, str]]:
    if missing := undocumented() + errors_without_recipe():
        raise PluginError(f"without a docstring, or a recipe in docs/errors.md: {', '.join(missing)}")
    for page, names in public_names().items():
        title, introduction, _ = REFERENCE[page]
        # Where it is defined: what `escrowmq` loads at first use, a reader of source files does not see.
        places = [f"{thing.__module__}.{thing.__name__}" for thing in map(_found, names)]
        shown = "".join(f"\n::: {place}\n" for place in places)
        whence = MODULES.get(page, "escrowmq")
        yield page, f"# {title}\n\n{introduction}\n\nAll are imported from `{whence}`.\n{shown}"


def _found(name: str) -> Any:
    import importlib

    module, _, thing = name.rpartition(".")
    return getattr(importlib.import_module(module), thing)


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)


def _command_line() -> str:
    """All commands with their options, as ``--help`` shows them."""
    import typer.main
    from typer.cli import get_docs_for_click

    from escrowmq.cluster.cli.app import app

    command = typer.main.get_command(app)
    context: Any  # Typer's types name Click's class, and Typer comes with its own
    with command.make_context("escrowmq", [], resilient_parsing=True) as context:
        text = get_docs_for_click(obj=command, ctx=context, name="escrowmq")
    return text.replace("# `escrowmq`", "# Command line", 1)
