"""Fine-tune a Hugging Face checkpoint with LoRA and Amos, and export it for transformers.

With a folder of the hub as an argument, that model is fine-tuned. Without one, a tiny Llama with random
weights is made first, so that the example runs without a download.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import transformers
from tokenizers import ByteLevelBPETokenizer

from zoo import load_config
from zoo.hub.export import export
from zoo.train.run import train

TEXT = "A cat sat on a mat. A dog lay on a rug. The bird sang in a tree.\n\n" * 200


def tiny_llama(folder: Path) -> Path:
    """A folder as on the hub: a Llama of random weights, and a tokenizer trained on `TEXT`."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([TEXT], vocab_size=300, special_tokens=["<eos>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token="<eos>")
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=tokenizer.eos_token_id,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def main(hub: Path | None, out: Path) -> None:
    """Fine-tune the model of the folder `hub`; the run and the exported model are written to `out`."""
    text = out / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    config = load_config(
        {
            "name": "tuned",
            "model": {"from": str(hub or tiny_llama(out / "tiny-llama"))},
            "reparam": {"type": "lora", "rank": 4},
            "optimizer": {"type": "amos", "lr": 0.03},
            "data": {"corpus": {"type": "text", "paths": [str(text)]}, "context": 32, "validation": 0.1},
            "train": {"steps": 30, "batch_size": 4, "eval_every": 10, "runs_dir": str(out), "device": "cpu"},
        }
    )
    result = train(config)
    print(f"validation loss {result.validation:.3f} nats per token")
    print(export(result.folder, out / "exported"))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(out / "exported")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "exported")
    prompt = tokenizer("A cat", return_tensors="pt")
    print(tokenizer.decode(model.generate(**prompt, max_new_tokens=8, do_sample=False)[0]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, Path(name))
