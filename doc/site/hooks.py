# hooks.py - what mkdocs does differently for these documents
#
# Markdown is read as GitHub reads it; and each entry of the reference (a
# function, a setting, an SQLSTATE: a row whose first cell begins with code)
# gets an id, and is found by the search under its own name.

import html
import json
import os
import re

REFERENCE = "doc/reference.html"

entries = {}                            # the text of a row by its name


def slug(heading, separator):
    """The id of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def on_config(config):
    config["markdown_extensions"] += [
        "pymdownx.highlight", "pymdownx.superfences"]
    config["mdx_configs"]["toc"] = {"slugify": slug, "permalink": True}
    return config


def on_page_markdown(markdown, **kwargs):
    markdown = markdown.replace("](LICENSE)", "](LICENSE.txt)")

    # Python's Markdown wants what belongs to an item of a list to be indented
    # by 4, not by the width of "- " or "1. ", and a blank line after a second
    # paragraph in it.
    lines = []
    width = 0                           # of the item's mark; 0 outside
    paragraphs = False
    blank = True
    for line in markdown.split("\n"):
        item = re.match(r"(?:[-*]|\d+\.) ", line)
        if item:
            if width and paragraphs and not blank:
                lines.append("")
            width = len(item.group())
            paragraphs = False
        elif width and line.startswith(" " * width):
            line = " " * (4 - width) + line
            paragraphs = paragraphs or blank
        elif line and blank:
            width = 0
        blank = not line
        lines.append(line)
    return "\n".join(lines)


def on_page_content(content, page, **kwargs):
    if page.url != REFERENCE:
        return content

    def entry(match):
        name = match.group(1)
        if name in entries:
            return match.group()
        cells = re.sub(r"<[^>]*>", "", match.group().replace("</td>", " "))
        entries[name] = " ".join(html.unescape(cells).split())
        return match.group().replace("<tr>", '<tr id="%s">' % name, 1)

    return re.sub(r"<tr>\s*<td><code>([\w.]+).*?</tr>", entry, content,
                  flags=re.S)


def on_post_build(config):
    path = os.path.join(config["site_dir"], "search", "search_index.json")
    with open(path, encoding="utf-8") as file:
        index = json.load(file)
    for name, text in entries.items():
        # queue_claim comes before queue_claim_any.  The theme of Debian 12
        # does not know this; there, main.html does it.
        longer = any(other.startswith(name + "_") for other in entries)
        index["docs"].append({"location": REFERENCE + "#" + name,
                              "title": name, "text": text,
                              "boost": 4 if longer else 1})
    with open(path, "w", encoding="utf-8") as file:
        json.dump(index, file, ensure_ascii=False)
