"""Tables of `peer_vllm` reports for `tools/figures.py`."""

from __future__ import annotations

from typing import Any

from tools.sections import table

Report = dict[str, Any]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def load_table(report: Report) -> str:
    """Levels of requests at a time. The columns of gaps and of vLLM with several API processes are
    there if they were measured."""
    has_api4 = any("peer_api4_tok_per_s" in row for row in report["load"])
    has_gaps = all("gap_p99_ms" in row for row in report["load"])
    header = ["requests at a time", "quicksilver, tokens/s", f"{report['peer']}, tokens/s"]
    header += ["vLLM, 4 API processes"] if has_api4 else []
    header += ["ratio", "TTFT ms", "TTFT ms, vLLM"]
    header += ["gap p99 ms", "gap p99 ms, vLLM"] if has_gaps else []
    return table(tuple(header), [tuple(_load_line(row, has_api4, has_gaps)) for row in report["load"]])


def _load_line(row: Report, has_api4: bool, has_gaps: bool) -> list[str]:
    line = [str(row["requests"]), f"{row['tok_per_s']:,}", f"{row['peer_tok_per_s']:,}"]
    if has_api4:
        line.append(f"{row['peer_api4_tok_per_s']:,}" if "peer_api4_tok_per_s" in row else "not run")
    line += [ratio(row, "tok_per_s"), number(row["ttft_ms"]), number(row["peer_ttft_ms"])]
    return line + ([number(row["gap_p99_ms"]), number(row["peer_gap_p99_ms"])] if has_gaps else [])


def other_table(report: Report) -> str:
    """One request by kind of text, long prompts, and answers under a JSON Schema."""
    rows = [
        (
            f"one request, {r['domain']}: tokens/s",
            f"{r['tok_per_s']:,}",
            f"{r['peer_tok_per_s']:,}",
            ratio(r, "tok_per_s"),
        )
        for r in report["domains"]
    ]
    rows += [
        (
            f"prompt of {r['prompt_tokens']:,} tokens: ms to the first token",
            f"{r['ttft_ms']}",
            f"{r['peer_ttft_ms']}",
            ratio(r, "ttft_ms"),
        )
        for r in report["prompts"]
    ]
    rows += [
        (
            f"JSON Schema, {r['requests']} at a time: answers/s (valid)",
            f"{r['requests_per_s']} ({r['valid']})",
            f"{r['peer_requests_per_s']} ({r['peer_valid']})",
            ratio(r, "requests_per_s"),
        )
        for r in report["schema"]
    ]
    return table(("what", "quicksilver", "vLLM", "ratio"), rows)


def ratio(row: Report, name: str) -> str:
    return f"{row[name] / row['peer_' + name]:.2f}"
