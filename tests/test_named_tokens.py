"""BERT and T5 of the hub go on learning by the mask and the sentinels of their own tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from command_line import typed, zoo
from hub_tokenizers import TEXT, saved
from pages import sections
from tiny_runs import TEXT as LONG
from tiny_runs import tiny
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from zoo import load_model
from zoo.data.dataset import BatchSpec
from zoo.data.prompting import HubPrompting
from zoo.hub.export import export
from zoo.run.config import load_config
from zoo.train.run import train
from zoo.utils.errors import ConfigError, DataError

BERT: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
T5: dict[str, Any] = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 1}
ORDER = BatchSpec(seed=2, step=1, batch_size=64)
CONTEXT = 24
SENTINELS = 9


def bert(folder: Path) -> Any:
    """A BERT of transformers in a folder of the hub, with a tokenizer like BERT's."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted({letter for text in TEXT for letter in text if letter.isascii() and letter.strip()})
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), "line", "the", "fox"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    library: Any = transformers
    made = library.BertTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": text for name, text in names.items()}
    )
    made.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(made), intermediate_size=32, **BERT)
    model: Any = library.BertForMaskedLM(config)
    for p in model.parameters():
        p.data.normal_(0, 0.3)
    model.eval().save_pretrained(folder)
    return model


def t5(folder: Path) -> Any:
    """A T5 of transformers in a folder of the hub, with a tokenizer like T5's."""
    saved("unigram", folder, added=tuple(f"<extra_id_{i}>" for i in reversed(range(SENTINELS))))
    torch.manual_seed(0)
    start: dict[str, Any] = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    model: Any = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=80, **T5, **start))
    for p in model.parameters():
        p.data.normal_(0, 0.3)
    model.eval().save_pretrained(folder)
    return model


def configured(folder: Path, *overrides: str, **fields: Any) -> Any:
    """The configuration of a run that goes on from a folder."""
    return tiny(folder.parent, f"model={{from: {folder}}}", f"data.context={CONTEXT}", *overrides, **fields)


def stretches(corpus: Any, length: int) -> list[list[int]]:
    """All stretches of the training text, which is a ring."""
    windows: list[list[int]] = corpus.train.windows(np.arange(len(corpus.train)), length).tolist()
    return windows


def examples(config: Any) -> tuple[list[Tensor], Any]:
    """A training batch, and the prepared corpus."""
    dataset = config.data.prepare(config.model)
    return list(dataset.train_batch(ORDER)), dataset.corpus


MLM = "data.objective={type: mlm, mask_token: '[MASK]'}"
SPANS = f"data.objective={{type: span-corruption, sentinels: {SENTINELS}, sentinel_token: '<extra_id_{{}}>'}}"


def test_masks_of_bert(tmp_path: Path) -> None:
    """[CLS] text [SEP]; only tokens of the text are predicted, 15 % of them; the rest is as it was."""
    bert(tmp_path / "hub")
    reader: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    (inputs, targets), corpus = examples(configured(tmp_path / "hub", MLM, "data.corpus.document=line"))
    assert inputs.shape == targets.shape == (64, CONTEXT)
    assert (inputs[:, 0] == reader.cls_token_id).all()
    assert (inputs[:, -1] == reader.sep_token_id).all()
    chosen = targets != -1
    assert not chosen[:, [0, -1]].any()
    assert not torch.isin(targets, torch.tensor([0, 2, 3, 4])).any(), "[UNK] stands for a part of a text"
    texts = torch.where(chosen, targets, inputs)[:, 1:-1].numpy()
    n_ordinary = (texts != reader.sep_token_id).sum(1)
    assert n_ordinary.min() < CONTEXT - 2, "a document ends in one of the examples"
    assert chosen.sum(1).tolist() == [round(0.15 * n) for n in n_ordinary.tolist()]
    masked = inputs == reader.mask_token_id
    assert masked.any()
    assert not (masked & ~chosen).any()
    assert all(row in stretches(corpus, CONTEXT - 2) for row in texts.tolist())


def test_the_loss_is_that_of_transformers(tmp_path: Path) -> None:
    for name, make, objective in (("bert", bert, MLM), ("t5", t5, SPANS)):
        theirs = make(tmp_path / name)
        (first, *others, targets), _ = examples(configured(tmp_path / name, objective))
        with torch.no_grad():
            expected = theirs(input_ids=first, labels=targets.masked_fill(targets == -1, -100)).loss
            found = load_model(tmp_path / name).eval().loss(first, *others, targets).cross_entropy
        assert found.item() == pytest.approx(expected.item(), rel=2e-6)


def test_spans_of_t5(tmp_path: Path) -> None:
    """transformers writes the sentinels out, in their order, and </s> at the end."""
    t5(tmp_path / "hub")
    reader: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "hub")
    (sources, decoder_inputs, targets), corpus = examples(configured(tmp_path / "hub", SPANS))
    assert sources.shape == (64, CONTEXT)
    assert torch.equal(decoder_inputs[:, 1:], targets[:, :-1])
    assert (decoder_inputs[:, 0] == 0).all()
    first = reader.convert_tokens_to_ids("<extra_id_0>")
    texts = stretches(corpus, corpus.objective.tokens_per_example(CONTEXT))
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        spans: list[list[int]] = []
        for token in target[:-1]:
            if token == first - len(spans):
                spans.append([])
            else:
                spans[-1].append(token)
        removed = {first - i: span for i, span in enumerate(spans)}
        text = [t for token in source[:-1] for t in removed.get(token, [token])]
        assert text in texts
        assert reader.decode([source[-1]]) == reader.decode([target[-1]]) == "</s>"
    objective = corpus.objective
    prompt = "the quick <extra_id_0> fox <extra_id_1> dogs"
    encoded = objective.encode(prompt, corpus.tokenizer)
    assert encoded == [*reader.encode(prompt, add_special_tokens=False), 1]
    assert {first, first - 1} < set(encoded)
    assert objective.encode("", corpus.tokenizer) == []
    answer = [first, *corpus.tokenizer.encode("brown"), first - 1, *corpus.tokenizer.encode("lazy"), 1, 79]
    for asked in (objective, HubPrompting(0)):  # a run, and a folder of the hub
        assert asked.decode(answer, corpus.tokenizer) == "<extra_id_0>brown<extra_id_1>lazy"
    assert HubPrompting(None).decode(answer, corpus.tokenizer) == "brown lazy"


def test_a_run_and_back_to_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tokenizer goes out as it came in: with its own mask, and with no token more."""
    bert(tmp_path / "bert")
    run = train(configured(tmp_path / "bert", MLM, steps=6)).folder
    done = export(run, tmp_path / "out")
    assert done.tokenizer, done.reason
    reader: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    before: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    assert (reader.mask_token_id, len(reader)) == (before.mask_token_id, len(before))
    assert reader.encode("a [MASK] fox") == before.encode("a [MASK] fox")
    t5(tmp_path / "t5")
    run = train(configured(tmp_path / "t5", SPANS, "name=t5", steps=6)).folder
    done = export(run, tmp_path / "out5")
    assert done.tokenizer, done.reason
    settings = json.loads((tmp_path / "out5/config.json").read_text())
    assert (settings["eos_token_id"], settings["decoder_start_token_id"]) == (1, 0)
    said = []
    for path in (run, tmp_path / "out5"):
        capsys.readouterr()
        options = ("--prompt", "the <extra_id_0> fox", "--temperature", "0", "--max-new-tokens", "6")
        zoo("generate", path, *options)
        said.append(capsys.readouterr().out)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out5")
    written = reader.encode(said[0].strip(), add_special_tokens=False)
    assert reader.decode(written, skip_special_tokens=True).split() == said[1].split()


def test_the_commands_of_the_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bert(tmp_path / "models/bert")
    Path("notes.txt").write_text(LONG, encoding="utf-8")
    section = sections("fine-tuning.md")["BERT and T5 on text of your own"]
    Path("field.yaml").write_text(section.files["field.yaml"], encoding="utf-8")
    for command in section.commands:
        typed(command)
    assert "largest difference of a logit" in capsys.readouterr().out
    assert {"tokenizer.json", "model.safetensors"} <= {file.name for file in Path("exported-field").iterdir()}


def test_without_the_key_the_hint_names_it(tmp_path: Path) -> None:
    bert(tmp_path / "bert")
    config = configured(tmp_path / "bert", "data.objective=mlm")
    with pytest.raises(
        DataError, match=r"needs 1 more.*or name tokens of the tokenizer by data.objective.mask_token"
    ):
        config.data.prepare(config.model)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            MLM.replace("[MASK]", "[Mask]"),
            r"data.objective.mask_token: the tokenizer 'huggingface' has no token "
            r"'\[Mask\]'; known: \[CLS\], \[MASK\], ",
        ),
        (
            SPANS.replace(f"sentinels: {SENTINELS}, ", ""),
            "data.objective.sentinel_token: .* has no token '<extra_id_9>'",
        ),
    ],
)
def test_tokens_that_are_not_there(tmp_path: Path, objective: str, message: str) -> None:
    (bert if "mlm" in objective else t5)(tmp_path / "hub")
    config = configured(tmp_path / "hub", objective)
    with pytest.raises(DataError, match=message):
        config.data.prepare(config.model)


def test_tokens_are_named_in_tokenizers_of_the_hub(tmp_path: Path) -> None:
    config: Any = load_config("bert-tiny", [f"data.cache_dir={tmp_path}", MLM])
    with pytest.raises(
        DataError, match=r"the tokenizer 'byte' has no token '\[MASK\]', and no special tokens that"
    ):
        config.data.prepare(config.model)
    with pytest.raises(ConfigError, match=r"sentinel_token '<extra_id>': expected \{\} once"):
        load_config("t5-tiny", ["data.objective={type: span-corruption, sentinel_token: <extra_id>}"])


def test_room_for_a_text(tmp_path: Path) -> None:
    bert(tmp_path / "hub")
    config = configured(tmp_path / "hub", MLM, "data.context=2")
    with pytest.raises(
        DataError, match=r"data\.context 2: expected more than the 2 special tokens around a text"
    ):
        config.data.prepare(config.model)
