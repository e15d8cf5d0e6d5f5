"""Templates of code models in plain prompts: recognised when complete and in order, and only then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quicksilver.editing.templates import FimParts, read_edit, read_fim

PREFIX, SUFFIX = "def f(x):\n    return ", "\n\nprint(f(1))\n"
FIM = {
    "qwen": "<|fim_prefix|>{p}<|fim_suffix|>{s}<|fim_middle|>",
    "starcoder": "<fim_prefix>{p}<fim_suffix>{s}<fim_middle>",
    "santacoder": "<fim-prefix>{p}<fim-suffix>{s}<fim-middle>",
    "deepseek": "<｜fim▁begin｜>{p}<｜fim▁hole｜>{s}<｜fim▁end｜>",  # noqa: RUF001
    "codellama": "<PRE> {p} <SUF>{s} <MID>",
    "codestral": "[SUFFIX]{s}[PREFIX]{p}",
    "suffix first": "<fim_prefix><fim_suffix>{s}<fim_middle>{p}",
    "glm": "<|code_prefix|>{p}<|code_suffix|>{s}<|code_middle|>",
    "codegeex": "<|code_suffix|>{s}<|code_prefix|>{p}<|code_middle|>",
    "seed": "<[fim-suffix]>{s}<[fim-prefix]>{p}<[fim-middle]>",
    "seed, prefix first": "<[fim-prefix]>{p}<[fim-suffix]>{s}<[fim-middle]>",
    "qwen with a path": "<|file_sep|>shop.py\n<|fim_prefix|>{p}<|fim_suffix|>{s}<|fim_middle|>",
}
GAP = "<|fim_prefix|>{p}<|fim_suffix|>{s}<|fim_middle|>"
REPOSITORIES = {
    "qwen": "<|repo_name|>shop\n<|file_sep|>tax.py\nTAX = 2\n<|file_sep|>a.py\nx = 1\n<|file_sep|>shop.py\n" + GAP,
    "without a name": "<|file_sep|>tax.py\nTAX = 2\n<|file_sep|>a.py\nx = 1\n<|file_sep|>shop.py\n" + GAP,
    "starcoder": (
        "<repo_name>shop<file_sep>tax.py\nTAX = 2<file_sep>a.py\nx = 1<file_sep>shop.py\n"
        "<fim_prefix>{p}<fim_suffix>{s}<fim_middle>"
    ),
    "without a path": (
        "<file_sep>tax.py\nTAX = 2<file_sep>a.py\nx = 1<file_sep><fim_prefix>{p}<fim_suffix>{s}<fim_middle>"
    ),
}
ZETA = """### Instruction:
You are a code completion assistant.

### User Edits:

User edited "shop.py":
```diff
@@ -1 +1 @@
-def total(tax):
+def total(tax_rate):
```

### User Excerpt:

```shop.py
<|start_of_file|>
import math
<|editable_region_start|>
def total(tax_rate):
    return 1 + ta<|user_cursor_is_here|>x
<|editable_region_end|>
print(total(2))
```

### Response:

"""
SWEEP = (
    "<|file_sep|>shop.py.diff\noriginal:\ndef total(tax):\nupdated:\ndef total(tax_rate):\n"
    "<|file_sep|>original/shop.py\ndef total(tax):\n    return 1 + tax\n"
    "<|file_sep|>current/shop.py\ndef total(tax_rate):\n    return 1 + ta<|cursor|>x\n"
    "<|file_sep|>updated/shop.py\n"
)


@pytest.mark.parametrize("name", FIM)
def test_parts_of_every_family(name: str) -> None:
    assert read_fim(FIM[name].format(p=PREFIX, s=SUFFIX)) == FimParts(PREFIX, SUFFIX)


@pytest.mark.parametrize("name", REPOSITORIES)
def test_other_files_of_a_repository_come_before_the_prefix(name: str) -> None:
    parts = read_fim(REPOSITORIES[name].format(p=PREFIX, s=SUFFIX))
    assert parts == FimParts(PREFIX, SUFFIX, "tax.py\nTAX = 2\n\na.py\nx = 1\n\n")
    assert parts.before == "tax.py\nTAX = 2\n\na.py\nx = 1\n\n" + PREFIX


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        PREFIX,
        "shop<|file_sep|>shop.py\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<|repo_name|>shop\nx<|file_sep|>shop.py\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<|file_sep|>shop.py\nx = 1\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<file_sep>shop.py\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<|code_suffix|>b<|code_prefix|>a<|code_middle|>c",
        "x<[fim-suffix]>b<[fim-prefix]>a<[fim-middle]>",
        "<|fim_prefix|>a<|fim_middle|>",
        "<|fim_suffix|>b<|fim_prefix|>a<|fim_middle|>",
        "<|fim_prefix|>a<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<|fim_prefix|>a<fim_suffix>b<|fim_middle|>",
        "What does <|fim_prefix|>a<|fim_suffix|>b<|fim_middle|> mean?",
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>c",
        "see [SUFFIX] and [PREFIX]",
        "[PREFIX]a[SUFFIX]b",
    ],
)
def test_near_templates_are_plain_text(prompt: str) -> None:
    assert read_fim(prompt) is None
    assert read_edit(prompt) is None


def test_zeta() -> None:
    template = read_edit(ZETA)
    assert template is not None
    edit = template.request
    assert (edit.path, edit.before, edit.after) == ("shop.py", "import math\n", "\nprint(total(2))")
    assert edit.region == "def total(tax_rate):\n    return 1 + tax"
    assert edit.cursor == edit.region.rindex("x")
    assert edit.history == ("@@ -1 +1 @@\n-def total(tax):\n+def total(tax_rate):",)
    assert template.write_reply("new") == "<|editable_region_start|>\nnew\n<|editable_region_end|>"


def test_sweep() -> None:
    template = read_edit(SWEEP)
    assert template is not None
    edit = template.request
    assert (edit.path, edit.before, edit.after) == ("shop.py", "", "")
    assert edit.region == "def total(tax_rate):\n    return 1 + tax"
    assert edit.history == ("--- shop.py\n+++ shop.py\n@@ -1,1 +1,1 @@\n-def total(tax):\n+def total(tax_rate):",)
    assert template.write_reply("new") == "new\n"


@pytest.mark.parametrize(
    "prompt",
    [
        ZETA.replace("<|editable_region_end|>", ""),
        ZETA + "text",
        ZETA.replace("### User Excerpt:", "### Excerpt:"),
        SWEEP + "text",
        SWEEP.replace("current/", "now/"),
        SWEEP.replace("updated/shop.py", "updated/other.py"),
        "text" + SWEEP,
    ],
)
def test_near_edits_are_plain_text(prompt: str) -> None:
    assert read_edit(prompt) is None


MARKS = [
    "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|code_prefix|>", "<|code_suffix|>",
    "<|code_middle|>", "[SUFFIX]", "[PREFIX]", "<PRE> ", " <SUF>", " <MID>",
    "<|file_sep|>", "current/a\n", "original/a\n", "updated/a\n", "### User Edits:", "### User Excerpt:",
    "### Response:", "```a\n", "\n```", "<|editable_region_start|>", "<|editable_region_end|>", "x", "\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(MARKS), max_size=14))
def test_marks_in_any_order_are_read_as_parts_of_the_prompt_or_not_at_all(parts: list[str]) -> None:
    prompt = "".join(parts)
    fim, edit = read_fim(prompt), read_edit(prompt)
    assert fim is None or (fim.prefix in prompt and fim.suffix in prompt)
    assert edit is None or edit.request.region in prompt
