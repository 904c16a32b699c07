"""`zoo convert`: convert a checkpoint to WeSaR or nGPT, and compare the losses of both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zoo.checkpoint.model import SUFFIX, load_model, require_model_path, save_model
from zoo.models import Model
from zoo.reparam import WeSaR
from zoo.reparam.convert import require_split
from zoo.run.conversion import merge, split
from zoo.run.trained import bring_labels, bring_tokenizer
from zoo.run.warm.ngpt import check_source, to_ngpt
from zoo.run.warm.text import Text, text_of
from zoo.utils.atomic import require_new, write_folder
from zoo.utils.errors import ZooError, did_you_mean

TOLERANCE = 1e-3
"""Largest difference of a logit, relative to the largest one, that rounding makes in an exact conversion."""

TARGETS = ("wesar", "ngpt")
WESAR = WeSaR()


@dataclass(frozen=True)
class WarmStart:
    """The result of a conversion of a checkpoint to another architecture or parametrisation.

    Attributes:
        folder: the folder that was written.
        to: "wesar" or "ngpt".
        before: loss of the source on the text in nats per target; None: it was not measured.
        after: loss of the converted model.
        logits: largest relative difference of a logit; None if the conversion is approximate.
        tokenizer: how the tokenizer was copied, in words; "": the model was not trained on text.
        unmeasured: why there are no losses; "": there are.
    """

    folder: Path
    to: str
    before: float | None
    after: float | None
    logits: float | None
    tokenizer: str
    unmeasured: str = ""

    @property
    def difference(self) -> float | None:
        """The increase of the loss."""
        return None if self.before is None or self.after is None else self.after - self.before

    def __str__(self) -> str:
        """The result as lines for the console."""
        lines = [f"wrote {self.folder}: {self.to}", *filter(None, [self.tokenizer])]
        if self.logits is not None:
            lines.append(f"largest difference of a logit, relative to the largest: {self.logits:.1e}")
        if self.difference is None:
            lines.append(f"loss not compared: {self.unmeasured}")
        else:
            lines.append(
                f"loss {self.before:.4f} -> {self.after:.4f} nats per target: {self.difference:+.2g}"
            )
        return "\n".join(lines)


def convert(source: Path, out: Path, *, to: str, text: Path | None = None) -> WarmStart:
    """Convert a trained model for further training with `model: {from: OUT}`.

    Args:
        source: a run, a checkpoint of zoo, or a folder as on the Hugging Face hub.
        out: the folder to create.
        to: "wesar" (exact) or "ngpt" (approximate, see `zoo.run.warm.ngpt`).
        text: a text file on which the losses and, for nGPT, the residual stream are measured; None: the
            training text of the source.

    Returns:
        The folder, and the losses before and after.

    Raises:
        ZooError: The target is unknown, `out` exists, is called like a file or cannot be written, there is no
            text for nGPT, `text` is no input of the model, or the source cannot be converted; nothing is
            written.
    """
    if to not in TARGETS:
        raise ZooError(f"convert: no target called '{to}'{did_you_mean(to, TARGETS)}")
    if out.suffix == SUFFIX:
        raise ZooError(f"{out}: a converted model is written to a folder; expected a name without {SUFFIX}")
    require_model_path(out)
    require_new(out)
    model = load_model(source)
    if to == "ngpt":
        check_source(model)
    else:
        require_split(model, WESAR)
    given, unmeasured = _text(source, model, text, needed=to == "ngpt")
    merge(model)
    before = given.loss(model) if given else None
    logits = None
    if to == "wesar":
        made, done = model, split(model, WESAR)
        logits = done.max_difference / done.max_logit
        if not logits <= TOLERANCE:
            raise ZooError(
                f"convert: {source}: the logits differ by {logits:.1e} of the largest one after the split; "
                f"expected at most {TOLERANCE:.0e}. Nothing was written"
            )
    else:
        assert given is not None  # `_text` raises if there is none for nGPT
        made = to_ngpt(model, given.measured)
    after = given.loss(made) if given else None

    tokenizer, classes = "", getattr(model.recipe.model, "classes", None)

    def fill(folder: Path) -> None:
        nonlocal tokenizer
        save_model(made, folder)
        tokenizer = bring_tokenizer(source, folder)
        if not bring_labels(source, folder) and "config" in model.published and classes:
            raise ZooError(
                f"convert: {source}: the names of its classes are in a config.json, which a checkpoint of "
                "zoo does not have; expected what `zoo import` makes of this folder"
            )

    write_folder(out, fill)  # atomically: an incomplete folder would prevent a second attempt
    return WarmStart(out, to, before, after, logits, tokenizer, unmeasured)


def _text(source: Path, model: Model, file: Path | None, *, needed: bool) -> tuple[Text | None, str]:
    """The text, or None and the reason if there is none and it is needed only to compare losses."""
    try:
        return text_of(source, model, file), ""
    except ZooError as error:
        if needed or file is not None:
            raise
        return None, str(error)
