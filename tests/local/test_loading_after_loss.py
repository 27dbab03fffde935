"""After a loss, workers load what the survivors do again while those are still in the step that breaks off."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.launches import launched, until
from tests.support.resizes import LONG

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import elastic_launcher.torch as elastic

FOLDER = Path(sys.argv[1])

class Written(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        with open(FOLDER / f"loaded-{os.environ['ELASTIC_MEMBER']}", "a") as file:
            file.write(f"{index}\\n")
        return torch.tensor([float(index)])

job = elastic.init(6, 6)
model = torch.nn.Linear(1, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6))
loader = job.dataloader(Written(), num_workers=1)
for _ in job.epochs(1):
    for x in loader:
        if job.step == 3 and not (FOLDER / "go").exists():
            (FOLDER / f"waits-{job.rank}").touch()
            while not (FOLDER / "go").exists():
                time.sleep(0.01)
        job.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_is_done_again_is_loaded_while_the_step_that_breaks_off_still_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def loaded(member: int) -> list[str]:
        path = tmp_path / f"loaded-{member}"
        return path.read_text().split() if path.exists() else []

    with launched("--nodes", "3:3", "--", tmp_path / "script.py", tmp_path, cwd=tmp_path) as job:
        until(lambda: len(list(tmp_path.glob("waits-*"))) == 3, "all wait in step 3, of samples 18 to 23", LONG)
        os.kill(job.node_pid(2), signal.SIGKILL)
        until(lambda: "20" in loaded(1) and "21" in loaded(3), "the lost rank's samples are loaded", LONG)
        (tmp_path / "go").touch()
        assert job.wait(LONG) == 0, job.stderr
    assert [event["node"] for event in job.events.of("node_lost")] == [2]
