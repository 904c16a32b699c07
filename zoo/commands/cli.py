"""The command line: arguments in, words out. What the commands do is done elsewhere.

Nothing heavy is imported before a command needs it, so that ``zoo --help`` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from zoo.utils.errors import DivergenceError, ZooError

USER_ERROR = 2
DIVERGED = 1
INTERRUPTED = 130
TRACEBACK = "ZOO_TRACEBACK"
"""The environment variable that makes zoo show the traceback of an error in a plugin."""

HELP = """
Is an optimizer, an architecture or an initialisation really better? Train with it and see.

zoo trains language models with Amos (an optimizer), nGPT (a transformer on the sphere) and WeSaR \
(a reparameterisation), and with what they claim to beat: same data, same budget, one config each.

A first session, minutes on a laptop, nothing to download:

  zoo list configs                    what there is to train
  zoo explain quickstart-ngpt         every parameter, what zoo knows of it
  zoo train quickstart-ngpt           trains; writes runs/quickstart-ngpt
  zoo generate runs/quickstart-ngpt --prompt "def "

CONFIG is the name of a shipped config or a YAML file; any of its values can be changed behind it: \
zoo train quickstart-ngpt train.steps=100 optimizer.lr=5e-3
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def import_plugins(
    plugin: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A Python file or module that registers classes of your own."),
    ] = None,
    allow_changed_plugins: Annotated[
        bool,
        typer.Option("--allow-changed-plugins", help="Use plugins that have changed since the run began."),
    ] = False,
) -> None:
    """Do what the options ask for that every command has."""
    if plugin or allow_changed_plugins:
        from zoo.config import plugins

        plugins.allow_changed_plugins(allow_changed_plugins)
        for source in plugin or ():
            plugins.load_plugin(source)


def command(name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command, with the options of `import_plugins` behind its own."""
    common = signature(import_plugins, eval_str=True).parameters

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            import_plugins(**{option: arguments.pop(option) for option in common})
            function(**arguments)

        parameters = {**signature(function, eval_str=True).parameters, **common}
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        run.__signature__ = Signature([*parameters.values()])  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {key: parameter.annotation for key, parameter in parameters.items()}
        app.command(name)(run)
        return function

    return decorate


Source = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, a run folder, or the name of a shipped config.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Values to change, e.g. optimizer.lr=1e-3."),
]


@command()
def train(
    config: Source,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
) -> None:
    """Train a model. Ctrl-C saves a checkpoint; --resume continues from it, bit for bit."""
    from rich.console import Console

    from zoo.run.config import load_config
    from zoo.run.job import named_run
    from zoo.train.run import train as run

    folder = named_run(config, overrides or (), resume)
    result = run(load_config(config, overrides or ()), resume, Console(), folder=folder)
    if not result.finished:
        raise typer.Exit(INTERRUPTED)


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
    which: Annotated[str | None, typer.Option(help="best or last checkpoint; default: best.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --score.")] = False,
) -> None:
    """Classify a text or the texts of a file, or measure a classifier on a labelled file."""
    from rich.console import Console

    from zoo.commands.classify import TextClassifier
    from zoo.data.classification.files import Example

    if sum(option is not None for option in (text, file, score)) != 1:
        raise ZooError("classify: expected one of --text, --file and --score")
    if pair is not None and text is None:
        raise ZooError("classify: --pair has no effect without --text")
    if as_json and score is None:
        raise ZooError("classify: --json has no effect without --score")
    if which not in (None, "best", "last"):
        raise ZooError(f"classify: --which {which}: expected best or last")
    classifier = TextClassifier.load(run, which, device)  # type: ignore[arg-type]
    if score is not None:
        scores = classifier.score(score)
        if as_json:
            typer.echo(scores.to_json(), nl=False)
        else:
            Console().print(scores.table())
        return
    examples = classifier.read(file) if file else [Example("--text", text or "", pair)]
    predictions = classifier.predict(examples)
    typer.echo("\t".join(["label", *classifier.labels]))
    for prediction in predictions:
        typer.echo(prediction.line())


@command()
def explain(
    config: Source,
    overrides: Overrides = None,
    fold: Annotated[bool, typer.Option("--fold", help="Show repeated blocks only once.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show role, shape, sigma, eta, gate and slots of every parameter, and totals; allocates nothing."""
    from rich.console import Console

    from zoo.run.config import load_config
    from zoo.run.explanation import explain as describe

    if as_json and fold:
        raise ZooError("explain: --fold has no effect with --json, which has a row per parameter")
    explanation = describe(load_config(config, overrides or ()))
    if as_json:
        typer.echo(explanation.to_json())
    else:
        # A table cut off at 80 columns helps nobody who pipes it into a file.
        console = Console()
        Console(width=None if console.is_terminal else 200).print(explanation.table(fold))


@command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="configs, models, inits, optimizers, ...")] = None,
) -> None:
    """List the choices of a config, each with a line of description."""
    from rich.console import Console
    from rich.table import Table

    from zoo.run.catalogue import catalogue

    for title, choices in catalogue(kind).items():
        table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(no_wrap=True, style="cyan")
        for name, description in choices.items():
            table.add_row(name, description)
        Console().print(table)


@command()
def schema() -> None:
    """Print the JSON schema of config files, for editors."""
    import json

    from zoo.run.config import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP.yaml", help="See docs/ablations.md.")],
    overrides: Overrides = None,
    workers: Annotated[int | None, typer.Option(help="Runs at a time; default: one per GPU, or one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the sweeps; default: as in the file.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the cost: runs, tokens, FLOPs and time.")
    ] = False,
) -> None:
    """Train every variant of a comparison, each tuned alike, with several seeds; run it again to resume."""
    from rich.console import Console

    from zoo.ablate.conclusion import run_sweep
    from zoo.ablate.estimate import estimate
    from zoo.ablate.pool import worker_count
    from zoo.ablate.sweep import load_sweep

    console = Console()
    shown = Console(width=None if console.is_terminal else 200)
    plan = load_sweep(file, overrides or (), out)
    if dry_run:
        shown.print(estimate(plan, worker_count(workers)), highlight=False)
        return
    result = run_sweep(plan, workers, shown)
    if not result.finished:
        raise typer.Exit(INTERRUPTED)
    if any(run.status == "failed" and "final" in run.phases for run in result.manifest.runs):
        raise typer.Exit(DIVERGED)


@command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="SWEEP|RUN...", help="The folder of a sweep, or run folders.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder for report.html, .md, .csv and pictures.")
    ] = Path("report"),
    baseline: Annotated[
        str | None,
        typer.Option(help="The variant to compare with; default: the sweep's, or the first run's."),
    ] = None,
    alpha: Annotated[
        float,
        typer.Option(help="Significance level of the comparison."),
    ] = 0.05,
) -> None:
    """Report which variant is better and how certain that is: verdict, speed-up, curves and costs."""
    from rich.console import Console

    from zoo.ablate.conclusion import conclusion
    from zoo.report.report import report as write

    judgement, page = write(runs, out, baseline=baseline, alpha=alpha)
    console = Console()
    Console(width=None if console.is_terminal else 200).print(conclusion(judgement))
    typer.echo(f"wrote {page}")


@command()
def verdict(
    runs: Annotated[
        Path,
        typer.Argument(metavar="RUNS.csv", help="One row a run: variant, size, tokens, seed, loss, ..."),
    ],
    baseline: Annotated[str, typer.Option(help="The variant to compare with.")],
    margin: Annotated[
        float | None, typer.Option(help="The factor within which two sides count as equal, e.g. 1.05.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="The probability of any false claim.")] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge runs of several sizes and budgets, whoever made them: does a gain hold, shrink or grow?"""
    from rich.console import Console

    from zoo.ablate.scale import shown
    from zoo.ablate.scale.runs import read_runs
    from zoo.ablate.scale.verdict import judge

    verdicts = judge(read_runs(runs), baseline, margin=margin, alpha=alpha)
    if as_json:
        typer.echo(shown.as_json(verdicts, baseline, margin=margin, alpha=alpha), nl=False)
        return
    console = Console()
    Console(width=None if console.is_terminal else 200).print(shown.table(verdicts))
    typer.echo("\n".join(shown.lines(verdicts, baseline, margin)))


@command("eval")
def eval_(
    model: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or any other checkpoint.")],
    perplexity: Annotated[
        Path | None, typer.Option(metavar="FILE...", help="Texts to predict, UTF-8; or --tasks.")
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", hidden=True)] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Tasks of lm-evaluation-harness: quiz,lambada.")
    ] = None,
    task_path: Annotated[Path | None, typer.Option(help="A folder with your own task files.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first questions of each task.")] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="Solved examples before each question.")] = None,
    contexts: Annotated[
        str, typer.Option(help="Tokens of a window, e.g. 64,128,256; default: as in the training.")
    ] = "",
    stride: Annotated[int | None, typer.Option(help="New tokens of a window; default: half of them.")] = None,
    batch_size: Annotated[int, typer.Option(help="Windows or requests at once.")] = 8,
    lines: Annotated[
        bool | None,
        typer.Option(help="Whether each line is a document, with its end; default: as in the training."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder of a tokenizer, if the model has none.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The JSON file; default: RUN/perplexity.json or RUN/tasks.json."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the perplexity of texts, per token, word and byte, or the scores of tasks."""
    from rich.console import Console

    from zoo.evaluation import perplexity_report as texts
    from zoo.evaluation import task_report as questions

    if (perplexity is None) == (tasks is None):
        raise ZooError("eval: expected either --perplexity FILE... or --tasks NAMES")
    try:
        lengths = [int(word) for word in contexts.split(",")] if contexts else []
    except ValueError as error:
        raise ZooError(f"eval: --contexts {contexts}: expected numbers, e.g. 64,128,256") from error
    of_texts = {"--stride": stride, "--lines": lines, "more files": more}
    of_tasks = {"--task-path": task_path, "--limit": limit, "--num-fewshot": num_fewshot}
    for name, value in (of_tasks if tasks is None else of_texts).items():
        if value is not None and value != []:
            raise ZooError(
                f"eval: {name} has no effect with {'--perplexity' if tasks is None else '--tasks'}"
            )
    common: dict[str, Any] = {"batch_size": batch_size, "tokenizer": tokenizer, "device": device, "out": out}
    report: texts.PerplexityReport | questions.TaskReport
    if perplexity is not None:
        report, written = texts.perplexity(
            model, [perplexity, *(more or ())], contexts=lengths, stride=stride, lines=lines, **common
        )
    else:
        report, written = questions.tasks(
            model,
            [name.strip() for name in (tasks or "").split(",") if name.strip()],
            task_path=task_path,
            limit=limit,
            num_fewshot=num_fewshot,
            contexts=lengths,
            **common,
        )
    if as_json:
        typer.echo(report.to_json(), nl=False)
    else:
        console = Console()
        Console(width=None if console.is_terminal else 200).print(report.table())
        typer.echo(f"wrote {', '.join(map(str, written))}")


@command()
def inspect(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or any other checkpoint.")],
    text: Annotated[
        Path | None, typer.Option(help="What attention is measured on; default: the run's validation text.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder to write; default: RUN/inspect.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
) -> None:
    """Plot embeddings, condition numbers, scalings and attention of a checkpoint; curves of a run."""
    from zoo.report.inspection import inspect as write
    from zoo.utils.device import find_device

    typer.echo(f"wrote {', '.join(map(str, write(run, text, out, find_device(device))))}")


@command("suggest-lr")
def suggest_lr(
    config: Source,
    overrides: Overrides = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of each of the two short runs; default: 200.")
    ] = None,
) -> None:
    """Estimate a learning rate for Amos from the gradients of two short runs, or of a run folder."""
    from zoo.diagnose.suggest import suggest_lr as suggest

    typer.echo(suggest(config, overrides or (), steps))


@command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(help="A folder of the Hugging Face hub, or a .safetensors file with its --format."),
    ],
    out: Annotated[Path, typer.Argument(help="The .safetensors file or folder to write.")],
    format: Annotated[str | None, typer.Option(help="The format of the file, e.g. ngpt-reference.")] = None,
    n_heads: Annotated[int | None, typer.Option(help="Attention heads, if the file does not say.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Tensors that may be missing or without a place: cls.*")
    ] = None,
) -> None:
    """Turn a checkpoint of another library into one of zoo."""
    from zoo.checkpoint.model import load_model, save_model
    from zoo.hub.folder import load_folder
    from zoo.run.trained import bring_tokenizer

    if format is None and n_heads is None:
        model, report = load_folder(source, allow=allow or ())
        typer.echo(report)
    else:
        options: dict[str, Any] = {"n_heads": n_heads, "allow": allow}
        given = {name: value for name, value in options.items() if value is not None}
        model = load_model(source, format=format, **given)
    file = save_model(model, out)
    typer.echo(f"wrote {file}")
    if format is None and file.parent == out:
        typer.echo(bring_tokenizer(source, out))


@command()
def export(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a checkpoint of zoo.")],
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    to: Annotated[str, typer.Option(help="hf: what transformers' from_pretrained opens.")] = "hf",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    The status is 2 for a mistake of the user, 1 for a run that diverged, 130 for one that was
    interrupted.

    Args:
        arguments: instead of those the process was started with.
    """
    try:
        app(args=arguments, prog_name="zoo")
    except ZooError as error:
        _fail(str(error), USER_ERROR)
    except DivergenceError as error:
        _fail(str(error), DIVERGED)
    except Exception as error:
        line = _line_in_plugin(error)
        if line is None or os.environ.get(TRACEBACK):
            raise
        what = f"{line}: {type(error).__name__}: {error}"
        _fail(f"{what}\n({TRACEBACK}=1 in the environment shows the traceback)", USER_ERROR)


def _line_in_plugin(error: Exception) -> str | None:
    """The line of a plugin that an error comes from; None if it comes from zoo itself."""
    if "zoo.config.plugins" not in sys.modules:
        return None
    from zoo.config.plugins import line_in_plugin

    return line_in_plugin(error)


def _fail(message: str, status: int) -> None:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    sys.exit(status)
