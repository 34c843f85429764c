"""What MkDocs cannot know: pages at the root of the repository, and pages the nav does not name.

The README and its neighbours stay where readers of the repository look for them, and become pages
of the site; links follow them there. A link to a file that is no page, such as a source, loses its
target and keeps its words.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
AT_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that the nav does not name under "More"."""
    docs = Path(config.docs_dir)
    named = set(_names(config.nav))
    pages = sorted(p.relative_to(docs).as_posix() for p in docs.rglob("*.md"))
    rest = [page for page in pages if page not in named]
    if rest and config.nav is not None:
        config.nav.append({"More": rest})
    return config


def _names(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [name for entry in entries for name in _names(entry)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root of the repository."""
    for name in AT_ROOT:
        text = (ROOT / name).read_text()
        files.append(File.generated(config, name.lower(), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Lead each link to the page that stands for its target in the site."""
    here = page.file.src_uri
    original = next((name for name in AT_ROOT if name.lower() == here), None)
    folder = "" if original else posixpath.join("docs", posixpath.dirname(here))

    def led(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        at = posixpath.normpath(posixpath.join(folder, target))
        uri = at.lower() if at in AT_ROOT else at.removeprefix("docs/")
        if uri == at or files.get_file_from_path(uri) is None:
            return words
        return f"[{words}]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(led, markdown)
