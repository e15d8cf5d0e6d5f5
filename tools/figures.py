"""Write every measured figure of README.md and docs/ from the files in benchmarks/results.

`python tools/figures.py` writes, `--check` fails where a page or a picture is stale. Of each kind of result the newest
file counts. Hand-written prose quotes no figure of its own: it links to the tables made here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from quicksilver.evals.claims import Claim, newest_value, read_claims
from tools.peer_tables import load_table, other_table
from tools.sections import ROOT, table, write_pages
from tools.svg import Chart, bar_chart, document

RESULTS = ROOT / "benchmarks/results"
IMAGES = ROOT / "docs/images"
SERVED = "verify, as served"
DOMAINS = {"fim": "fill-in-the-middle", "humaneval": "HumanEval", "mbpp": "MBPP", "gsm8k": "GSM8K", "json": "JSON"}
Report = dict[str, Any]


def newest(kind: str, wanted: Callable[[Report], bool] = lambda report: True) -> Report:
    """The newest report of a kind that satisfies `wanted`, with its file's name under "file"."""
    reports = [{"file": path.name, **json.loads(path.read_text())} for path in RESULTS.glob(f"{kind}-*.json")]
    found = [report for report in reports if wanted(report)]
    if not found:
        raise SystemExit(f"benchmarks/results has no {kind} report of the kind that the pages quote")
    return max(found, key=lambda report: report["date"])


def has_section(name: str, weights: str = "bfloat16") -> Callable[[Report], bool]:
    return lambda r: name in r["sections"] and r["settings"].get("weights", "bfloat16") == weights


def speed_reports() -> tuple[Report, Report]:
    return newest("gpu_coder", has_section("speed")), newest("gpu_nano", has_section("speed"))


def cpu_reports() -> tuple[Report, Report]:
    return tuple(newest("cpu_decode", lambda r, m=m: r["model"] == m) for m in ("nano", "coder-1.5b"))  # type: ignore[return-value]


def best_on_cpu(report: Report) -> Report:
    """The fastest decoder whose text is the parent's own."""
    return max((r for r in report["results"] if r["decoder"].startswith("verify")), key=lambda r: r["tokens_per_s"])


def average(report: Report, way: str) -> Report:
    return next(row for row in report["sections"]["averages"] if row["way"] == way)


def source(*reports: Report) -> str:
    return "Source: " + ", ".join(f"`benchmarks/results/{report['file']}`" for report in reports) + "."


def model_speeds() -> str:
    coder, nano = speed_reports()
    rows = []
    for name, gpu, cpu in zip(("nano", "coder-1.5b"), (nano, coder), cpu_reports(), strict=True):
        served, best = average(gpu, SERVED), best_on_cpu(cpu)
        rows.append(
            (
                f"`{name}`",
                f"{served['decode_tok_per_s']:,.0f} tokens/s",
                f"{served['over_ar']:.1f} times",
                f"{best['tokens_per_s']:.0f} tokens/s",
                f"{best['over_own_ar']:.1f} times",
                f"{best['over_llama_cpp']:.1f} times",
            )
        )
    header = ("model", "H200, one request", "over its own `ar`", "2 CPU cores", "over its own `ar`", "over llama.cpp")
    return table(header, rows)


def http_load() -> str:
    """Levels of the whole server, from the newest report for each number of API processes."""
    reports = [newest("load", _over_http(count)) for count in (4, 8)]
    rows = [
        (
            str(streams),
            str(report["settings"]["api_processes"]),
            " and ".join(f"{row['tokens_per_s']:,}" for row in runs),
            " and ".join(f"{row['ttft_ms'][0]:.0f}" for row in runs),
            " and ".join(f"{row['gap_ms'][1]:.0f}" for row in runs),
        )
        for report in reports
        for streams in dict.fromkeys(row["streams"] for row in report["rows"])
        for runs in [[row for row in report["rows"] if row["streams"] == streams]]
    ]
    header = ("requests at a time", "API processes", "tokens/s, two runs", "TTFT p50 ms", "gap p99 ms")
    return table(header, rows) + "\n\n" + "\n".join(source(report) for report in reports)


def dialects() -> str:
    """Diffusion checkpoints at their real shapes with random weights."""
    report = newest("gpu_dialects")
    rows = [
        (
            r["case"],
            r["weights"],
            str(r["streams"]),
            f"{r['tokens_per_s']:,.0f}",
            f"{r['ms_per_forward']:.1f}",
            "not counted" if r["roofline_pct"] is None else f"{r['roofline_pct']:.0f} %",
        )
        for r in report["cases"]
    ]
    header = ("network", "weights", "streams", "tokens/s", "ms per forward", "of the byte roofline")
    return table(header, rows) + "\n\n" + source(report)


def _over_http(api_processes: int) -> Callable[[Report], bool]:
    return lambda r: not r["settings"]["rate"] and r["settings"].get("api_processes") == api_processes


def domain_speeds(report: Report) -> str:
    """Tokens per second of each domain with `ar` and as served, their ratio, and tokens per round."""
    rows = {(row["domain"], row["way"]): row for row in report["sections"]["speed"]}
    lines = []
    for domain in dict.fromkeys(domain for domain, _ in rows):
        plain, served = rows[domain, "ar"], rows[domain, SERVED]
        lines.append(speed_line(DOMAINS.get(domain, domain), plain, served))
    lines.append(speed_line("**mean**", average(report, "ar"), average(report, SERVED)))
    header = ("domain", "`ar`, tokens/s", "as served, tokens/s", "ratio", "tokens per round")
    equal = average(report, SERVED)["same_as_ar"].replace("/", " of ")
    return table(header, lines) + f"\n\nAnswers equal to those of `ar`: {equal}. {source(report)}"


def speed_line(name: str, plain: Report, served: Report) -> tuple[str, ...]:
    speeds = f"{plain['decode_tok_per_s']:,.0f}", f"{served['decode_tok_per_s']:,.0f}"
    return name, *speeds, f"{served['over_ar']:.1f}", f"{served['tokens_per_round']:.1f}"


def streams() -> str:
    report = newest("gpu_coder", has_section("streams"))
    rows = {(row["streams"], row["way"]): row for row in report["sections"]["streams"]}
    lines = []
    for count in sorted({count for count, _ in rows}):
        plain, served = rows[count, "ar"], rows[count, SERVED]
        lines.append(
            (str(count), f"{plain['tok_per_s']:,.0f}", f"{served['tok_per_s']:,.0f}", f"{served['over_ar']:.2f}")
        )
    return (
        table(("requests at a time", "`ar`, tokens/s", "as served, tokens/s", "ratio"), lines) + "\n\n" + source(report)
    )


def forwards() -> str:
    report = newest("gpu_forward")
    rows = sorted(report["rows"], key=lambda r: (sizes(r["model"]), r["weights"], r["rows"]))
    lines = [
        (
            r["model"],
            r["weights"],
            str(r["rows"]),
            f"{r['ms']:.2f}",
            f"{r['forwards_per_s']:,.0f}",
            f"{r['roofline_pct']:.0f} %",
        )
        for r in rows
    ]
    header = ("model", "weights", "rows", "ms per forward", "forwards/s", "of the roofline")
    return table(header, lines) + "\n\n" + source(report)


def rounds() -> str:
    """Rounds of the persistent batch, with their time before the newest change of their kernels where it is known."""
    report = newest("gpu_rounds")
    lines = [
        (
            r["model"],
            str(r["slots"]),
            f"{r['context']:,}",
            f"{r['ms']:.2f}",
            f"{r['slots'] / r['ms'] * 1e3:,.0f}",
            f"{r['before_ms']:.2f}" if "before_ms" in r else "",
        )
        for r in report["rows"]
    ]
    header = ("model", "sequences", "cached tokens of each", "ms per round", "tokens/s", "ms before")
    return table(header, lines) + "\n\n" + source(report)


def sizes(model: str) -> float:
    return float(model[:-1]) * {"M": 1, "B": 1000}[model[-1]]


def prompts() -> str:
    report = newest("gpu_prefill")
    rows = sorted((r for r in report["rows"] if not r["past"]), key=lambda r: (r["prompt"], r["weights"]))
    lines = [(f"{r['prompt']:,}", r["weights"], f"{r['ms']:,.1f}", f"{r['tokens_per_s']:,.0f}") for r in rows]
    return table(("prompt tokens", "weights", "ms to the first token", "tokens/s"), lines) + "\n\n" + source(report)


def cpu_decoders() -> str:
    lines = [
        (
            f"`{report['model']}`",
            f"`{row['decoder']}`",
            f"{row['tokens_per_s']:.1f}",
            f"{row['tokens_per_forward']:.2f}",
            f"{row['over_own_ar']:.2f}",
            f"{row['over_llama_cpp']:.2f}",
        )
        for report in cpu_reports()
        for row in report["results"]
    ]
    header = ("model", "decoder", "tokens/s", "tokens per forward", "over its own `ar`", "over llama.cpp")
    return table(header, lines) + "\n\n" + source(*cpu_reports())


def cpu_streams() -> str:
    """Several streams on a CPU beside llama.cpp."""
    report = newest("cpu_load")
    names = {"quicksilver": "quicksilver", "llama.cpp": "llama.cpp, a slot per stream"}
    lines = [
        (
            str(report["settings"]["streams"]),
            names.get(name, "quicksilver, " + report["baseline_commit"][:7]),
            " and ".join(f"{row['tokens_per_s']:.0f}" for row in rows),
            " and ".join(f"{row['ttft_ms'][0] / 1e3:.1f}" for row in rows),
            f"{report['ratios'][name]:.2f}",
        )
        for name, rows in report["runs"].items()
    ]
    header = ("streams", "server", "tokens/s, two runs", "TTFT p50, s", "quicksilver ÷ this")
    return table(header, lines) + "\n\n" + source(report)


def example_costs() -> str:
    """Forwards and seconds of each example under both decoders."""
    reports = [newest("examples", lambda r, m=m: r["model"] == m) for m in ("nano", "coder-1.5b")]
    lines = [
        (
            f"`{report['model']}`",
            f"`{row['example']}`",
            str(row["verify"]["tokens"]),
            str(row["ar"]["forwards"]),
            str(row["verify"]["forwards"]),
            f"{row['ar']['seconds']:.1f}",
            f"{row['verify']['seconds']:.1f}",
            "yes" if row["is_same"] else "no",
        )
        for report in reports
        for row in report["rows"]
    ]
    header = (
        *("model", "example", "tokens", "forwards, `ar`", "forwards, `verify`"),
        *("s, `ar`", "s, `verify`", "same answers"),
    )
    return table(header, lines) + "\n\n" + source(*reports)


def served_speeds() -> str:
    """Rows of `benchmarks/speed_report.py`; a level that the context excludes has no figures."""
    report = newest("speed-report")
    names = ("first_chunk_s", "output_tokens_per_s", "seconds_to_500", "tokens_per_forward", "quality")
    lines = [
        (
            f"`{row['decoder']}`",
            f"{row['prompt']:,}",
            str(row["parallel"]),
            *("none" if row.get(name) is None else f"{row[name]:.4g}" for name in names),
        )
        for row in report["rows"]
    ]
    header = (
        *("decoder", "prompt tokens", "parallel", "first chunk, s", "output tokens/s", "s to 500 tokens"),
        *("tokens per forward", "sanity, share right"),
    )
    facts = f"{report['model']}, {report['hardware']}."
    return f"{facts}\n\n{table(header, lines)}\n\n{source(report)}"


def claims() -> str:
    """Every claim with its recorded value, the band and the source."""
    header = ("claim", "what", "hardware", "band", "minutes", "needs", "result file")
    return table(header, [claim_line(claim) for claim in read_claims(ROOT / "docs/claims.toml")])


def claim_line(claim: Claim) -> tuple[str, ...]:
    text, file = claim.text, "none"
    if claim.result:
        value, file = newest_value(claim, ROOT, claim.result)
        text = claim.printed(text, value)
    band = f"{claim.band[0]:g} to {claim.band[1]:g}" if claim.band else "none"
    needs = ", ".join([*claim.needs, *([f"`{claim.data}`"] if claim.data else [])])
    return f"`{claim.id}`", text, claim.hardware, band, f"{claim.minutes:g}" if claim.has_run else "", needs, file


def peers() -> tuple[Report, Report]:
    """The reports beside vLLM with several API processes, and beside its default."""
    several = newest("peer_vllm", lambda report: "API processes" in report["peer"])
    return several, newest("peer_vllm", lambda report: "API processes" not in report["peer"])


def speed_picture() -> str:
    peer, _ = peers()
    load = [(str(r["requests"]), (r["tok_per_s"], r["peer_tok_per_s"])) for r in peer["load"]]
    left = Chart(
        "coder-1.5b on one H200, over HTTP: tokens/s", ("quicksilver", peer["peer"]), load, "requests at a time"
    )
    cpu = [
        (report["model"], (best_on_cpu(report)["tokens_per_s"], report["llama_cpp_tokens_per_s"]))
        for report in cpu_reports()
    ]
    right = Chart("2 CPU cores, one request: tokens/s", ("quicksilver", "llama.cpp"), cpu, "the same GGUF file")
    return document(900, 300, bar_chart(left, 10, 0, 560, 300) + "\n" + bar_chart(right, 630, 0, 260, 300))


def domains_picture() -> str:
    coder, _ = speed_reports()
    rows = {(row["domain"], row["way"]): row["decode_tok_per_s"] for row in coder["sections"]["speed"]}
    domains = list(dict.fromkeys(domain for domain, _ in rows))
    groups = [(DOMAINS.get(d, d), (rows[d, SERVED], rows[d, "ar"])) for d in domains]
    chart = Chart(
        "coder-1.5b on one H200, one request: tokens/s",
        ("verify", "ar"),
        groups,
        "the answers are the same, token for token",
    )
    return document(760, 300, bar_chart(chart, 10, 0, 740, 300))


def main() -> int:
    coder, nano = speed_reports()
    peer, default_peer = peers()
    performance = {
        "models": model_speeds(),
        "vllm-load": load_table(peer) + "\n\n" + source(peer),
        "vllm-default": load_table(default_peer) + "\n\n" + source(default_peer),
        "vllm-other": other_table(peer),
        "http-load": http_load(),
        "coder": domain_speeds(coder),
        "nano": domain_speeds(nano),
        "streams": streams(),
        "forwards": forwards(),
        "rounds": rounds(),
        "prompts": prompts(),
        "cpu": cpu_decoders(),
        "cpu-streams": cpu_streams(),
        "served": served_speeds(),
    }
    pages = {
        ROOT / "README.md": {"speed": model_speeds()},
        ROOT / "docs/reference/performance.md": performance,
        ROOT / "docs/guides/examples.md": {"examples": example_costs()},
        ROOT / "docs/reference/families/index.md": {"dialects": dialects()},
        ROOT / "docs/reference/claims.md": {"claims": claims()},
        ROOT / "docs/reference/models/nano.md": {"nano": domain_speeds(nano)},
        ROOT / "docs/reference/models/coder-1.5b.md": {"coder": domain_speeds(coder)},
    }
    return write_pages(pages, {IMAGES / "speed.svg": speed_picture(), IMAGES / "domains.svg": domains_picture()})


if __name__ == "__main__":
    sys.exit(main())
