"""The installed template ``elastic-train`` of ``manifests/argo``, used from Hera as from plain YAML."""

from hera.workflows import DAG, Task, Workflow, models

with (
    Workflow(
        generate_name="digits-",
        entrypoint="main",
        service_account_name="elastic-launcher",  # neither it nor pod GC travels with a template
        pod_gc=models.PodGC(strategy="OnPodCompletion"),
    ) as w,
    DAG(name="main"),
):
    Task(
        name="train",
        template_ref=models.TemplateRef(name="elastic-train", template="train"),
        arguments={
            "image": "elastic-launcher",
            "module": "package.train",
            "nodes": "1:4",
            "global_batch_size": "256",
            "max_batch_per_gpu": "64",
        },
    )
