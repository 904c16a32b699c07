"""Perplexity: every token once, the arithmetic by hand, one long pass, and torch's own cross entropy."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import typed, zoo
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import ROOT, tiny
from tiny_runs import SIZES as TRANSFORMER
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from zoo import build_model, load_model, load_plugin, save_model
from zoo.data.tokenizers.byte import ByteTokenizer
from zoo.data.tokenizers.word import WordTokenizer
from zoo.evaluation.evaluated_model import load_evaluated_model
from zoo.evaluation.perplexity import carried_nats, read, windowed_nats
from zoo.evaluation.perplexity_report import PerplexityReport, perplexity
from zoo.evaluation.score import Score, total
from zoo.evaluation.windows import sliding_windows
from zoo.models import LanguageModel, Model
from zoo.train.run import train
from zoo.utils.errors import CheckpointError, DataError, ZooError

PNG = b"\x89PNG\r\n\x1a\n"
SIZES: dict[str, Any] = TRANSFORMER
LSTM: dict[str, Any] = {"vocab_size": 256, "d_model": 12, "d_memory": 20}
POEM = "Naïve words,\n\n  twice as many 字.\nThe end\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained GPT on bytes, context 16."""
    return train(tiny(tmp_path_factory.mktemp("trained"), steps=10)).folder


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    file = tmp_path / "poem.txt"
    file.write_text(POEM, encoding="utf-8")
    return file


def tokens(count: int) -> torch.Tensor:
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(7))


def in_one_pass(model: Model, ids: torch.Tensor) -> float:
    """-log p by the model's own forward pass and torch's cross entropy."""
    with torch.no_grad():
        return F.cross_entropy(model(ids[None, :-1])[0].double(), ids[1:], reduction="sum").item()


@given(st.integers(2, 60), st.integers(1, 20), st.data())
def test_every_token_is_predicted_once_from_enough(count: int, context: int, data: st.DataObject) -> None:
    stride, batch = data.draw(st.integers(1, context)), data.draw(st.integers(1, 5))
    predicted = []
    # The tokens are their own positions, so that a target tells where it stands.
    for inputs, targets in sliding_windows(torch.arange(count), context, stride, batch):
        assert inputs.shape == targets.shape
        assert len(inputs) <= batch
        assert inputs.shape[1] == min(context, count - 1)
        for row, following in zip(inputs.tolist(), targets.tolist(), strict=True):
            for seen, target in enumerate(following, 1):
                if target != -1:
                    assert target == row[seen - 1] + 1
                    assert seen >= min(target, context - stride + 1)
                    predicted.append(target)
    assert sorted(predicted) == list(range(1, count))


def summed(batches: Iterable[tuple[float, int]]) -> float:
    return sum(nats for nats, _ in batches)


@pytest.mark.parametrize("model", ["gpt", "ngpt", "lstm"])
def test_a_text_that_fits_is_one_forward_pass(model: str) -> None:
    net = build_model(model, **(LSTM if model == "lstm" else SIZES)).eval()
    ids = tokens(50)
    assert summed(windowed_nats(net, ids, 64, 8, 2)) == pytest.approx(in_one_pass(net, ids), rel=1e-6)


def test_windows_against_one_at_a_time() -> None:
    net = build_model("gpt", **SIZES).eval()
    ids, context, stride = tokens(75), 16, 5
    expected = in_one_pass(net, ids[:17])
    for done in range(16, 74, stride):
        end = min(done + stride, 74)
        window = ids[end - 16 : end + 1]
        expected += in_one_pass(net, window) - in_one_pass(net, window[: done - end])
    for batch in (1, 3, 100):
        assert summed(windowed_nats(net, ids, context, stride, batch)) == pytest.approx(expected, rel=1e-5)


def test_a_carried_state_goes_through_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build_model("lstm", **LSTM, streams=4).eval()
    ids, before = tokens(70), {k: v.clone() for k, v in net.state_dict().items()}
    monkeypatch.setattr("zoo.evaluation.perplexity.CHUNK", 32)
    assert isinstance(net, LanguageModel)
    assert summed(carried_nats(net, ids)) == pytest.approx(in_one_pass(net, ids), rel=1e-6)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_the_arithmetic() -> None:
    score = Score("a", 4, 2, tokens=8, words=2, utf8_bytes=16, nats=16 * math.log(2))
    assert score.token_perplexity == pytest.approx(4)
    assert score.word_perplexity == pytest.approx(256)
    assert score.byte_perplexity == pytest.approx(2)
    assert score.bits_per_byte == pytest.approx(1)
    both = total([score, Score("b", 4, 2, tokens=2, words=2, utf8_bytes=4, nats=4 * math.log(2))])
    assert (both.tokens, both.words, both.utf8_bytes) == (10, 4, 20)
    assert both.token_perplexity == pytest.approx(4)
    assert both.word_perplexity == pytest.approx(32)
    assert Score("c", 4, 2, tokens=1, words=1, utf8_bytes=1, nats=1e4).word_perplexity is None


def test_what_is_counted(poem: Path) -> None:
    text = read(poem, ByteTokenizer(), 255, lines=False)
    assert text.tokens.tolist() == [255, *POEM.encode()]
    assert (text.words, text.utf8_bytes, text.lossless) == (8, len(POEM.encode()), True)
    assert not text.carriage_returns
    words = WordTokenizer(["<eos>", "<unk>", "The", "end", "many"], "here")
    text = read(poem, words, words.eos_id, lines=True)
    assert text.tokens.tolist() == [0, 1, 1, 0, 1, 1, 4, 1, 0, 2, 3, 0]
    assert (text.words, text.lossless) == (8, False)


def test_carriage_returns_are_scored_and_told(run: Path, poem: Path, tmp_path: Path) -> None:
    other = tmp_path / "windows.txt"
    other.write_bytes(POEM.replace("\n", "\r\n").encode())
    report, (written,) = perplexity(run, [poem, other], contexts=[64], device="cpu")
    assert report.scores[1].tokens == report.scores[0].tokens + POEM.count("\n")
    assert json.loads(written.read_text())["carriage_returns"] == [str(other)]
    _, *notes = report.table().renderables
    (note,) = map(str, notes)
    assert note.startswith(f"{other}: lines end with \\r\\n")
    by_line = read(other, ByteTokenizer(), 255, lines=True)
    assert not by_line.carriage_returns  # line ends are no part of documents


def test_a_run(run: Path, poem: Path) -> None:
    report, written = perplexity(run, [poem], contexts=[64], device="cpu")
    model, ids = _model(run), torch.tensor([255, *POEM.encode()])
    expected = in_one_pass(model, ids)
    (score,) = report.scores
    assert score.nats == pytest.approx(expected, rel=1e-6)
    assert score.token_perplexity == score.byte_perplexity  # its tokens are bytes
    assert score.word_perplexity == pytest.approx(math.exp(expected / 8), rel=1e-5)
    assert written == [run / "perplexity.json"]
    assert json.loads(written[0].read_text("utf-8")) == json.loads(report.to_json())
    (usual,) = perplexity(run, [poem], device="cpu")[0].scores
    assert (usual.context, usual.stride) == (16, 8)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_report_that_cannot_be_written_is_shown_all_the_same(
    run: Path,
    poem: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    is_named: bool,
) -> None:
    def refuse(path: Path, text: str) -> None:
        raise CheckpointError(f"{path}: cannot be written")

    monkeypatch.setattr("zoo.evaluation.perplexity_report.write_text", refuse)
    named = ("--out", "mine.json") if is_named else ()
    zoo("eval", run, "--perplexity", poem, *named, status=2 if is_named else 0)
    out, err = capsys.readouterr()
    assert "per token" in out and "wrote" not in out
    assert err.endswith("error: mine.json: cannot be written\n") == is_named
    warnings = [] if is_named else [f"{run / 'perplexity.json'}: cannot be written"]
    assert [record.getMessage() for record in caplog.records] == warnings


def test_contexts_and_files(run: Path, poem: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("Some more.", encoding="utf-8")
    out = tmp_path / "new" / "result.json"
    report, written = perplexity(run, [poem, other], contexts=[32, 8], stride=4, device="cpu", out=out)
    assert [(s.context, s.file) for s in report.scores] == [
        (context, file) for context in (8, 32) for file in (str(poem), str(other), "total")
    ]
    assert written == [out, out.with_suffix(".png")]
    assert written[1].read_bytes().startswith(PNG)
    (tmp_path / "link.txt").symlink_to(other)
    with pytest.raises(ZooError, match=r"link\.txt: given twice; expected each text once"):
        perplexity(run, [other, poem, tmp_path / "link.txt"], device="cpu")


def test_a_picture_of_what_blows_up() -> None:
    scores = [
        Score("a", 2**i, 1, tokens=1, words=1, utf8_bytes=1, nats=nats) for i, nats in enumerate((1, 9, 1e4))
    ]
    for shown in (scores, scores[2:]):  # some and all too large for a number
        file = io.BytesIO()
        PerplexityReport("a run", None, True, shown).draw(file)
        assert file.getvalue().startswith(PNG)


@pytest.mark.parametrize("names", [("_a.txt", "_b.txt"), ("a$x_$.txt", "b$x_$.txt")])
def test_a_picture_names_every_file(names: tuple[str, str]) -> None:
    """Matplotlib leaves out labels that begin with an underscore, and reads $...$ as a formula."""
    pictures = []
    for name in names:
        scores = [Score(name, context, 1, tokens=1, words=1, utf8_bytes=1, nats=1) for context in (1, 2)]
        pictures.append(io.BytesIO())
        PerplexityReport("a run", None, True, scores).draw(pictures[-1])
    assert pictures[0].getvalue() != pictures[1].getvalue()


def test_a_run_with_streams_and_lines(tmp_path: Path, poem: Path) -> None:
    stream = ("model={type: lstm, vocab_size: 256, d_model: 12, streams: 4}", "data.objective.type=stream")
    folder = train(tiny(tmp_path, *stream, "data.corpus.document=line", steps=5)).folder
    (score,) = perplexity(folder, [poem], device="cpu")[0].scores
    documents = [line.encode() for line in POEM.splitlines() if line]
    ids = torch.tensor([255, *b"\xff".join([*documents, b""])])
    assert score.nats == pytest.approx(in_one_pass(_model(folder), ids), rel=1e-6)
    assert (score.context, score.tokens) == (None, len(ids) - 1)
    settings: tuple[dict[str, Any], ...] = ({"contexts": [8]}, {"stride": 4}, {"batch_size": 2})
    for setting in settings:
        with pytest.raises(ZooError, match="no effect on this model"):
            perplexity(folder, [poem], **setting)


def test_a_folder_of_the_hub_against_transformers(tmp_path: Path, poem: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=3)
    theirs: Any = GPT2LMHeadModel(config)
    theirs.eval()
    folder = tmp_path / "hub"
    theirs.save_pretrained(folder)
    with pytest.raises(DataError, match=r"no tokenizer in .*zoo-tokenizer\.json.*--tokenizer"):
        perplexity(folder, [poem], device="cpu")
    ByteTokenizer().save(folder)
    (score,) = perplexity(folder, [poem], device="cpu", out=tmp_path / "out.json")[0].scores
    ids = torch.tensor([[3, *POEM.encode()]])
    with torch.no_grad():
        mean = theirs(ids, labels=ids).loss.item()
    assert score.context == 64
    assert score.nats == pytest.approx(mean * (ids.numel() - 1), rel=1e-5)
    with pytest.raises(ZooError, match="context is 65, but the model has vectors for 64 positions"):
        perplexity(folder, [poem], contexts=[65], device="cpu")
    theirs.config.bos_token_id = 50256
    theirs.config.save_pretrained(folder)
    with pytest.raises(DataError, match="bos_token_id is 50256; expected a token below 256"):
        perplexity(folder, [poem], device="cpu")


def test_a_text_without_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalisation may remove all characters of a text, such as control characters."""
    file = tmp_path / "control.txt"
    file.write_bytes(b"\x01")
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: [])
    with pytest.raises(DataError, match=r"control\.txt: the tokenizer makes no token of this text"):
        read(file, ByteTokenizer(), 255, lines=False)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b" \n", "is empty"), (b"ab\xff", "byte 2 .* not UTF-8")]
)
def test_files_that_are_no_text(run: Path, tmp_path: Path, content: bytes, message: str) -> None:
    file, out = tmp_path / "bad.txt", tmp_path / "out.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        perplexity(run, [file], device="cpu", out=out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contexts": [0]}, "context is 0"),
        ({"contexts": [8, 32], "stride": 9}, "stride is 9; expected 1 to 8"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"out": Path("a.txt")}, r"ends in \.json"),
        ({"tokenizer": Path("nowhere")}, "no tokenizer in nowhere"),
        ({"device": "cuda:99"}, "cuda:99"),
    ],
)
def test_settings_out_of_range(run: Path, poem: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ZooError, match=message):
        perplexity(run, [poem], **{"device": "cpu", **options})


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("bert", SIZES),
        ("t5", SIZES),
        ("resnet", {"classes": 3, "depth": 18}),
    ],
)
def test_models_that_do_not_predict_the_next_token(
    tmp_path: Path, poem: Path, model: str, fields: dict[str, Any]
) -> None:
    file = save_model(build_model(model, **fields), tmp_path)
    with pytest.raises(DataError, match=f"type '{model}' .* gives a text no probability"):
        perplexity(file, [poem], device="cpu")


@pytest.mark.usefixtures("without_plugins")
def test_an_objective_that_does_not_predict_the_next_token(tmp_path: Path, poem: Path) -> None:
    """A gpt can be trained by it, but its loss of a text that is read forwards means nothing."""
    load_plugin(ROOT / "examples/plugins/objective.py")
    run = train(tiny(tmp_path, "data.objective=backwards", steps=6)).folder
    with pytest.raises(DataError, match=r"the objective 'backwards', whose targets are not the next tokens"):
        perplexity(run, [poem], device="cpu")


def test_a_file_needs_a_tokenizer_and_a_context(run: Path, tmp_path: Path, poem: Path) -> None:
    file = save_model(_model(run), tmp_path / "alone")
    out = tmp_path / "out.json"
    with pytest.raises(DataError, match="no tokenizer"):
        perplexity(file, [poem], device="cpu", out=out)
    with pytest.raises(ZooError, match="--contexts"):
        perplexity(file, [poem], tokenizer=run / "tokenizer", device="cpu", out=out)
    alone = perplexity(file, [poem], contexts=[16], tokenizer=run / "tokenizer", device="cpu", out=out)[0]
    assert alone.scores == perplexity(run, [poem], device="cpu", out=out)[0].scores
    checkpoint = next((run / "checkpoints").glob("step-*10"))
    assert perplexity(checkpoint, [poem], device="cpu", out=out)[0].scores == alone.scores
    ByteTokenizer.vocab_size, before = 300, ByteTokenizer.vocab_size
    try:
        with pytest.raises(DataError, match=r"300 tokens, but model\.vocab_size is 256"):
            perplexity(run, [poem], device="cpu", out=out)
    finally:
        ByteTokenizer.vocab_size = before


def _commands() -> list[str]:
    lines = (ROOT / "docs" / "evaluation.md").read_text("utf-8").splitlines()
    commands = [line.removeprefix("$ zoo ").split("  #")[0] for line in lines if line.startswith("$ zoo ")]
    return [command for command in commands if "--perplexity" in command]


def test_the_commands_of_the_docs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "runs/my-run")
    save_model(_model(run), "models/llama/model.safetensors")
    for name in ("book.txt", "news.txt"):
        Path(name).write_text(POEM, encoding="utf-8")
    commands = _commands()
    assert len(commands) >= 4
    for command in commands:
        typed(command)
        captured = capsys.readouterr()
        if "--json" in command:
            assert json.loads(captured.out)["scores"]
        else:
            assert "per token" in captured.out
    assert Path("runs/my-run/perplexity.png").read_bytes().startswith(PNG)


def _model(path: Path) -> Model:
    return load_model(path).eval()


def test_lines_that_training_kept_apart_do_not_see_each_other(tmp_path: Path, poem: Path) -> None:
    apart = ("data.documents=masked", "data.corpus.document=line", "optimizer.lr=0.1")
    folder = train(tiny(tmp_path, *apart, steps=10)).folder
    lines = [torch.tensor([255, *line.encode(), 255]) for line in POEM.splitlines() if line]
    alone = sum(in_one_pass(_model(folder), line) for line in lines)
    (score,) = perplexity(folder, [poem], contexts=[64], device="cpu")[0].scores
    assert score.nats == pytest.approx(alone, rel=1e-5)


def test_an_import_is_evaluated_as_its_source(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=256, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=3)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "hub")
    ByteTokenizer().save(tmp_path / "hub")
    zoo("import", tmp_path / "hub", tmp_path / "ours")
    source, imported = (
        load_evaluated_model(tmp_path / name, None, torch.device("cpu")) for name in ("hub", "ours")
    )
    assert (imported.start_id, imported.context) == (source.start_id, source.context) == (3, 64)
