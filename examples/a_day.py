"""A day with a checkpoint: instruction tuning of a Hugging Face folder, a verdict over seeds, and back again.

A folder like Qwen's with random weights is made first (a tokenizer, a chat template, settings of
generation), so that the script runs without a download. It is taught to answer questions on colours, several
conversations in a row of a batch: once by training all of its weights and once with LoRA, with three seeds
each. Every run is asked a task of lm-evaluation-harness, whose accuracy decides between the two. At last the
model with LoRA is exported, and opened by transformers and by peft (pip install peft).
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from zoo import load_config, load_model
from zoo.evaluation.task_report import tasks
from zoo.hub.export import export
from zoo.hub.pretrained import with_adapter
from zoo.report.report import report
from zoo.train.run import train

COLOURS = dict(
    zip(
        ["grass", "the sky", "snow", "coal", "a lemon", "blood", "a leaf", "the sea", "milk", "a raven"],
        ["green", "blue", "white", "black", "yellow", "red", "green", "blue", "white", "black"],
        strict=True,
    )
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou know colours.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}
"""
METHODS: dict[str, dict[str, Any]] = {
    "full": {"optimizer": {"type": "adamw", "lr": 1e-3}},
    "lora": {
        "optimizer": {"type": "adamw", "lr": 2e-2},
        "reparam": {"type": "lora", "rank": 16, "alpha": 32},
    },
}
"""What the two sides do; their learning rates are not tuned."""
SEEDS = (0, 1, 2)
METRIC = "tasks/colours/acc"
TASK = """\
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "The colour of {{thing}} is\\n"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""


def tiny_qwen(folder: Path) -> Path:
    """A folder as on the hub: a Qwen 2 of random weights, its tokenizer, its template, its settings."""
    text = [f"user The colour of {thing} is\nassistant {colour}. " for thing, colour in COLOURS.items()]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=360, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(config)
    model.generation_config.update(do_sample=True, temperature=0.7, eos_token_id=[2, 0])
    model.save_pretrained(folder)
    return folder


def write_data(folder: Path) -> None:
    """Conversations to learn from, and the task: the same questions with a choice of answers."""
    talks = [
        {"messages": [{"role": "user", "content": f"The colour of {thing} is"}, _answer(colour)]}
        for thing, colour in COLOURS.items()
    ]
    choices = sorted(set(COLOURS.values()))
    questions = [
        {"thing": thing, "choices": choices, "answer": choices.index(colour)}
        for thing, colour in COLOURS.items()
    ]
    for name, rows in (("talks.jsonl", talks * 8), ("colours.jsonl", questions)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "colours.yaml").write_text(TASK, encoding="utf-8")


def _answer(colour: str) -> dict[str, str]:
    return {"role": "assistant", "content": colour}


def tune(hub: Path, out: Path, method: str, seed: int) -> Path:
    """Train with one method and seed on packed conversations, then ask the task; returns the run folder."""
    config = load_config(
        {
            "name": f"{method}-{seed}",
            "seed": seed,
            "model": {"from": str(hub)},
            **METHODS[method],
            "schedule": {"type": "cosine", "warmup": 5},
            "data": {
                "type": "instructions",
                "train": str(out / "talks.jsonl"),
                "validation": str(out / "talks.jsonl"),  # what was learned by heart, not what generalises
                "template": "jinja",
                "context": 128,
                "packing": True,
            },
            "train": {
                "steps": 120,
                "batch_size": 4,
                "eval_every": 60,
                "checkpoint_every": 120,
                "runs_dir": str(out / "runs"),
                "device": "cpu",
            },
        }
    )
    run = train(config).folder
    found, _ = tasks(run, ["colours"], task_path=out, device="cpu")
    print(f"{run.name}: accuracy {found.scores[0].value:.2f} of {len(COLOURS)} questions")
    return run


@torch.no_grad()
def compare(hub: Path, run: Path, exported: Path) -> None:
    """Open what was exported, and compare with the run: logits, and conversations as text."""
    talk = [{"role": "user", "content": "The colour of snow is"}]
    before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (hub, exported))
    rendered = after.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    same = rendered == before.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    print(f"chats rendered alike: {same}")
    ids = torch.tensor([after.encode(rendered, add_special_tokens=False)])
    expected = load_model(run).eval()(ids)
    folded: Any = transformers.AutoModelForCausalLM.from_pretrained(exported)
    print(f"transformers: largest difference of a logit {(folded(ids).logits - expected).abs().max():.1e}")
    if find_spec("peft") is not None:
        base: Any = transformers.AutoModelForCausalLM.from_pretrained(hub)
        adapted = with_adapter(base, exported / "adapter").eval()
        print(f"peft: largest difference of a logit {(adapted(ids).logits - expected).abs().max():.1e}")
    answer = folded.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :]
    print(f"the colour of snow is {after.decode(answer, skip_special_tokens=True)!r}")


def main(out: Path) -> None:
    """Do all of it in the folder `out`."""
    hub = tiny_qwen(out / "tiny-qwen")
    write_data(out)
    runs = {(method, seed): tune(hub, out, method, seed) for method in METHODS for seed in SEEDS}
    judgement, page = report(list(runs.values()), out / "report", metric=METRIC)
    print(*judgement.sentences, f"The report: {page}", sep="\n")
    print(export(runs["lora", 0], out / "exported"))
    compare(hub, runs["lora", 0], out / "exported")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
