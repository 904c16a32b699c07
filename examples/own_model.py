"""Train a model whose block is your own: interrupted and resumed, then sampled and measured.

The same on the command line: `zoo train examples/own_model.yaml`, and every other command on the run with
`--plugin examples/gated_gpt.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from zoo import explain, load_config
from zoo.evaluation.perplexity_report import perplexity
from zoo.evaluation.text_generator import TextGenerator
from zoo.sampling import Sampling
from zoo.train.run import train

CONFIG = Path(__file__).with_name("own_model.yaml")


def main(out: Path) -> None:
    """Train in the folder `out`."""
    config = load_config(CONFIG, [f"train.runs_dir={out}"])
    print(f"{explain(config).totals.parameters} parameters")
    train(config, until=10)
    result = train(config, resume=True)
    print(f"step {result.step}: {result.validation:.3f} nats per byte")
    print(repr(TextGenerator(result.folder).complete("def ", 20, Sampling(temperature=0.0))[0]))
    book = out / "book.txt"
    book.write_text("Beautiful is better than ugly.\n" * 20, encoding="utf-8")
    print(perplexity(result.folder, [book])[0].to_json())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
