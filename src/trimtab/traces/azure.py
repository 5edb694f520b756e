"""Azure LLM inference trace 2023: CSV of the conversation and code services.

Source: Patel et al., "Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024;
published in Azure/AzurePublicDataset under CC-BY-4.0.
Columns: `TIMESTAMP` (date and time in steps of 100 ns), `ContextTokens`, `GeneratedTokens`.
Size: generated tokens + `prompt_token_frac` × context tokens.
"""

from __future__ import annotations

from trimtab.traces.formats import SourceColumn, TraceFormat, sized_from_tokens

AZURE_LLM_2023 = TraceFormat(
    name="azure-llm-2023",
    columns=(
        SourceColumn("arrival_s", "TIMESTAMP"),
        SourceColumn("prompt_tokens", "ContextTokens"),
        SourceColumn("output_tokens", "GeneratedTokens"),
    ),
    needed=frozenset({"arrival_s", "prompt_tokens", "output_tokens"}),
    time_unit="datetime",
    origin="first",
    derived=sized_from_tokens,
)
