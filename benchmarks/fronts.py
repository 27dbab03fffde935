"""What the fronts cost those who use them, against the same without us: import, compile, render, lint, run as a step.

Imports and the command line are whole processes, each a fresh one. What is made or read in this process is done once
before it is timed, so that no import is in it; each figure of a run then is the median of so many. A step is
``elastic_train`` under ``kfp.local`` with the subprocess runner, as ``make run`` has it; the peers are
``elastic-launcher run`` with the same script and options, and a plain step that runs just that.
"""

# annotations stay objects in this file: kfp reads them

import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import SCRIPTS, finish, in_turn, options_of, row
from elastic_launcher import __version__

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / "pipelines" / "hera_examples" / "digits.yaml"
PIPELINE = ROOT / "tests" / "golden" / "digits_elastic.yaml"
SCRIPT = SCRIPTS / "fronts_train.py"
OPTIONS = {"min_nodes": 1, "max_nodes": 3, "global_batch_size": 256, "max_batch_per_gpu": 64}

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """What is done with us and without.

    Attributes:
        name: As it is printed.
        ours: Done with us.
        peer: Done without.
        without: What the peer is, in words.
        repeats: How often it is done in a run, after once that does not count; 1 where each is a new process.
    """

    name: str
    ours: Work
    peer: Work
    without: str
    repeats: int = 20


def milliseconds(work: Work, repeats: int) -> float:
    """Returns how long a work takes."""
    times = []
    if repeats > 1:
        work()
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def python(*arguments: str | Path) -> Work:
    """Returns what runs Python with some arguments, to a good end."""
    command = [sys.executable, *map(str, arguments)]
    return lambda: subprocess.run(command, check=True, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True)


def compile_ours() -> None:
    """Compiles a pipeline of our step alone."""
    from elastic_launcher.kfp import elastic_train

    compile_pipeline(lambda: elastic_train(script="train.py", **OPTIONS))


def compile_plainly() -> None:
    """Compiles a pipeline of a step that a user would write without us."""
    from kfp import dsl

    @dsl.component(base_image="python:3.11", packages_to_install=["torch"])
    def train(script: str, batch_size: int, model: dsl.Output[dsl.Model]) -> None:  # type: ignore[type-arg]
        import subprocess
        import sys

        subprocess.run([sys.executable, script, str(batch_size), model.path], check=True)

    compile_pipeline(lambda: train(script="train.py", batch_size=256))


def compile_pipeline(step: Work) -> None:
    """Compiles a pipeline of one step."""
    from kfp import compiler, dsl

    @dsl.pipeline(name="train")
    def pipeline() -> None:
        step()

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        compiler.Compiler().compile(pipeline, f"{folder}/train.yaml")


def hera_ours() -> str:
    """Writes a workflow of our step."""
    from hera.workflows import Workflow

    from elastic_launcher.hera import ElasticTrain

    with Workflow(generate_name="train-", entrypoint="train") as workflow:
        ElasticTrain(name="train", image="train", script="train.py", nodes="1:3", global_batch_size=256)
    return str(workflow.to_yaml())


def hera_plainly() -> str:
    """Writes a workflow of a container that a user would write without us."""
    from hera.workflows import Container, Workflow

    with Workflow(generate_name="train-", entrypoint="train") as workflow:
        Container(name="train", image="train", command=["torchrun"], args=["--nproc-per-node=1", "train.py"])
    return str(workflow.to_yaml())


def argo_ours() -> str:
    """Writes the template ``elastic-train``, a step for all its options."""
    from elastic_launcher.argo import render, workflow_template

    return render(workflow_template("WorkflowTemplate"))


def lint_file(path: Path) -> None:
    """Lints a file, as the command does."""
    from elastic_launcher.lint import lint

    lint({path.name: path.read_text()})


def read_workflow() -> None:
    """Reads a workflow as Hera does, which refuses what its models do not know."""
    from hera.workflows import Workflow

    Workflow.from_yaml(WORKFLOW.read_text())


def read_pipeline() -> None:
    """Reads a pipeline as kfp does, which refuses what is none."""
    from kfp import components

    components.load_component_from_text(PIPELINE.read_text())


def run_step() -> None:
    """Trains in our step of Kubeflow, on this machine."""
    from elastic_launcher.kfp import elastic_train

    run_locally(lambda: elastic_train(script=str(SCRIPT)))


def run_plain_step() -> None:
    """Trains with the launcher in a step that a user would write, which installs what ours installs."""
    from kfp import dsl

    @dsl.component(
        base_image="python:3.11",
        packages_to_install=[f"elastic-launcher[kfp,kubernetes,storage,torch]=={__version__}"],
        install_kfp_package=False,
    )
    def train(command: list, script: str, model: dsl.Output[dsl.Model]) -> None:  # type: ignore[type-arg]
        import subprocess

        subprocess.run([*command, f"--work-dir={model.path}.job", f"--output={model.path}", script], check=True)

    launcher = [sys.executable, "-m", "elastic_launcher", "run"]
    run_locally(lambda: train(command=launcher, script=str(SCRIPT)))


def run_locally(step: Work) -> None:
    """Runs a step of Kubeflow on this machine, to a good end."""
    from kfp import local

    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.redirect_stdout(io.StringIO()) as told:
        local.init(local.SubprocessRunner(use_venv=False), pipeline_root=folder, workspace_root=folder)
        try:
            step()
        except RuntimeError as error:
            raise RuntimeError(told.getvalue()[-2000:]) from error


def run_bare() -> None:
    """Trains with the launcher alone."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        python("-m", "elastic_launcher", "run", f"--work-dir={folder}/job", f"--output={folder}/model", SCRIPT)()


CASES = (
    Case(
        "import the component of Kubeflow",
        python("-c", "from elastic_launcher.kfp import elastic_train"),
        python("-c", "from kfp import dsl"),
        "kfp.dsl alone",
        1,
    ),
    Case(
        "import the template of Hera",
        python("-c", "from elastic_launcher.hera import ElasticTrain"),
        python("-c", "from hera.workflows import Container"),
        "hera.workflows alone",
        1,
    ),
    Case(
        "start the command line: run --help",
        python("-m", "elastic_launcher", "run", "--help"),
        python("-m", "torch.distributed.run", "--help"),
        "torchrun --help",
        1,
    ),
    Case("compile a pipeline of one step", compile_ours, compile_plainly, "a plain @dsl.component of 3 parameters", 5),
    Case("lint a compiled pipeline", lambda: lint_file(PIPELINE), read_pipeline, "load_component_from_text", 5),
    # from here on Hera is imported, which has PyYAML write texts in another way
    Case("render a workflow of Hera", hera_ours, hera_plainly, "a plain Container"),
    Case("render Argo's template", argo_ours, hera_plainly, "Hera's workflow of a plain Container", 5),
    Case("lint a workflow", lambda: lint_file(WORKFLOW), read_workflow, "Hera's Workflow.from_yaml", 5),
    Case("train 100 steps as a step of kfp.local", run_step, run_bare, "elastic-launcher run", 1),
    Case(
        "train 100 steps as a step of kfp.local, against a plain one",
        run_step,
        run_plain_step,
        "a plain @dsl.component that runs elastic-launcher run",
        1,
    ),
)


def main() -> None:
    """Runs all cases, ours and the peer in turn."""
    options = options_of(__doc__)
    os.environ["PIP_NO_INDEX"] = "1"  # kfp installs into this environment, where all is there
    rows = []
    cases = in_turn(
        CASES,
        options,
        lambda case: milliseconds(case.ours, case.repeats),
        lambda case: milliseconds(case.peer, case.repeats),
    )
    for case, ours, peer in cases:
        one = row("fronts", ours, peer, "milliseconds", case=case.name, without=case.without)
        more = one["ours"] - one["peer"]
        print(f"{case.name}: {one['ours']:.1f} ms; {case.without}: {one['peer']:.1f} ms; {more:+.1f} ms", flush=True)
        rows.append(one)
    finish(rows)


if __name__ == "__main__":
    main()
