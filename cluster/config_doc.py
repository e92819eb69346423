"""Generates docs/configuration.md from the configuration tree.

``python -m escrowmq.cluster.config_doc`` prints the page; given a file name, it writes the page there. A test
compares the file with the output of this module, so a changed default without an updated page fails.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from escrowmq.cluster.config import FILE_VARIABLE, Leaf, all_leaves, reason, sections, variable_of

#: Defaults that depend on the machine, and the text that the page shows for them.
COMPUTED = {"ray.num_cpus": "the machine's cores, at least 8"}

INTRODUCTION = f"""# Configuration

*Made from the code by `python -m escrowmq.cluster.config_doc docs/configuration.md`; a test keeps it
current.*

Every setting has a default. Most clusters need to set only these:

```yaml
# escrowmq.yaml
cluster:
  groups: 2
storage:
  data_dir: /data/escrowmq
```

Settings come from four sources; a later source overrides an earlier one:

1. the defaults below;
2. a YAML file: `escrowmq up --config escrowmq.yaml`, `start_local(config="escrowmq.yaml")`, or the
   variable `{FILE_VARIABLE}`;
3. environment variables, with two underscores between the levels: `{variable_of("broker.segment_bytes")}`;
4. arguments of commands and functions (`--groups 2`, `start_local(groups=2)`,
   `cluster.producer(app="shop", linger_ms=0)`).

A key or an `ESCROWMQ_` variable that is not listed here is an error; the error names the most similar one. A
value of the wrong type or out of range is an error, too. Names end in their unit: `_s` seconds, `_ms`
milliseconds, `_bytes` bytes.

`broker`, `feedback` and `supervisor` take effect where the cluster is started (`escrowmq up`,
`start_local`); `producer`, `consumer`, `share_consumer` and `answerer` take effect in the process that
produces or consumes.
`cluster.groups` and `cluster.replicas` take effect when the cluster is founded, that is, started for the
first time; later, `escrowmq members set` changes the number of replicas of a group.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, section in sections().items():
        own = [leaf for leaf in all_leaves() if leaf.path.split(".")[0] == name]
        entries = "\n".join(_entry(list(shared)) for _, shared in itertools.groupby(own, key=reason))
        parts.append(f"## `{name}`\n\n{_wrap(_summary(section))}\n\n{entries}\n")
    return "\n".join(parts)


def _summary(section: type[Any]) -> str:
    text = inspect.getdoc(section) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def _entry(leaves: Sequence[Leaf]) -> str:
    """Settings that share one reason, as one item of a list."""
    names = ",\n  ".join(
        f"**`{leaf.path}`** ({leaf.type_name}, default {COMPUTED.get(leaf.path) or shown(leaf.default)})"
        for leaf in leaves
    )
    return f"- {names}\\\n{textwrap.indent(_wrap(reason(leaves[0])), '  ')}"


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def shown(value: Any) -> str:
    """A default as text, with a binary unit if it is a round number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1024 and value % 1024 == 0:
        for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value % size == 0:
                return f"`{value}` = {value // size} {unit}"
    return f"`{value}`"


def main() -> None:
    """Print the page, or write it to the file named on the command line."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
