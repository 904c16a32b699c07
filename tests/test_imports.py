"""What is imported, and when: a mistake is told at once, and a first model costs little more than torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import ROOT

HEAVY = (
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "sympy",
    "jinja2",
    "PIL",
    "scipy",
)
"""Modules that take tenths of a second to import and that a model on one device does not need."""

OTHER_KINDS = ("zoo.optim.adamw", "zoo.optim.amos", "zoo.data.corpora", "zoo.data.text.dataset")
"""Choices of kinds that a model has none of."""

FIRST_MODEL = """
from zoo import build_model
build_model("gpt", reparam="wesar", d_model=8, n_layers=1, n_heads=1, vocab_size=16)
"""

MISSPELT = """
from zoo.commands.cli import main
try:
    main(["{command}", "quickstart-gtp"])
except SystemExit as end:
    assert end.code == 2
"""


def imported_by(program: str) -> tuple[set[str], str]:
    """The modules that a new interpreter has imported after a program, and what the program has said."""
    told = "\nimport json, sys\nprint(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-c", program + told]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout)), done.stderr


def test_a_first_model_needs_little_but_torch() -> None:
    assert not imported_by(FIRST_MODEL)[0].intersection((*HEAVY, *OTHER_KINDS))


NAME_OF_ANOTHER = """
from typing import Literal
from zoo import OPTIMIZERS, OptimizerConfig, ZooError

class Mine(OptimizerConfig):
    type: Literal["lion"] = "lion"

try:
    OPTIMIZERS.register(Mine)
except ZooError as error:
    assert "optimizer Mine: the name 'lion' is taken by LionConfig" in str(error), error
else:
    raise AssertionError("two of one name")
"""


def test_a_name_of_zoo_is_taken_though_its_module_was_not_imported() -> None:
    assert "zoo.optim.lion" in imported_by(NAME_OF_ANOTHER)[0]


@pytest.mark.parametrize("command", ["train", "explain"])
def test_a_misspelt_config_is_told_before_torch_is_imported(command: str) -> None:
    modules, told = imported_by(MISSPELT.format(command=command))
    assert "no config called 'quickstart-gtp'; did you mean 'quickstart-gpt'?" in told
    assert "torch" not in modules


WRONG_KEY = """
from zoo.commands.cli import main
try:
    main(["{command}", "quickstart-gpt", "optimizer.lrr=1"])
except SystemExit as end:
    assert end.code == 2
"""


@pytest.mark.parametrize("command", ["train", "explain"])
def test_a_wrong_key_is_told_before_the_engine_is_imported(command: str) -> None:
    modules, told = imported_by(WRONG_KEY.format(command=command))
    assert "optimizer.lrr: unknown key; did you mean 'lr'?" in told
    assert not modules.intersection((*HEAVY, "zoo.train.run"))


PLUGIN = """
from typing import Literal
import zoo

@zoo.TOKENIZERS.register
class Mine(zoo.TokenizerConfig):
    type: Literal["mine"] = "mine"

    def build(self, texts): ...

    @classmethod
    def load(cls, folder): ...
"""


def test_a_plugin_with_a_tokenizer_is_loaded_without_torch(tmp_path: Path) -> None:
    (file := tmp_path / "mine.py").write_text(PLUGIN)
    program = f"""
from zoo.config.plugins import load_plugin
from zoo.config.registry import TOKENIZERS
load_plugin({str(file)!r})
assert "mine" in TOKENIZERS.registered
"""
    assert "torch" not in imported_by(program)[0]
