"""The architectures, one file each, and the interface of language models."""

from zoo.models.base import Model, ModelConfig
from zoo.models.bert import BERT, BERTConfig
from zoo.models.classifier import Classifier, ClassifierConfig
from zoo.models.decoder import Decoder, DecoderConfig
from zoo.models.encoder import Encoder, EncoderConfig
from zoo.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from zoo.models.gpt import GPT, GPTConfig
from zoo.models.gpt2 import GPT2, GPT2Config
from zoo.models.language_model import LanguageModel, LanguageModelConfig
from zoo.models.lstm import LSTMConfig, LSTMModel
from zoo.models.modernbert import ModernBERT, ModernBERTConfig
from zoo.models.neox import NeoX, NeoXConfig
from zoo.models.ngpt import NGPT, NGPTConfig
from zoo.models.ngpt_t5 import NGPTT5, NGPTT5Config
from zoo.models.post_gpt import PostGPT, PostGPTConfig
from zoo.models.resnet import ResNet, ResNetConfig
from zoo.models.t5 import T5, T5Config

__all__ = [
    "BERT",
    "GPT",
    "GPT2",
    "NGPT",
    "NGPTT5",
    "T5",
    "BERTConfig",
    "Classifier",
    "ClassifierConfig",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "GPT2Config",
    "GPTConfig",
    "LSTMConfig",
    "LSTMModel",
    "LanguageModel",
    "LanguageModelConfig",
    "Model",
    "ModelConfig",
    "ModernBERT",
    "ModernBERTConfig",
    "NGPTConfig",
    "NGPTT5Config",
    "NeoX",
    "NeoXConfig",
    "PostGPT",
    "PostGPTConfig",
    "ResNet",
    "ResNetConfig",
    "T5Config",
]
