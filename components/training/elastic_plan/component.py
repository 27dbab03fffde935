"""The size of the next step, as a lightweight Python component."""

from typing import Dict, NamedTuple, Optional

from kfp import dsl


@dsl.component(
    base_image="python:3.11",
    packages_to_install=["elastic-launcher[kfp,kubernetes]==0.1.0"],
    install_kfp_package=False,
)
def elastic_plan(
    hints: str = "",
    match: Optional[Dict[str, str]] = None,
    name: str = "",
    share: str = "",
    min_nodes: int = 1,
    max_nodes: int = 1,
    nproc_per_node: int = 1,
    global_batch_size: int = 0,
    require_hints: bool = False,
    wait_for_quota: float = 0,
) -> NamedTuple("Outputs", [("nodes", int), ("gpus", str), ("reason", str)]):
    """Returns how large the next step may be by the current quota hints.

    `gpus` is a text, since an accelerator limit from an int gives a pod without any GPU and a run that is green all the
    same. Hints that are not there give the fewest nodes, hints that allow less than those make the step red.

    Args:
        hints: Quota hints: a file, or configmap/[NAMESPACE/]NAME; without any, max_nodes are planned.
        match: What the hints are matched by, such as queue and pipeline.
        name: The job's name, which hints are matched by too.
        share: Which part of the hint's entry is the next step's, as 1/2; each of n parallel trials takes another one.
        min_nodes: Fewest nodes of the next step.
        max_nodes: Most nodes.
        nproc_per_node: Processes on each node, one for a GPU.
        global_batch_size: Samples in each optimizer step, of which each process needs one; 0 where it is not known.
        require_hints: Fail when there are no hints.
        wait_for_quota: Seconds to wait until hints allow min_nodes; with 0, as the hints say.

    Return:
        nodes: How many nodes the next step may have.
        gpus: How many GPUs these have together, for set_accelerator_limit of elastic_train.
        reason: How this came about.
    """
    given = dict(locals())

    from elastic_launcher.kfp_steps.plan import plan_step

    return plan_step(given)


if __name__ == "__main__":
    from kfp.compiler import Compiler

    Compiler().compile(elastic_plan, package_path=__file__.replace(".py", ".yaml"))
