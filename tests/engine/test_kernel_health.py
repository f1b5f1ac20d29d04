"""What the meter saw in a step reaches the runs that were in it."""

from __future__ import annotations

import asyncio

from zellige.engine.api import Sampling, ask
from zellige.engine.kernel_health import RunHealth
from zellige.engine.local import LocalEngine
from zellige.kernels.tally import Reading, Tally


def reading(**seen) -> Reading:
    return Reading((Tally("rms_norm", "cuda:0", **seen),))


def test_work_is_shared_by_tokens_and_findings_concern_every_run_of_the_step():
    health = RunHealth()
    health.share(reading(launches=8, bytes=80, device_ms=4.0, checked=1, guard_hits=3), {"a": 1, "b": 3})
    health.share(reading(launches=8, bytes=80, device_ms=4.0), {"a": 1})
    (a,), (b,) = health.rows("a"), health.rows("b")
    assert (a.launches, a.bytes, a.device_ms) == (10, 100, 5.0)
    assert (b.launches, b.bytes, b.device_ms) == (6, 60, 3.0)
    assert (a.guard_hits, a.verdict, b.guard_hits, b.verdict) == (3, "suspect", 3, "suspect")
    assert health.rows("c") == ()


def test_on_a_cpu_a_run_knows_its_operators_and_that_none_was_compared(model_folder):
    async def run():
        engine = LocalEngine.load(model_folder, device="cpu", dtype="float32")
        await engine.answer(ask("the thing", sampling=Sampling(max_tokens=3), run_id="r"))
        meter = await engine.meter("r")
        await engine.close()
        return meter

    rows = {row.operator: row for row in asyncio.run(run()).kernels}
    assert {"rms_norm", "text_qkv_rope", "route_topk"} <= rows.keys()
    assert {(row.device, row.verdict, row.checked) for row in rows.values()} == {("cpu", "unchecked", 0)}
    assert all(row.launches > 0 for row in rows.values())
