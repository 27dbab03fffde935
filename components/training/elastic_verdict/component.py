"""The verdict on a training step that ended with its report, as a lightweight Python component."""

from kfp import dsl


@dsl.component(
    base_image="python:3.11",
    packages_to_install=["elastic-launcher[kfp]==0.1.0"],
    install_kfp_package=False,
)
def elastic_verdict(exit_code: int, reason: str = ""):
    """Is red, with the reason, when a training did not end well.

    Kubeflow drops what a failed step has made, so a training step with on_failure="report" ends green with its report,
    and this step after it turns the run red.

    Args:
        exit_code: The training step's output of that name.
        reason: Likewise.
    """
    from elastic_launcher.kfp_steps.verdict import verdict_step

    verdict_step(exit_code, reason)


if __name__ == "__main__":
    from kfp.compiler import Compiler

    Compiler().compile(elastic_verdict, package_path=__file__.replace(".py", ".yaml"))
