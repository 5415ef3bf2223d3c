"""The models that a gateway serves, read from their files."""

from __future__ import annotations

from dataclasses import asdict

from headway.core.gateway.settings import GatewaySettings, ModelSettings
from headway.core.reasoning import Markers
from headway.errors import Code, HeadwayError
from services.gateway.config import GatewayConfig
from services.gateway.model_files import ModelFiles, read_model
from services.gateway.served_model import ServedModel, ServedModels
from services.gateway.tokenizer import TextCodec
from services.gateway.tool_calls import FORMATS, Format, format_of


def load_models(config: GatewayConfig) -> ServedModels:
    """Read the files of every model; INVALID_ARGUMENT where they do not serve."""
    return ServedModels(load_model(one) for one in config.by_model())


def load_model(config: GatewayConfig) -> ServedModel:
    """Read tokenizer, template and limits; INVALID_ARGUMENT where they do not serve."""
    files = read_model(config.model, config.model_name)
    own, asked = files.max_model_len, config.max_model_len
    if own and asked > own:
        message = f"max_model_len is {asked}; the model's limit is {own}: ask for less"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_model_len")
    if not own and not asked:
        message = f"the model in {files.folder} does not say its context length: give max_model_len"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="max_model_len")
    codec = TextCodec.load(files.folder, files.vocab_size)
    return ServedModel(
        files,
        codec,
        asked or own,
        _tool_format(config, files),
        config.trust_request_chat_template,
        config.lora,
    )


def _tool_format(config: GatewayConfig, files: ModelFiles) -> Format:
    """Return the format of the model's tool calls: as asked, or as its chat template shows."""
    if config.tool_call_parser != "auto":
        return FORMATS[config.tool_call_parser]
    return format_of("" if files.template is None else files.template.source)


def core_settings(config: GatewayConfig, models: ServedModels) -> GatewaySettings:
    """Return the settings of the gateway's core; HeadwayError for policies that there are not."""
    own = {model.name: _of_model(model) for model in models}
    if models.only:  # one model's limits are the gateway's
        settings = GatewaySettings(**asdict(own[models.only]))
    else:
        settings = GatewaySettings(models=own)
    return config.policies(settings).gateway


def _of_model(model: ServedModel) -> ModelSettings:
    markers = model.codec.markers or Markers()
    return ModelSettings(model.max_model_len, markers.end, markers.start)
