"""Pages of the site that are made from something else: README, the API reference, the command line, examples.

Hooks of MkDocs (mkdocs.yml). What cannot be made fails the build: a public name without a page or without a
docstring, an error without a recipe, a link to a file that has no page.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Iterable, Iterator
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
        "Send messages, alone or with a local transaction. [Guide](../guide/transactions.md).",
        "Producer AsyncProducer Transaction TransactionRequest TransactionResult PreparedTransaction "
        "TransactionResults PreparedTransactions SentMany TxStatusQuerier ProducerStatistics",
    ),
    "consumer": (
        "Consumers",
        "Read what is committed. [Guide](../guide/consumers.md).",
        "Consumer AsyncConsumer RetryPolicy StreamRecord ConsumerStatistics Replies Reply",
    ),
    "share-consumer": (
        "Share consumers",
        "Take single messages, and settle each by itself. [Guide](../guide/queues.md#share-groups).",
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
        "Fence, inbox and outbox. [Guide](../guide/database.md).",
        "",
    ),
    "testing": ("Testing", "A cluster in memory. [Testing your service](../testing.md).", ""),
    "ray-data": ("Ray Data", "Datasets of topics. [Guide](../guide/consumers.md#ray-data).", ""),
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
#: Page -> types, by their places, that calls on it return or take, and that nobody makes or imports; their
#: parts follow by themselves.
RETURNED = {
    "producer": ("actors.producer.async_producer.AsyncTransaction",),
    "admin": (
        "actors.admin.types.ClusterStatus",
        "actors.admin.types.TopicDescription",
        "actors.admin.types.TransactionDescription",
        "actors.admin.types.GroupDescription",
        "actors.admin.types.ScheduledMessage",
        "actors.admin.types.GroupMembers",
        "actors.admin.types.MemberChange",
        "actors.admin.types.NodeStatus",
        "actors.admin.types.ReplicaShift",
        "actors.admin.topic_creation.PartitionTrim",
        "actors.admin.group_changes.OffsetReset",
        "actors.admin.types.StoredMessage",
        "actors.admin.types.FoundMessages",
        "actors.admin.types.MessageTrace",
        "actors.admin.types.DeadLetter",
        "actors.admin.types.Redriven",
        "actors.admin.types.ShareSettings",
    ),
    "databases": ("feedback.database.inbox.Entered",),
    "settings": (
        "cluster.settings.ClusterSettings",
        "cluster.settings.StorageSettings",
        "cluster.settings.SecuritySettings",
        "cluster.settings.RaySettings",
        "cluster.settings.SupervisorSettings",
        "feedback.config.FeedbackConfig",
        "feedback.config.AnswererConfig",
    ),
}
#: Public by name, but only for our own code; mkdocs.yml leaves them out, too.
OURS = frozenset(("create", "group_work", "checking", "link", "opening", "packing", "tls_files"))
#: Special methods that users call.
_OF_USERS = frozenset(("__enter__", "__aenter__", "__iter__", "__getitem__"))
_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([\w-][\w./-]*)\)")
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
    down = "../" * page.file.src_uri.count("/")  # this leads to docs/
    return _OUTSIDE.sub(
        lambda found: f"]({down}{_page_of(ROOT / found[2])})" if found[1] == f"../{down}" else found[0],
        markdown,
    )


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
    """Public errors, also those of the modules beside ``escrowmq``, that have no section in docs/errors.md;
    there is one for no other."""
    sections = set(re.findall(r"^### (\w+)$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE))
    names = [name for names in public_names().values() for name in names]
    errors = {name.rpartition(".")[2] for name in names if _is_error(_found(name))} - {"EscrowMQError"}
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
        parts = "".join(f"\n::: {place}\n" for place in _returned(page))
        if parts:
            parts = f"\n## What these calls return or take\n\nNobody makes or imports these.\n{parts}"
        yield page, f"# {title}\n\n{introduction}\n\nAll are imported from `{whence}`.\n{shown}{parts}"


def _returned(page: str) -> list[str]:
    """The page's types of RETURNED and, behind each, those that its fields have."""
    public = {_found(name) for names in public_names().values() for name in names}
    places: list[str] = []
    for name in RETURNED.get(page, ()):
        waiting = [_found(f"escrowmq.{name}")]
        while waiting:
            thing = waiting.pop(0)
            place = f"{thing.__module__}.{thing.__name__}"
            if place not in places and thing not in public:
                places.append(place)
                waiting += classes_in(typing.get_type_hints(thing).values())
    return places


def classes_in(hints: Iterable[Any]) -> list[type]:
    """Our own classes in annotations, also inside of generic ones."""
    found: list[type] = []
    for hint in hints:
        if isinstance(hint, type) and hint.__module__.startswith("escrowmq."):
            found.append(hint)
        found += classes_in(typing.get_args(hint))
    return found


def without_entry() -> list[str]:
    """What public calls return that has no entry in the reference, as ``Admin.status: ClusterStatus``."""
    shown = {_found(name) for names in public_names().values() for name in names}
    shown |= {_found(place) for page in REFERENCE for place in _returned(page)}
    missing = []
    for thing in list(shown):
        members = inspect.getmembers(thing) if inspect.isclass(thing) else [(thing.__name__, thing)]
        for name, member in members:
            function = member.fget if isinstance(member, property) else member
            function = member.func if isinstance(member, functools.cached_property) else function
            ours = name in OURS or (name.startswith("_") and name not in _OF_USERS)
            if ours or not inspect.isfunction(function):
                continue
            try:
                returned = typing.get_type_hints(function).get("return")
            except NameError:  # of a library that is imported for type checkers only
                continue
            missing += [
                f"{thing.__name__}.{name}: {c.__name__}" for c in classes_in([returned]) if c not in shown
            ]
    return sorted(set(missing))


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
