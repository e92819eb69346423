"""Generates the tables of options on the pages of docs/guide from the code.

``python -m escrowmq.cluster.guide_doc docs/guide`` rewrites them: it replaces the text between the two
comment lines of each table and nothing else. A test compares the pages with the code, so a changed default
without an updated table fails. The text is the comment above the default, as in docs/configuration.md.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escrowmq.actors.admin.topic_creation import TopicOptions
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.share_consumer.config import ShareConsumerConfig
from escrowmq.cluster.config import leaves, reason
from escrowmq.cluster.config_doc import shown
from escrowmq.feedback.config import AnswererConfig

#: Name of a table, as in the comment line before it -> the class whose fields the table shows.
TABLES: dict[str, type[Any]] = {
    "topic options": TopicOptions,
    "producer options": ProducerConfig,
    "consumer options": ConsumerConfig,
    "share consumer options": ShareConsumerConfig,
    "querier options": AnswererConfig,
}
_REGION = re.compile(r"(<!-- table: ([a-z ]+) \(.*?-->\n).*?(<!-- end of table -->\n)", re.DOTALL)


def pages(folder: Path) -> dict[Path, str]:
    """The pages of the guide as they are."""
    return {path: path.read_text() for path in sorted(folder.glob("*.md"))}


def with_tables(guide: Mapping[Path, str]) -> dict[Path, str]:
    """The pages with all tables up to date. Raises ValueError if not exactly one region is there for each."""
    named = [found[2] for text in guide.values() for found in _REGION.finditer(text)]
    if sorted(named) != sorted(TABLES):
        raise ValueError(f"the guide has regions for {named}; it needs one for each of {list(TABLES)}")
    return {
        path: _REGION.sub(lambda found: found[1] + table(TABLES[found[2]]) + found[3], text)
        for path, text in guide.items()
    }


def table(options: type[Any]) -> str:
    """A table of options; those that share a comment share a row. Nested sections are left out."""
    own = [leaf for leaf in leaves(options) if "." not in leaf.path]
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for text, group in itertools.groupby(own, key=reason):
        together = list(group)
        names = ", ".join(f"`{leaf.path}`" for leaf in together)
        defaults = ", ".join(shown(leaf.default) for leaf in together)
        rows.append(f"| {names} | {defaults} | {text.replace('``', '`').replace('|', '&#124;')} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Write the tables into the pages of the folder named on the command line."""
    for path, text in with_tables(pages(Path(sys.argv[1]))).items():
        path.write_text(text)


if __name__ == "__main__":
    main()
