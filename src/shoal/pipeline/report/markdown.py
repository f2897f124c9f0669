"""A report as Markdown: all of its tables; of pictures, what they show."""

from __future__ import annotations

import re

from shoal.pipeline.report.model import Block, Report, Table, Text

_SPECIAL = re.compile(r"([\\`*_|<>\[\]])")


def to_markdown(report: Report, page: str) -> str:
    """`page` is where the pictures are."""
    lines = [f"# {_plain(report.title)}", "", *(f"- {_plain(line)}" for line in report.summary)]
    for section in report.sections:
        lines += ["", f"## {_plain(section.title)}"]
        for block in section.blocks:
            lines += ["", *_block(block, page)]
    return "\n".join(lines) + "\n"


def _block(block: Block, page: str) -> list[str]:
    if isinstance(block, Text):
        return [_plain(block.text)]
    if isinstance(block, Table):
        return _table(block)
    return [f"Picture in [{_plain(page)}](<{page}>): {_plain(block.caption)}"]


def _table(table: Table) -> list[str]:
    marks = ["---" if number < table.left else "---:" for number in range(len(table.columns))]
    rows = [table.columns, *table.rows]
    head, *body = ["| " + " | ".join(map(_plain, row)) + " |" for row in rows]
    return [_plain(table.caption), "", head, "| " + " | ".join(marks) + " |", *body]


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is; what was on several lines is on one."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
