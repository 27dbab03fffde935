"""The pipeline: prepare and trials, then for each learning rate elastic_train and evaluate, then best."""

from pathlib import Path

from kfp import dsl

from elastic_launcher.kfp import elastic_train
from pipelines.digits_elastic.steps import evaluate, prepare
from pipelines.digits_search.steps import best, divide, list_trials

SCRIPT = Path(__file__).with_name("train_trial.py")
RATES = ["0.03", "0.003", "0.0003"]


@dsl.pipeline(name="digits-search", description="A search whose trials share the quota and shrink instead of queueing.")
def digits_search(
    work_dir: str,
    rates: list[str] = RATES,
    hints: str = "configmap/quota/gpu-hints",
    wait_for_quota: float = 3600,
    max_nodes: int = 4,
    epochs: str = "6",
) -> str:
    """Tries all learning rates at once.

    Args:
        work_dir: Where each trial has a folder of its own, by which it goes on where it was.
        rates: The learning rates, each one once; as many trials as there are divide the quota.
        hints: Quota hints, as configmap/NAMESPACE/NAME or a file, of which the i-th trial takes the i-th part.
        wait_for_quota: Seconds that a trial waits for its part, where that is less than a GPU.
        max_nodes: Most nodes of each trial.
        epochs: How often each trial goes through the data.

    Returns:
        The best learning rate.
    """
    data, listed = prepare(), list_trials(rates=rates)
    with dsl.ParallelFor(rates) as rate:
        training = elastic_train(
            script=SCRIPT.read_text(),
            arguments=["--rate", rate, "--epochs", epochs],
            data=data.outputs["digits"],
            max_nodes=max_nodes,
            global_batch_size=128,
            max_batch_per_gpu=64,
            hints=hints,
            wait_for_quota=wait_for_quota,
            share=divide(rate=rate, trials=listed.outputs["trials"]).output,
            work_dir=f"{work_dir}/rate-{rate}",
            name="search",
        )
        tested = evaluate(model=training.outputs["model"], digits=data.outputs["digits"])
    return best(rates=rates, accuracies=dsl.Collected(tested.outputs["Output"])).outputs["Output"]
