"""Records of texts on the wire: real worker, Pyodide and ``fetch``; the gateway's two addresses are answered here."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Route

from pyapp.gateway.telemetry_validation import parse_records
from tests.browser.conftest import Open
from tests.browser.test_door import js, plain

__all__ = ["plain"]

ANSWER = 'data: {"text":"Red cup."}\n\ndata: {"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\ndata: [DONE]\n\n'


async def test_records_reach_the_address_by_the_close(plain: Open) -> None:
    page = await plain()
    bodies: list[str] = []

    async def stream(route: Route) -> None:
        await route.fulfill(content_type="text/event-stream", body=ANSWER)

    async def take(route: Route) -> None:
        bodies.append(route.request.post_data or "")
        await route.fulfill(status=204)

    await page.context.route("**/api/ai/cloud-stream", stream)
    await page.context.route("**/api/ai/telemetry", take)
    records: Any = await js(
        page,
        """
        const records = [];
        const onTelemetry = (record) => records.push(record);
        const client = await createClient({ adapter: "none", telemetry: "/api/ai/telemetry", onTelemetry });
        for (const prompt of ["a secret teapot", "another secret"]) await collect(client.generate({ prompt }));
        await client.close();
        return records;
        """,
    )
    assert [record for body in bodies for record in parse_records(body.encode())] == records
    assert [record["outcome"] for record in records] == ["stop", "stop"]
    assert [(record["device_tokens"], record["cloud_tokens"], record["prompt_tokens"]) for record in records] == [
        (0, 3, 9)
    ] * 2
    assert {record["fallbacks"][0]["reason"] for record in records} == {"no_device"}
    assert all(0 < record["first_ms"] <= record["total_ms"] for record in records)
    assert not any(word in body for body in bodies for word in ("secret", "cup"))
