"""A Markdown extension for the site: links to files of the repository, which is no part of it, become their text."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor

_DOCS = Path(__file__).resolve().parent


def leads_out(href: str) -> bool:
    """Whether ``href`` goes from some page of the docs to a file or folder of the repository beside them."""
    if not href.startswith("../"):
        return False
    target = _DOCS.parent / href.partition("#")[0].lstrip("./")
    return target.exists() and not target.is_relative_to(_DOCS)


class _PlainText(Treeprocessor):
    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            if leads_out(link.get("href", "")):
                link.tag = "span"
                link.attrib.clear()


class SiteLinks(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the name that is called)
        # After the links are made (20) and before the generator resolves those that stay.
        md.treeprocessors.register(_PlainText(md), "site_links", 15)


def makeExtension() -> SiteLinks:  # noqa: N802 (the name that is called)
    return SiteLinks()
