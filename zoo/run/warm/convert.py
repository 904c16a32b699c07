"""A checkpoint in, a checkpoint of WeSaR or nGPT out, with the difference that this makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zoo.checkpoint.model import load_model, save_model
from zoo.models import Model
from zoo.run.conversion import merge, split
from zoo.run.trained import bring_tokenizer
from zoo.run.warm.ngpt import check_source, to_ngpt
from zoo.run.warm.text import Text, text_of
from zoo.utils.atomic import write_folder
from zoo.utils.errors import ZooError, did_you_mean

TARGETS = ("wesar", "ngpt")


@dataclass(frozen=True)
class WarmStart:
    """What a conversion did.

    Attributes:
        folder: what was written.
        to: "wesar" or "ngpt".
        before: loss of the source on the text, nats per token; None: no text was at hand.
        after: that of the result.
        logits: largest relative difference of a logit, where the conversion is exact.
        tokenizer: what became of it, in words.
    """

    folder: Path
    to: str
    before: float | None
    after: float | None
    logits: float | None
    tokenizer: str

    @property
    def difference(self) -> float | None:
        """By how much the loss is higher at the start."""
        return None if self.before is None or self.after is None else self.after - self.before

    def __str__(self) -> str:
        """One line for each thing to know."""
        lines = [f"wrote {self.folder}: {self.to}", self.tokenizer]
        if self.logits is not None:
            lines.append(f"largest difference of a logit, relative to the largest: {self.logits:.1e}")
        if self.difference is None:
            lines.append("loss not compared: no text (--text FILE)")
        else:
            lines.append(f"loss {self.before:.4f} -> {self.after:.4f} nats per token: {self.difference:+.2g}")
        return "\n".join(lines)


def convert(source: Path, out: Path, *, to: str, text: Path | None = None) -> WarmStart:
    """Re-express a trained model, for training that goes on: `model: {from: OUT}`.

    Args:
        source: a run, a checkpoint of zoo, or a folder as on the Hugging Face hub.
        out: the folder to make.
        to: "wesar", exact; "ngpt", approximate, see `zoo.run.warm.ngpt`.
        text: what the losses, and for nGPT the steps of the stream, are measured on; None: the text of the
            source's training.

    Returns:
        What was written, and the losses before and after.

    Raises:
        ZooError: an unknown target, `out` is there already, no text for nGPT, or a source that cannot be
            expressed; nothing is written then.
    """
    if to not in TARGETS:
        raise ZooError(f"convert: no target called '{to}'{did_you_mean(to, TARGETS)}")
    if out.exists():
        raise ZooError(f"{out}: is there already; expected the name of a new folder")
    model = load_model(source)
    if to == "ngpt":
        check_source(model)
    given = _text(source, model, text, needed=to == "ngpt")
    merge(model)
    before = given.loss(model) if given else None
    logits = None
    if to == "wesar":
        made, done = model, split(model)
        logits = done.max_difference / done.max_logit
    else:
        assert given is not None
        made = to_ngpt(model, given.measured)
    after = given.loss(made) if given else None

    def fill(folder: Path) -> None:
        save_model(made, folder)

    write_folder(out, fill)
    return WarmStart(out, to, before, after, logits, bring_tokenizer(source, out))


def _text(source: Path, model: Model, file: Path | None, *, needed: bool) -> Text | None:
    """The text; None where there is none and it is only there to compare losses on."""
    try:
        return text_of(source, model, file)
    except ZooError:
        if needed or file is not None:
            raise
        return None
