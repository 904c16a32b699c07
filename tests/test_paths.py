"""Where relative paths start: beside the file that names them, else in the current folder."""

from pathlib import Path

import pytest
from tiny_runs import SIZES, TEXT

from zoo import build_model, save_model
from zoo.ablate.sweep import load_sweep
from zoo.config.inputs import from_current_folder
from zoo.config.plugins import load_plugin
from zoo.config.yaml import Located
from zoo.data.corpora import JsonlCorpus, TextCorpus
from zoo.data.text.prepare import with_text
from zoo.run.config import load_config
from zoo.run.job import Job
from zoo.run.located import located
from zoo.run.location import configured_run
from zoo.utils.errors import ConfigError, DataError, PluginError, ZooError

YAML = """
model: {type: gpt, vocab_size: 256, d_model: 16, n_layers: 1, n_heads: 2}
data: {corpus: {type: text, paths: [texts]}, context: 16, cache_dir: cache}
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, seen from the folder above it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "run.yaml").write_text(YAML, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return folder


def texts(folder: Path, name: str = "a.txt", text: str = TEXT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def sources(config: Path, *overrides: str) -> list[Path]:
    data = load_config(config, overrides).data
    return [source.path for source in data.corpus.sources()]  # type: ignore[union-attr]


def test_beside_the_file(elsewhere: Path) -> None:
    inside = texts(elsewhere / "texts")
    texts(elsewhere.parent / "texts", "other.txt")
    assert sources(Path("project/run.yaml")) == [inside]
    assert sources(elsewhere / "run.yaml") == [inside]


def test_in_the_current_folder_as_before(elsewhere: Path) -> None:
    here = texts(elsewhere.parent / "texts")
    assert sources(Path("project/run.yaml")) == [here]


def test_of_the_command_line(elsewhere: Path) -> None:
    texts(elsewhere / "texts")
    here = texts(elsewhere.parent / "texts", "other.txt")
    assert sources(Path("project/run.yaml"), "data.corpus.paths=[texts]") == [here]


def test_each_file_of_a_chain_has_its_own_folder(elsewhere: Path) -> None:
    inside = texts(elsewhere / "texts")
    child = elsewhere.parent / "below/child.yaml"
    child.parent.mkdir()
    child.write_text("extends: ../project/run.yaml\n", encoding="utf-8")
    assert [path.resolve() for path in sources(child)] == [inside]


def test_a_sweep_file_that_is_extended_has_its_own_folder(elsewhere: Path) -> None:
    """`base`, and what fragments of `axes` extend, lie beside the file that names them."""
    texts(elsewhere / "texts")
    (elsewhere / "wide.yaml").write_text("model: {d_model: 32}\n", encoding="utf-8")
    axes = "axes: {width: {narrow: {}, wide: {extends: wide.yaml}}}\n"
    trained = "optimizer: {type: adamw, lr: 1e-2}\ntrain: {steps: 2, batch_size: 2}\n"
    (elsewhere / "base.yaml").write_text(f"extends: run.yaml\n{trained}", encoding="utf-8")
    (elsewhere / "sweep.yaml").write_text(f"base: base.yaml\n{axes}out: sweeps\n", encoding="utf-8")
    mine = elsewhere.parent / "mine"
    mine.mkdir()
    more = "axes: {width: {wider: {extends: wider.yaml}}}\n"
    (mine / "wider.yaml").write_text("model: {d_model: 64}\n", encoding="utf-8")
    (mine / "sweep.yaml").write_text(f"extends: ../project/sweep.yaml\n{more}", encoding="utf-8")
    for file in (Path("mine/sweep.yaml"), mine / "sweep.yaml"):
        models = [config.model for variant in load_sweep(file).variants for config in variant.configs]
        assert [getattr(model, "d_model", None) for model in models] == [16, 32, 64]


def test_patterns(elsewhere: Path) -> None:
    inside = texts(elsewhere / "texts")
    text = YAML.replace("[texts]", "[texts/*.txt]")
    (elsewhere / "run.yaml").write_text(text, encoding="utf-8")
    assert sources(Path("project/run.yaml")) == [inside]


@pytest.mark.parametrize("name", ["exp [1]", "what?", "[", "a*b"])
def test_patterns_beside_a_file_in_a_folder_whose_name_looks_like_one(elsewhere: Path, name: str) -> None:
    folder = elsewhere / name
    inside = texts(folder / "texts")
    for other in ("exp 1", "whats", "axb"):
        texts(elsewhere / other / "texts")
    for paths in ("[texts/*.txt]", "[texts]", "[texts/a.txt]"):
        (folder / "run.yaml").write_text(YAML.replace("[texts]", paths), encoding="utf-8")
        assert sources(Path("project", name, "run.yaml")) == [inside]
        assert sources(folder / "run.yaml") == [inside]


def test_the_message_names_both_places(elsewhere: Path) -> None:
    config = load_config("project/run.yaml")
    load_config("gpt-tiny")  # what else is read does not matter
    with pytest.raises(DataError) as error, located(config), located(config):
        config.data.corpus.sources()  # type: ignore[union-attr]
    assert "texts: no such file or directory" in str(error.value)
    assert str(error.value).count(f"(looked in {elsewhere} and in {elsewhere.parent})") == 1


def test_the_message_names_the_current_folder_alone(elsewhere: Path) -> None:
    config = load_config("project/run.yaml", ["data.corpus.paths=[notes]"])
    with pytest.raises(DataError) as error, located(config):
        config.data.corpus.sources()  # type: ignore[union-attr]
    assert str(error.value).startswith(
        "override 'data.corpus.paths=[notes]': data.corpus.paths.0: notes: no such file or directory in "
        f"{elsewhere.parent}; expected: files, directories (searched recursively) and glob patterns"
    )
    assert "looked in" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "huggingface",
            "nowhere: No such file or directory; expected: tokenizer.json, or the folder it is in",
        ),
        ("saved", "no tokenizer in nowhere, which is no folder: expected zoo-tokenizer.json, "),
    ],
)
def test_a_tokenizer_that_is_missing(elsewhere: Path, kind: str, expected: str) -> None:
    text = YAML.replace("cache_dir: cache", f"tokenizer: {{type: {kind}, path: nowhere}}")
    (elsewhere / "run.yaml").write_text(text, encoding="utf-8")
    config = load_config("project/run.yaml")
    with pytest.raises(DataError) as error, located(config):
        config.data.tokenizer.build(lambda: iter(()))  # type: ignore[union-attr]
    assert str(error.value).startswith(f"project/run.yaml:3: data.tokenizer.path: {expected}")
    assert str(error.value).count("expected") == 1
    assert str(error.value).endswith(f" (looked in {elsewhere} and in {elsewhere.parent})")


def test_checkpoints(elsewhere: Path) -> None:
    model = build_model("gpt", vocab_size=256, d_model=16, n_layers=1, n_heads=2, d_mlp=32)
    save_model(model, elsewhere / "base.safetensors")
    (elsewhere / "tune.yaml").write_text("model: {from: base.safetensors}\n", encoding="utf-8")
    config = load_config("project/tune.yaml")
    assert config.checkpoint is not None
    assert config.checkpoint.path.resolve() == elsewhere / "base.safetensors"
    (elsewhere / "tune.yaml").write_text("model: {from: bass.safetensors}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"looked in {elsewhere} and in {elsewhere.parent}\)"):
        load_config("project/tune.yaml")


def test_what_is_no_path_stays(elsewhere: Path) -> None:
    for value in (0.05, None, "/absolute/x.tsv", "missing.tsv"):
        located = Located(value, "project/run.yaml:3")
        assert from_current_folder(located).value == value
    both = Located({"a": Located("run.yaml", "project/run.yaml:3")}, "project/run.yaml:2")
    assert from_current_folder(both).plain() == {"a": "project/run.yaml"}


# ---- texts as they lie around


def test_markdown_is_read_where_there_is_no_text(tmp_path: Path) -> None:
    texts(tmp_path / "notes", "a.md")
    texts(tmp_path / "notes/deep", "b.markdown")
    corpus = TextCorpus(paths=[str(tmp_path / "notes")])
    assert [source.name for source in corpus.sources()] == ["a.md", "deep/b.markdown"]
    texts(tmp_path / "notes", "c.txt")
    assert [source.name for source in corpus.sources()] == ["c.txt"]
    message = r"no file in this directory ends in \.rst; there are \.markdown, \.md, \.txt$"
    with pytest.raises(DataError, match=message):
        TextCorpus(paths=[str(tmp_path / "notes")], suffixes=[".rst"]).sources()


@pytest.mark.parametrize("kind", ["file", "passage", "line"])
def test_an_empty_file_among_others(tmp_path: Path, kind: str) -> None:
    texts(tmp_path, "a.txt", "one\n\ntwo\n")
    texts(tmp_path, "b.txt", " \n")
    corpus = TextCorpus.model_validate({"type": "text", "paths": [str(tmp_path)], "document": kind})
    left_out: list[str] = []
    kept = list(with_text(corpus.documents(), left_out))
    assert "\n".join(d.text for d in kept).split() == ["one", "two"]
    assert left_out == (["b.txt"] if kind == "file" else ["b.txt#1"] if kind == "passage" else [])


def test_an_empty_line_of_json(tmp_path: Path) -> None:
    texts(tmp_path, "a.jsonl", '{"text": "one"}\n{"text": " "}\n{"text": "two"}\n')
    documents = JsonlCorpus(paths=[str(tmp_path)]).documents()
    assert [d.id for d in with_text(documents)] == ["a.jsonl:1", "a.jsonl:3"]


def test_an_empty_file_of_json_among_others(tmp_path: Path) -> None:
    texts(tmp_path, "a.jsonl", '{"text": "one"}\n')
    texts(tmp_path, "b.jsonl", "\n")
    assert [d.id for d in JsonlCorpus(paths=[str(tmp_path)]).documents()] == ["a.jsonl:1"]
    with pytest.raises(DataError, match=r"b\.jsonl: the file is empty; leave it out"):
        list(JsonlCorpus(paths=[str(tmp_path / "b.jsonl")]).documents())


def test_nothing_but_empty_documents(tmp_path: Path) -> None:
    texts(tmp_path, "a.jsonl", '{"text": ""}\n{"text": " "}\n')
    config = load_config(
        {
            "model": {"type": "gpt", **SIZES},
            "data": {
                "corpus": {"type": "jsonl", "paths": [str(tmp_path)]},
                "context": 8,
                "cache_dir": str(tmp_path / "cache"),
            },
        }
    )
    assert config.data is not None
    with pytest.raises(DataError, match="no document has any text"):
        config.data.prepare(config.model)  # type: ignore[arg-type]


def test_runs_may_lie_in_the_home_folder(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(elsewhere / "home"))
    config, override = elsewhere / "run.yaml", "train.runs_dir=~/runs"
    complete = ["name=a", "optimizer={type: adamw, lr: 0.01}", "train={steps: 10, batch_size: 2}", override]
    expected = elsewhere / "home/runs/a"
    assert Job.of(load_config(config, complete)).folder.path == expected
    found = configured_run(str(config), complete)
    assert found is not None
    assert found.path == expected


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.corpus.paths=~nobodyzz/a.txt", r"^~nobodyzz/a.txt: no such file or directory"),
        ("data.tokenizer={type: saved, path: ~nobodyzz}", r"^no tokenizer in ~nobodyzz, which is no folder"),
        ("data.tokenizer={type: sentencepiece, model: ~nobodyzz/m}", r"^~nobodyzz/m: No such file"),
        ("data.tokenizer={type: huggingface, path: ~nobodyzz/t}", r"^~nobodyzz/t: No such file"),
        ("model.from=~nobodyzz", r"^override 'model.from=~nobodyzz': model.from: ~nobodyzz: "),
    ],
)
def test_the_home_folder_of_nobody(elsewhere: Path, override: str, message: str) -> None:
    texts(elsewhere / "texts")
    with pytest.raises(ZooError, match=message):
        config = load_config(elsewhere / "run.yaml", [override])
        config.data.prepare(config.model)  # type: ignore[union-attr, arg-type]


def test_folders_and_plugins_in_the_home_folder_of_nobody(elsewhere: Path) -> None:
    config = elsewhere / "run.yaml"
    complete = ["name=a", "optimizer={type: adamw, lr: 0.01}", "train={steps: 10, batch_size: 2}"]
    complete += ["train.runs_dir=~nobodyzz/runs", "data.cache_dir=~nobodyzz/cache"]
    job = Job.of(load_config(config, complete))
    found = configured_run(str(config), complete)
    assert found is not None
    assert found.path == job.folder.path == Path("~nobodyzz/runs/a")
    assert job.data.cache_folder() == Path("~nobodyzz/cache")  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match=r"^plugin .*~nobodyzz/p\.py: No such file"):
        load_plugin("~nobodyzz/p.py")


@pytest.mark.parametrize("written", ["''", "[texts, '']"])
def test_an_empty_path_is_not_the_current_folder(elsewhere: Path, written: str) -> None:
    texts(elsewhere)
    config = elsewhere / "run.yaml"
    with pytest.raises(ConfigError, match=r"^override .*: data.corpus.paths: value .*: empty; expected"):
        load_config(config, [f"data.corpus.paths={written}"])
    config.write_text(YAML.replace("[texts]", written), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run.yaml:3: data.corpus.paths: value .*: empty; expected"):
        load_config(config)
