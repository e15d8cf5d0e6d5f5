"""Writes the grammar masks of a batch: constraints of one group in one call, all others by themselves."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from quicksilver.core import MaskGroup, MaskTask, TokenConstraint


def write_masks(tasks: Seq[MaskTask[TokenConstraint]]) -> list[int]:
    """-> for each task how many rows have a mask. An exception of a constraint propagates."""
    num_rows = [0] * len(tasks)
    for group, members in _by_group(tasks):
        if group is None or len(members) == 1:
            for i in members:
                constraint, ahead, out = tasks[i]
                num_rows[i] = constraint.write_masks(ahead, out)
        else:
            found = group.write_masks([tasks[i] for i in members])
            for i, count in zip(members, found, strict=True):
                num_rows[i] = count
    return num_rows


def _by_group(tasks: Seq[MaskTask[TokenConstraint]]) -> list[tuple[MaskGroup | None, list[int]]]:
    """Groups with the places of their tasks. There are few groups, and they need not be hashable."""
    groups: list[tuple[MaskGroup | None, list[int]]] = []
    for i, (constraint, _, _) in enumerate(tasks):
        group = constraint.group
        for known, members in groups:
            if known == group:
                members.append(i)
                break
        else:
            groups.append((group, [i]))
    return groups
