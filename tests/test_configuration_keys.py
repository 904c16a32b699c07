"""The pages of docs/reference/keys: current, complete, and linked with each other."""

import re

import pytest

from benchmarks.configuration_keys import COMMAND, FOLDER, pages, slug
from zoo.ablate.config import SweepConfig
from zoo.config.registry import Kind
from zoo.run.config import RunConfig

pytestmark = pytest.mark.usefixtures("without_plugins")


def test_the_committed_pages_are_current() -> None:
    committed = {page.name: page.read_text("utf-8") for page in FOLDER.iterdir()}
    assert pages() == committed, f"docs/reference/keys: write them again with `{COMMAND}`"


def test_every_key_of_every_choice_is_described() -> None:
    text = "\n".join(page.read_text("utf-8") for page in FOLDER.iterdir())
    parts = re.split(r"^###? (.+)\n", text, flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    top = [section for name, section in zip(parts[1::2], parts[2::2], strict=True) if name == "The file"]
    described = {
        f"{kind.name.split()[0]}: {name}": cls
        for kind in Kind.registries.values()
        for name, cls in kind.choices.items()
    }
    assert len(described) > 70
    tables = [(sections[heading], cls) for heading, cls in described.items()]
    tables += [(" ".join(top), RunConfig), (" ".join(top), SweepConfig)]
    for section, cls in tables:
        rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", section, re.M)
        assert {name for name, description in rows if description.strip()} >= cls.model_fields.keys() - {
            "type"
        }, cls


def test_links_lead_to_headings() -> None:
    texts = {page.name: page.read_text("utf-8") for page in FOLDER.iterdir()}
    anchors = {name: {slug(h) for h in re.findall(r"^#+ (.+)$", text, re.M)} for name, text in texts.items()}
    links = [
        (name, page or name, anchor)
        for name, text in texts.items()
        for page, anchor in re.findall(r"\]\(([\w.]*)#([\w-]+)\)", text)
    ]
    assert len(links) > 100
    assert not [link for link in links if link[2] not in anchors[link[1]]]
