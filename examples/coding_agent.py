"""A coding agent that repairs seeded bugs in a repository: read, propose a line, edit, run the test, repeat.

The repository is made in a temporary folder, with one wrong line in each of its functions. For every failing test the
model writes the repaired line. A grammar allows only small changes of the lines of the function, without those that
failed, so the loop ends. An edit stays only if the test passes: the model decides how many edits a repair takes, the
tests decide what is right.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from examples.measure import Chat, compare, connect, parser

CODE = '''\
def largest(values):
    """The largest number of a list."""
    best = values[0]
    for value in values:
        if value < best:
            best = value
    return best


def mean(values):
    """The arithmetic mean of a list."""
    return sum(values) / len(values) + 1


def count_up_to(last):
    """The numbers from 1 to last, last included."""
    return list(range(1, last))


def is_even(number):
    """Whether a number is even."""
    return number % 2 == 1
'''
TESTS = {
    "largest": "largest([3, 9, 4]) == 9",
    "mean": "mean([2, 4]) == 3",
    "count_up_to": "count_up_to(3) == [1, 2, 3]",
    "is_even": "is_even(4) and not is_even(3)",
}
# Pairs of a pattern and what may stand in its place.
CHANGES = (
    (r" < ", (" > ", " <= ")),
    (r" > ", (" < ", " >= ")),
    (r" == 1", (" == 0", " == 2")),
    (r" \+ 1$", ("",)),
    (r", (\w+)\)", (r", \1 + 1)", r", \1 - 1)")),
    (r"\[0\]", ("[1]", "[-1]")),
)


@dataclass(frozen=True)
class Edit:
    before: str
    after: str


@dataclass(frozen=True)
class Repository:
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "shop.py"

    def failing(self) -> list[str]:
        return [name for name in TESTS if not self.passes(name)]

    def passes(self, name: str) -> bool:
        """Runs one test in a process of its own."""
        code = f"from shop import {name}\nassert {TESTS[name]}"
        done = subprocess.run([sys.executable, "-c", code], cwd=self.folder, capture_output=True, timeout=60)
        return done.returncode == 0

    def function(self, name: str) -> str:
        found = re.search(rf"def {name}\(.*?(?=\n\n\n|\Z)", self.path.read_text(), re.DOTALL)
        assert found is not None
        return found[0].rstrip()

    def apply(self, name: str, edit: Edit) -> None:
        old = self.function(name)
        self.path.write_text(self.path.read_text().replace(old, old.replace(edit.before, edit.after)))


def candidates(function: str) -> list[Edit]:
    lines = [line for line in function.splitlines()[2:] if line.strip()]
    found = [
        Edit(line, re.sub(pattern, other, line, count=1))
        for line in lines
        for pattern, others in CHANGES
        for other in others
        if re.search(pattern, line)
    ]
    return list(dict.fromkeys(found))


def propose(chat: Chat, conversation: list[dict[str, str]], edits: list[Edit]) -> Edit:
    """The line that the model writes; it is one of the edits."""
    by_line = {edit.after.strip(): edit for edit in edits}
    grammar = "start: " + " | ".join(json.dumps(line) for line in by_line)
    message = chat.ask(conversation, max_tokens=48, response_format={"type": "grammar", "grammar": grammar})
    conversation.append({"role": "assistant", "content": message.content or ""})
    return by_line[message.content or ""]


def repair(chat: Chat, repository: Repository, name: str) -> list[Edit]:
    """All edits that were tried; the last one made the test pass."""
    function, clean = repository.function(name), repository.path.read_text()
    task = f"{function}\n\nThe test `assert {TESTS[name]}` fails. Write the line of the function as it should be."
    conversation, left, tried = [{"role": "user", "content": task}], candidates(function), list[Edit]()
    while left:
        tried.append(propose(chat, conversation, left))
        repository.apply(name, tried[-1])
        if repository.passes(name):
            break
        repository.path.write_text(clean)
        left.remove(tried[-1])
        conversation.append({"role": "user", "content": "The test still fails. Write another line."})
    return tried


def run(chat: Chat) -> dict[str, list[Edit]]:
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        repository.path.write_text(CODE)
        tried = {name: repair(chat, repository, name) for name in repository.failing()}
        assert not repository.failing()
    return tried


def main() -> None:
    tried = compare(connect(parser(__doc__).parse_args()), run)
    for name, edits in tried.items():
        print(f"{name}: {edits[-1].before.strip()} -> {edits[-1].after.strip()} (edit {len(edits)})")
    print(f"{len(tried)} of {len(TESTS)} functions repaired in {sum(map(len, tried.values()))} edits")


if __name__ == "__main__":
    main()
