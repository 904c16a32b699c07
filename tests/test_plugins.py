"""Plugins: classes of the user's own in every command, recorded, checked, and never imported unasked."""

import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import zoo
from rich.console import Console
from tiny_runs import assert_same, tiny_fields

from zoo import build_model, load_model, load_plugin, save_model
from zoo.ablate.sweep import load_sweep
from zoo.commands.cli import main
from zoo.config import plugins
from zoo.config.registry import Kind
from zoo.config.yaml import dump_yaml
from zoo.run.catalogue import catalogue
from zoo.run.config import json_schema, load_config
from zoo.train.run import train
from zoo.utils.errors import CheckpointError, ConfigError, PluginError

HEADER = """
from typing import Literal
import torch
from zoo.config.registry import MODELS, OPTIMIZERS, SCHEDULES
from zoo.models import GPTConfig
from zoo.optim import AdamWConfig, ScheduleConfig
"""
SCHEDULE = (
    HEADER
    + """
@SCHEDULES.register
class Halved(ScheduleConfig):
    "Half of the learning rate."

    type: Literal["halved"] = "halved"
    share: float = 0.5

    def after_warmup(self, step, peak, length):
        return self.share
"""
)
MODEL = (
    HEADER
    + """
@MODELS.register
class Mine(GPTConfig):
    "A GPT of one's own."

    type: Literal["mine"] = "mine"
"""
)


pytestmark = pytest.mark.usefixtures("without_plugins")


def forget() -> None:
    """What another process would know: nothing of the plugins of this one."""
    for module in plugins._named.values():
        plugins._forget(module)
    plugins._named.clear()


def project(folder: Path, plugin: str = SCHEDULE, **changes: Any) -> Path:
    """A plugin and a configuration of 4 steps that names it, with the schedule `halved`.

    A key of `changes` may have a dot.
    """
    (folder / "mine.py").write_text(plugin, encoding="utf-8")
    fields = tiny_fields(folder, steps=4, checkpoint_every=2, eval_every=4)
    fields = {**fields, "plugins": ["mine.py"], "schedule": "halved"}
    for key, value in changes.items():
        *section, name = key.split(".")
        (fields[section[0]] if section else fields)[name] = value
    file = folder / "tiny.yaml"
    file.write_text(dump_yaml({key: value for key, value in fields.items() if value is not None}))
    return file


def test_a_plugin_appears_wherever_choices_are_named(tmp_path: Path) -> None:
    file = project(tmp_path)
    config = load_config(file)
    assert config.schedule.model_dump() == {"type": "halved", "share": 0.5, "warmup": 0}
    assert catalogue("schedules")["schedules"]["halved"] == "Half of the learning rate."
    assert "Halved" in json_schema()["$defs"]
    with pytest.raises(ConfigError, match=r"tiny\.yaml:\d+: schedule\.type: .*did you mean 'halved'"):
        file.write_text(file.read_text().replace("halved", "halvd"))
        load_config(file)


def test_paths_are_relative_to_the_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through `extends` as well, and every file adds to what the others name."""
    (tmp_path / "base").mkdir()
    project(tmp_path / "base")
    (tmp_path / "other.py").write_text(SCHEDULE.replace("halved", "other"))
    child = tmp_path / "child.yaml"
    child.write_text("extends: base/tiny.yaml\nplugins: [other.py]\nname: child\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_config(child).schedule.type == "halved"  # type: ignore[attr-defined]
    assert load_config(child, ["schedule=other"]).schedule.type == "other"  # type: ignore[attr-defined]


def test_a_module_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/__init__.py").write_text("")
    (tmp_path / "my_package/parts.py").write_text(SCHEDULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load_config(project(tmp_path, plugins=["my_package.parts"]))
    (record,) = config.plugins
    assert (record.name, record.version) == ("my_package.parts", None)
    assert record.sha256 is not None


def test_plugins_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They need not be named; one that fails is left out, with a warning."""
    for name, code in (("installed_parts", SCHEDULE), ("broken_parts", "import nowhere_to_be_found")):
        (tmp_path / f"{name}.py").write_text(code)
        installed = tmp_path / f"{name}-1.5.dist-info"  # what pip leaves behind
        installed.mkdir()
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (installed / "RECORD").write_text(f"{name}.py,,\n{installed.name}/METADATA,,\n")
        (installed / "entry_points.txt").write_text(f"[zoo.plugins]\nmine = {name}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.load_installed.cache_clear()
    (record,) = load_config({"schedule": "halved"}).plugins
    assert (record.name, record.version) == ("installed_parts", "1.5")
    assert "broken_parts.py:1: the plugin cannot be imported: ModuleNotFoundError" in caplog.text


TEXTS = (
    HEADER
    + """
from zoo.data.instructions.template import MarkerTemplate
from zoo.data.tokenizers.byte import ByteConfig, ByteTokenizer
from zoo.config.registry import TEMPLATES, TOKENIZERS

class Reversed(ByteTokenizer):
    type, hash = "reversed", "5d"

    def encode(self, text):
        return super().encode(text)[::-1]

@TOKENIZERS.register
class ReversedConfig(ByteConfig):
    "The bytes of a text from its end."

    type: Literal["reversed"] = "reversed"

    def build(self, texts):
        return Reversed()

    @classmethod
    def load(cls, folder):
        return Reversed()

@TEMPLATES.register
class Arrows(MarkerTemplate):
    "An arrow before an answer."

    type: Literal["arrows"] = "arrows"

    def before(self, role):
        return ">>" if role == "assistant" else ""

    def after(self, role):
        return ""
"""
)


def test_tokenizers_and_templates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of instructions whose tokenizer and template are the user's is trained, and answers."""
    lines = [json.dumps({"prompt": f"say {c}", "response": c}) for c in "abcdefgh"]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines), encoding="utf-8")
    data = {"type": "instructions", "train": str(tmp_path / "tasks.jsonl"), "context": 32, "validation": 0.25}
    data |= {"tokenizer": "reversed", "template": "arrows"}
    file = project(tmp_path, TEXTS, data=data, schedule="constant")
    zoo("train", file)
    run = tmp_path / "runs/tiny"
    used: Any = load_config(run).data
    tokenizer = used.tokenizer.build(lambda: iter(()))
    tokens = used.template.encode([("user", "ab"), ("assistant", "cd")], tokenizer).tokens
    assert bytes(tokens[1:]) == b"ba>>dc\xff"
    forget()
    zoo("generate", run, "--prompt", "say a", status=2)
    assert "the plugin 'mine.py'" in capsys.readouterr().err
    zoo("generate", run, "--prompt", "say a", "--max-new-tokens", "3", "--plugin", tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('return ">>" if role == "assistant" else ""', "pass", "before returned NoneType; expected a str"),
        ('return ""\n', "return 1\n", "after returned int; expected a str"),
        (
            "def before(self, role):",
            "def encode(self, messages, tokenizer):\n        return [1, 2]\n\n    def before(self, role):",
            "encode returned list; expected a zoo.data.instructions.template.EncodedConversation",
        ),
        (
            "def before(self, role):",
            "def encode(self, messages, tokenizer):\n        whole = super().encode(messages, tokenizer)\n"
            "        return whole._replace(loss_mask=[True])\n\n    def before(self, role):",
            "encode returned 7 tokens and a loss mask of 1; expected one length",
        ),
    ],
)
def test_templates_that_return_something_else(
    right: str, wrong: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"prompt": f"a{c}", "response": c}) for c in "abcdefgh"]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines), encoding="utf-8")
    data = {"type": "instructions", "train": str(tmp_path / "tasks.jsonl"), "context": 32, "validation": 0.25}
    plugin = TEXTS.replace(right, wrong)
    assert plugin != TEXTS
    file = project(tmp_path, plugin, data=data | {"template": "arrows"}, schedule="constant")
    zoo("train", file, status=2)
    shown = capsys.readouterr().err
    assert re.search(rf"error: Arrows \(\S+mine\.py:\d+\): {re.escape(message)}", shown), shown


def test_what_a_run_uses_is_recorded_and_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = project(tmp_path)
    run = tmp_path / "runs/tiny"
    zoo("train", file)
    recorded = (run / "config.yaml").read_text()
    assert re.search(r"plugins:\n- name: mine\.py\n  version: null\n  sha256: [0-9a-f]{64}\n", recorded)
    (copy,) = (run / "plugins").rglob("*.py")
    assert copy.read_text() == SCHEDULE
    forget()
    for command, *options in (("train", "--resume"), ("generate", "--prompt", "x"), ("explain",)):
        capsys.readouterr()
        zoo(command, run, *options, status=2)
        message = capsys.readouterr().err
        assert re.match(r"error: .*config\.yaml:\d+: plugins: the plugin 'mine\.py' \(sha256 ", message)
        assert f"(the run keeps a copy: {copy})" in message
        assert "--plugin FILE" in message and "zoo.load_plugin('FILE')" in message
    zoo("train", run, "--resume", "train.steps=6", "--plugin", copy)
    forget()
    checkpoint = run / "checkpoints/step-00000006"
    zoo("generate", checkpoint, "--prompt", "x", status=2)
    assert f"(the run keeps a copy: {checkpoint / copy.relative_to(run)})" in capsys.readouterr().err
    zoo("generate", checkpoint, "--prompt", "x", "--max-new-tokens", "2", "--plugin", tmp_path / "mine.py")
    zoo("list", "schedules", "--plugin", tmp_path / "mine.py")
    assert "halved" in capsys.readouterr().out


def test_a_missing_plugin_of_a_model_has_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that open the weights first say where it is, as those that read the configuration first do."""
    zoo("train", project(tmp_path, MODEL, model=MINE, schedule=None))
    run = tmp_path / "runs/tiny"
    (copy,) = (run / "plugins").rglob("*.py")
    checkpoint = run / "checkpoints/step-00000004"
    forget()
    for path in (run, checkpoint):
        perplexity = ("eval", "--perplexity", str(tmp_path / "text.txt"))
        for command, *options in (("generate", "--prompt", "x"), ("inspect",), perplexity):
            capsys.readouterr()
            zoo(command, path, *options, status=2)
            message = capsys.readouterr().err
            copies = (copy, checkpoint / copy.relative_to(run))
            assert any(f"(the run keeps a copy: {file})" in message for file in copies), (command, message)


def test_a_resumed_run_is_the_whole_one(tmp_path: Path) -> None:
    file = project(tmp_path)
    zoo("train", file, "name=whole")
    output = io.StringIO()
    train(load_config(file, ["name=parts"]), until=2, console=Console(file=output, width=1000))
    assert (
        f"Go on with: zoo train {tmp_path}/runs/parts --resume --plugin {tmp_path}/mine.py"
        in output.getvalue()
    )
    forget()
    zoo("train", file, "name=parts", "--resume")
    assert_same(tmp_path / "runs/whole", tmp_path / "runs/parts")


def test_another_content_is_refused_unless_it_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project(tmp_path)
    zoo("train", file)
    forget()
    (tmp_path / "mine.py").write_text(SCHEDULE.replace("Half", "A half"))
    zoo("train", file, "--resume", "train.steps=6", status=2)
    message = capsys.readouterr().err
    assert re.search(
        r"the plugin 'mine\.py' has changed: sha256 \w{12} is recorded, it is \w{12} now", message
    )
    assert "--allow-changed-plugins" in message
    zoo("train", file, "--resume", "train.steps=6", "--allow-changed-plugins")
    forget()
    plugins.allow_changed_plugins(False)
    zoo("train", file, "--resume", "train.steps=8")  # what was allowed is what is recorded now


def test_no_code_comes_from_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither by a path in its config.yaml, nor by what that extends, nor by a checkpoint's copy of it."""
    file = project(tmp_path, plugins=None, schedule="constant")
    zoo("train", file)
    run = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "runs/tiny", run)
    (run / "evil.py").write_text("raise SystemExit('imported')")
    (run / "evil.yaml").write_text("plugins: [evil.py]\n")
    config = (run / "config.yaml").read_text()
    for attack in ("plugins:\n- evil.py\n", "extends: evil.yaml\n"):
        text = re.sub(r"plugins: \[\]\n", "", config) + attack
        (run / "config.yaml").write_text(text)
        for copy in run.glob("checkpoints/*/run.yaml"):
            copy.unlink()
            copy.write_text(text.replace("evil.", "../../evil."))
            zoo("generate", copy.parent, "--prompt", "x", status=2)
            assert "code is never imported from a run folder" in capsys.readouterr().err
        for command, *options in (("train", "--resume"), ("generate", "--prompt", "x"), ("explain",)):
            zoo(command, run, *options, status=2)
            message = capsys.readouterr().err
            assert "code is never imported from a run folder: name it with --plugin evil.py" in message
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: elsewhere\n")
    zoo("explain", mine, status=2)
    assert "code is never imported" in capsys.readouterr().err


def test_a_checkpoint_names_its_plugin(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    module = load_plugin(tmp_path / "mine.py")
    sizes: dict[str, Any] = {"vocab_size": 16, "d_model": 8, "n_layers": 1, "n_heads": 2}
    file = save_model(build_model("mine", **sizes), tmp_path / "mine.safetensors")
    plain = save_model(build_model("gpt", **sizes), tmp_path / "gpt.safetensors")
    assert type(load_model(file).recipe.model).__module__ == module.__name__
    forget()
    assert load_model(plain).recipe.model.type == "gpt"
    with pytest.raises(
        CheckpointError, match=r"mine\.safetensors: the plugin 'mine\.py' .*zoo\.load_plugin\('FILE'\)"
    ):
        load_model(file)
    with pytest.raises(ConfigError, match=r"model\.from: .*the plugin 'mine\.py' "):
        load_config({"model": {"from": str(file)}})
    load_plugin("mine.py", tmp_path)
    assert load_model(file).recipe.model.type == "mine"


def test_a_file_that_was_changed_is_imported_again(tmp_path: Path) -> None:
    """As one does in a notebook."""
    file = tmp_path / "mine.py"
    file.write_text(SCHEDULE)
    first = load_plugin(file)
    assert load_plugin(file) is first
    shutil.copy(file, tmp_path / "copy.py")
    assert load_plugin(tmp_path / "copy.py") is first
    file.write_text(SCHEDULE.replace("0.5", "0.25"))
    assert load_plugin(file) is not first
    assert load_config({"schedule": "halved"}).schedule.share == 0.25  # type: ignore[attr-defined]
    file.write_text("raise ValueError('no')")
    with pytest.raises(PluginError, match=r"mine\.py:1: the plugin cannot be imported: ValueError: no"):
        load_plugin(file)
    assert load_config({"schedule": "halved"}).schedule.share == 0.25  # type: ignore[attr-defined]


def test_a_plugin_is_compiled_as_python_does_it(tmp_path: Path) -> None:
    """Without the future imports of the module that imports it: annotations are objects."""
    (tmp_path / "plain.py").write_text("def f(x: int) -> None: ...\n")
    assert load_plugin(tmp_path / "plain.py").f.__annotations__ == {"x": int, "return": None}


def test_a_logger_of_a_plugin_may_come_and_go(tmp_path: Path) -> None:
    """As any logger may when a run resumes; the record of its plugin follows."""
    logger = Path(__file__).parents[1] / "examples/plugins/logger.py"
    file = project(tmp_path)
    mine = ("--plugin", tmp_path / "mine.py")
    zoo("train", file, "train.steps=2")
    run = tmp_path / "runs/tiny"
    for steps, name in ((4, "csv"), (6, "")):
        zoo(
            "train",
            run,
            "--resume",
            f"train.steps={steps}",
            f"train.loggers=[{name}]",
            *mine,
            "--plugin",
            logger,
        )
        assert ("logger.py" in (run / "config.yaml").read_text()) is bool(name)


def test_what_a_failed_plugin_has_imported_stays_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules are imported once: without this a notebook would lose zoo's own classes, which are imported late."""
    (tmp_path / "late_parts.py").write_text(SCHEDULE.replace("halved", "late"))
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "mine.py"
    file.write_text(f"import late_parts\n{SCHEDULE}\nraise ValueError('no')")
    with pytest.raises(PluginError, match=r"mine\.py:\d+: the plugin cannot be imported: ValueError: no"):
        load_plugin(file)
    assert load_config({"schedule": "late"}).schedule.type == "late"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"schedule\.type: value 'halved': no such type"):
        load_config({"schedule": "halved"})
    file.write_text(f"import late_parts\n{SCHEDULE}")
    load_plugin(file)
    assert load_config({"schedule": "halved"}).schedule.share == 0.5  # type: ignore[attr-defined]


LION = """
import torch

class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m.lerp(p.grad, 1 - group["betas"][0]).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - group["betas"][1])
"""


def test_a_class_is_named_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Relative to the file that names it; a run folder names it by its record alone."""
    optimizer = {"type": "mine.py:Lion", "lr": 1e-3, "weight_decay": 0.1}
    file = project(tmp_path, LION, optimizer=optimizer, plugins=None, schedule=None)
    config = load_config(file)
    assert config.optimizer is not None
    assert config.optimizer.type == "mine.py:Lion"  # type: ignore[attr-defined]
    assert [record.name for record in config.plugins] == ["mine.py"]
    assert load_config(config.model_dump(mode="json")) == config
    zoo("train", file, "name=whole")
    output = io.StringIO()
    train(load_config(file, ["name=parts"]), until=2, console=Console(file=output, width=1000))
    assert (
        f"Go on with: zoo train {tmp_path}/runs/parts --resume --plugin {tmp_path}/mine.py"
        in output.getvalue()
    )
    forget()
    run = tmp_path / "runs/parts"
    zoo("train", run, "--resume", status=2)
    assert "the plugin 'mine.py' (sha256 " in capsys.readouterr().err
    (copy,) = (run / "plugins").rglob("*.py")
    zoo("train", run, "--resume", "--plugin", copy)
    assert_same(tmp_path / "runs/whole", run)
    for path, message in {
        "mine.py:Tiger": r"mine\.py: no class called 'Tiger'; known: Lion",
        "mins.py:Lion": r"mins\.py: No such file or directory; did you mean '\S+mine\.py'",
        "torch.optim.NAdm": r"no class called 'NAdm'; did you mean 'NAdam'",
        "torch.optim": r"no class called 'optim'; expected a subclass of Optimizer$",
        "torch.nn.Linear": r"optimizer\.type: value 'torch\.nn\.Linear': .*no subclass of torch\.optim\.Optimizer",
        "nowhere.Lion": r"plugin 'nowhere': there is no such file, nor a module of that name",
    }.items():
        file.write_text(re.sub(r"type: mine\S+", f"type: {path}", file.read_text()))
        zoo("train", file, "name=other", status=2)
        assert re.search(rf"(?m)error: \S+tiny\.yaml:\d+: .*{message}", capsys.readouterr().err), path
        file.write_text(re.sub(f"type: {re.escape(path)}", "type: mine.py:Lion", file.read_text()))
    nadam = load_config(file, ["optimizer={type: torch.optim.NAdam, lr: 0.001}"])
    assert nadam.plugins == ()


def test_the_short_form_of_a_class_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a file that another one extends, below an override, and on an axis of a sweep; never in a run folder."""
    (tmp_path / "parts").mkdir()
    base = project(tmp_path / "parts", LION, optimizer="mine.py:Lion", plugins=None, schedule=None)
    (child := tmp_path / "child.yaml").write_text("extends: parts/tiny.yaml\noptimizer: {lr: 1e-3}\n")
    for config in (load_config(base, ["optimizer.lr=1e-3"]), load_config(child)):
        forget()
        assert config.optimizer is not None
        assert (
            config.optimizer.model_dump() | {"type": "mine.py:Lion", "lr": 1e-3}
            == config.optimizer.model_dump()
        )
    config = load_config("gpt-tiny", [f"optimizer={tmp_path}/parts/mine.py:Lion", "optimizer.lr=1e-3"])
    assert [record.name for record in config.plugins] == ["mine.py"]
    forget()
    sweep = "base: parts/tiny.yaml\naxes: {optimizer: [adamw, parts/mine.py:Lion]}\nseeds: [0]\n"
    (tmp_path / "sweep.yaml").write_text(sweep + "tune: {grid: {optimizer.lr: [1e-3, 1e-2]}, seeds: [1]}\n")
    zoo("sweep", tmp_path / "sweep.yaml", "--dry-run")
    forget()
    (run := tmp_path / "run").mkdir()
    (run / "config.yaml").write_text(base.read_text())
    shutil.copy(tmp_path / "parts/mine.py", run)
    capsys.readouterr()
    for command, *options in (("explain",), ("train", "--resume")):
        zoo(command, run, *options, status=2)
        assert (
            "'mine.py' is not imported; code is never imported from a run folder" in capsys.readouterr().err
        )


BUILD_RAISES = """
@OPTIMIZERS.register
class Broken(AdamWConfig):
    type: Literal["broken"] = "broken"

    def build(self, entries):
        return entries["a"]
"""
BUILD_NOTHING = BUILD_RAISES.replace('return entries["a"]', "pass")
NO_TYPE = """
@SCHEDULES.register
class Nameless(ScheduleConfig):
    rate: float = 1.0
"""
NO_FACTOR = SCHEDULE[: SCHEDULE.index("    def after_warmup")]
INIT = """
from zoo import INITS, Init

@INITS.register
class Mine(Init):
    type: Literal["mine"] = "mine"

    def matrix_std(self, spec):
        return RESULT
"""
BARE = """
from zoo import LanguageModelConfig

@MODELS.register
class Bare(LanguageModelConfig):
    type: Literal["bare"] = "bare"
"""
TAKEN = """
@OPTIMIZERS.register
class Again(AdamWConfig):
    type: Literal["adamw"] = "adamw"
"""
OWN_MODEL = """
from zoo.models import GPT
from zoo.spec import Module

class Model(GPT):
    def __init__(self, c):
        super().__init__(c)
        CHANGE

@MODELS.register
class MineConfig(GPTConfig):
    type: Literal["mine"] = "mine"

    def build(self):
        return Model(self)
"""
MINE = {"type": "mine", "vocab_size": 256, "d_model": 16, "n_layers": 2, "n_heads": 2}


def own_model(change: str) -> str:
    return HEADER + OWN_MODEL.replace("CHANGE", change)


NO_CLASS = """
from zoo import INITS

@INITS.register
def mine(spec):
    return 0.02
"""
CALLED = NO_CLASS.replace("register", 'register("mine")')
CONSTRUCTED = INIT.replace(
    "    def matrix", "    def __init__(self, gain=1.0):\n        self.gain = gain\n\n    def matrix"
)
OF_PYDANTIC = INIT.replace("(Init)", "(BaseModel)").replace(
    "Init\n", "Init\nfrom pydantic import BaseModel\n", 1
)
REPARAM = """
from zoo import REPARAMS, Reparam

@REPARAMS.register
class Mine(Reparam):
    type: Literal["mine"] = "mine"

    def acts_on(self, spec, name):
        return True

    def attach(self, p, init):
        pass
"""
CLIP = """
from zoo import CLIPS, ClipConfig

@CLIPS.register
class Mine(ClipConfig):
    type: Literal["mine"] = "mine"

    def build(self, largest):
        pass
"""
CORPUS = """
from zoo import CORPORA, CorpusConfig

@CORPORA.register
class Mine(CorpusConfig):
    type: Literal["mine"] = "mine"

    def documents(self):
        RESULT

    def sources(self):
        return []
"""
OBJECTIVE = """
from zoo import OBJECTIVES, Objective

@OBJECTIVES.register
class Mine(Objective):
    trains_like = "causal"
    type: Literal["mine"] = "mine"

    def examples(self, windows, seed, first, vocab_size):
        return RESULT
"""
TOKENIZER = """
from zoo import TOKENIZERS, Tokenizer, TokenizerConfig

class Mine(Tokenizer):
    type, vocab_size, eos_id, hash = "mine", 256, 0, "5d"

    def encode(self, text):
        return [RESULT]

    def decode(self, ids):
        return ""

@TOKENIZERS.register
class MineConfig(TokenizerConfig):
    type: Literal["mine"] = "mine"

    def build(self, texts):
        return Mine()

    @classmethod
    def load(cls, folder):
        return Mine()
"""
LOGGER = """
from zoo import LOGGERS, LoggerConfig

@LOGGERS.register
class Mine(LoggerConfig):
    type: Literal["mine"] = "mine"

    def open(self, folder, config, kept):
        pass
"""
TRANSFER = """
from zoo import TRANSFERS, Transfer

@TRANSFERS.register
class Mine(Transfer):
    type: Literal["mine"] = "mine"

    def factors(self, spec, in_block, sizes):
        return 1.0
"""
BELOW_0 = TRANSFER.replace("return 1.0", "return Factors(lr=-0.5), 1.0").replace(
    "Transfer\n", "Transfer\nfrom zoo.init.transfer import Factors\n", 1
)
SHORT_CLIP = (
    CLIP.replace("ClipConfig\n", "ClipConfig\nfrom zoo.optim.clip import Clip\n", 1).replace(
        "pass", "return Short(1.0)"
    )
    + """
class Short(Clip):
    def clip(self, gradients):
        pass
"""
)
SHORT_LOGGER = (
    LOGGER.replace("LoggerConfig\n", "Logger, LoggerConfig\n", 1).replace("pass", "return Short()")
    + """
class Short(Logger):
    def write(self):
        pass

    def close(self):
        pass
"""
)
LOADS_NOTHING = TOKENIZER.replace("RESULT", "1 for _ in text").replace(
    "(cls, folder):\n        return Mine()",
    "(cls, folder):\n        pass\n\n    @property\n    def is_trained(self):\n        return True",
)
NO_NAMES = BUILD_RAISES.replace('entries["a"]', "torch.optim.SGD([e.parameter for e in entries], lr=self.lr)")


BAD: list[tuple[str | None, dict[str, Any], str]] = [
    ("import nowhere_to_be_found", {}, r"tiny\.yaml:\d+: plugins: \S+mine\.py:1: the plugin cannot be imported: ModuleNot"),
    ("def f(:\n", {}, r"mine\.py:1: the plugin cannot be imported: SyntaxError: "),
    ("x = 1\nraise RuntimeError('oops')", {}, r"mine\.py:2: the plugin cannot be imported: RuntimeError: oops"),
    ("import sys\n\nsys.exit(3)", {}, r"mine\.py:3: the plugin cannot be imported: SystemExit: 3"),
    (HEADER + TAKEN, {}, r"mine\.py:8: .*: optimizer Again: the name 'adamw' is taken by AdamWConfig \(.*adamw\.py:\d+\)"),
    (HEADER + NO_TYPE, {}, r"mine\.py:8: .*: schedule Nameless has no name; expected a field `type: Literal"),
    (HEADER + BARE, {}, r"mine\.py:10: .*: model Bare: no `default_init` and no `objectives`; expected the class attributes"),
    (NO_FACTOR, {}, r"mine\.py:8: .*: schedule Halved: no `after_warmup`; expected the methods that the base class leaves to it"),
    (SCHEDULE.replace("peak, length)", "length)"), {}, r"mine\.py:8: .*: schedule Halved: after_warmup\(self, step, length\).*: expected the arguments \(self, step, peak, length\)"),
    (HEADER + INIT.replace("self, spec", "spec"), {}, r"mine\.py:10: .*: init Mine: matrix_std\(spec\): expected the arguments \(self, spec\)"),
    (NO_CLASS, {}, r"mine\.py:4: .*: init mine: expected the decorator, without arguments, on a class that is derived from Init"),
    (CALLED, {}, r"mine\.py:4: .*: init 'mine': expected the decorator, without arguments, on a class"),
    (HEADER + OF_PYDANTIC, {}, r"mine\.py:11: .*: init Mine: expected the decorator, .* derived from Init"),
    (HEADER + INIT.replace("INITS.reg", "SCHEDULES.reg"), {}, r"mine\.py:10: .*: schedule Mine: expected the decorator, .* derived from ScheduleConfig"),
    (HEADER + CONSTRUCTED, {}, r"mine\.py:10: .*: init Mine: its settings are read as fields, so that it cannot have an __init__"),
    (HEADER + REPARAM, {}, r"mine\.py:10: .*: reparam Mine: acts_on\(self, spec, name\): expected the arguments \(self, spec\)"),
    (HEADER + CLIP, {"train.clip": "mine", "schedule": None}, r"Mine \(\S+mine\.py:10\): build returned NoneType; expected a zoo\.optim\.clip\.Clip"),
    (HEADER + CORPUS.replace("RESULT", "yield 'text'"), {"data.corpus": "mine", "schedule": None}, r"the corpus yields a str; expected zoo\.Document\(id, text\)"),
    (HEADER + CORPUS.replace("RESULT", "pass"), {"data.corpus": "mine", "schedule": None}, r"`documents` of the corpus returned NoneType; expected to yield zoo\.Document"),
    (
        HEADER + CORPUS.replace("Config\n", "Config, Document\n", 1).replace("RESULT", "yield from [Document('a', 'text')] * 9"),
        {"data.corpus": "mine", "schedule": None},
        r"data\.validation is 0\.2, but all 9 documents of the corpus have one id, by which they are divided; expected different ids",
    ),
    (HEADER + OBJECTIVE.replace("RESULT", "windows[:, 1:]"), {"data.objective": "mine", "schedule": None}, r"Mine \(\S+mine\.py:10\): examples returned \(4, 16\) int64; expected a tuple of the inputs and the targets"),
    (HEADER + OBJECTIVE.replace("RESULT", "windows[:, :-1], windows[:, 2:]"), {"data.objective": "mine", "schedule": None}, r"examples returned \(4, 16\) int64, \(4, 15\) int64; expected inputs and targets of one shape"),
    (HEADER + OBJECTIVE.replace("RESULT", "windows[:, :-1], windows[:, 1:].float()"), {"data.objective": "mine", "schedule": None}, r"examples returned \(4, 16\) int64, \(4, 16\) float32; expected targets \(4, time\) int64"),
    (HEADER + TOKENIZER.replace("return Mine()", "pass", 1), {"data.tokenizer": "mine", "schedule": None}, r"MineConfig \(\S+mine\.py:19\): build returned NoneType; expected a zoo\.data\.tokenizers\.base\.Tokenizer"),
    (HEADER + TOKENIZER.replace(', hash = "mine"', ' = "mine"').replace(', 0, "5d"', ", 0"), {"data.tokenizer": "mine", "schedule": None}, r"Mine \(\S+mine\.py:10\): no attribute hash"),
    (HEADER + TOKENIZER.replace("RESULT", "300"), {"data.tokenizer": "mine", "schedule": None}, r"the tokenizer 'mine' encodes a text as \[300\]; expected a list of ids below its vocab_size, 256"),
    (HEADER + TOKENIZER.replace("RESULT", "'a'"), {"data.tokenizer": "mine", "schedule": None}, r"the tokenizer 'mine' encodes a text as \['a'\]; expected a list of ids"),
    (HEADER + SHORT_CLIP, {"train.clip": "mine", "schedule": None}, r"Short \(\S+mine\.py:18\): clip\(self, gradients\): expected the arguments \(self, gradients, norm\)"),
    (HEADER + SHORT_LOGGER, {"train.loggers": ["mine"], "schedule": None}, r"Short \(\S+mine\.py:17\): write\(self\): expected the arguments \(self, record\)"),
    (HEADER + LOADS_NOTHING, {"data.tokenizer": "mine", "schedule": None}, r"MineConfig \(\S+mine\.py:19\): load returned NoneType; expected a zoo\.data\.tokenizers\.base\.Tokenizer"),
    (HEADER + LOGGER, {"train.loggers": ["mine"], "schedule": None}, r"Mine \(\S+mine\.py:10\): open returned NoneType; expected a zoo\.run\.loggers\.base\.Logger"),
    (HEADER + TRANSFER, {"transfer": {"type": "mine", "base": {"embed": 16}}, "schedule": None}, r"Mine \(\S+mine\.py:10\): factors returned 1\.0; expected a pair of zoo\.init\.transfer\.Factors"),
    (HEADER + BELOW_0, {"transfer": {"type": "mine", "base": {"embed": 16}}, "schedule": None}, r"Mine \(\S+mine\.py:11\): factors returned lr -0\.5 for vocab x embed; expected a finite number above 0"),
    (HEADER + NO_NAMES, {"optimizer": {"type": "broken", "lr": 1.0}, "schedule": None}, r"Broken \(\S+mine\.py:8\): build returned an optimizer that does not know the names of its parameters; expected groups of pairs"),
    (SCHEDULE.replace("return ", ""), {}, r"error: Halved \(\S+mine\.py:8\): after_warmup returned None; expected a finite number of at least 0"),
    (SCHEDULE.replace("self.share", "-1"), {}, r"after_warmup returned -1; expected a finite number of at least 0"),
    (HEADER + INIT.replace("RESULT", "-1.0"), {"init": "mine", "schedule": None}, r"Mine \(\S+mine\.py:10\): matrix_std returned -1\.0; expected a finite number of at least 0"),
    (HEADER + INIT.replace("RESULT", "float('nan')"), {"init": "mine", "schedule": None}, r"Mine \(\S+mine\.py:10\): matrix_std returned nan; expected a finite"),
    (SCHEDULE.replace("@SCHEDULES.register", ""), {}, r"Halved \(\S+mine\.py:9\): not registered; expected a decorator"),
    (None, {}, r"plugins: plugin \S+mine\.py: No such file or directory; did you mean '\S+mines\.py'"),
    (SCHEDULE, {"plugins": ["./"]}, r"plugins: plugin .*: not a regular file"),
    (SCHEDULE, {"plugins": ["no.such.module"]}, r"plugin 'no\.such\.module': there is no such file, nor a module"),
    (SCHEDULE, {"plugins": ["my plugin"]}, r"plugin 'my plugin': expected a Python file, or the name of a module"),
    (SCHEDULE, {"plugins": "mine.py"}, r"tiny\.yaml:\d+: plugins: value 'mine\.py': expected a list of plugins"),
    (SCHEDULE, {"plugins": [3]}, r"tiny\.yaml:\d+: plugins: value 3: expected a Python file or the name"),
    (SCHEDULE, {"plugins": [{"nam": "x"}]}, r"tiny\.yaml:\d+: plugins: expected what zoo records of a plugin: "),
    (HEADER + BUILD_RAISES, {"optimizer": {"type": "broken", "lr": 1.0}, "schedule": None}, r"mine\.py:13: KeyError: 'a'\n\(ZOO_TRACEBACK=1"),
    (HEADER + BUILD_NOTHING, {"optimizer": {"type": "broken", "lr": 1.0}, "schedule": None}, r"Broken \(\S+mine\.py:8\): build returned NoneType; expected a torch\.optim"),
    (own_model("self.again = self.blocks"), {"model": MINE, "schedule": None}, r"MineConfig \(\S+mine\.py:16\): blocks\.0\.\S+ and again\.0\.\S+ are the same parameter"),
    (own_model("self.x = torch.nn.Linear(2, 2)"), {"model": MINE, "schedule": None}, r"MineConfig \(\S+mine\.py:16\): Model: no declaration for: x\.weight, x\.bias"),
    (own_model("self.x = c.no_such_field"), {"model": MINE, "schedule": None}, r"mine\.py:14: AttributeError: .*no_such_field"),
]  # fmt: skip


@pytest.mark.parametrize(("plugin", "changes", "message"), BAD, ids=[case[2][:40] for case in BAD])
def test_bad_plugins(
    plugin: str | None,
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = project(tmp_path, plugin or "", **changes)
    if plugin is None:
        (tmp_path / "mine.py").rename(tmp_path / "mines.py")
    before = {kind: dict(kind.choices) for kind in Kind.registries.values()}
    zoo("train", file, status=2)
    shown = capsys.readouterr().err
    assert re.search(message, shown), shown
    assert shown.startswith("error: ") and "Traceback" not in shown
    if "cannot be imported" in message:
        assert {kind: dict(kind.choices) for kind in Kind.registries.values()} == before


def test_the_traceback_of_a_plugin_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = {"type": "broken", "lr": 1.0}
    file = project(tmp_path, HEADER + BUILD_RAISES, optimizer=optimizer, schedule=None)
    monkeypatch.setenv("ZOO_TRACEBACK", "1")
    with pytest.raises(KeyError):
        main(["train", str(file)])


CORPUS_TEXT = CORPUS.replace("RESULT", "yield from (Document(str(i), f'{i} WORD ' * 40) for i in range(9))")


@pytest.mark.parametrize(
    ("plugin", "changes"),
    [
        (CORPUS_TEXT.replace("CorpusConfig\n", "CorpusConfig, Document\n", 1), {"data.corpus": "mine"}),
        (TOKENIZER.replace("RESULT", "len('WORD') for _ in text"), {"data.tokenizer": "mine"}),
    ],
    ids=["corpus", "tokenizer"],
)
def test_an_edited_plugin_prepares_its_data_again(
    plugin: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """The text of a corpus that reads no file, and the ids of a tokenizer whose `hash` stays, follow the code."""

    def tokens() -> list[int]:
        config: Any = load_config(file)
        return list(config.data.prepare(config.model).corpus.train.read(0, 64))

    plugin = HEADER + plugin
    file = project(tmp_path, plugin.replace("WORD", "one"), schedule=None, **changes)
    before = tokens()
    assert tokens() == before
    project(tmp_path, plugin.replace("WORD", "other"), schedule=None, **changes)
    assert tokens() != before


def test_a_sweep_names_classes_of_another_folder(tmp_path: Path) -> None:
    """In its base, in a list of values and in named fragments."""
    (tmp_path / "methods").mkdir()
    for name in ("one", "other"):
        source = f"import torch\n\nclass Mine(torch.optim.SGD):\n    name = '{name}'\n"
        (tmp_path / f"methods/{name}.py").write_text(source, encoding="utf-8")
    fields = {key: value for key, value in tiny_fields(tmp_path).items() if key != "name"}
    del fields["train"]["runs_dir"]
    one, other = ({"type": f"methods/{name}.py:Mine", "lr": 0.1} for name in ("one", "other"))
    file = tmp_path / "sweep.yaml"
    for axes in ({"optimizer": [one, other]}, {"method": {"one": {}, "other": {"optimizer": other}}}):
        file.write_text(dump_yaml({"base": fields | {"optimizer": one}, "axes": axes}), encoding="utf-8")
        configs: Any = [variant.configs[0] for variant in load_sweep(file).variants]
        assert [config.optimizer.type for config in configs] == ["one.py:Mine", "other.py:Mine"]


def test_a_sweep_trains_the_classes_of_plugins_in_its_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its last line is a command that another process can run."""
    project(tmp_path)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        f"base: tiny.yaml\naxes: {{schedule: [constant, halved, other]}}\nseeds: [0]\nout: {tmp_path}/sweeps\n"
        "plugins: [other.py]\n"
    )
    (tmp_path / "other.py").write_text(SCHEDULE.replace("halved", "other").replace("0.5", "0.1"))
    zoo("sweep", sweep)
    *_, last = capsys.readouterr().out.splitlines()
    manifest = json.loads((tmp_path / "sweeps/sweep/sweep.json").read_text())
    assert [run["status"] for run in manifest["runs"]] == ["finished"] * 3
    forget()
    folder = tmp_path / "sweeps/sweep"
    zoo("report", folder, "-o", tmp_path / "report", status=2)
    command, *arguments = shlex.split(last.removeprefix("The page with all of it: zoo "))
    assert (command, arguments[0]) == ("report", str(folder))
    zoo(command, *(str(tmp_path / "report") if word == "DIR" else word for word in arguments))
