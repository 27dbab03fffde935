"""The end of nodes that a run has left behind, as a lightweight Python component."""

from kfp import dsl


@dsl.component(
    base_image="python:3.11",
    packages_to_install=["elastic-launcher[kfp,kubernetes]==0.1.0"],
    install_kfp_package=False,
)
def elastic_cleanup(run_id: str = "", wait_seconds: float = 30) -> int:
    """Deletes the nodes of this run's elastic_train_distributed steps that were left behind; made for dsl.ExitHandler.

    It is a second line: nodes that lose their coordinator save and leave by themselves. Only Jobs with the run's label
    are deleted. The run's reported state is not used, since Kubeflow reports RUNNING for one that was
    terminated. The nodes of a coordinator that still lives are left to it.

    Args:
        run_id: The run; without it, the one that this step is of.
        wait_seconds: How long a coordinator that still lives is waited for.

    Returns:
        How many nodes were ended.
    """
    from elastic_launcher.kfp_steps.cleanup import cleanup_step

    return cleanup_step(run_id, wait_seconds)


if __name__ == "__main__":
    from kfp.compiler import Compiler

    Compiler().compile(elastic_cleanup, package_path=__file__.replace(".py", ".yaml"))
