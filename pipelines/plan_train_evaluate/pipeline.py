"""The pipeline: elastic_plan, prepare, elastic_train at the planned size, elastic_verdict, evaluate."""

from kfp import dsl

from elastic_launcher.kfp import elastic_plan, elastic_train, elastic_verdict
from pipelines.digits_elastic.steps import evaluate, prepare
from pipelines.digits_search.pipeline import SCRIPT


@dsl.pipeline(name="plan-train-evaluate", description="A training as large as the quota hints allow when it begins.")
def plan_train_evaluate(
    hints: str = "configmap/quota/gpu-hints",
    min_nodes: int = 1,
    max_nodes: int = 4,
    epochs: str = "6",
    report_uri: str = "",
) -> float:
    """Asks the hints how many GPUs there are, and trains on as many.

    Args:
        hints: Quota hints, as configmap/NAMESPACE/NAME or a file.
        min_nodes: Fewest nodes that the training starts with.
        max_nodes: Most nodes.
        epochs: How often the training goes through the data.
        report_uri: Folder or URL to which the report goes while the step trains; none means nowhere.

    Returns:
        The accuracy on the test images.
    """
    plan = elastic_plan(hints=hints, name="digits", min_nodes=min_nodes, max_nodes=max_nodes, global_batch_size=128)
    data = prepare()
    training = elastic_train(
        script=SCRIPT.read_text(),
        arguments=["--epochs", epochs],
        data=data.outputs["digits"],
        min_nodes=min_nodes,
        max_nodes=plan.outputs["nodes"],
        global_batch_size=128,
        max_batch_per_gpu=64,
        hints=hints,
        name="digits",
        on_failure="report",
        report_uri=report_uri,
    )
    training.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(plan.outputs["gpus"])
    verdict = elastic_verdict(exit_code=training.outputs["exit_code"], reason=training.outputs["reason"])
    tested = evaluate(model=training.outputs["model"], digits=data.outputs["digits"])
    tested.after(verdict)
    return tested.outputs["Output"]
