"""Gateways to compare with: how each is installed in an environment of its own, and started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from bench.runner.processes import install
from headway.errors import invalid

_LITELLM_CONFIG = """\
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: {backend}/v1
      api_key: none
"""

Command = Callable[[str, int, int, Path, str], list[str]]
"""Arguments from (backend URL, port, another free port, folder for files, model)."""


@dataclass(frozen=True, slots=True)
class PeerGateway:
    """A gateway of others; ``requirement`` is what was measured here."""

    name: str
    requirement: str
    arguments: Command
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def program(self, peers_dir: Path) -> Path:
        """Return its command, where it is installed."""
        return peers_dir / self.name / "bin" / self.name


def _smg(backend: str, port: int, other_port: int, folder: Path, model: str) -> list[str]:
    return ["launch", *_router(backend, port, other_port), "--log-level", "warn"]


def _vllm_router(backend: str, port: int, other_port: int, folder: Path, model: str) -> list[str]:
    return [*_router(backend, port, other_port), "--log-level", "warning"]


def _router(backend: str, port: int, other_port: int) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", backend),
        *("--policy", "round_robin"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(other_port)),
    ]


def _litellm(backend: str, port: int, other_port: int, folder: Path, model: str) -> list[str]:
    config = folder / "litellm.yaml"
    config.write_text(_LITELLM_CONFIG.format(model=model, backend=backend), encoding="utf-8")
    serve = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return ["--config", str(config), *serve, "--telemetry", "False"]


PEERS: Mapping[str, PeerGateway] = MappingProxyType(
    {
        peer.name: peer
        for peer in (
            PeerGateway("smg", "smg==1.13.0", _smg),
            PeerGateway("vllm-router", "vllm-router==0.1.17", _vllm_router),
            PeerGateway(
                "litellm",
                "litellm[proxy]==1.106.0",
                _litellm,
                MappingProxyType(
                    {
                        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                        "LITELLM_LOG": "ERROR",
                        # on loopback, and it would not start without a key otherwise
                        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
                    }
                ),
            ),
        )
    }
)


def find_peers(
    names: str, peers_dir: Path, *, installs: bool, say: Callable[[str], None]
) -> tuple[list[PeerGateway], dict[str, str]]:
    """Return those that are installed, and why each of the others is left out."""
    installed: list[PeerGateway] = []
    missing: dict[str, str] = {}
    for name in filter(None, (name.strip() for name in names.split(","))):
        if name not in PEERS:
            raise invalid("--peers", name, f"among {', '.join(PEERS)}")
        peer, why = PEERS[name], "not installed (--install-peers does)"
        if installs and not peer.program(peers_dir).exists():
            say(f"installing {peer.requirement} into {peers_dir / name}")
            why = install(peers_dir / name, peer.requirement) or "it brings no command of its name"
        if peer.program(peers_dir).exists():
            installed.append(peer)
        else:
            missing[name] = why
    return installed, missing
