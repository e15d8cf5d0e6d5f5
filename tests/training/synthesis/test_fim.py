"""Fill-in-the-middle rows."""

from __future__ import annotations

import random

from quicksilver.training.synthesis.fim import fim_rows


def test_fim_pieces_join_to_a_piece_of_the_file() -> None:
    text = "\n".join(f"value_{i} = compute({i}, flag=True)" for i in range(60))
    rows = list(fim_rows([text], 20, random.Random(5)))
    assert len(rows) > 5
    assert all(row.prefix + row.middle + row.suffix in text for row in rows)
