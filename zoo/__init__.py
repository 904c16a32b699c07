"""zoo: is an architecture, an optimizer or an initialisation really better? Then train with it.

The package contains Amos, nGPT and WeSaR, with the models they train and the methods they compare with. Names
are imported when they are first used, so that ``import zoo`` costs little more than ``import torch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zoo.hub.formats  # noqa: F401  registers the formats that load_model reads
from zoo.utils.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.checkpoint.model import load_model as load_model
    from zoo.checkpoint.model import save_model as save_model
    from zoo.config.plugins import load_plugin as load_plugin
    from zoo.config.registry import CLIPS as CLIPS
    from zoo.config.registry import CONSTRAINTS as CONSTRAINTS
    from zoo.config.registry import CORPORA as CORPORA
    from zoo.config.registry import DATASETS as DATASETS
    from zoo.config.registry import INITS as INITS
    from zoo.config.registry import LOGGERS as LOGGERS
    from zoo.config.registry import MODELS as MODELS
    from zoo.config.registry import OBJECTIVES as OBJECTIVES
    from zoo.config.registry import OPTIMIZERS as OPTIMIZERS
    from zoo.config.registry import REPARAMS as REPARAMS
    from zoo.config.registry import SCHEDULES as SCHEDULES
    from zoo.config.registry import TEMPLATES as TEMPLATES
    from zoo.config.registry import TOKENIZERS as TOKENIZERS
    from zoo.config.registry import TRANSFERS as TRANSFERS
    from zoo.config.registry import Config as Config
    from zoo.data.corpora.base import CorpusConfig as CorpusConfig
    from zoo.data.corpora.base import Document as Document
    from zoo.data.corpora.base import FileCorpus as FileCorpus
    from zoo.data.corpora.base import SourceFile as SourceFile
    from zoo.data.dataset import Batch as Batch
    from zoo.data.dataset import BatchSpec as BatchSpec
    from zoo.data.dataset import DataConfig as DataConfig
    from zoo.data.dataset import Dataset as Dataset
    from zoo.data.instructions.template import MarkerTemplate as MarkerTemplate
    from zoo.data.instructions.template import Template as Template
    from zoo.data.objectives.base import Objective as Objective
    from zoo.data.tokenizers.base import Tokenizer as Tokenizer
    from zoo.data.tokenizers.base import TokenizerConfig as TokenizerConfig
    from zoo.init.registry import Entry as Entry
    from zoo.init.registry import Registry as Registry
    from zoo.init.schemes import Init as Init
    from zoo.init.transfer import Transfer as Transfer
    from zoo.models.base import Model as Model
    from zoo.models.base import ModelConfig as ModelConfig
    from zoo.models.language_model import LanguageModel as LanguageModel
    from zoo.models.language_model import LanguageModelConfig as LanguageModelConfig
    from zoo.optim.amos import Amos as Amos
    from zoo.optim.attach import attach as attach
    from zoo.optim.base import OptimizerConfig as OptimizerConfig
    from zoo.optim.base import ScheduleConfig as ScheduleConfig
    from zoo.optim.base import grouped as grouped
    from zoo.optim.clip import ClipConfig as ClipConfig
    from zoo.optim.constraint import Constraint as Constraint
    from zoo.reparam.base import Reparam as Reparam
    from zoo.run.config import load_config as load_config
    from zoo.run.explanation import explain as explain
    from zoo.run.factory import build_model as build_model
    from zoo.run.factory import merge as merge
    from zoo.run.factory import split as split
    from zoo.run.loggers.base import Logger as Logger
    from zoo.run.loggers.base import LoggerConfig as LoggerConfig
    from zoo.run.optimizer import build_optimizer as build_optimizer
    from zoo.sampling import generate as generate
    from zoo.spec import Declared as Declared
    from zoo.spec import Module as Module
    from zoo.spec import ParamSpec as ParamSpec
    from zoo.spec import Reparameterisation as Reparameterisation
    from zoo.spec import Role as Role
    from zoo.utils.errors import ZooError as ZooError

__version__ = "0.2.0"

_names, __getattr__ = lazy_names(
    __name__,
    {
        "zoo.checkpoint.model": "load_model save_model",
        "zoo.config.plugins": "load_plugin",
        "zoo.config.registry": "CLIPS CONSTRAINTS CORPORA DATASETS INITS LOGGERS MODELS OBJECTIVES "
        "OPTIMIZERS REPARAMS SCHEDULES TEMPLATES TOKENIZERS TRANSFERS Config",
        "zoo.data.corpora.base": "CorpusConfig Document FileCorpus SourceFile",
        "zoo.data.dataset": "Batch BatchSpec DataConfig Dataset",
        "zoo.data.instructions.template": "MarkerTemplate Template",
        "zoo.data.objectives.base": "Objective",
        "zoo.data.tokenizers.base": "Tokenizer TokenizerConfig",
        "zoo.init.registry": "Entry Registry",
        "zoo.init.schemes": "Init",
        "zoo.init.transfer": "Transfer",
        "zoo.models.base": "Model ModelConfig",
        "zoo.models.language_model": "LanguageModel LanguageModelConfig",
        "zoo.optim.amos": "Amos",
        "zoo.optim.attach": "attach",
        "zoo.optim.base": "OptimizerConfig ScheduleConfig grouped",
        "zoo.optim.clip": "ClipConfig",
        "zoo.optim.constraint": "Constraint",
        "zoo.reparam.base": "Reparam",
        "zoo.run.config": "load_config",
        "zoo.run.explanation": "explain",
        "zoo.run.factory": "build_model merge split",
        "zoo.run.loggers.base": "Logger LoggerConfig",
        "zoo.run.optimizer": "build_optimizer",
        "zoo.sampling": "generate",
        "zoo.spec": "Declared Module ParamSpec Reparameterisation Role",
        "zoo.utils.errors": "ZooError",
    },
)
__all__ = ["__version__", *_names]


def __dir__() -> list[str]:
    return sorted(__all__)
