"""Public traces for download: addresses, checksums, formats, licences and citations."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from trimtab.errors import TraceError

_GITHUB: Final = "https://raw.githubusercontent.com"
_AZURE: Final = f"{_GITHUB}/Azure/AzurePublicDataset/790921015d50dd6aae7f7e47f39ba0e235ad6b08/data"
_MOONCAKE: Final = f"{_GITHUB}/kvcache-ai/Mooncake"
_ALIBABA: Final = f"{_GITHUB}/alibaba/clusterdata/7a6c496e4f4b6ce6150be8f881cb051bf2abff42"

_SPLITWISE: Final = (
    "Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, ISCA 2024"
)
_MOONCAKE_PAPER: Final = "Qin et al., Mooncake: Trading more storage for less computation, FAST 2025"
_GENTD26: Final = "Lin et al., Understanding diffusion model serving in production, SoCC 2025"


@dataclass(frozen=True, slots=True)
class PublicTrace:
    """One published file, at a fixed commit.

    `sha256` is None where this project has not seen the whole published file: the checksum of the first
    download is then recorded beside it and holds from there on.
    """

    name: str
    url: str
    sha256: str | None
    format: str
    licence: str
    citation: str

    @property
    def file_name(self) -> str:
        """The publisher's name of the file."""
        return self.url.rpartition("/")[2]


CATALOGUE: Final = (
    PublicTrace(
        name="azure-llm-2023-conv",
        url=f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
        sha256="2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        format="azure-llm-2023",
        licence="CC-BY-4.0",
        citation=_SPLITWISE,
    ),
    PublicTrace(
        name="azure-llm-2023-code",
        url=f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
        sha256=None,
        format="azure-llm-2023",
        licence="CC-BY-4.0",
        citation=_SPLITWISE,
    ),
    PublicTrace(
        name="mooncake-conversation",
        url=f"{_MOONCAKE}/a2a4b18ac537fd798d50e6e9f57031ce86419a37/FAST25-release/traces/conversation_trace.jsonl",
        sha256="b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        format="mooncake",
        licence="Apache-2.0",
        citation=_MOONCAKE_PAPER,
    ),
    PublicTrace(
        name="mooncake-toolagent",
        url=f"{_MOONCAKE}/3b5a59413395/FAST25-release/traces/toolagent_trace.jsonl",
        sha256=None,
        format="mooncake",
        licence="Apache-2.0",
        citation=_MOONCAKE_PAPER,
    ),
    PublicTrace(
        name="gentd26-lora",
        url=f"{_ALIBABA}/cluster-trace-v2026-GenAI/lora_request_trace.csv",
        sha256=None,
        format="gentd26",
        licence="none stated; cite the paper, do not redistribute",
        citation=_GENTD26,
    ),
)


def public_trace(name: str) -> PublicTrace:
    """The entry of the catalogue with this name.

    Raises:
        TraceError: there is none; names the nearest ones.
    """
    names = [trace.name for trace in CATALOGUE]
    if name in names:
        return CATALOGUE[names.index(name)]
    nearest = difflib.get_close_matches(name, names, n=3) or names
    raise TraceError("no such public trace", field="name", value=name, expected=f"one of {nearest}")
