"""A report as one HTML page that needs nothing else: no script, no font, no outside file."""

from __future__ import annotations

import re
from html import escape

from shoal_lab.report.blocks import Block, Report, Section, Table, Text

GOOD, BAD = ("inside", "no higher"), ("outside", "higher")

STYLE = """
:root{color-scheme:light}
body{margin:0 auto;max-width:62rem;padding:2.5rem 1.5rem 5rem;color:#24292f;background:#fff;
 font:15px/1.55 system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .6rem}
h2{font-size:1.2rem;margin:2.6rem 0 .4rem;padding-bottom:.25rem;border-bottom:1px solid #d5d9de}
nav{display:flex;flex-wrap:wrap;gap:0 1rem;margin:1.2rem 0}nav a{white-space:nowrap}
a{color:#0a5ca8;text-decoration:none}a:hover{text-decoration:underline}
.summary{margin:.4rem 0;padding-left:1.2rem}
.scroll{overflow-x:auto;margin:1rem 0 1.4rem}
table{border-collapse:collapse;font-size:13.5px;border-top:1.5px solid #24292f;
 border-bottom:1.5px solid #24292f;font-variant-numeric:tabular-nums}
caption{caption-side:top;text-align:left;color:#57606a;padding-bottom:.45rem;max-width:60rem}
th{border-bottom:1px solid #24292f;font-weight:600;vertical-align:bottom}
th,td{padding:.26rem .7rem .26rem 0;text-align:right}th:last-child,td:last-child{padding-right:0}
td{white-space:nowrap}td.w{white-space:normal;min-width:6.5rem}.w{text-align:left;overflow-wrap:anywhere}
tbody tr:hover{background:#f6f8fa}
.in{color:#1a7f37}.out{color:#b35900;font-weight:600}
figure{margin:1.2rem 0 1.6rem}figure svg{max-width:100%;height:auto}
figcaption{color:#57606a;font-size:13.5px;max-width:42rem}
details{margin:1rem 0}summary{cursor:pointer;color:#57606a}
@media print{body{max-width:none;padding:0;font-size:11px}nav{display:none}h2{break-after:avoid}
 figure,tr{break-inside:avoid}}
""".strip()


def to_html(report: Report) -> str:
    """The page."""
    links = "".join(f"<a href='#{_id(s)}'>{escape(s.title)}</a>" for s in report.sections)
    summary = "".join(f"<li>{escape(line)}</li>" for line in report.summary)
    sections = "\n".join(_section(section) for section in report.sections)
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>\n"
        # Not even a favicon is asked for.
        "<link rel='icon' href='data:,'>\n"
        f"<title>{escape(report.title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>{escape(report.title)}</h1>\n<ul class='summary'>{summary}</ul>\n"
        f"<nav>{links}</nav>\n{sections}\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f"<section id='{_id(section)}'>\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>"


def _block(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Table):
        return _table(block)
    return f"<figure>{block.svg}<figcaption>{escape(block.caption)}</figcaption></figure>"


def _table(table: Table) -> str:
    head = "".join(_cell("th", name, i, table) for i, name in enumerate(table.columns))
    body = "\n".join(
        "<tr>" + "".join(_cell("td", cell, i, table) for i, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    caption = "" if table.folded else f"<caption>{escape(table.caption)}</caption>"
    made = (
        f"<div class='scroll'><table>{caption}<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
    if not table.folded:
        return made
    return f"<details><summary>{escape(table.caption)}</summary>{made}</details>"


def _cell(tag: str, text: str, number: int, table: Table) -> str:
    kinds = ["w"] if number < table.left else []
    if tag == "td" and (text in GOOD or text.startswith("within ")):
        kinds.append("in")
    elif tag == "td" and text in BAD:
        kinds.append("out")
    marked = f" class='{' '.join(kinds)}'" if kinds else ""
    return f"<{tag}{marked}>{escape(text)}</{tag}>"


def _id(section: Section) -> str:
    return re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")


# A report as Markdown: all of its tables; of pictures, what they show.


_SPECIAL = re.compile(r"([\\`*_|<>\[\]])")


def to_markdown(report: Report, page: str) -> str:
    """`page` is where the pictures are."""
    lines = [f"# {_plain(report.title)}", "", *(f"- {_plain(line)}" for line in report.summary)]
    for section in report.sections:
        lines += ["", f"## {_plain(section.title)}"]
        for block in section.blocks:
            lines += ["", *_block_markdown(block, page)]
    return "\n".join(lines) + "\n"


def _block_markdown(block: Block, page: str) -> list[str]:
    if isinstance(block, Text):
        return [_plain(block.text)]
    if isinstance(block, Table):
        return _table_markdown(block)
    return [f"Picture in [{_plain(page)}](<{page}>): {_plain(block.caption)}"]


def _table_markdown(table: Table) -> list[str]:
    marks = ["---" if number < table.left else "---:" for number in range(len(table.columns))]
    rows = [table.columns, *table.rows]
    head, *body = ["| " + " | ".join(map(_plain, row)) + " |" for row in rows]
    return [_plain(table.caption), "", head, "| " + " | ".join(marks) + " |", *body]


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is; what was on several lines is on one."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
