"""Commands that use a trained model on texts."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from zoo.commands.app import command, console
from zoo.utils.errors import ZooError


@command()
def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or any other checkpoint.")],
    prompt: Annotated[str, typer.Option(help="The text to continue, or to fill in: <extra_id_0>.")],
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the most probable token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample among the most probable tokens that add up to p."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: tokens that are in the text already become less probable.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be given several times.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text while it is generated.")] = False,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile the step: pays off from about a thousand tokens."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Continue or answer a prompt with a trained model; the text is also written to RUN/sample.txt."""
    from zoo.commands.generate import complete
    from zoo.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
    show = partial(typer.echo, nl=False) if stream else None
    text = complete(run, prompt, max_new_tokens, sampling, stop=stop or (), show=show, compile=compile)
    typer.echo("" if stream else text)


@command()
def classify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of data 'classification'.")],
    text: Annotated[str | None, typer.Option(help="A text to classify.")] = None,
    pair: Annotated[str | None, typer.Option(help="The second text, for a model of pairs.")] = None,
    file: Annotated[Path | None, typer.Option(help="A .tsv or .jsonl file of texts to classify.")] = None,
    score: Annotated[Path | None, typer.Option(help="A labelled file to evaluate on.")] = None,
    which: Annotated[
        str | None, typer.Option(help="best, last or best-NAME (validation file); default: best.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --score.")] = False,
) -> None:
    """Classify a text or the texts of a file, or measure a classifier on a labelled file."""
    from zoo.commands.classify import TextClassifier
    from zoo.data.classification.files import Example

    if sum(option is not None for option in (text, file, score)) != 1:
        raise ZooError("classify: expected one of --text, --file and --score")
    if pair is not None and text is None:
        raise ZooError("classify: --pair has no effect without --text")
    if as_json and score is None:
        raise ZooError("classify: --json has no effect without --score")
    if which is not None and not re.fullmatch(r"last|best(-[\w-]+)?", which):
        raise ZooError(f"classify: --which {which}: expected best or last, or best-NAME of a validation file")
    classifier = TextClassifier.load(run, which, device)
    if score is not None:
        scores = classifier.score(score)
        if as_json:
            typer.echo(scores.to_json(), nl=False)
        else:
            console().print(scores.table())
        return
    examples = classifier.read(file) if file else [Example("--text", text or "", pair)]
    predictions = classifier.predict(examples)
    typer.echo("\t".join(["label", *classifier.labels]))
    for prediction in predictions:
        typer.echo(prediction.line())
