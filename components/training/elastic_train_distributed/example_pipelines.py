"""Two uses of elastic_train_distributed: alone, and with a clean-up and a verdict."""

from kfp import dsl


@dsl.pipeline(name="elastic-train-distributed-two-gpus-a-node")
def two_gpus_a_node():
    """Trains on one to four pods with two GPUs each, as the hints of its queue say."""
    from elastic_launcher.kfp import elastic_train_distributed

    training = elastic_train_distributed(
        script="/workspace/train.py",
        min_nodes=1,
        max_nodes=4,
        global_batch_size=256,
        max_batch_per_gpu=64,
        node_image="registry.example/train:1",
        shared_dir="s3://models/digits",
        hints="configmap/quota/gpu-hints",
        match={"queue": "team-a"},
    )
    training.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(2)
    training.set_env_variable("AWS_REGION", "eu-1")


@dsl.pipeline(name="elastic-train-distributed-reported")
def reported():
    """Keeps the report of a training that failed, and ends what is left of it however the run ends."""
    from elastic_launcher.kfp import elastic_cleanup, elastic_train_distributed, elastic_verdict

    with dsl.ExitHandler(elastic_cleanup()):
        training = elastic_train_distributed(
            module="package.train",
            max_nodes=4,
            node_image="registry.example/train:1",
            shared_dir="s3://models/digits",
            on_failure="report",
        )
        elastic_verdict(exit_code=training.outputs["exit_code"], reason=training.outputs["reason"])
