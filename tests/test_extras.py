"""The messages about packages that are not installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from zoo.utils.extras import install

ROOT = Path(__file__).parent.parent
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "zoo").rglob("*.py"))}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


def test_one_function_writes_the_sentence() -> None:
    assert [path.name for path, text in SOURCES.items() if "pip install" in text] == ["extras.py"]


@pytest.mark.parametrize("extra", sorted({*re.findall(r"\binstall\('(\w+)'\)", "".join(SOURCES.values()))}))
def test_named_extras_exist(extra: str) -> None:
    assert extra in EXTRAS
    assert f"'.[{extra}]'" in install(extra)


def test_no_page_installs_zoo_by_its_name() -> None:
    """An index may have another package of that name."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    by_name = re.compile(r"pip install[^`\n]*\bzoo(?=[\['\"\s`]|$)")
    assert [page.name for page in pages if by_name.search(page.read_text(encoding="utf-8"))] == []
