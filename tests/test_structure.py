"""The architecture, held by reading the source: layers, one place for parameters, no name logic."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

import zoo

PACKAGE = Path(zoo.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
LAYERS = (
    {"utils"},
    {"config", "spec", "kernels"},
    {"nn"},
    {"data", "init", "models"},
    {"reparam", "optim", "sampling"},
    {"checkpoint"},
    {"run"},
    {"train", "hub"},
    {"evaluation"},
    {"ablate", "diagnose"},
    {"report"},
    {"commands"},
    {"__main__"},
)
"""From the ground up; a room imports only from layers below its own."""

LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts} | {"": len(LAYERS)}
MAY_KNOW_NAMES = ("hub", "checkpoint")
THE_USERS_PATTERNS = "overrides.py"
"""The file of `zoo.init` that matches patterns by which a user names parameters of any module."""


def module_of(file: Path) -> str:
    """zoo/nn/linear.py -> nn.linear; "" for the package itself."""
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def part_of(module: str) -> str:
    """The room a module belongs to: nn.linear -> nn."""
    return module.split(".")[0]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def walk_running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only type checkers see."""
    for child in ast.iter_child_nodes(tree):
        if not is_type_checking(child):
            yield child
            yield from walk_running(child)


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of zoo that are imported, anywhere in the file: nn.linear."""
    for node in walk_running(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "zoo":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zoo."):
            yield (node.module or "").removeprefix("zoo.")
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("zoo.") for a in node.names if a.name.startswith("zoo."))


def imported(file: Path) -> Iterator[str]:
    """The modules that a file imports: of `from zoo.a import b` both zoo.a.b and zoo.a may be one."""
    for node in walk_running(parse(file)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zoo."):
            parent = (node.module or "").removeprefix("zoo.")
            names = [f"{parent}.{alias.name}" for alias in node.names]
            submodules = [
                name for name in names if (PACKAGE / name.replace(".", "/")).with_suffix(".py").is_file()
            ]
            yield from submodules or [parent]
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("zoo.") for a in node.names if a.name.startswith("zoo."))


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def called_name(node: ast.AST) -> str:
    """The last word of what is called: `nn.Parameter(...)` -> Parameter."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def test_every_part_has_a_layer() -> None:
    parts = {part_of(module_of(file)) for file in SOURCES}
    assert parts == set(LEVEL)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: module_of(file) or "zoo")
def test_imports_point_downwards(file: Path) -> None:
    own = part_of(module_of(file))
    for module in imports(parse(file)):
        other = part_of(module)
        assert other == own or LEVEL[other] < LEVEL[own], f"{file}: {own} imports {module}"


def test_no_circles_between_modules() -> None:
    """Inside a room as well: modules can be read one after the other."""
    modules = {module_of(file): file for file in SOURCES}
    graph = {module: {m for m in imported(file) if m in modules} for module, file in modules.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_top_level_is_short() -> None:
    entries = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert len(entries - {"__init__", "__main__", "__pycache__", "configs"}) <= 20


def test_parameters_are_created_in_one_place() -> None:
    creators = [
        module_of(file)
        for file in SOURCES
        for node in ast.walk(parse(file))
        if called_name(node) in ("Parameter", "register_parameter")
    ]
    assert set(creators) == {"spec"}


@pytest.mark.parametrize("part", ["init", "optim", "train", "reparam", "models", "nn"])
def test_no_logic_on_parameter_names(part: str) -> None:
    for file in sorted((PACKAGE / part).rglob("*.py")):
        for node in walk_running(parse(file)):
            if isinstance(node, ast.Call):
                matches = called_name(node) in ("endswith", "startswith", "fnmatch", "fnmatchcase")
                assert not matches or file.name == THE_USERS_PATTERNS, f"{file}:{node.lineno}"
            if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
                in_a_name = [c for c in node.comparators if isinstance(c, ast.Name) and c.id == "name"]
                assert not in_a_name, f"{file}:{node.lineno}: looks for text in a name"


def test_only_the_hub_and_checkpoints_match_names() -> None:
    """The rule above, for everything else that walks over parameters."""
    for file in SOURCES:
        if part_of(module_of(file)) in MAY_KNOW_NAMES:
            continue
        tree = parse(file)
        walks = any(called_name(n) in ("named_parameters", "state_dict") for n in ast.walk(tree))
        matches = [n for n in ast.walk(tree) if called_name(n) in ("endswith", "startswith")]
        assert not (walks and matches), f"{file}: walks over parameters and matches text"


def classes_of(part: str) -> set[str]:
    """The names of the classes that a part defines."""
    trees = map(parse, (PACKAGE / part).rglob("*.py"))
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("part", ["init", "optim", "train"])
def test_no_question_of_which_model_it_is(part: str) -> None:
    """Techniques read declarations; what kind of model or layer they come from is none of their business."""
    architectures = {c for c in classes_of("models") | classes_of("nn") if not c.endswith("Config")}
    assert {"GPT", "NGPT", "Block", "Linear"} <= architectures
    for file in sorted((PACKAGE / part).rglob("*.py")):
        for node in ast.walk(parse(file)):
            if called_name(node) == "isinstance" and isinstance(node, ast.Call):
                asked = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not asked & architectures, f"{file}:{node.lineno}: {ast.unparse(node)}"


def test_a_name_of_a_class_has_one_meaning() -> None:
    """Only models share names: each has a block of its own."""
    owners: dict[str, set[str]] = {}
    for file in SOURCES:
        for node in parse(file).body:
            if isinstance(node, ast.ClassDef):
                owners.setdefault(node.name, set()).add(module_of(file))
    shared = {name: modules for name, modules in owners.items() if len(modules) > 1}
    assert not {n: m for n, m in shared.items() if {part_of(module) for module in m} != {"models"}}


@pytest.mark.parametrize("module", ["zoo", "zoo.commands.cli"])
def test_importing_is_cheap(module: str) -> None:
    heavy = "pydantic typer rich matplotlib torch" if module == "zoo" else "pydantic matplotlib torch"
    code = f"import sys, {module}; print(*(m for m in {heavy.split()} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


MAY_NAME_MODULES = {
    "": "the public names of zoo are imported when they are used",
    "data": "as those of zoo: a process that encodes texts starts without torch",
    "optim": "nor does a model need an optimizer",
    "config.homes": "choices are imported when one of their kind is asked for",
    "init.infer": "rules by the names of a library's parameters are hub's, and are loaded for its models",
    "ablate.pool": "the module that workers run is loaded before they are forked",
}


def test_no_import_hides_in_a_string() -> None:
    """A module that is loaded by its name is an arrow that the graph of imports does not have."""
    for file in SOURCES:
        named = {
            str(node.value)
            for node in ast.walk(parse(file))
            if isinstance(node, ast.Constant) and re.fullmatch(r"zoo(\.\w+)+", str(node.value))
        }
        modules = {
            name for name in named if (PACKAGE.parent / name.replace(".", "/")).with_suffix(".py").is_file()
        }
        hidden = modules - {f"zoo.{module}" for module in imported(file)}
        assert not hidden or module_of(file) in MAY_NAME_MODULES, f"{file}: {hidden}"


MAY_USE_PRIVATE_PARTS = {
    "sampling.compiled": "torch has no public name for the errors of its compiler",
    "ablate.pool": "the module that is loaded before workers are forked is slow to import",
    "train.forecast": "torch has no public name for tensors without memory, which it forecasts with",
    "train.live_memory": "nor for what sees every operator, of which only the forecast makes use",
}


def private_parts(tree: ast.Module) -> Iterator[str]:
    """The private parts of torch, and the operators of its compiled libraries, that a module uses."""
    for node in ast.walk(tree):
        words: list[str] = []
        if isinstance(node, ast.ImportFrom):
            words = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            words = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            words = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = [node.value]
        yield from (word for word in words if re.fullmatch(r"torch(\.\w+)*?\.(_\w+|ops)(\.\w+)*", word))


def test_private_parts_of_torch_are_used_in_kernels_only() -> None:
    """There each has a guard of the version and a plain path beside it."""
    users = {module_of(file): sorted(set(private_parts(parse(file)))) for file in SOURCES}
    outside = {module for module, parts in users.items() if parts and part_of(module) != "kernels"}
    assert outside == set(MAY_USE_PRIVATE_PARTS), {module: users[module] for module in outside}
    guarded = {module for module, parts in users.items() if parts and part_of(module) == "kernels"}
    assert guarded == {
        f"kernels.{part}"
        for part in (
            "matmul",
            "foreach",
            "amos",
            "operator",
            "support",
            "products",
            "graph_cache",
            "short_attention",
            "recurrence",
        )
    }, users


ANY_AS_A_VALUE = {"optim.signature": "annotations are its subject"}
"""Modules that look for `Any`, or return it, besides annotating with it."""


def aliases_with_a_reason(tree: ast.Module) -> Iterator[ast.stmt]:
    """The names of types at the top of a module whose docstring says why they are not exact."""
    for statement, following in pairwise(tree.body):
        says = ast.unparse(following) if isinstance(following, ast.Expr) else ""
        if isinstance(statement, ast.AnnAssign) and "Any: " in says:
            yield statement


def inexact(file: Path) -> Iterator[str]:
    """The lines that make types less strict, or assert something, without a reason for it.

    `Any` needs a comment ``# Any: why`` in its line, or is part of a named type whose docstring says why; an
    ignored type needs the code of its error and a comment, an assertion a comment or a message.
    """
    lines, tree = file.read_text(encoding="utf-8").splitlines(), parse(file)
    named = {id(node) for alias in aliases_with_a_reason(tree) for node in ast.walk(alias)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "Any":
            is_value = module_of(file) in ANY_AS_A_VALUE
            good = is_value or id(node) in named or "# Any: " in lines[node.lineno - 1]
        elif isinstance(node, ast.Assert):
            good = node.msg is not None or "  # " in lines[(node.end_lineno or 0) - 1]
        else:
            continue
        if not good:
            yield f"{file}:{node.lineno}"
    for number, line in enumerate(lines, 1):
        if "type: ignore" in line and not re.search(r"# type: ignore\[[\w,-]+\]  # \w", line):
            yield f"{file}:{number}"


def test_what_types_do_not_say_has_a_reason() -> None:
    assert not [place for file in SOURCES for place in inexact(file)]


MODEL_CONVERSIONS = ("run.warm.ngpt", "hub.ngpt_reference")
"""Modules that turn one given architecture into another file or model."""


def test_models_are_asked_through_their_base_classes() -> None:
    """Outside of the models no code depends on which of them it is given, so that a foreign one works."""
    classes = {c for c in classes_of("models") if c not in ("Model", "LanguageModel", "ModelConfig")}
    assert {"Decoder", "EncoderDecoder", "GPTConfig", "BERT"} <= classes
    for file in SOURCES:
        if part_of(module_of(file)) in ("models", "nn") or module_of(file) in MODEL_CONVERSIONS:
            continue
        for node in ast.walk(parse(file)):
            if called_name(node) == "isinstance" and isinstance(node, ast.Call):
                asked = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                assert not asked & classes, f"{file}:{node.lineno}: {ast.unparse(node)}"
