"""Files and numbers that once hung, filled the memory or ended in a traceback are errors that name them."""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from command_line import zoo
from pydantic import TypeAdapter, ValidationError
from tiny_runs import SIZES, tiny, tiny_fields

from zoo.config.yaml import DEEPEST
from zoo.data.files import read_lines, read_object, read_text, sha256_file
from zoo.data.images.files import ArrayFile, ImageFolder
from zoo.data.tokenizers import load_tokenizer
from zoo.data.tokenizers.huggingface import HuggingFaceConfig
from zoo.hub.rope import read_rope
from zoo.nn.rope_scaling import RopeScaling
from zoo.run import limits
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils import files
from zoo.utils.atomic import create_folder, make_folder
from zoo.utils.errors import ConfigError, DataError, ZooError
from zoo.utils.permissions import Permissions

READERS: list[Callable[[Path], object]] = [
    lambda path: files.read_bytes(path, 100, ZooError),
    lambda path: files.read_json(path, 100, ZooError),
    read_text,
    read_object,
    sha256_file,
    lambda path: list(read_lines(path)),
    load_config,
]


@pytest.mark.parametrize("reader", READERS, ids=range(len(READERS)))
@pytest.mark.parametrize("kind", ["fifo", "zero", "folder", "link to zero"])
def test_what_is_no_regular_file(tmp_path: Path, kind: str, reader: Callable[[Path], object]) -> None:
    path = {"zero": Path("/dev/zero"), "folder": tmp_path}.get(kind, tmp_path / "text.yaml")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link to zero":
        path.symlink_to("/dev/zero")
    caught: list[BaseException] = []

    def call() -> None:
        try:
            reader(path)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=call, daemon=True)  # a reader that hangs must not hang the tests
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(caught[0], ZooError)
    if (kind, reader) != ("folder", load_config):
        assert "regular file" in str(caught[0]) or "no such file" in str(caught[0])


def test_a_file_beyond_its_limit(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 101)
    with pytest.raises(DataError, match="large: 101 bytes; expected at most 100"):
        files.read_bytes(tmp_path / "large", 100, DataError)
    # The limit itself is not allocated.
    assert files.read_bytes(tmp_path / "large", 1 << 50, DataError) == b"x" * 101


NESTED = {
    "a list": "model: " + "[" * 5000,
    "closed": "model: " + "[" * 300 + "]" * 300,
    "flow mappings": "{a: " * 3000,
    "block mappings": "".join(" " * i + "a:\n" for i in range(300)),
    "many digits": f"seed: {'9' * 5000}",
    "large": f"seed: {2**64}",
    "negative": f"seed: -{2**64}",
}


@pytest.mark.parametrize("text", NESTED.values(), ids=NESTED)
def test_yaml_beyond_limits(tmp_path: Path, text: str) -> None:
    (tmp_path / "deep.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"deep.yaml"):
        load_config(tmp_path / "deep.yaml")


def test_the_deepest_yaml(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("x: " + "[" * (DEEPEST - 2) + "]" * (DEEPEST - 2))
    with pytest.raises(ConfigError, match="x: unknown key"):
        load_config(tmp_path / "deep.yaml")


def test_surrogates(tmp_path: Path) -> None:
    """JSON writes a character beyond 16 bits as a pair; half of one is no text."""
    (tmp_path / "pair.yaml").write_text('{"name": "x", "train": {"device": "\\ud83d\\ude00"}}')
    with pytest.raises(ConfigError, match=r"pair.yaml:1: train.device: value '😀'"):
        load_config(tmp_path / "pair.yaml")
    (tmp_path / "half.yaml").write_text('{"train": {"device": "\\ud83d"}}')
    with pytest.raises(ConfigError, match=r"half.yaml:1: train.device: half a surrogate pair"):
        load_config(tmp_path / "half.yaml")


@pytest.mark.parametrize("key", ["name", "train.runs_dir", "data.cache_dir", "data.corpus.paths"])
def test_a_name_with_a_zero(tmp_path: Path, key: str) -> None:
    """The operating system ends names there, and Python raised a ValueError of its own."""
    with pytest.raises(ConfigError, match=rf"{key}.*: the character U\+0000"):
        tiny(tmp_path, f'{key}="/tmp/a\\0b"')


def test_a_zero_in_the_folder_of_runs_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command looks at the run's folder before it reads the configuration."""
    file = tmp_path / "zero.yaml"
    file.write_text('extends: gpt-tiny\ntrain: {runs_dir: "a\\0b"}\n')
    zoo("train", file, status=2)
    assert re.search(r"zero\.yaml:2: .*the character U\+0000", capsys.readouterr().err)


@pytest.mark.parametrize("key", ["train.runs_dir", "data.cache_dir"])
def test_a_folder_without_a_name(tmp_path: Path, key: str) -> None:
    """Python reads an empty path as the current folder."""
    with pytest.raises(ConfigError, match=f"{key}: value '': empty; expected the path"):
        tiny(tmp_path, f'{key}=""')


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "a\0b"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a file"):
        load_config(name)
    (tmp_path / "extends.yaml").write_text(json.dumps({"extends": name}))
    with pytest.raises(ConfigError, match=r"extends.yaml:1: extends: .*cannot be the name of a file"):
        load_config(tmp_path / "extends.yaml")


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**30, -1])
def test_seeds(tmp_path: Path, seed: int) -> None:
    with pytest.raises(ConfigError, match=f"seed: value {seed}"):
        tiny(tmp_path, f"seed={seed}")


@pytest.mark.parametrize("family", ["gpt", "ngpt", "bert", "t5"])
@pytest.mark.parametrize("layers", [1001, 100_000, 10**9])
def test_numbers_of_layers(family: str, layers: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"model.n_layers: value {layers}: expected at most 1000; --allow-large"
    ):
        load_config({"model": {"type": family, **SIZES, "n_layers": layers}})


@pytest.mark.parametrize(
    ("key", "value"), [("model.d_model", 2**21), ("model.vocab_size", 2**40), ("data.context", 2**31)]
)
def test_sizes_beyond_reason(tmp_path: Path, key: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"{key}: value {value}: expected at most .* lifts the limit"):
        tiny(tmp_path, f"{key}={value}")
    monkeypatch.setattr(Permissions, "large", True)
    tiny(tmp_path, f"{key}={value}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "train.batch_size=1000000000",
            "train.batch_size: value 1000000000: 1000000000 examples of 16 on each rank",
        ),
        (
            "model={type: gpt, vocab_size: 100000000, d_model: 65536, n_layers: 8, n_heads: 8}",
            "model.type: value gpt",
        ),
    ],
)
def test_what_exceeds_the_memory_is_refused_before_anything_is_built(
    tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"{message}.* need at least .* GB of memory are free; --allow-large"
    ):
        train(tiny(tmp_path, change))
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "cache").exists()


def test_the_memory_of_this_machine() -> None:
    free = limits.available_memory()
    assert free is None or 2**20 < free < 2**50


DESCRIPTIONS: list[object] = [None, [], {}, 3, "saved", "nothing"]


@pytest.mark.parametrize("kind", DESCRIPTIONS, ids=str)
def test_descriptions_of_tokenizers(tmp_path: Path, kind: object) -> None:
    (tmp_path / "zoo-tokenizer.json").write_text(json.dumps({"type": kind, "hash": "0"}))
    with pytest.raises(ZooError, match=r"not the description of a tokenizer|nothing"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\udcff", "[]", "", "nul"])
def test_json_beyond_limits(tmp_path: Path, text: str) -> None:
    path = tmp_path / "zoo-tokenizer.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=r"zoo-tokenizer.json: "):
        load_tokenizer(tmp_path)


PANICS = [
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
]


@pytest.mark.parametrize("changes", PANICS, ids=["empty", "zeros"])
def test_a_tokenizer_on_which_the_library_panics(tmp_path: Path, changes: dict[str, object]) -> None:
    """The panic of Rust is no Exception of Python; with its class every handler was passed."""
    pytest.importorskip("tokenizers")
    model = {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "a"}
    content = {"version": "1.0", "added_tokens": [], "model": model, **changes}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    config = load_config(
        {"data": {"tokenizer": {"type": "huggingface", "path": str(tmp_path), "eos": "</s>"}}}
    )
    assert config.data is not None
    with pytest.raises(DataError, match=r"tokenizer.json: "):
        config.data.tokenizer.build(lambda: iter(())).encode("text")  # type: ignore[attr-defined]


def test_memory_that_a_tokenizer_asks_for(tmp_path: Path) -> None:
    """A table that says it has gigabytes, and replacements that double a text: both ended the process."""
    pytest.importorskip("tokenizers")
    model = {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "a"}
    table = base64.b64encode(b"\xff\xff\xff\xff").decode()
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    unlimited = {**double, "pattern": {"Regex": "a*"}}
    usual = {**double, "pattern": {"String": " "}}
    cases: list[tuple[str, dict[str, object], str | None]] = [
        (
            "normalizer",
            {"type": "Precompiled", "precompiled_charsmap": table},
            "4294967295 bytes in 6 bytes",
        ),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [double] * 60},
            "normalizer: makes up to 1e+18",
        ),
        ("decoder", {"type": "Sequence", "decoders": [unlimited] * 60}, "decoder: makes up to 1e+18"),
        ("normalizer", {"type": "Sequence", "normalizers": [usual] * 3}, None),
    ]
    for step, what, message in cases:
        content = {"version": "1.0", "added_tokens": [], "model": model, step: what}
        config = HuggingFaceConfig(path=tmp_path, eos="</s>")
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        if message is None:
            assert config.build(lambda: iter(())).encode("a") == [0]
            continue
        with pytest.raises(DataError) as caught:
            config.build(lambda: iter(()))
        assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["llama3", "yarn", "longrope"])
def test_a_context_beyond_reason(kind: str) -> None:
    """It ended in an OverflowError when the frequencies were computed."""
    fields: dict[str, object] = {"context": 2**64, "factor": 2.0}
    if kind == "longrope":
        fields |= {"short": [1.0], "long": [2.0]}
    with pytest.raises(ValidationError, match="less than or equal to 2147483647"):
        TypeAdapter(RopeScaling).validate_python({"type": kind, **fields})


@pytest.mark.parametrize("kind", [{}, [], 3])
def test_rope_types(kind: object) -> None:
    from zoo.hub.fields import RefusedError
    from zoo.hub.rope import RopeScaling as Codec

    scaling = read_rope({"rope_parameters": {"rope_type": kind}})["rope_scaling"]
    with pytest.raises(RefusedError, match="null or a rope_type among"):
        Codec().to_zoo(scaling)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny(tmp_path_factory.mktemp("inputs"), steps=6)).folder


COMMANDS = [
    (["eval", "RUN", "--perplexity", "/dev/zero"], "/dev/zero: not a regular file"),
    (
        ["eval", "RUN", "--perplexity", "TEXT", "--contexts", "99999999999999999999"],
        "context is 99999999999999999999",
    ),
    (["eval", "RUN", "--perplexity", "TEXT", "--contexts", "9" * 5000], "expected numbers"),
    (["inspect", "RUN", "--text", "/dev/zero"], "/dev/zero: not a regular file"),
    (["generate", "RUN", "--prompt", "\udcff"], "prompt: character 0 is not UTF-8"),
    (["generate", "RUN", "--prompt", "a", "--seed", str(2**64)], f"seed is {2**64}"),
    (["verdict", "/dev/zero", "--baseline", "a"], "/dev/zero: not a regular file"),
    (["train", "a" * 300], "cannot be the name of a file"),
    (["generate", "RUN", "--prompt", "a", "--num-return", str(2**64)], f"--num-return: value {2**64}: "),
    (
        ["generate", "RUN", "--prompt", "a", "--max-new-tokens", str(2**64)],
        f"new-tokens: value {2**64}: 1 text",
    ),
    (["coord-check", "RUN", "--widths", "16,32", "--seeds", str(2**64)], "seeds; expected 1 to 1000"),
    (["coord-check", "RUN", "--widths", "16,524288"], "model.type: value gpt: "),
    (["explain", "RUN", "name=caf\udce9"], "character 8 is not UTF-8; expected text"),
    (["explain", "RUN", "model.n_layers=100000"], "'model.n_layers=100000': model.n_layers: value 100000"),
]


@pytest.mark.parametrize(("command", "message"), COMMANDS, ids=[" ".join(c)[:40] for c, _ in COMMANDS])
def test_commands(run: Path, capsys: pytest.CaptureFixture[str], command: list[str], message: str) -> None:
    places = {"RUN": str(run), "TEXT": str(run.parent.parent / "text.txt")}
    zoo(*(places.get(word, word) for word in command), status=2)
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_tiny_fields_are_within_the_limits(tmp_path: Path) -> None:
    load_config(tiny_fields(tmp_path))


def test_a_folder_below_a_thousand_missing_ones_is_made(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath(*["x"] * 1200)
    make_folder(deepest)
    assert deepest.is_dir()
    while deepest != tmp_path:  # shutil.rmtree of some versions of Python descends no thousand levels
        deepest.rmdir()
        deepest = deepest.parent


def test_a_start_leaves_the_unfinished_folder_of_another_name(tmp_path: Path) -> None:
    """Two runs, lr0 and lr0.01, that start at the same time."""
    other = tmp_path / ".lr0.01.123.partial"
    killed = tmp_path / ".lr0.123.partial"
    for folder in (other, killed):
        folder.mkdir()
    create_folder(tmp_path / "lr0", lambda partial: (partial / "config.yaml").touch())
    assert other.is_dir()
    assert not killed.exists()


@pytest.mark.parametrize("size", [(20_000, 20_000), (1, 1)], ids=["bomb", "fifo"])
def test_images_that_are_no_images(tmp_path: Path, size: tuple[int, int]) -> None:
    """Pillow refuses a size beyond all reason with an error of its own; of a pipe it waited for a writer."""
    image = pytest.importorskip("PIL.Image")
    file = tmp_path / "class/0.png"
    file.parent.mkdir()
    image.new("1", size).save(file)
    if size == (1, 1):
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(DataError, match=r"0.png: not an? (image that can be read|regular file)"):
        ImageFolder(tmp_path).read(0)


def test_an_image_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class/0.png").symlink_to("nothing")
    with pytest.raises(DataError, match=r"class/0.png: No such file"):
        ImageFolder(tmp_path)


def test_names_that_are_made_of_a_number(tmp_path: Path) -> None:
    """The names of 2^31 sentinels filled the memory before they were compared with the vocabulary."""
    objective = "{type: span-corruption, sentinels: 2147483647}"
    with pytest.raises(ConfigError, match=r"sentinels: value 2147483647: expected at most 65536"):
        tiny(tmp_path, f"data.objective={objective}")


@pytest.mark.parametrize("kind", ["wesar", "weight_norm", "sigma_reparam"])
def test_a_variance_whose_factor_is_beyond_float32(tmp_path: Path, kind: str) -> None:
    """Building the model ended in a RuntimeError of torch."""
    with pytest.raises(ConfigError, match=r"reparam.sigma2: value 1e-265: expected .*0.00000000000000000001"):
        tiny(tmp_path, f"reparam={{type: {kind}, sigma2: 1.0e-265}}")


@pytest.mark.parametrize("name", ["{}", "{a: {}}"])
def test_a_name_that_is_no_text(tmp_path: Path, name: str) -> None:
    """The name of the file was taken for its type, and the line was lost."""
    (tmp_path / "config.yaml").write_text(f"seed: 1\nname: {name}\n")
    with pytest.raises(ConfigError, match=r"config.yaml:2: name: value \{.*: expected a string") as caught:
        load_config(tmp_path / "config.yaml")
    assert "type" not in str(caught.value)


def test_arrays_beyond_the_memory(tmp_path: Path) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**45}, 8, 8)}}\n".encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", content)
    with pytest.raises(DataError, match=r"a.npz: expected arrays `images` .*, got an error"):
        ArrayFile(tmp_path / "a.npz")
