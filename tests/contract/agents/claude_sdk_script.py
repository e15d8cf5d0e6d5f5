"""One task for Claude Code by way of its Agent SDK. Runs with the interpreter of the clients' environment."""

from __future__ import annotations

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query


async def main(task: str) -> int:
    options = ClaudeAgentOptions(
        system_prompt={"type": "preset", "preset": "claude_code"},
        permission_mode="acceptEdits",
        allowed_tools=["Read", "Edit"],
    )
    result = None
    async for message in query(prompt=task, options=options):
        result = message if isinstance(message, ResultMessage) else result
    print(result)
    return 0 if result is not None and not result.is_error else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
