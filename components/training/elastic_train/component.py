"""The elastic training step as a lightweight Python component."""

from typing import Dict, List, NamedTuple, Optional

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Markdown, Metrics, Model, Output


@dsl.component(
    base_image="python:3.11",
    packages_to_install=["elastic-launcher[kfp,kubernetes,storage,torch]==0.1.0"],
    install_kfp_package=False,
)
def elastic_train(
    model: Output[Model],
    metrics: Output[Metrics],
    timeline: Output[HTML],
    summary: Output[Markdown],
    script: str = "",
    module: str = "",
    arguments: Optional[List[str]] = None,
    data: Input[Dataset] = None,  # Optional[...] fails on a backend, which sends no schema title
    min_nodes: int = 1,
    max_nodes: int = 0,
    nproc_per_node: int = 1,
    global_batch_size: int = 0,
    max_batch_per_gpu: int = 0,
    autoscale_batch_size: int = 0,
    hints: str = "",
    match: Optional[Dict[str, str]] = None,
    project: str = "",
    priority: int = 0,
    share: str = "",
    require_hints: bool = False,
    wait_for_quota: float = 0,
    node_timeout: float = 1800,
    work_dir: str = "",
    max_runtime: str = "",
    metrics_port: int = 0,
    start_timeout: float = 600,
    orphan_timeout: float = 60,
    heartbeat_timeout: float = 10,
    progress_timeout: float = 60,
    silence_timeout: str = "",
    grace_period: float = 15,
    resize: str = "in-process",
    rdzv_backend: str = "elastic-launcher",
    max_failures: int = 0,
    checkpoint_every: str = "",
    keep_checkpoints: int = 2,
    checkpoint_dir: str = "",
    accept_changes: str = "",
    name: str = "",
    release: str = "keep",
    on_failure: str = "raise",
    report_uri: str = "",
) -> NamedTuple(
    "Outputs",
    [
        ("world_size_final", int),
        ("resizes_total", int),
        ("goodput", float),
        ("steps", int),
        ("job_dir", str),
        ("exit_code", int),
        ("reason", str),
    ],
):
    """Trains a PyTorch script on as many nodes as the quota hints allow right now, changing their number while it runs.

    Nodes are processes of the step's own pod. Every optimizer step uses exactly the global batch, at any number
    of nodes. The step is red when the training failed, and its log then ends with the reason. A pod keeps
    its GPUs to its end, so a shrink of the hint frees none for others, unless release says otherwise.

    Args:
        model: What the script writes to the path in the environment variable ELASTIC_OUTPUT.
        metrics: What runs are compared by (loss, steps, gpu_seconds, goodput, ...), and the last values of job.log.
        timeline: World size against the hints, pauses, loss and samples per second over time.
        summary: The same in a few lines.
        script: Path of the training script in the step's image, or the text of a script.
        module: Module to train with instead of a script, as after python -m.
        arguments: Arguments of the script.
        data: Data set; the script finds its path in the environment variable ELASTIC_DATA.
        min_nodes: Fewest nodes that the training starts and goes on with.
        max_nodes: Most nodes; 0 for as many as the pod has GPUs for, and min_nodes where it has none.
        nproc_per_node: Processes on each node, one for a GPU.
        global_batch_size: Samples in each optimizer step, which elastic.init() reads; 0 where the script says it.
        max_batch_per_gpu: Most samples of a GPU at a time, read likewise; 0 where the script says it, -1 to find it.
        autoscale_batch_size: Most samples of a batch that adapts, if the script allows it; 0 where the script says it.
        hints: Quota hints that are followed while the training runs; without any, max_nodes are used.
        match: What the hints are matched by, such as queue and pipeline.
        project: Project whose quota the training uses; short for project in match.
        priority: Importance to a quota controller, -1000 to 1000; of a project's trainings, higher ones come first.
        share: Which part of the hint's entry is this job's, as 1/2.
        require_hints: Fail when there are no hints at the start.
        wait_for_quota: Seconds to wait, also later, saved, until hints allow min_nodes; with 0, as the hints say.
        node_timeout: Seconds that a training whose nodes were taken waits, saved, for min_nodes others; 0 ends it.
        work_dir: Folder for events, logs and report; without one, a folder of the step's own.
        max_runtime: Time after which the training is saved and the step ends, as 30m or 12h; without it, no limit.
        metrics_port: Port of the step's pod at which the launcher answers Prometheus, at /metrics; 0 for none.
        start_timeout: Seconds after which a node that is not ready to train counts as failed.
        orphan_timeout: Seconds that nodes go on when the launcher can't be reached.
        heartbeat_timeout: Seconds without a sign of life after which a rank that others wait for counts as lost.
        progress_timeout: Seconds without progress in a step (or 10 usual steps) after which it counts as lost, too.
        silence_timeout: Time without a sign of life after which any rank counts as lost, as 90s; without it, 60s.
        grace_period: Seconds from a node's notice until it may be killed.
        resize: `in-process`, or `respawn`: workers are restarted at the new size (any torchrun script).
        rdzv_backend: `c10d` leaves it to torchrun when to restart workers; with `resize` `respawn` only.
        max_failures: Failures of the script within an hour that cost the node only; 0 ends the training at the first.
        checkpoint_every: How often the training is saved, as 30s, 5m or 100 steps; without it, as its cost allows.
        keep_checkpoints: How many checkpoints are kept.
        checkpoint_dir: Folder or URL of the checkpoints; without it, a folder in the work directory.
        accept_changes: What may differ from the checkpoint that is gone on from, with commas between.
        name: The job's name; without one, that of the script or of the folder.
        release: When the hint shrinks, `keep` goes on with fewer of the pod's GPUs, `exit` saves and ends with code 75.
        on_failure: `raise` makes the step red at once; `report` ends it green with its report, for elastic_verdict.
        report_uri: Folder or URL in which each job's folder gets its report, while it trains and however it ends.

    Return:
        world_size_final: Ranks at the end.
        resizes_total: How often the number of nodes changed.
        goodput: Share of the wall time that was spent in steps that counted.
        steps: Optimizer steps done.
        job_dir: Folder with events, logs and report; report_uri where it goes with the step's pod, or nothing.
        exit_code: 0, or with `report` how the training ended.
        reason: The script's last lines, and in the last one why it ended so.
    """
    given = dict(locals())

    from elastic_launcher.kfp_steps.training import train_step

    return train_step(given)


if __name__ == "__main__":
    from kfp.compiler import Compiler

    Compiler().compile(elastic_train, package_path=__file__.replace(".py", ".yaml"))
