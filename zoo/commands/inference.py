"""Commands that use a trained model on texts."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from zoo.commands.app import command, console, echo, named_columns
from zoo.utils.errors import ZooError


@command()
def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or any other checkpoint.")],
    text: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The text to continue, answer, or fill in.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="The prompt, given as an option; <extra_id_0> stands for a gap to fill in."),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="The system message at the beginning of the conversation.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Answer the lines of the input one by one, in one conversation.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(help="The largest number of tokens to add.")] = 200,
    num_return: Annotated[int, typer.Option(help="The number of texts to write.")] = 1,
    temperature: Annotated[
        float, typer.Option(help="The randomness of the sampling; 0 takes the most probable token.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the most probable tokens whose probabilities add up to p."),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Values above 1 make tokens that are in the text already less probable."),
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be given several times.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text while it is generated.")] = False,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Compile the step of a token, which takes up to a minute; default: when it pays off, from "
            "about two thousand tokens on.",
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(help="float32 or bfloat16; to bfloat16 the weights are rounded."),
    ] = "float32",
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="Have a GPU replay the step of a token as a CUDA graph.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="The seed of the sampling; default: 0.")] = None,
) -> None:
    """Continue or answer a prompt with a trained model; the text is also written to RUN/sample.txt."""
    from zoo.commands.chat import converse
    from zoo.data.instructions.files import Message
    from zoo.evaluation.text_generator import TextGenerator, keep_sample, require_settings
    from zoo.sampling import Sampling

    if text is not None and prompt is not None:
        raise ZooError("generate: a prompt behind RUN and --prompt; expected one of them")
    asked = prompt if text is None else text
    if chat == (asked is not None):
        raise ZooError("generate: expected either a prompt or --chat")
    if num_return != 1 and (stream or chat):
        raise ZooError("generate: --num-return has no effect with --stream or --chat")
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty, seed)
    stops = stop or ()
    require_settings(max_new_tokens, sampling, stops, num_return)
    show = partial(echo, nl=False) if stream else None
    generator = TextGenerator(run, device, compile, cuda_graph, dtype)
    opening = [] if system is None else [Message("system", system)]
    if chat:
        converse(generator, opening, max_new_tokens, sampling, stops)
        return
    if opening:
        messages = [*opening, Message("user", asked or "")]
        texts = generator.answer(messages, max_new_tokens, sampling, stop=stops, count=num_return, show=show)
    else:
        texts = generator.complete(
            asked or "", max_new_tokens, sampling, stop=stops, count=num_return, show=show
        )
    echo("" if stream else "\n---\n".join(texts))
    keep_sample(run, texts[0])


@command()
def classify(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run of data classification, or a classifier in the Hugging Face format."
        ),
    ],
    text: Annotated[str | None, typer.Option(help="A text to classify.")] = None,
    pair: Annotated[
        str | None, typer.Option(help="The second text, for a model that classifies pairs.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="A file of texts to classify: .tsv or .jsonl, also compressed (.gz, .xz, .zst), or .parquet."
        ),
    ] = None,
    score: Annotated[Path | None, typer.Option(help="A labelled file to evaluate on.")] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="The columns of the file, e.g. text=sentence,label=gold; default: those of the training, or "
            "text and label."
        ),
    ] = None,
    which: Annotated[
        str | None,
        typer.Option(help="The checkpoint: best, last, or best-NAME of a validation file; default: best."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="With --score: print JSON.")] = False,
) -> None:
    """Classify a text or the texts of a file, or measure a classifier on a labelled file."""
    from zoo.data.classification.files import Example
    from zoo.evaluation.text_classifier import TextClassifier

    if sum(option is not None for option in (text, file, score)) != 1:
        raise ZooError("classify: expected one of --text, --file and --score")
    if pair is not None and text is None:
        raise ZooError("classify: --pair has no effect without --text")
    if columns is not None and text is not None:
        raise ZooError("classify: --columns has no effect with --text")
    names = None if columns is None else named_columns(columns, "text=sentence,label=gold")
    if names and "label" in names and score is None:
        raise ZooError("classify: --columns label has no effect with --file, whose labels are not read")
    if as_json and score is None:
        raise ZooError("classify: --json has no effect without --score")
    if which is not None and not re.fullmatch(r"last|best(-[\w-]+)?", which):
        raise ZooError(f"classify: --which {which}: expected best or last, or best-NAME of a validation file")
    classifier = TextClassifier.load(run, which, device)
    if names is not None:
        classifier = classifier.with_columns(names)
    if score is not None:
        scores = classifier.score(score)
        if as_json:
            echo(scores.to_json(), nl=False)
        else:
            console().print(scores.table())
        return
    examples = classifier.read(file) if file else [Example("--text", text or "", pair)]
    predictions = classifier.predict(examples)
    echo("\t".join(["label", *classifier.labels]))
    for prediction in predictions:
        echo(prediction.line())
