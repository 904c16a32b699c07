"""Commands that measure a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zoo.commands.app import Wide, command, console, echo, path_option
from zoo.utils.errors import ZooError
from zoo.utils.untyped import Kwargs


@command("eval")
def eval_(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or any other checkpoint.")],
    perplexity: Annotated[
        Path | None, typer.Option(metavar="FILE...", help="The UTF-8 texts to predict.")
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", hidden=True)] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Tasks of lm-evaluation-harness, e.g. quiz,lambada.")
    ] = None,
    task_path: Annotated[Path | None, path_option(help="A folder with your own task files.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="The number of questions of each task, the first ones; default: all.")
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(help="The number of solved examples in front of each question.")
    ] = None,
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="Ask the questions in the model's chat template.")
    ] = False,
    system: Annotated[
        str | None, typer.Option(help="With --apply-chat-template: the system message in front.")
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option(help="The numbers of tokens in a window, e.g. 64,128,256; default: as in training."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="The number of new tokens in each window; default: half of the window.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="The number of windows or requests that are computed at once; default: 8."),
    ] = None,
    lines: Annotated[
        bool | None,
        typer.Option(help="Whether each line is a document, with its end; default: as in the training."),
    ] = None,
    tokenizer: Annotated[
        Path | None, path_option(help="The folder of a tokenizer, if the model has none.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    out: Annotated[
        Path | None,
        path_option(
            "--out", "-o", help="The JSON file to write; default: RUN/perplexity.json or RUN/tasks.json."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    wide: Wide = False,
) -> None:
    """Measure the perplexity of texts, per token, word and byte, or the scores of tasks."""
    from zoo.evaluation import perplexity_report as texts
    from zoo.evaluation import task_report as questions

    if (perplexity is None) == (tasks is None):
        raise ZooError("eval: expected either --perplexity FILE... or --tasks NAMES")
    if wide and as_json:
        raise ZooError("eval: --wide has no effect with --json")
    try:
        lengths = [] if contexts is None else [int(word) for word in contexts.split(",")]
    except ValueError as error:
        raise ZooError(f"eval: --contexts '{contexts}': expected numbers, e.g. 64,128,256") from error
    of_texts = {"--stride": stride, "--lines": lines, "more files": more}
    of_tasks = {
        "--task-path": task_path,
        "--limit": limit,
        "--num-fewshot": num_fewshot,
        "--apply-chat-template": apply_chat_template or None,
        "--system": system,
    }
    for name, value in (of_tasks if tasks is None else of_texts).items():
        if value is not None and value != []:
            raise ZooError(
                f"eval: {name} has no effect with {'--perplexity' if tasks is None else '--tasks'}"
            )

    def show(report: texts.PerplexityReport | questions.TaskReport) -> None:
        if as_json:
            echo(report.to_json(), nl=False)
        else:
            console(wide).print(report.table())

    common: Kwargs = {
        "batch_size": batch_size,
        "tokenizer": tokenizer,
        "device": device,
        "out": out,
        "show": show,
    }
    if perplexity is not None:
        _, written = texts.perplexity(
            model, [perplexity, *(more or ())], contexts=lengths, stride=stride, lines=lines, **common
        )
    else:
        _, written = questions.tasks(
            model,
            [name.strip() for name in (tasks or "").split(",") if name.strip()],
            task_path=task_path,
            limit=limit,
            num_fewshot=num_fewshot,
            contexts=lengths,
            chat_template=apply_chat_template,
            system=system,
            **common,
        )
    if written and not as_json:
        echo(f"wrote {', '.join(map(str, written))}")


@command()
def inspect(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or any other checkpoint.")],
    text: Annotated[
        Path | None,
        typer.Option(help="The text to measure attention on; default: the validation text of the run."),
    ] = None,
    out: Annotated[
        Path | None,
        path_option("--out", "-o", help="The folder to write to; default: RUN/inspect."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
) -> None:
    """Plot the embeddings, condition numbers, scalings and attention of a checkpoint, and a run's curves."""
    from zoo.report.inspection import inspect as write
    from zoo.utils.device import find_device

    echo(f"wrote {', '.join(map(str, write(run, text, out, find_device(device))))}")
