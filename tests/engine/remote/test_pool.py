"""Several engines: who is asked, who is out, and how one comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from remotes import remote
from standin import Asked, StandIn, answer

from zellige.engine.api import EngineUnavailable, KernelHealth, RunMeter, ask

STAND_IN = Path(__file__).with_name("standin.py")


def own_model(fingerprint: str = "f1", name: str = "m") -> dict[str, Any]:
    """What our own server says of its model."""
    vision = {"patch": 16, "merge": 2, "min_pixels": 1024, "max_pixels": 65536, "max_aspect": 200.0}
    about = {"fingerprint": fingerprint, "dtype": "float32", "vision": vision}
    about |= {"follows_instructions": False, "lines_at_once": 2}
    return {"id": name, "owned_by": "zellige", "max_model_len": 4096, "zellige": about}


def test_requests_go_to_the_engine_with_the_least_in_flight(go: Any) -> None:
    async def work() -> tuple[int, int, list[int]]:
        release = asyncio.Event()

        async def held(asked: Asked) -> None:
            await release.wait()
            await answer(asked)

        stuck, free = await StandIn(otherwise=held).start(), await StandIn().start()
        async with remote(stuck, free) as engine:
            waiting = [asyncio.create_task(engine.answer(ask("first")))]
            while not stuck.asked:
                await asyncio.sleep(0.01)
            for i in range(5):
                await engine.answer(ask(f"{i}"))
            one, others = len(stuck.asked), len(free.asked)
            free.otherwise = held
            waiting += [asyncio.create_task(engine.answer(ask(f"{i}"))) for i in range(9)]
            while stuck.at_once + free.at_once < 10:
                await asyncio.sleep(0.01)
            spread = [stuck.at_once, free.at_once]
            release.set()
            await asyncio.gather(*waiting)
        return one, others, spread

    assert go(work()) == (1, 5, [5, 5])


def test_engines_that_answer_one_request_at_a_time_share_the_work(go: Any) -> None:
    async def work() -> list[int]:
        servers = [await StandIn().start() for _ in range(3)]
        async with remote(*servers) as engine:
            for i in range(9):
                await engine.answer(ask(f"{i}"))
        return [len(s.asked) for s in servers]

    assert go(work()) == [3, 3, 3]


def test_an_engine_that_is_not_there_at_first_joins_once_it_is(go: Any) -> None:
    async def work() -> tuple[int, int]:
        late, there = await StandIn().start(), await StandIn().start()
        await late.stop()
        async with remote(late, there) as engine:
            for i in range(4):
                await engine.answer(ask(f"{i}"))
            assert len(there.asked) == 4
            await late.start()
            await asyncio.sleep(0.5)
            await asyncio.gather(*(engine.answer(ask(f"{i}")) for i in range(4)))
        return len(late.asked), len(there.asked)

    late, there = go(work())
    assert late >= 2
    assert late + there == 8


def test_an_engine_that_is_not_ready_is_out_until_its_health_says_otherwise(go: Any) -> None:
    async def work() -> tuple[int, int]:
        starting, there = await StandIn(health=503).start(), await StandIn(health=200).start()
        async with remote(starting, there) as engine:
            await asyncio.gather(*(engine.answer(ask(f"{i}")) for i in range(6)))
            before = len(starting.asked)
            starting.health = 200
            await asyncio.sleep(0.5)
            await asyncio.gather(*(engine.answer(ask(f"{i}")) for i in range(6)))
        return before, len(starting.asked)

    before, after = go(work())
    assert before == 0
    assert after == 3


def test_the_only_engine_is_waited_for_while_it_starts(go: Any) -> None:
    async def work() -> str:
        server = await StandIn(health=503).start()
        async with remote(server) as engine:
            asyncio.get_running_loop().call_later(0.3, setattr, server, "health", 200)
            return (await engine.answer(ask("x"))).text

    assert go(work()) == "you said x"


def test_no_engine_at_all_is_told_at_once_with_each_address(go: Any) -> None:
    with socket.socket() as taken:  # bound and not listening: nothing answers here, and nobody else takes it
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"

        async def work() -> tuple[float, str]:
            start = time.monotonic()
            async with remote(url) as engine:
                with pytest.raises(EngineUnavailable) as caught:
                    await engine.identity()
            return time.monotonic() - start, str(caught.value)

        seconds, message = go(work())
    assert seconds < 5
    assert url.removesuffix("/v1") in message


def test_engines_that_die_for_good_are_given_up_after_a_while(go: Any) -> None:
    async def work() -> float:
        server = await StandIn().start()
        async with remote(server, unreachable_s=0.5) as engine:
            await engine.answer(ask("x"))
            await server.stop()
            start = time.monotonic()
            with pytest.raises(EngineUnavailable):
                await engine.answer(ask("y"))
            return time.monotonic() - start

    assert go(work()) < 10


def test_engines_of_one_run_serve_one_model(go: Any) -> None:
    async def work() -> None:
        a = await StandIn(models=[own_model("f1")]).start()
        b = await StandIn(models=[own_model("f2")]).start()
        async with remote(a, b) as engine:
            with pytest.raises(EngineUnavailable, match="engines of one run serve one model"):
                await engine.identity()

    go(work())


def test_an_engine_that_comes_back_with_another_model_stays_out(go: Any) -> None:
    async def gone(asked: Asked) -> None:
        a.models = [own_model("f2")]
        asked.cut()

    async def work() -> tuple[list[str], int]:
        await a.start()
        b = await StandIn(models=[own_model("f1", "other name")]).start()
        async with remote(a, b) as engine:
            answers = await asyncio.gather(*(engine.answer(ask(f"{i}")) for i in range(8)))
            await asyncio.sleep(0.3)
            before = len(a.asked)
            await asyncio.gather(*(engine.answer(ask(f"{i}")) for i in range(8)))
            assert {asked.body["model"] for asked in b.asked} == {"other name"}
            return [x.text for x in answers], len(a.asked) - before

    a = StandIn([gone] * 4, models=[own_model("f1")])
    answers, asked_later = go(work())
    assert answers == [f"you said {i}" for i in range(8)]
    assert asked_later == 0


def test_the_meters_of_several_engines_are_added_and_one_that_is_gone_counts_as_seen_from_here(go: Any) -> None:
    async def work() -> RunMeter:
        a, b = await StandIn(models=[own_model()]).start(), await StandIn(models=[own_model()]).start()
        a.other["/v1/runs/r/meter"] = {"requests": 5, "decode_s": 0.5}
        b.other["/v1/runs/r/meter"] = {"requests": 9, "decode_s": 9.0}
        async with remote(a, b) as engine:
            await asyncio.gather(*(engine.answer(ask("x", run_id="r")) for _ in range(6)))
            await b.stop()
            return await engine.meter("r")

    meter = go(work())
    assert meter.requests == 5 + 3
    assert meter.decode_s == 0.5


def test_the_meter_is_our_servers_own_and_counted_here_for_any_other(go: Any) -> None:
    kernel = KernelHealth("rms_norm", "cuda:0", 9, 1, 1e-6, 1e-3, 0, 0, 0, 0, 1.5, 4096, "healthy")
    measured = {"requests": 9, "images": 4, "decode_s": 1.5, "vision_s": 2, "something_new": [1]}
    measured["kernels"] = [{**asdict(kernel), "something_new": 1}]

    async def work() -> list[RunMeter]:
        ours, other = await StandIn(models=[own_model()]).start(), await StandIn().start()
        ours.other["/v1/runs/r1/meter"] = measured
        meters = []
        for server in (ours, other):
            async with remote(server) as engine:
                await engine.answer(ask("x", run_id="r1"))
                await engine.answer(ask("x", run_id="r2"))
                meters += [await engine.meter("r1"), await engine.meter("r2")]
        return meters

    ours, missing, counted, _ = go(work())
    assert ours == RunMeter(requests=9, images=4, decode_s=1.5, vision_s=2.0, kernels=(kernel,))
    assert missing == RunMeter(requests=1, prompt_tokens=7, completion_tokens=3), "counted here where it has no page"
    assert counted == RunMeter(requests=1, prompt_tokens=7, completion_tokens=3)


async def _spawn(port: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(STAND_IN), str(port), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.parametrize("engines", [1, 2])
def test_a_server_killed_and_started_again_in_the_middle_costs_no_answer(go: Any, engines: int) -> None:
    async def work() -> list[str]:
        ports = [_free_port() for _ in range(engines)]
        processes = [await _spawn(p) for p in ports]
        places = asyncio.Semaphore(16)
        done = 0
        try:
            async with remote(*(f"http://127.0.0.1:{p}/v1" for p in ports), unreachable_s=20, deadline_s=25) as engine:

                async def one(i: int) -> str:
                    nonlocal done
                    async with places:
                        text = (await engine.answer(ask(f"{i}"))).text
                    done += 1
                    return text

                tasks = [asyncio.create_task(one(i)) for i in range(200)]
                for threshold in (40, 120):
                    while done < threshold:
                        await asyncio.sleep(0.01)
                    os.kill(processes[0].pid, signal.SIGKILL)
                    await processes[0].wait()
                    await asyncio.sleep(0.3)
                    processes[0] = await _spawn(ports[0])
                return await asyncio.gather(*tasks)
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    assert go(work()) == [f"you said {i}" for i in range(200)]
