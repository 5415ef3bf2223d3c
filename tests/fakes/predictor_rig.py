"""A real predictor on real gRPC and a real store, and small trained predictors on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headway.forward_pass import HiddenStates
from headway.request import StreamKey
from protos import predictor_pb2, predictor_pb2_grpc
from services.predictor.config import PredictorConfig
from services.predictor.network import LengthNetwork, NetworkShape
from services.predictor.service import build
from services.predictor.versions import save_version
from services.runtime import wire
from services.runtime.channel import open_channel
from services.runtime.identity.roles import ServiceRole
from services.runtime.store import Member
from tests.fakes.running import running

WIDTH = 4


@asynccontextmanager
async def serving(
    config: PredictorConfig, *, joins: bool = False
) -> AsyncIterator[predictor_pb2_grpc.PredictorAsyncStub]:
    """One that has started; a member of its cluster where others are to find it."""
    async with (
        running(config, build) as (_, runtime),
        open_channel(runtime.address, config, ServiceRole.PREDICTOR) as channel,
    ):
        member = Member("predictor", config.service_id, runtime.address)
        if joins:
            await runtime.store.join(member, 60.0)
        yield predictor_pb2_grpc.PredictorStub(channel)
        if joins:
            await runtime.store.leave(member)


def constant_predictor(folder: Path, value: float, width: int = WIDTH) -> Path:
    """A new version that says the same of every state."""
    network = LengthNetwork(NetworkShape(width, (8,)))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        list(network.parameters())[-1].fill_(value)
    return save_version(folder, network, {"model": "m"})


def fresh_predictor(folder: Path, scale: float, width: int = WIDTH) -> Path:
    """A new version that has learned nothing, of lengths about ``scale``."""
    torch.manual_seed(0)
    network = LengthNetwork(NetworkShape(width, (8,)))
    network.target_scale.fill_(scale)
    return save_version(folder, network, {"model": "m"})


def states(*values: float, width: int = WIDTH) -> NDArray[np.float16]:
    """A row of equal numbers for each value."""
    return np.repeat(np.array(values, dtype=np.float16)[:, None], width, axis=1)


def question(
    hidden: NDArray[np.float16], model: str = "m", *, first: int = 1, at: int = 1
) -> predictor_pb2.PredictRequest:
    """Of requests that are numbered from ``first``."""
    keys = tuple(StreamKey("g", first + number) for number in range(len(hidden)))
    return wire.pack_question(model, HiddenStates(keys, hidden), [at] * len(keys))
