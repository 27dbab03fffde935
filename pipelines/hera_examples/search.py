"""Three trials in Steps that divide the quota, or wait for it; each is a job of its own, which a retry goes on with."""

from hera.workflows import Parameter, Steps, Workflow

from elastic_launcher.hera import elastic_train

with Workflow(generate_name="search-", entrypoint="main", service_account_name="elastic-launcher") as w:
    trial = elastic_train(  # a plain Container
        name="trial",
        job_name="search",
        image="elastic-launcher",
        module="package.train",
        arguments=["--rate", "{{inputs.parameters.rate}}"],
        nodes="1:4",
        share="{{inputs.parameters.share}}",
        hints="configmap/quota/gpu-hints",
        wait_for_quota=3600,
        global_batch_size=256,
        max_batch_per_gpu=64,
        engine="kubernetes",
        checkpoint_dir="s3://models/{{workflow.name}}/rate-{{inputs.parameters.rate}}",
        inputs=[Parameter(name="rate"), Parameter(name="share")],
    )
    with Steps(name="main"):
        trial(
            arguments={"rate": "{{item.rate}}", "share": "{{item.share}}"},
            with_items=[
                {"rate": "0.1", "share": "1/3"},
                {"rate": "0.03", "share": "2/3"},
                {"rate": "0.01", "share": "3/3"},
            ],
        )
