"""Commands that bring checkpoints from other libraries, into them, and from one method to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zoo.commands.app import command


@command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder of the Hugging Face hub, an adapter of peft, or a .safetensors file with --format."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The .safetensors file or folder to write.")],
    format: Annotated[str | None, typer.Option(help="The format of the file, e.g. ngpt-reference.")] = None,
    n_heads: Annotated[int | None, typer.Option(help="Attention heads, if the file does not say.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A pattern of tensors that may be missing or have no place, e.g. cls.*"),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(help="The model that an adapter of peft was trained on; default: the one it names."),
    ] = None,
) -> None:
    """Turn a checkpoint of another library into one of zoo."""
    from zoo.checkpoint.model import load_model, save_model
    from zoo.data.classification.class_names import write_labels
    from zoo.hub import ADAPTER_CONFIG, CONFIG
    from zoo.hub.classifier import label_names
    from zoo.hub.folder import load_folder
    from zoo.run.trained import bring_tokenizer
    from zoo.utils.errors import ZooError

    adapter = (source / ADAPTER_CONFIG).is_file() and not (source / CONFIG).is_file()
    if base is not None and not adapter:
        raise ZooError(f"{source}: --base is for an adapter, a folder with {ADAPTER_CONFIG}")
    if adapter or format is not None or n_heads is not None:
        options: dict[str, Any] = {"n_heads": n_heads, "allow": allow, "base": base}
        given = {name: value for name, value in options.items() if value is not None}
        model = load_model(source, format=format, **given)
    else:
        model, report = load_folder(source, allow=allow or ())
        typer.echo(report)
    file = save_model(model, out)
    typer.echo(f"wrote {file}")
    if format is None and file.parent == out:
        typer.echo(bring_tokenizer(base or source, out))
        if getattr(model.recipe.model, "classes", None) and "config" in model.published:
            write_labels(out, label_names(model.published["config"]))


@command()
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a checkpoint of zoo.")],
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    to: Annotated[
        str, typer.Option(help="The format; hf is what transformers' from_pretrained opens.")
    ] = "hf",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16; default: as in the folder the model came from, or float32."
        ),
    ] = None,
) -> None:
    """Write a model for another library, gates folded, and check that it computes the same there."""
    from zoo.hub.export import export as write

    typer.echo(write(source, out, to=to, dtype=dtype))


@command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(help="A run folder, a checkpoint of zoo, or a folder as on the Hugging Face hub."),
    ],
    out: Annotated[Path, typer.Argument(help="The folder to make, for model: {from: OUT}.")],
    to: Annotated[str, typer.Option(help="wesar (exact), or ngpt (approximate, of Llama's layout).")],
    text: Annotated[
        Path | None,
        typer.Option(help="A text to measure on, UTF-8; default: that of the source's training."),
    ] = None,
) -> None:
    """Convert a trained model to WeSaR or nGPT for further training, and report the change of its loss."""
    from zoo.run.warm.convert import convert as write

    typer.echo(write(source, out, to=to, text=text))
