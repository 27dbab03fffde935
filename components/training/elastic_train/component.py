"""The elastic training step as a lightweight Python component."""

from typing import Dict, List, NamedTuple, Optional

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Markdown, Metrics, Model, Output


@dsl.component(
    base_image="python:3.11",
    packages_to_install=["elastic-launcher[kfp,torch]==0.1.0"],
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
    data: Optional[Input[Dataset]] = None,
    min_nodes: int = 1,
    max_nodes: int = 1,
    engine: str = "local",
    pod_template: str = "",
    node_image: str = "",
    gpu_resource: str = "nvidia.com/gpu",
    nproc_per_node: int = 1,
    global_batch_size: int = 0,
    max_batch_per_gpu: int = 0,
    hints: str = "",
    match: Optional[Dict[str, str]] = None,
    share: str = "",
    require_hints: bool = False,
    wait_for_quota: float = 0,
    work_dir: str = "",
    max_runtime: str = "",
    metrics_port: int = 0,
    start_timeout: float = 600,
    pending_timeout: str = "",
    min_wait: float = 300,
    orphan_timeout: float = 60,
    heartbeat_timeout: float = 10,
    progress_timeout: float = 60,
    grace_period: float = 15,
    resize: str = "in-process",
    rdzv_backend: str = "elastic-launcher",
    max_failures: int = 0,
    checkpoint_every: str = "",
    keep_checkpoints: int = 2,
    checkpoint_dir: str = "",
    accept_changes: str = "",
    name: str = "",
) -> NamedTuple(
    "Outputs",
    [("world_size_final", int), ("resizes_total", int), ("goodput", float), ("steps", int), ("job_dir", str)],
):
    """Trains a PyTorch script on as many nodes as the quota hints allow right now, changing their number while it runs.

    Every optimizer step uses exactly the global batch, whatever the number of nodes. The step is red when the training
    failed, and its message then holds the script's last lines.

    Args:
        model: What the script writes to the path in the environment variable ELASTIC_OUTPUT.
        metrics: world_size_final, resizes_total, goodput, samples_per_second, steps, and the last values of job.log.
        timeline: World size against the hints, pauses, loss and samples per second over time.
        summary: The same in a few lines.
        script: Path of the training script in the step's image, or the text of a script.
        module: Module to train with instead of a script, as after python -m.
        arguments: Arguments of the script.
        data: Data set; the script finds its path in the environment variable ELASTIC_DATA.
        min_nodes: Fewest nodes that the training starts and goes on with.
        max_nodes: Most nodes.
        engine: Where nodes live: `local`, in the step's own container, or `kubernetes`, as pods of the cluster.
        pod_template: With `kubernetes`: the nodes' pod template, a file or its YAML; what it says nothing of is added.
        node_image: With `kubernetes`: what nodes run where the template names no image; without it, the step's image.
        gpu_resource: With `kubernetes`: what the cluster calls a GPU, of which each rank gets one; `none` for none.
        nproc_per_node: Processes on each node, one for a GPU.
        global_batch_size: Samples in each optimizer step, which elastic.init() reads; 0 where the script says it.
        max_batch_per_gpu: Most samples that one GPU takes at a time, read likewise; 0 where the script says it.
        hints: Quota hints that are followed while the training runs; without any, max_nodes are used.
        match: What the hints are matched by, such as queue and pipeline.
        share: Which part of the hint's entry is this job's, as 1/2.
        require_hints: Fail when there are no hints at the start.
        wait_for_quota: Seconds to wait, at the start, and later saved and without a node, until hints allow min_nodes.
        work_dir: Folder for events, logs and report; without one, a folder of the step's own.
        max_runtime: Time after which the training is saved and the step ends, as 30m or 12h; without it, no limit.
        metrics_port: Port of the step's pod at which the launcher answers Prometheus, at /metrics; 0 for none.
        start_timeout: Seconds after which a node that is not ready to train counts as failed.
        pending_timeout: How long a node may wait for a place in the cluster, as 90s or 30m; without it, no limit.
        min_wait: Seconds that fewer than min_nodes hold places in a cluster before training; then they give them back.
        orphan_timeout: Seconds that nodes go on when the launcher can't be reached.
        heartbeat_timeout: Seconds without a sign of life after which a rank that others wait for counts as lost.
        progress_timeout: Seconds without progress in a step (or 10 usual steps) after which it counts as lost, too.
        grace_period: Seconds from a node's notice until it may be killed.
        resize: `in-process`, or `respawn`: workers are ended and started anew at the new size (any torchrun script).
        rdzv_backend: `c10d` leaves it to torchrun when to start workers anew; with `resize` `respawn` only.
        max_failures: Exceptions of the script within an hour that cost the node only; 0 ends the training at the first.
        checkpoint_every: How often the training is saved, as 30s, 5m or 100 steps; without it, as its cost allows.
        keep_checkpoints: How many checkpoints are kept.
        checkpoint_dir: Folder or URL of the checkpoints; without it, a folder in the work directory.
        accept_changes: What may differ from the checkpoint that is gone on from, with commas between.
        name: The job's name; without one, that of the script or of the folder.

    Returns:
        world_size_final: Ranks at the end.
        resizes_total: How often the number of nodes changed.
        goodput: Share of the wall time that was spent in steps that counted.
        steps: Optimizer steps done.
        job_dir: The folder with events, logs and report.
    """
    from pathlib import Path

    from elastic_launcher.kfp import train

    done = train(
        script=script,
        module=module,
        arguments=arguments or [],
        options={
            "nodes": f"{min_nodes}:{max_nodes}",
            "engine": engine,
            "pod_template": pod_template,
            "node_image": node_image,
            "gpu_resource": gpu_resource,
            "nproc_per_node": nproc_per_node,
            "global_batch_size": global_batch_size or None,
            "max_batch_per_gpu": max_batch_per_gpu or None,
            "hints": hints,
            "match": match,
            "share": share,
            "require_hints": require_hints,
            "wait_for_quota": wait_for_quota,
            "max_runtime": max_runtime,
            "metrics_port": metrics_port or None,
            "start_timeout": start_timeout,
            "pending_timeout": pending_timeout,
            "min_wait": min_wait,
            "orphan_timeout": orphan_timeout,
            "heartbeat_timeout": heartbeat_timeout,
            "progress_timeout": progress_timeout,
            "grace_period": grace_period,
            "resize": resize,
            "rdzv_backend": rdzv_backend,
            "max_failures": max_failures or None,
            "checkpoint_every": checkpoint_every,
            "keep_checkpoints": keep_checkpoints,
            "checkpoint_dir": checkpoint_dir,
            "accept_changes": accept_changes,
            "data": data.path if data else None,
            "output": model.path,
            "name": name,
        },
        work_dir=work_dir,
        artifacts=str(Path(timeline.path).parent),
    )
    for name, value in done.metrics.items():
        metrics.log_metric(name, value)
    Path(timeline.path).write_text(done.timeline, encoding="utf-8")
    Path(summary.path).write_text(done.summary, encoding="utf-8")
    return (
        int(done.metrics["world_size_final"]),
        int(done.metrics["resizes_total"]),
        float(done.metrics["goodput"]),
        int(done.metrics["steps"]),
        done.work_dir,
    )


if __name__ == "__main__":
    from kfp.compiler import Compiler

    Compiler().compile(elastic_train, package_path=__file__.replace(".py", ".yaml"))
