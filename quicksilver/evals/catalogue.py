"""The list of tasks and task groups. A new task is a file in `tasks/` and an entry here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quicksilver.errors import InvalidRequest
from quicksilver.evals.task import Task
from quicksilver.evals.tasks import (
    fim,
    gsm8k,
    infilling,
    instructions,
    json_schema,
    language,
    multiple_choice,
    next_edit,
    programs,
    sanity,
    tools,
)

_MODULES = (
    *(multiple_choice, language, sanity, instructions, fim, infilling),
    *(next_edit, tools, json_schema, programs, gsm8k),
)
ALL: dict[str, Task[Any]] = {task.name: task for module in _MODULES for task in module.TASKS}

# Tasks scored by likelihood. All other tasks generate text.
_SCORED = (*(task.name for task in multiple_choice.TASKS), "wikitext2", "python_text")
# Variants of other tasks. They run only if they are named explicitly.
_BY_CONTEXT = tuple(task.name for task in fim.BY_CONTEXT)
_EACH_ONCE = tuple(name for name in ALL if name not in _BY_CONTEXT)

GROUPS: dict[str, tuple[str, ...]] = {
    "all": _EACH_ONCE,
    "likelihood": (*_SCORED, "lambada"),
    "generating": tuple(name for name in _EACH_ONCE if name not in _SCORED),
    "chat": ("sanity", "instructions", "gsm8k"),
    "skills": ("sanity", "instructions", "fim_python", "fim_js", "next_edit", "sgd_dev", "json_schema"),
    "code": ("humaneval", "mbpp", "humaneval_infill_single", "humaneval_infill_randomlight"),
    "tools": tuple(task.name for task in tools.TASKS),
    "fim_by_context": _BY_CONTEXT,
}


def pick_tasks(names: Iterable[str]) -> list[Task[Any]]:
    """Resolve task and group names to tasks. Each task appears once, in the requested order."""
    wanted: dict[str, Task[Any]] = {}
    for name in names:
        if name not in GROUPS and name not in ALL:
            known = ", ".join([*GROUPS, *ALL])
            raise InvalidRequest(f"no task or group is named {name}; there are {known}", param="tasks")
        wanted |= {task: ALL[task] for task in GROUPS.get(name, (name,))}
    return list(wanted.values())


def refuse_likelihoods(names: Iterable[str]) -> None:
    """Refuse likelihood tasks for clients that cannot score, such as an HTTP server."""
    scored = [task.name for task in pick_tasks(names) if task.name in _SCORED]
    if scored:
        raise InvalidRequest(
            f"{', '.join(scored)}: likelihoods need the engine in this process; leave the server's URL out, or name "
            "tasks of the group generating",
            param="tasks",
        )
