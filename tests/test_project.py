"""The project's own files agree with the code: dependencies, versions, checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import yaml
from tiny_runs import ROOT
from wheel_commands import COMMANDS

import zoo
import zoo.commands.cli
from zoo.commands.app import app

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PROVIDERS = packages_distributions()
OWN = {"zoo", "benchmarks", *(file.stem for file in (ROOT / "tests").glob("*.py"))}
NEEDS_AN_EXTRA = {
    "evaluation/catalogue.py": "eval",
    "evaluation/generation_settings.py": "eval",
    "evaluation/harness.py": "eval",
    "evaluation/offline.py": "eval",
    "evaluation/task_file.py": "eval",
    "evaluation/tasks.py": "eval",
    "hub/auto.py": "hf",
    "hub/layouts.py": "hf",
}
USED_BY_OTHERS = {
    "accelerate": "transformers needs it to load with a device map",
    "hatchling": "builds the wheel",
    "mkdocs-material": "mkdocs.yml names the theme",
    "mkdocstrings": "mkdocs.yml names the plugin",
    "mypy": "a command",
    "ninja": "torch compiles extensions with it",
    "pre-commit": "a command",
    "pytest-xdist": "a plugin of pytest",
    "protobuf": "sentencepiece reads its models with it",
    "ruff": "a command",
    "types-jsonschema": "stubs for mypy",
    "types-pyyaml": "stubs for mypy",
}
"""Distributions that no file here imports, and why they are declared."""


def distribution(requirement: str) -> str:
    """The normalised name in a requirement: `Types_PyYAML[x]>=1` -> types-pyyaml."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


CORE = {distribution(requirement) for requirement in PROJECT["dependencies"]}
OPTIONAL = {distribution(requirement) for extra in EXTRAS.values() for requirement in extra}
FOR_USERS = {distribution(r) for name, extra in EXTRAS.items() if name != "dev" for r in extra}


def files(*folders: str) -> list[Path]:
    """The Python sources of some folders."""
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


@cache
def imported(file: Path, everywhere: bool) -> frozenset[str]:
    """The modules that a file imports, those inside functions only on demand."""
    modules: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(file.read_text("utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += ast.iter_child_nodes(node)
    return frozenset(modules)


def needed(files: Iterable[Path], everywhere: bool = True) -> set[str]:
    """The distributions that source files import."""
    modules = {module for file in files for module in imported(file, everywhere)}
    packages = {module.split(".")[0] for module in modules} - set(sys.stdlib_module_names) - OWN
    return {distribution(provider) for package in packages for provider in PROVIDERS.get(package, [package])}


def test_what_zoo_imports_is_declared() -> None:
    """A module that imports a package of an extra at its top is imported where that extra is asked for."""
    assert all((ROOT / "zoo" / path).exists() for path in NEEDS_AN_EXTRA)
    for file in files("zoo"):
        path = file.relative_to(ROOT / "zoo").as_posix()
        extra = {distribution(requirement) for requirement in EXTRAS.get(NEEDS_AN_EXTRA.get(path, ""), [])}
        assert needed([file], everywhere=False) <= CORE | extra, path
        assert needed([file]) <= CORE | FOR_USERS, path


def test_what_tests_and_benchmarks_import_is_declared() -> None:
    assert needed(files("tests", "benchmarks", "examples")) <= CORE | OPTIONAL


def test_what_is_declared_is_used() -> None:
    unused = (CORE | OPTIONAL) - needed(files("zoo", "tests", "benchmarks", "examples"))
    assert unused == set(USED_BY_OTHERS)


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    releases = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", changelog, re.M)
    assert releases[0] == ("Unreleased", "")
    assert (
        releases[1] == (zoo.__version__, citation["date-released"]) == (citation["version"], releases[1][1])
    )


def test_continuous_integration_covers_the_declared_and_the_pinned_versions() -> None:
    """The minimum of torch and Python in pyproject.toml, and the torch that constraints.txt pins."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    matrix = jobs["check"]["strategy"]["matrix"]
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    made = re.search(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    (minimum,) = (r.split(">=")[1] for r in PROJECT["dependencies"] if distribution(r) == "torch")
    assert pinned is not None
    assert made is not None
    assert matrix["torch"] == [f"{minimum}.0", pinned[1]]
    assert made[1] == pinned[1]
    assert PROJECT["requires-python"] == f">={matrix['python'][0]}"


def test_a_target_of_the_makefile_has_one_recipe() -> None:
    """Of two recipes make takes the last one, with a warning that nobody reads."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert {"test", "demo", "check"} < set(targets)
    assert sorted(targets) == sorted(set(targets))


def test_what_every_pull_request_is_checked_for(tmp_path: Path) -> None:
    """The hook that pre-commit runs accepts this repository's files, and refuses bad ones."""
    script = [sys.executable, str(ROOT / ".github/check_files.py")]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    as_found = ("tests/golden/", "tests/chat_templates/")
    tracked = [file for file in tracked if not file.startswith(as_found)]
    done = subprocess.run([*script, *tracked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    bad = {
        "a.txt": ("word \n", "has spaces at the end of a line"),
        "b.py": ("x = 1", "does not end in one newline"),
        "c.json": ("{\n", "cannot be parsed"),
        "d.yaml": ("a: [1\n", "cannot be parsed"),
        "e.md": ("<" * 7 + " main\n", "has a merge conflict"),
        "f.txt": ("/ho" + "me/somebody/data\n", "has a path in a home directory"),
        "g.txt": ("x" * 1_000_000 + "\n", "more than 1000000"),
    }
    for name, (text, problem) in bad.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        done = subprocess.run([*script, str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert (done.returncode, problem in done.stdout) == (1, True), done.stdout


def test_the_wheel_is_tested_with_every_command() -> None:
    names = {
        command.name or getattr(command.callback, "__name__", "").strip("_").replace("_", "-")
        for command in app.registered_commands
    }
    assert len(names) >= 15
    assert {line.split()[1] for line in COMMANDS.strip().splitlines()} == {*names, "--help"}
