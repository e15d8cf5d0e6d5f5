"""`quicksilver eval verify`: check the published figures of a checkout, print a line for each and write JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from quicksilver.evals.claims import Claim, Outcome, Verifier, read_claims
from quicksilver.evals.report import machine_facts

DEFAULT_CLAIMS = Path("docs/claims.toml")


def verify_claims(
    claims: Path, data: Path | None, only: Sequence[str], is_measuring: bool, minutes: float, out: Path | None
) -> None:
    """Exit with 1 if a claim does not hold."""
    wanted = _chosen(read_claims(claims), only, claims)
    needs_gpu = is_measuring and any(claim.is_measured and claim.hardware != "cpu" for claim in wanted)
    gpu = _gpu_name() if needs_gpu else ""
    # Commands run in the checkout, so that the folder is named by its whole path.
    data = None if data is None else data.resolve()
    verifier = Verifier(claims.resolve().parents[1], data, gpu, is_measuring, minutes, _announce)
    outcomes = []
    for claim in wanted:
        outcomes.append(verifier.check(claim))
        typer.echo(line(outcomes[-1]))
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    measured = sum(outcome.measured is not None for outcome in outcomes)
    typer.echo(f"{len(outcomes)} claims: {len(outcomes) - failed} pass, {failed} fail; {measured} were measured here")
    if out is not None:
        report = {**machine_facts(), "claims": [outcome.plain() for outcome in outcomes]}
        out.write_text(json.dumps(report, indent=1) + "\n")
    if failed:
        raise typer.Exit(1)


def _chosen(claims: list[Claim], only: Sequence[str], path: Path) -> list[Claim]:
    unknown = sorted(set(only) - {claim.id for claim in claims})
    if unknown:
        raise typer.BadParameter(f"{path} has no claim {', '.join(unknown)}")
    return [claim for claim in claims if not only or claim.id in only]


def _announce(claim: Claim) -> None:
    typer.echo(f"running {claim.id}, expected to take {claim.minutes:g} minutes on two cores", err=True)


def line(outcome: Outcome) -> str:
    """Pass or fail, the values, and the reasons."""
    values = []
    if outcome.recorded is not None:
        values.append(f"recorded {outcome.recorded:.4g}")
    if outcome.measured is not None:
        values.append(f"measured {outcome.measured:.4g}")
    if outcome.claim.band:
        values.append(f"band {outcome.claim.band[0]:g} to {outcome.claim.band[1]:g}")
    if outcome.skipped:
        values.append(f"not measured: {outcome.skipped}")
    word = "FAIL" if outcome.problems else "pass"
    return "\n     ".join([f"{word} {outcome.claim.id}: {', '.join(values) or 'checked'}", *outcome.problems])


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""
