"""A worker's configuration: flags, or ``HEADWAY_*`` in the environment."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from headway.core.settings import PolicySettings, policy_settings
from headway.core.worker.settings import WorkerSettings
from services.runtime.config import Adapters, ModelName, is_loopback
from services.runtime.preset import PresetConfig
from services.runtime.rooms import SHIPPED_MODEL

_DEFAULTS = WorkerSettings()
_MOST_TOKENS = 2**30
"""Most tokens of a pass: a worker's description has 32 bits for them."""
_ZMQ = re.compile(r"tcp://.+:[0-9]{1,5}|ipc://.+")


class EngineConfig(PresetConfig):
    """Options of the engine: the model, its device and its memory."""

    model: ModelName = Field(
        SHIPPED_MODEL, validate_default=True, description="hub id or folder of the checkpoint"
    )
    model_name: str = Field("", description="name that requests use; default: the folder's name")
    engine: str = Field(
        "torch",
        description="what computes: torch, openai, or an engine of another package: vllm, "
        "vllm-native",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="options of an engine other than torch, as JSON"
    )
    device: str = Field(
        "cpu", pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$", description="cpu, cuda or cuda:N"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: str = Field(
        "", description="quantisation of the weights, for example torchao-int8; default: none"
    )
    kernels: Literal["auto", "triton", "triton,flash-attn-4", "native", "torch"] = Field(
        "auto",
        description="kernels between matrix products; auto: triton on a GPU, native on a CPU; "
        "a second name after a comma: for prompts",
    )
    deterministic: bool = Field(
        False,
        description="compute each request alike whatever runs beside it, however its prompt is cut "
        "and whatever is cached; slower",
    )
    dp: int = Field(1, ge=1, le=64, description="DP units, in lock-step")
    num_threads: int = Field(0, ge=0, description="torch threads; 0: torch's choice")
    block_size: int = Field(
        0, ge=0, le=512, description="tokens per KV block; 0: 64 on a GPU, 16 on a CPU"
    )
    num_blocks: int = Field(0, ge=0, description="KV blocks per DP unit; 0: from kv_cache_gib")
    kv_cache_gib: float = Field(
        0.0,
        ge=0.0,
        description="KV memory of all DP units, GiB; 0: 1 on a CPU, 80 % of what is free on a GPU",
    )
    gpu_share: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="share of a GPU's memory that is this worker's, where several use it",
    )
    host_kv_gib: float = Field(
        0.0,
        ge=0.0,
        description="host memory of all DP units for KV of preempted requests and of cached "
        "prefixes, GiB; 0: none",
    )
    chunk_tokens: int = Field(
        512, ge=1, le=_MOST_TOKENS, description="most tokens of a DP unit in one pass"
    )
    prefill_chunk_tokens: int = Field(
        0,
        ge=0,
        le=_MOST_TOKENS,
        description="the same while its role is prefill; 0: as chunk_tokens",
    )
    convertible_chunk_tokens: int = Field(
        0,
        ge=0,
        le=_MOST_TOKENS,
        description="the same while its role is convertible; 0: as chunk_tokens",
    )
    max_model_len: int = Field(0, ge=0, description="prompt + output tokens; 0: the model's own")
    lora: Adapters = Field(
        default_factory=dict,
        description="LoRA adapters of the model by the names that requests use: NAME=FOLDER; "
        "give it once for each",
    )

    @property
    def most_pass_tokens(self) -> int:
        """Return the most tokens of a DP unit in one pass, whatever its role becomes."""
        return max(self.chunk_tokens, self.prefill_chunk_tokens, self.convertible_chunk_tokens)

    @property
    def tokens_per_block(self) -> int:
        """Return the block size. Small blocks cost a GPU more reads of tables for as much KV."""
        return self.block_size or (16 if self.device == "cpu" else 64)


class WorkerConfig(EngineConfig):
    """Options of one instance: one replica of a model on one device."""

    role: Literal["prefill", "decode", "unified", "convertible"] = "unified"
    standby: bool = Field(False, description="load and warm up, then wait for a role")
    predict_every: int = Field(
        20,
        ge=0,
        description="k: tokens between predictions of a request's remaining length, 0: none",
    )
    end_of_reasoning: str = Field(
        "", description="text that ends the model's reasoning; default: </think> if it has it"
    )
    start_of_reasoning: str = Field(
        "",
        description="text that starts it, given with its end; default: <think> if it has it",
    )
    reader_pace: float = Field(
        0.0, ge=0.0, le=10.0, description="seconds a reader takes for a token; 0: the preset's"
    )
    max_running: int = Field(
        _DEFAULTS.max_running,
        ge=0,
        description="most requests of a DP unit that run in one pass, 0: any",
    )
    watermark: float = Field(
        _DEFAULTS.watermark, ge=0.0, lt=1.0, description="share of KV blocks kept free at admission"
    )
    prefix_caching: bool = Field(
        True, description="reuse the KV of requests with the same first tokens"
    )
    host_prefixes: bool = Field(
        _DEFAULTS.host_prefixes,
        description="keep that KV in host memory, too, where preempted requests leave room",
    )
    linger: float = Field(
        0.002,
        ge=0.0,
        le=1.0,
        description="seconds that leftover prompts wait for the scheduler's top-up, 0: none",
    )
    async_scheduling: bool = Field(
        False, description="plan a pass while the one before it runs; prefill workers never do"
    )
    move_rounds: int = Field(
        _DEFAULTS.move_rounds,
        ge=0,
        description="rounds of KV sent while a moving request still runs, 0: none",
    )
    kv_transport: Literal["grpc", "nixl", "auto"] = Field(
        "grpc",
        description="how KV goes to other workers: grpc; nixl: out of this one's memory, by the "
        "network's own means and not encrypted, where the other one has it, too; auto: nixl if it "
        "is installed",
    )
    transfer_timeout: float = Field(30.0, gt=0.0, description="seconds for one KV transfer")
    least_pass_time: float = Field(
        0.0,
        ge=0.0,
        le=10.0,
        description="least seconds of a forward pass, to compare policies on a machine whose speed "
        "varies; 0: none",
    )
    record_passes: str = Field(
        "", description="folder to record every pass in, for `headway profile run`; default: none"
    )
    kv_events: str = Field(
        "",
        description="ZMQ endpoint at which to publish KV events as vLLM does, for example "
        "tcp://127.0.0.1:5557; default: none",
    )
    kv_events_replay: str = Field("", description="ZMQ endpoint for events that were missed")
    kv_events_topic: str = Field(
        "", description="topic of KV events; llm-d's router reads kv@POD-ADDRESS@MODEL"
    )
    gateway_patience: float = Field(
        5.0, ge=0.0, description="seconds to reach a gateway before its requests are dropped"
    )

    @field_validator("kv_events", "kv_events_replay")
    @classmethod
    def _a_zmq_endpoint(cls, value: str) -> str:
        if value and not _ZMQ.fullmatch(value):
            raise ValueError("must be tcp://HOST:PORT or ipc://PATH")
        return value

    @model_validator(mode="after")
    def _may_publish(self) -> WorkerConfig:
        if self.kv_events_replay and not self.kv_events:
            raise ValueError("kv_events_replay needs kv_events")
        if self.kv_events and not self.prefix_caching:
            raise ValueError("kv_events needs prefix_caching: without it there are no events")
        for endpoint in (self.kv_events, self.kv_events_replay):
            is_tcp = endpoint.startswith("tcp://")
            if is_tcp and not is_loopback(endpoint[6:]) and not self.allow_plaintext:
                raise ValueError(
                    f"KV events at {endpoint} would show prompts beyond this machine, and ZMQ "
                    "encrypts nothing: give --allow-plaintext on a network that you trust"
                )
        return self

    def policies(self) -> PolicySettings:
        """Return the preset's policies and the core's settings; HeadwayError for an unknown one.

        The limits of the engine and the model are not known yet.
        """
        options = WorkerSettings(
            watermark=self.watermark,
            linger=self.linger,
            max_running=self.max_running,
            prefix_caching=self.prefix_caching,
            host_prefixes=self.host_prefixes,
            predict_every=self.predict_every,
            move_rounds=self.move_rounds,
            runs_ahead=self.async_scheduling,
            tells_lives=True,
            tells_kv=bool(self.kv_events),
        )
        settings = policy_settings(self.chosen(), self.costs(), worker=options)
        pace = self.reader_pace or settings.worker.reader_pace
        return replace(settings, worker=replace(settings.worker, reader_pace=pace))
