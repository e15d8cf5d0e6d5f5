"""Writes items of ARC-easy, PIQA and SciQ as a file for `test_lm_eval.py`.

`python -m tests.contract.harness_items DATA COUNT > items.jsonl` takes the first COUNT items of each set from the
evaluation data below DATA.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from quicksilver.evals.data import pack_records

SETS = ("arc_easy", "piqa", "sciq")


def main(data: Path, count: int) -> None:
    for name in SETS:
        for record in pack_records(data, name)[:count]:
            print(json.dumps({**record, "task": name}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
