"""Fifty adapters, one after the other: what vLLM holds does not grow."""

from pathlib import Path

import pytest

from nip_fn_adapters.local.models import model_directory
from nip_fn_adapters.serving.fleet import Fleet, FleetSettings

from .conftest import Trained
from .processes import Use, use
from .test_fleet import MODEL, NEEDS, group, probes, run, served

SWITCHES, SETTLED = 50, 12  # by then, vLLM keeps as many adapters in memory as it ever does
GROWTH = 32.0  # MiB of resident memory, for all processes together


def test_memory_and_files_of_vllm_stay_flat(
    settings: FleetSettings, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"switch-{i}" for i in range(SWITCHES)]
    folders = [trained.folder / name for name in (trained.first, trained.second)]
    asked = probes(trained)[:1]

    async def switch(fleet: Fleet, name: str, folder: Path, old: str | None) -> float:
        (await fleet.load(name, folder)).unwrap()
        [score] = (await fleet.score(name, asked)).unwrap()
        if old is not None:
            await fleet.unload(old)
        return score

    async def doing() -> None:
        fleet = Fleet(settings, model_directory)
        uses: list[Use] = []
        scores: list[float] = []
        try:
            (await fleet.start(NEEDS, {})).unwrap()
            for i, (name, old) in enumerate(zip(names, [None, *names], strict=False)):
                scores.append(await switch(fleet, name, folders[i % 2], old))
                uses.append(use(group(settings)))
            assert await served(settings) == [MODEL, names[-1]]
        finally:
            await fleet.close()
        with capsys.disabled():
            print()
            for i in (0, SETTLED, SWITCHES - 1):
                told = uses[i]
                print(f"switch {i:2}: {told.resident:7.1f} MiB, {told.files} open files")
        assert scores[::2] == pytest.approx([scores[0]] * (SWITCHES // 2), abs=0.01)
        assert scores[1::2] == pytest.approx([scores[1]] * (SWITCHES // 2), abs=0.01)
        assert abs(scores[0] - scores[1]) > 1.0
        assert uses[-1].resident - uses[SETTLED].resident < GROWTH
        assert uses[-1].files <= uses[SETTLED].files
        assert uses[-1].processes == uses[0].processes

    run(doing())
