"""The real vLLM: what it scores, what it refuses, and what is left of it when something dies."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from nip_fn.game.chat import Message
from nip_fn.training.tuning import Probe
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.providers.local.policy import load_policy, probe_scores
from nip_fn_adapters.serving.fleet import Fleet, url_of
from nip_fn_adapters.serving.settings import FleetSettings
from nip_fn_adapters.serving.wire import Needs, ProbeText

from ..adapters.fleets import SERVER, refusal, until
from .conftest import MODEL, START_LIMIT, Trained
from .processes import members

TOLERANCE = 0.02  # nats
LONG = 169  # times a question that leave room for a few tokens of a reply
NEEDS = Needs(MODEL, max_lora_rank=16, max_loras=2)


def run(doing: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(doing, 4 * START_LIMIT))


async def served(settings: FleetSettings) -> list[str]:
    url = url_of(settings.host, settings.port) + "/v1/models"
    headers = {"Authorization": f"Bearer {settings.key}"}
    async with aiohttp.request("GET", url, headers=headers) as answer:
        return [model["id"] for model in (await answer.json())["data"]]


def group(settings: FleetSettings) -> int:
    """The process group of the vLLM that was started last."""
    log = settings.folder / "logs" / f"vllm-{settings.port}.log"
    found = re.search(r"APIServer pid=(\d+)", log.read_text())
    assert found is not None
    return int(found.group(1))


def engine(settings: FleetSettings) -> int:
    """The process of vLLM's engine."""
    [found] = [
        int(folder.name)
        for folder in members(group(settings))
        if "EngineCor" in (folder / "comm").read_text()
    ]
    return found


def probes(trained: Trained) -> list[ProbeText]:
    """Those of the job, an empty reply, one that the model does not hold whole, and not at all."""
    return [
        *(ProbeText(chat, reply) for chat, reply in trained.job.probes),
        *(
            ProbeText((Message("user", "is it right? " * times),), reply)
            for times, reply in ((1, ""), (LONG, "no " * 40), (2 * LONG, "yes"))
        ),
    ]


def local_scores(trained: Trained, adapter: str | None) -> list[float]:
    policy = load_policy(MODEL, trained.folder, adapter).unwrap()
    return list(probe_scores(policy, [Probe(one.chat, one.reply) for one in probes(trained)]))


def damaged(trained: Trained, name: str) -> Path:
    """A copy of the first adapter, to be damaged."""
    return Path(shutil.copytree(trained.folder / trained.first, trained.folder / name))


def test_two_adapters_answer_as_in_this_process_also_after_crashes(
    settings: FleetSettings, trained: Trained
) -> None:
    """And adapters that vLLM cannot load are refused, with no harm to the others."""
    both = (trained.first, trained.second)

    async def check(fleet: Fleet) -> None:
        scores = {}
        for adapter in (None, *both):
            scored = (await fleet.score(adapter, probes(trained))).unwrap()
            scores[adapter] = scored.scores
            local = local_scores(trained, adapter)
            assert scores[adapter] == pytest.approx(local, abs=TOLERANCE, rel=0)
            assert scored.dtype == "float32"
        apart = [abs(one - two) for one, two in zip(*map(scores.__getitem__, both), strict=True)]
        assert max(apart) > 1.0

    async def doing() -> None:
        fleet = Fleet(settings, model_directory)
        try:
            (await fleet.start(NEEDS, {})).unwrap()
            assert (await fleet.status()).status == "starting"
            for name in both:
                (await fleet.load(name, trained.folder / name)).unwrap()
            await check(fleet)

            config = damaged(trained, "rank") / "adapter_config.json"
            config.write_text(config.read_text().replace('"r": 4', '"r": 64'))
            (damaged(trained, "missing") / "adapter_model.safetensors").unlink()
            (damaged(trained, "torn") / "adapter_model.safetensors").write_bytes(b"torn")
            for name, reason in (("rank", "rank 64"), ("missing", "tensors"), ("torn", "header")):
                problem = refusal(await fleet.load(name, trained.folder / name))
                assert problem.status == 422
                assert reason in str(problem)
            assert await served(settings) == [MODEL, *both]

            os.kill(group(settings), signal.SIGKILL)
            (await fleet.load("third", trained.folder / trained.first)).unwrap()
            assert await served(settings) == [MODEL, *both, "third"]
            os.kill(engine(settings), signal.SIGKILL)
            await check(fleet)
            assert (await fleet.status()).replicas[0].restarts == 2
            pid = group(settings)
            await fleet.stop()
            assert members(pid) == []
        finally:
            await fleet.close()

    run(doing())


def test_paths_ask_for_the_key_and_a_hung_engine_is_started_again(
    settings: FleetSettings,
) -> None:
    """vLLM's health is answered by a process that does not ask its engine."""
    settings, probe = settings._replace(hang_limit=60.0), ProbeText((Message("user", "is"),), "no")
    url, shown = url_of(settings.host, settings.port), {"Authorization": f"Bearer {settings.key}"}

    async def status(path: str, method: str = "GET", **headers: str) -> int:
        async with aiohttp.request(method, url + path, headers=headers) as answer:
            return answer.status

    async def doing() -> None:
        fleet = Fleet(settings, model_directory)
        try:
            (await fleet.start(NEEDS, {})).unwrap()
            (await fleet.score(None, [probe])).unwrap()  # once it is online
            # All routes are in test_routes.py; here are some of each kind, of a vLLM that runs.
            for method, path in (("GET", "/openapi.json"), ("POST", "/adapters"), ("GET", "/x")):
                assert [await status(path, method), await status(path, method, **shown)] == [
                    404
                ] * 2
            assert await status("/health", Origin="http://localhost") == 200
            assert await status("/v1/models", Origin="http://localhost") == 401
            assert await status("/v1/models", **shown) == 200
            assert await status("/v1/models", **shown, Origin="http://evil.example.org") == 403
            assert await status("/v1/models", **shown, Host="evil.example.org") == 403
            assert await status("/liveness", **shown) == 200

            before = group(settings)
            os.kill(engine(settings), signal.SIGSTOP)
            assert (await fleet.status()).status == "online"  # as far as vLLM's own health tells
            await until(lambda: members(before) == [])
            (await fleet.score(None, [probe])).unwrap()
        finally:
            await fleet.close()

    run(doing())


def test_nothing_of_vllm_outlives_a_server_that_is_killed(
    settings: FleetSettings, tmp_path: Path
) -> None:
    (tmp_path / "model").symlink_to(model_directory(MODEL).unwrap())
    arguments = (str(tmp_path), str(settings.port), "killed", *settings.command)
    with subprocess.Popen(
        (sys.executable, "-c", SERVER, *arguments), stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"online\n"
        pid = group(settings)
        assert len(members(pid)) >= 3  # its server, its engine, its worker
        server.kill()

    async def gone() -> None:
        async with asyncio.timeout(30):
            while members(pid):
                await asyncio.sleep(0.05)

    asyncio.run(gone())


def test_a_model_that_vllm_cannot_serve_is_given_up_with_the_reason(
    settings: FleetSettings, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(model_directory(MODEL).unwrap(), model)
    config = model / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "NoSuchModel"))

    async def doing() -> None:
        restarts = settings.restarts._replace(most=0)
        fleet = Fleet(settings._replace(restarts=restarts), lambda _: model_directory(str(model)))
        try:
            (await fleet.start(NEEDS, {})).unwrap()
            problem = refusal(await fleet.load("any", model))
            assert problem.status == 503
            assert "NoSuchModel" in str(problem)
            assert (await fleet.status()).status == "crashed"
        finally:
            await fleet.close()

    run(doing())
