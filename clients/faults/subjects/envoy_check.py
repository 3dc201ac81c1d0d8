"""The subject of redis-rl-envoy's door /check: a gateway in front of an application, which asks the service by HTTP.

As Traefik or nginx it passes the headers of a request to /check, and lets its application answer where that says 200.
Anything else goes to the client.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import envoy

from harness.http import Connection

CAN = ["serve", "memory", "open", "closed", "several", "cluster"]


class Gateway(envoy.Service):
    """A service and the gateway that asks it."""

    def __init__(self, c: dict[str, Any]) -> None:
        # The deadline of a middleware, where the scenario says nothing.
        super().__init__(c["connect"], c.get("timeout", 0.25))
        self.env["ON_ERROR"] = {"open": "allow", "closed": "deny"}[c["policy"]]
        rates = [rate.strip().split("/") for part in c["rule"]["rates"] for rate in part.split(",")]
        listed = ", ".join(f"{{unit: {envoy.UNITS[unit]}, requests_per_unit: {limit}}}" for limit, unit in rates)
        self.config = (
            "domain: faults\nhttp: {key: {header: x-key}}\n"
            f"descriptors: [{{key: key, rate_limit: {{algorithm: {c['rule']['kind']}, rates: [{listed}]}}}}]\n"
        )

    def write(self) -> None:
        (self.folder / "config/limits.yaml").write_text(self.config)

    async def serve(self) -> int:
        await self.start()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 20)
        self.serving = asyncio.get_running_loop().create_task(server.serve_forever())
        return int(server.sockets[0].getsockname()[1])

    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = (line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:] if line)
                headers = {name.replace("-", "_"): value for name, _, value in fields if name.startswith("x-")}
                async with self.places:
                    connection = self.free.pop() if self.free else Connection(self.http)
                    answer = await connection.get("/check/faults", **headers)
                    self.free.append(connection)
                # As gateways do where the service cannot be reached.
                status, body = (200, "in") if answer.status == 200 else (answer.status or 500, answer.body)
                writer.write(f"HTTP/1.1 {status} -\r\ncontent-length: {len(body.encode())}\r\n\r\n{body}".encode())
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


gateways: list[Gateway] = []


async def play(c: dict[str, Any]) -> dict[str, Any]:
    if c["do"] == "memory":
        return {"outcome": "done", "count": gateways[-1].memory()}
    if c["rule"]["kind"] == "lease" or c["policy"] == "local":
        return {"outcome": "argument", "error": "the service has no such rule or policy by HTTP"}
    gateways.append(Gateway(c))
    try:
        return {"outcome": "done", "port": await gateways[-1].serve()}
    except (KeyError, ValueError) as error:
        return {"outcome": "argument", "error": str(error)}


if __name__ == "__main__":
    asyncio.run(envoy.main(CAN, play))
