"""The pages of docs/reference/keys: `python -m benchmarks.configuration_keys` writes all of them.

They list every key of a configuration and of a sweep file. The descriptions, types and defaults are those of
the configuration classes of zoo; plugins that are installed do not appear. A test demands that the committed
pages are current.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from pydantic.fields import FieldInfo

from zoo.ablate.config import Range, SweepConfig
from zoo.config.compose import PLUGINS
from zoo.config.registry import (
    CLIPS,
    CONSTRAINTS,
    CORPORA,
    DATASETS,
    INITS,
    LOGGERS,
    MODELS,
    OBJECTIVES,
    OPTIMIZERS,
    REPARAMS,
    SCHEDULES,
    TEMPLATES,
    TOKENIZERS,
    TRANSFERS,
    Config,
    Kind,
    classes_in,
    is_choice,
    type_of,
)
from zoo.config.schema import for_editors
from zoo.nn.scaling import ScalingConfig
from zoo.run.config import RunConfig
from zoo.run.train_config import TrainConfig
from zoo.utils.untyped import JsonObject

FOLDER = Path(__file__).parent.parent / "docs" / "reference" / "keys"
COMMAND = "python -m benchmarks.configuration_keys"
EXTENDS = (
    "| `extends` | text or list of text | – | files or shipped configurations whose keys this file changes, "
    "the later ones on top of the earlier |"
)
"""The key that is resolved before a file is validated, and is therefore no field."""
PLUGINS_TYPE = "list of paths of Python files and names of modules"
"""The type of `plugins` as it is written. In a sweep file the key is no field either."""
TYPES = {
    (RunConfig, PLUGINS): PLUGINS_TYPE,
    (SweepConfig, "base"): "text or a mapping with the [keys of a run](run.md)",
}
"""The types of keys that are written in another form than they are kept in."""
HEAD = "| key | type | default | description |\n|---|---|---|---|"
WORDS = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "`true`, `false`",
    "null": "`null`",
}
BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "multipleOf": "multiple of",
}

Root: TypeAlias = "Kind | type[Config]"
"""What a page is about: all choices of a registry, or a class."""


@dataclass(frozen=True)
class Page:
    """A page, before the sections of nested mappings are found.

    Attributes:
        title: its heading.
        intro: what stands in front of its sections.
        roots: its registries and classes.
        names: the headings of its other classes, in the place of the key whose value they are.
    """

    title: str
    intro: str
    roots: tuple[Root, ...]
    names: dict[type[Config], str] = field(default_factory=dict)


PAGES = {
    "run.md": Page(
        "Keys of a run",
        "What `zoo train FILE` reads. A component, such as `optimizer`, is a mapping with a key `type`, or "
        "its type alone: `init: he` is `init: {type: he}`. Any key can be changed on the command line, "
        "`optimizer.lr=1e-3`, and `zoo schema` writes the same as a JSON schema, with which "
        "[editors](../../terminal.md#editors) complete keys. Unknown keys and impossible values are errors "
        "that name the file and the line.\n\nThe other pages: [models](models.md), [methods](methods.md) "
        "(initialisations, reparameterisations, constraints, optimizers, schedules, transfer rules), "
        "[data](data.md), [training](train.md), [sweep files](sweep.md).",
        (RunConfig,),
        {RunConfig: "The file"},
    ),
    "models.md": Page(
        "Keys of models",
        "`model: {type: gpt, ...}` builds a model of these sizes; `model: {from: PATH}` takes the type, "
        "the sizes and the weights of a checkpoint, and other keys beside `from` change what the "
        "checkpoint says, see [fine-tuning](../../fine-tuning.md).",
        (MODELS,),
        {ScalingConfig: "scalings of nGPT"},
    ),
    "methods.md": Page(
        "Keys of methods",
        "How a model is initialised, reparameterised and updated. The pages "
        "[optimizers](../../optimizers.md), [methods after the three papers](../../methods.md) and "
        "[settings that fit another size](../../transfer.md) say when to use which. Besides the types that "
        "are listed here, an optimizer's `type` may be the path of any class, `torch.optim.RMSprop` or "
        "`mine.py:Lion`, whose arguments are then the keys.",
        (INITS, REPARAMS, CONSTRAINTS, OPTIMIZERS, SCHEDULES, TRANSFERS),
    ),
    "data.md": Page(
        "Keys of data",
        "`data` selects what is read and how examples are made of it; [data and objectives](../../data.md) "
        "explains it with examples.",
        (DATASETS, CORPORA, TOKENIZERS, OBJECTIVES, TEMPLATES),
    ),
    "train.md": Page(
        "Keys of training",
        "Length, batch, precision, device, evaluation, logging and checkpoints. [Speed and "
        "memory](../../speed.md) says what the settings of precision, compilation and recomputation gain "
        "and cost.",
        (TrainConfig, CLIPS, LOGGERS),
        {TrainConfig: "train"},
    ),
    "sweep.md": Page(
        "Keys of a sweep file",
        "What `zoo sweep FILE` reads; [ablations](../../ablations.md) and [the verdict across "
        "scale](../../verdict-across-scale.md) explain it with examples.",
        (SweepConfig,),
        {SweepConfig: "The file", Range: "range of a tuned key"},
    ),
}


def own_choices(kind: Kind) -> dict[str, type[Config]]:
    """The choices of a registry that come with zoo, in the order of their names."""
    return {name: cls for name, cls in sorted(kind.choices.items()) if cls.__module__.startswith("zoo.")}


def key_of(kind: Kind) -> str:
    """The key whose `type` selects from a registry."""
    return kind.name.split()[0]


@dataclass(frozen=True)
class Section:
    """The section of a page that has the keys of one class.

    Attributes:
        page: the file of its page.
        heading: the path of the key, or the key and its type.
        cls: the class.
    """

    page: str
    heading: str
    cls: type[Config]


class Keys:
    """The sections of all pages, found by following the fields of the classes on them."""

    def __init__(self) -> None:
        self.sections: dict[type[Config], Section] = {}
        for page, about in PAGES.items():
            for root in about.roots:
                if isinstance(root, Kind):
                    for name, cls in own_choices(root).items():
                        self._add(page, f"{key_of(root)}: {name}", cls)
                else:
                    self._add(page, about.names[root], root)
        for cls, section in list(self.sections.items()):
            self._add_nested(section.page, cls)
        self.schemas: JsonObject = {}
        for owner in (RunConfig, SweepConfig):
            schema = for_editors(owner)
            self.schemas |= {**schema.pop("$defs"), owner.__name__: schema}

    def _add(self, page: str, heading: str, cls: type[Config]) -> None:
        self.sections.setdefault(cls, Section(page, heading, cls))

    def _add_nested(self, page: str, owner: type[Config]) -> None:
        """Add the classes of the mappings within a class that have no section yet."""
        written = {k: v for k, v in owner.model_fields.items() if (owner, k) not in TYPES}
        found = [(key, cls) for key, about in written.items() for cls in classes_in(about)]
        if owner.extra_keys is not None:
            found.append(("", owner.extra_keys))
        for key, cls in found:
            if cls not in self.sections and cls.__module__.startswith("zoo."):
                kind = f": {cls.model_fields['type'].default}" if is_choice([cls]) else ""
                self._add(page, PAGES[page].names.get(cls, f"{key}{kind}"), cls)
                self._add_nested(page, cls)

    def link(self, cls: type[Config], page: str) -> str:
        """A link from a page to the section of a class."""
        section = self.sections[cls]
        return f"[{section.heading}]({_to(section.page, page)}#{slug(section.heading)})"

    def rows(self, section: Section) -> Iterator[str]:
        """The lines of the table of a section, without its head."""
        if section.cls in (RunConfig, SweepConfig):
            yield EXTENDS
        if section.cls is SweepConfig:
            yield row(PLUGINS, PLUGINS_TYPE, RunConfig.model_fields[PLUGINS])
        schema = self.schemas[section.cls.__name__]
        properties = schema.get("anyOf", [schema])[0][
            "properties"
        ]  # first of the ways to write it, the long one
        for name, about in section.cls.model_fields.items():
            if name == "type":
                continue
            kind = TYPES.get((section.cls, name)) or self.typed(properties[name], section.page)
            yield row(name, kind, about)
        if section.cls.extra_keys is not None:
            yield f"| any other key | {self.link(section.cls.extra_keys, section.page)} | – | a tuned key |"

    def typed(self, schema: JsonObject, page: str) -> str:
        """The type of a value in words, with links, from its JSON schema."""
        if "$ref" in schema:
            return self._referred(schema["$ref"].rpartition("/")[2], page)
        if "const" in schema or "enum" in schema:
            return ", ".join(f"`{shown(value)}`" for value in schema.get("enum", [schema.get("const")]))
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(self._alternatives(schema["anyOf"], page)))
        if schema.get("type") == "array":
            if "prefixItems" in schema:
                return f"list: {'; '.join(self.typed(item, page) for item in schema['prefixItems'])}"
            return f"list of {grouped(self.typed(schema['items'], page))}"
        if schema.get("type") == "object":
            values = schema.get("additionalProperties", True)
            return (
                "mapping" if isinstance(values, bool) else f"mapping to {grouped(self.typed(values, page))}"
            )
        if schema.get("format") == "path":
            return "path"
        bounds = ", ".join(f"{sign} {shown(schema[key])}" for key, sign in BOUNDS.items() if key in schema)
        return f"{WORDS.get(schema.get('type', ''), 'any value')} {escaped(bounds)}".strip()

    def _referred(self, name: str, page: str) -> str:
        """The type that a definition is the schema of: a class, or an enumeration."""
        if "enum" in self.schemas[name]:
            return self.typed(self.schemas[name], page)
        return self.link(self._class(name), page)

    def _class(self, name: str) -> type[Config]:
        return next(cls for cls in self.sections if cls.__name__ == name)

    def _alternatives(self, schemas: Sequence[JsonObject], page: str) -> list[str]:
        """The alternatives; those of a registry are one link to its section."""
        references = [s["$ref"].rpartition("/")[2] for s in schemas if "$ref" in s]
        if any("enum" in s for s in schemas) and references:
            classes = {self._class(name) for name in references}
            for kind in Kind.registries.values():
                if classes <= set(kind.choices.values()):
                    return [f"[{key_of(kind)}]({_to(page_of(kind), page)}#{slug(key_of(kind))})"]
            return [self.link(self._class(name), page) for name in references]
        nested = (
            self._alternatives(s["anyOf"], page) if "anyOf" in s else [self.typed(s, page)] for s in schemas
        )
        return [part for parts in nested for part in parts]


def page_of(kind: Kind) -> str:
    """The page with the choices of a registry."""
    return next(page for page, about in PAGES.items() if kind in about.roots)


def _to(page: str, start: str) -> str:
    return "" if page == start else page


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown and GitHub make it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def grouped(kind: str) -> str:
    """A type with several alternatives in brackets."""
    return f"({kind})" if " or " in kind else kind


def row(name: str, kind: str, about: FieldInfo) -> str:
    """The line of a key in a table."""
    return f"| `{name}` | {kind} | {default_of(about)} | {escaped(about.description or '')} |"


def default_of(about: FieldInfo) -> str:
    """The cell with the default of a key, which the description may have."""
    if about.is_required():
        return "–" if "default:" in (about.description or "") else "required"
    return code(shown(about.default))


def code(text: str) -> str:
    """Text as code in a cell of a table, where a line or a cell must not end."""
    if not re.search(r"[|\n]", text):
        return f"`{text}`"
    return f"<code>{html.escape(text).replace('|', '&#124;').replace(chr(10), chr(92) + 'n')}</code>"


def shown(value: object) -> str:
    """A value as it is written in YAML; a component by its type, and by the keys that it sets."""
    if isinstance(value, Config):
        keys = [key for key in type(value).model_fields if key in value.model_fields_set - {"type"}]
        parts = [f"{key}: {shown(getattr(value, key))}" for key in keys]
        if "type" in type(value).model_fields:
            if not parts:
                return type_of(value)
            parts.insert(0, f"type: {type_of(value)}")
        return f"{{{', '.join(parts)}}}"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def escaped(text: str) -> str:
    """Text without the signs that have a meaning in a table of Markdown."""
    return re.sub(r"([|*<])", r"\\\1", text)


def summary(cls: type[Config]) -> str:
    """The first paragraph of a class's docstring in one line."""
    return escaped(" ".join((cls.__doc__ or "").strip().split("\n\n")[0].split()))


def text_of(page: str, keys: Keys) -> str:
    """A whole page."""
    about = PAGES[page]
    lines = [f"# {about.title}", f"<!-- Written by `{COMMAND}`. -->", about.intro]
    sections = [section for section in keys.sections.values() if section.page == page]
    kinds = {
        cls: kind for kind in about.roots if isinstance(kind, Kind) for cls in own_choices(kind).values()
    }
    begun: set[object] = set()
    for section in sections:
        kind = kinds.get(section.cls)
        if kind is not None and kind.name not in begun:
            begun.add(kind.name)
            listed = [f"* {keys.link(c, page)}: {summary(c)}" for c in own_choices(kind).values()]
            lines += [f"## {key_of(kind)}", "\n".join(listed)]
        nested = kind is None and section.cls not in about.roots
        if nested and "nested" not in begun and kinds:
            begun.add("nested")
            lines.append("## Mappings within these")
        level = "##" if section.cls in about.roots else "###"
        lines += [f"{level} {section.heading}", summary(section.cls)]
        rows = list(keys.rows(section))
        lines.append("\n".join([HEAD, *rows]) if rows else "It has no keys besides `type`.")
    return "\n\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """The text of every page by the name of its file."""
    keys = Keys()
    return {page: text_of(page, keys) for page in PAGES}


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
