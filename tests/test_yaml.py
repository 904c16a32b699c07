"""The parsers of YAML, that of libyaml and that in Python, read the same, and errors are those of one."""

import random

import pytest
import yaml

import zoo.config.yaml as reading
from zoo.config.compose import shipped
from zoo.utils.errors import ConfigError

TEXTS = {name: file.read_text(encoding="utf-8") for name, file in shipped().items()}
SIGNS = "[]{}:,-?#&*!|>'\"%@` \n\t~.\\0é\r\x85\u2028"


def read(text: str) -> tuple[reading.Located | str, list[str]]:
    """The values of a text with their places, or its error; and the problems."""
    problems: list[str] = []
    try:
        return reading.read_yaml(text, "file", problems), problems
    except ConfigError as error:
        return str(error), problems


def edited(text: str, draw: random.Random) -> str:
    """Some lines of a text in which one to three characters are inserted or replaced."""
    lines = text.split("\n")
    first = draw.randrange(len(lines))
    text = "\n".join(lines[first : first + 6])
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(text) + 1)
        text = text[:at] + draw.choice(SIGNS) + text[at + draw.randrange(2) :]
    return text


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
def test_both_parsers_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    texts = [*TEXTS.values(), *(edited(draw.choice([*TEXTS.values()]), draw) for _ in range(2000))]
    fast = [read(text) for text in texts]
    assert sum(isinstance(found[0], str) for found in fast) > 500
    monkeypatch.setattr(reading, "SAFE_DEPTH", 0)  # the parser in Python alone
    assert [read(text) for text in texts] == fast


def test_what_nests_deeply_is_not_given_to_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    compose = yaml.compose

    def composed(text: str, Loader: type[yaml.SafeLoader]) -> yaml.Node | None:
        asked.append(Loader)
        return compose(text, Loader)

    monkeypatch.setattr(yaml, "compose", composed)
    for text in ("a: " + "[" * 600, "a: " + "{b: " * 600, "- " * 300 + "a"):
        with pytest.raises(ConfigError):
            reading.read_yaml(text, "file", [])
    assert asked == [reading._Loader] * 3
    reading.read_yaml("a: [1, {b: 2}]", "file", [])
    assert asked[3:] == [reading._FastLoader]
