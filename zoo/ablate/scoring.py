"""The score of a task as the measure of a sweep, which is taken when a run has ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from zoo.ablate.task_scores import task_scores
from zoo.config.registry import Config
from zoo.data.tokenizers.base import Tokenizer
from zoo.evaluation.task_metric import task_metric
from zoo.evaluation.task_report import tasks
from zoo.utils.errors import DataError, ZooError, did_you_mean
from zoo.utils.measures import TASKS, Measure, task_measure
from zoo.utils.run_folder import RunFolder


class TaskSettings(Config):
    """The settings by which the models of a sweep are evaluated on a task."""

    path: Path | None = Field(
        None,
        description="a folder with your own task files; a relative path starts at the folder of the sweep "
        "file, or, if nothing is there, at the current folder",
    )
    limit: int | None = Field(None, ge=1, description="number of questions, the first ones; null: all")
    num_fewshot: int | None = Field(
        None, ge=0, description="number of solved examples in front of each question; null: as the task says"
    )
    chat_template: bool = Field(False, description="ask in the chat template of the model or its tokenizer")
    system: str | None = Field(None, description="system message in front, with chat_template; null: none")


@dataclass(frozen=True)
class TaskScoring:
    """The score of a task that the runs of a sweep are compared by, and the settings of its evaluation.

    Attributes:
        measure: ``tasks/TASK/METRIC``; its direction is a placeholder until `prepared`.
        settings: the settings of the evaluation.
        fewshot: number of solved examples in front of each question; None until `prepared`.
        longest: the longest answer in the task; empty until `prepared`.
        questions: the digest of the questions; None until `prepared`.
    """

    measure: Measure
    settings: TaskSettings
    fewshot: int | None = None
    longest: str = ""
    questions: str | None = None

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.measure.name.removeprefix(f"{TASKS}/").rsplit("/", 1)[0]

    def prepared(self, context: int | None) -> TaskScoring:
        """Read the task and its data, so that errors are reported before any run is trained.

        Args:
            context: largest number of tokens that every run reads; None: any number.

        Raises:
            ZooError: The task cannot be used, has no such metric, does not state which direction is better,
                or generates more than a context.
        """
        metric = self.measure.name.rsplit("/", 1)[1].partition(",")[0]
        s = self.settings
        task = task_metric(
            self.task,
            metric,
            task_path=s.path,
            limit=s.limit,
            num_fewshot=s.num_fewshot,
            context=context,
        )
        measure = task_measure(self.measure.name, task.lower_is_better)
        fewshot, longest, questions = task.fewshot, task.longest, task.questions
        return replace(self, measure=measure, fewshot=fewshot, longest=longest, questions=questions)

    def require_room(self, tokenizer: Tokenizer, context: int) -> None:
        """Refuse a task with an answer that is longer than the context of the runs.

        Args:
            tokenizer: the tokenizer of the runs.
            context: the largest number of tokens that every run reads.

        Raises:
            DataError: An answer is too long.
        """
        length = len(tokenizer.encode(self.longest))
        if length > context:
            raise DataError(
                f"metric: task '{self.task}' has an answer of {length} tokens; expected at most {context}, "
                "the context of the runs"
            )

    def recorded(self, run: RunFolder) -> float | None:
        """The cost (see `Measure.cost`) of the score that a run has recorded with these settings, or None.

        Raises:
            ZooError: The run's tasks.json was not written by `zoo eval`.
        """
        score = task_scores(run).get(self.measure.name)
        if score is None or score.value is None:
            return None
        s = self.settings
        if (score.limit, score.chat_template, score.system) != (s.limit, s.chat_template, s.system):
            return None
        if self.fewshot is not None and score.fewshot != self.fewshot:
            return None
        if (last := run.checkpoint()) is not None and score.step not in (None, last.named_step):
            return None
        if None not in (self.questions, score.questions) and score.questions != self.questions:
            return None
        return self.measure.cost(score.value)

    def record(self, run: RunFolder, device: str) -> None:
        """Measure the score of a run that has ended, and write its tasks.json.

        Args:
            run: the run.
            device: name of the device.

        Raises:
            ZooError: The task cannot be used, or its score is not a finite number.
        """
        s = self.settings
        tasks(
            run.path,
            [self.task],
            task_path=s.path,
            limit=s.limit,
            num_fewshot=s.num_fewshot,
            device=device,
            chat_template=s.chat_template,
            system=s.system,
            out=run.tasks,
        )
        if self.recorded(run) is None:
            known = task_scores(run)
            similar = "" if self.measure.name in known else did_you_mean(self.measure.name, known)
            raise ZooError(f"metric: task '{self.task}' has given no '{self.measure.name}'{similar}")
