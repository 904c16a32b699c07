"""Commands that import, export and convert checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zoo.commands.app import command, echo, path_option
from zoo.utils.untyped import Kwargs


@command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder in the Hugging Face format, a PEFT adapter, or a .safetensors file with --format."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The .safetensors file or the folder to create.")],
    format: Annotated[str | None, typer.Option(help="The format of the file, e.g. ngpt-reference.")] = None,
    n_heads: Annotated[
        int | None, typer.Option(help="The number of attention heads, if the file does not state it.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A pattern of names of tensors that may be missing or unused, e.g. cls.*"),
    ] = None,
    base: Annotated[
        Path | None,
        path_option(help="The base model of a PEFT adapter; default: the one that the adapter names."),
    ] = None,
    fold: Annotated[
        bool, typer.Option("--fold", help="Add the changes of a PEFT adapter to the weights, without LoRA.")
    ] = False,
) -> None:
    """Convert a checkpoint of another library to one of zoo."""
    from zoo.checkpoint.formats import FILE_FORMATS
    from zoo.checkpoint.model import SUFFIX, load_model, require_model_path, save_model
    from zoo.data.classification.class_names import write_labels
    from zoo.data.tokenizers.saved import has_tokenizer
    from zoo.hub import ADAPTER_CONFIG
    from zoo.hub.adapter_folder import AdapterFiles
    from zoo.hub.classifier import label_names
    from zoo.hub.folder import load_folder
    from zoo.run.trained import bring_tokenizer
    from zoo.utils.atomic import require_new, write_folder
    from zoo.utils.errors import ZooError
    from zoo.utils.run_folder import CheckpointFolder

    require_new(out, "file or folder")
    require_model_path(out)
    adapter = (source / ADAPTER_CONFIG).is_file()
    if format is None and source.is_file():
        raise ZooError(
            f"{source}: is a file; expected its --format ({', '.join(FILE_FORMATS)}), or a folder as on the "
            "Hugging Face hub. A file of zoo needs no import"
        )
    for option, given in (("--base", base is not None), ("--fold", fold)):
        if given and not adapter:
            raise ZooError(f"{source}: {option} is for an adapter, a folder with {ADAPTER_CONFIG}")
    if n_heads is not None and format is None:
        raise ZooError(f"{source}: --n-heads is for a file with --format ({', '.join(FILE_FORMATS)})")
    if adapter:
        base = base or AdapterFiles.read(source).find_base()
    if adapter or format is not None:
        options: Kwargs = {"n_heads": n_heads, "allow": allow, "base": base, "fold": fold or None}
        chosen = {name: value for name, value in options.items() if value is not None}
        model = load_model(source, format=format, **chosen)
    else:
        model, report = load_folder(source, allow=allow or ())
        echo(report)
    owner = base if base and not has_tokenizer(source) else source
    if out.suffix == SUFFIX:
        echo(f"wrote {save_model(model, out)}")
        if format is None and has_tokenizer(owner):
            echo(f"without its tokenizer, for which a file has no room; a folder has: {out.with_suffix('')}")
        return
    tokenizer = ""

    def fill(folder: Path) -> None:
        nonlocal tokenizer
        save_model(model, folder)
        if format is None:
            tokenizer = bring_tokenizer(owner, folder)
            if getattr(model.recipe.model, "classes", None) and "config" in model.published:
                write_labels(folder, label_names(model.published["config"]))

    write_folder(out, fill)  # atomically: an incomplete folder would prevent a second attempt
    echo(f"wrote {CheckpointFolder(out).model}")
    if tokenizer:
        echo(tokenizer)


@command()
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a checkpoint of zoo.")],
    out: Annotated[Path, typer.Argument(help="The folder to create.")],
    to: Annotated[
        str, typer.Option(help="The format; hf can be opened by transformers' from_pretrained.")
    ] = "hf",
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16; default: that of the imported folder, or float32."),
    ] = None,
) -> None:
    """Export a model to another library, with its gates folded, and check that the logits agree there."""
    from zoo.hub.export import export as write

    echo(write(source, out, to=to, dtype=dtype))


@command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(help="A run folder, a checkpoint of zoo, or a folder in the Hugging Face format."),
    ],
    out: Annotated[Path, typer.Argument(help="The folder to create, which model: {from: OUT} reads.")],
    to: Annotated[
        str, typer.Option(help="wesar (exact) or ngpt (approximate, for models with Llama's architecture).")
    ],
    text: Annotated[
        Path | None,
        typer.Option(help="The UTF-8 text to measure losses on; default: that of the source's training."),
    ] = None,
) -> None:
    """Convert a trained model to WeSaR or nGPT for further training, and report how its loss changes."""
    from zoo.run.warm.convert import convert as write

    echo(write(source, out, to=to, text=text))
