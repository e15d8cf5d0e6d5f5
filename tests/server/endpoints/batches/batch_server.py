"""The server of `tests.server.paid_server`, with the same arguments and with short leases on batches."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from quicksilver.server.endpoints.batches import runner
from tests.server.paid_server import serve

if __name__ == "__main__":
    runner.LEASE_S, runner.RENEW_S, runner.POLL_S = 1, 0.2, 0.2
    home, database, port, admin_port = sys.argv[1:]
    asyncio.run(serve(Path(home), database, int(port), int(admin_port)))
