"""The clients that are run, with the releases that were measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerClient:
    """A client, what it needs from the package index, and the file of its cases."""

    name: str
    requirements: tuple[str, ...]
    module: str
    case_seconds: int = 120
    """Seconds in which each case has to end."""
    python: str = ""
    """Interpreter that it needs, by its name on PATH; "": this one."""

    @property
    def package(self) -> str:
        """Return the package whose version is the client's."""
        return self.requirements[0].partition("==")[0].partition("[")[0]


CLIENTS = (
    PeerClient("openai", ("openai==2.54.0",), "with_openai"),
    PeerClient("litellm", ("litellm==1.106.2", "mcp==2.3.0"), "with_litellm"),
    PeerClient("litellm proxy", ("litellm[proxy]==1.106.2",), "with_litellm_proxy"),
    PeerClient("langchain", ("langchain-openai==1.7.3", "langchain==1.4.7"), "with_langchain"),
    PeerClient("llama-index", ("llama-index-llms-openai-like==0.8.1",), "with_llama_index"),
    PeerClient("instructor", ("instructor==1.17.0",), "with_instructor"),
    PeerClient("pydantic-ai", ("pydantic-ai-slim[openai]==2.31.1",), "with_pydantic_ai"),
    PeerClient("openai-agents", ("openai-agents==0.20.0",), "with_agents"),
    PeerClient("haystack", ("haystack-ai==3.4.0",), "with_haystack"),
    PeerClient("dspy", ("dspy==3.4.1",), "with_dspy"),
    PeerClient("tritonclient", ("tritonclient[grpc]==2.73.0",), "with_triton"),
    PeerClient("guidellm", ("guidellm==0.8.1",), "with_guidellm", 300),
    PeerClient("lm-eval", ("lm-eval[api]==0.4.13", "transformers==5.23.0"), "with_lm_eval", 300),
    PeerClient("aiperf", ("aiperf==0.13.0",), "with_aiperf", 300),
    PeerClient(
        "inference-perf", ("inference-perf==0.7.0",), "with_inference_perf", 300, "python3.12"
    ),
    PeerClient("vllm bench serve", ("vllm==0.32.0",), "with_vllm_bench", 300),
)
