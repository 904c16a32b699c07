"""The architectures, one file each, in the words of their papers."""

from zoo.models.base import Decoder, DecoderConfig, Model, ModelConfig
from zoo.models.bert import BERT, BERTConfig
from zoo.models.gpt import GPT, GPTConfig
from zoo.models.ngpt import NGPT, NGPTConfig
from zoo.models.resnet import ResNet, ResNetConfig

__all__ = [
    "BERT",
    "GPT",
    "NGPT",
    "BERTConfig",
    "Decoder",
    "DecoderConfig",
    "GPTConfig",
    "Model",
    "ModelConfig",
    "NGPTConfig",
    "ResNet",
    "ResNetConfig",
]
