"""Prepare, train, evaluate: an elastic step in a DAG, beside functions, with nodes that are pods on a volume claim.

The claim holds the script, ``pipelines/digits_elastic/train_digits.py``; all pods are as restricted as the step's.
"""

from hera.workflows import DAG, ExistingVolume, Parameter, Task, Workflow, models, script

from elastic_launcher.hera import ElasticTrain, PodFields

IMAGE = "elastic-launcher"
CLAIM = "digits"
work = ExistingVolume(name="work", claim_name=CLAIM, mount_path="/work")
restricted = models.SecurityContext(allow_privilege_escalation=False, capabilities=models.Capabilities(drop=["ALL"]))


@script(image=IMAGE, volumes=[work], security_context=restricted)
def prepare(path: str) -> None:
    """Writes the digits, split into a training and a test part."""
    import numpy
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 1, 8, 8)
    labels = labels.astype("int64")
    numpy.savez(path, x_train=images[:1347], y_train=labels[:1347], x_test=images[1347:], y_test=labels[1347:])


@script(image=IMAGE, volumes=[work], security_context=restricted)
def evaluate(model: str, data: str, steps: str) -> None:
    """Tests the trained model."""
    import numpy
    import torch

    with numpy.load(data) as arrays:
        images, labels = torch.from_numpy(arrays["x_test"]), arrays["y_test"]
    scores = torch.export.load(model).module()(images)
    print("accuracy after", steps, "steps:", (scores.argmax(1).numpy() == labels).mean())


with Workflow(
    generate_name="digits-",
    entrypoint="main",
    service_account_name="elastic-launcher",
    security_context=models.PodSecurityContext(
        run_as_non_root=True, fs_group=65532, seccomp_profile=models.SeccompProfile(type="RuntimeDefault")
    ),
) as w:
    train = ElasticTrain(
        name="train",
        image=IMAGE,
        script="/work/train_digits.py",
        nodes="{{inputs.parameters.nodes}}",
        global_batch_size=256,
        max_batch_per_gpu=64,
        hints="configmap/quota/gpu-hints",
        match={"queue": "team-a"},
        job_name="digits",
        engine="kubernetes",
        gpu_resource="none",
        pod_template=PodFields(
            resources={"requests": {"cpu": "1", "memory": "1Gi"}},
            volumes=[{"name": "work", "persistentVolumeClaim": {"claimName": CLAIM}}],
            volume_mounts=[{"name": "work", "mountPath": "/work"}],
            pod_security={"fsGroup": 65532},
        ),
        work_dir="/work/{{workflow.name}}/job",
        checkpoint_dir="/work/{{workflow.name}}/checkpoints",
        data="/work/digits.npz",
        output="/work/digits.pt2",
        volumes=[work],
        inputs=[
            Parameter(  # read again for each attempt: the size of the next one
                name="nodes",
                value_from=models.ValueFrom(
                    config_map_key_ref=models.ConfigMapKeySelector(name="digits-size", key="nodes"), default="1:3"
                ),
            )
        ],
    )
    with DAG(name="main"):
        prepare(arguments={"path": "/work/digits.npz"})
        steps = Task(name="train", template=train, depends="prepare").get_parameter("steps")
        evaluate(depends="train", arguments={"model": "/work/digits.pt2", "data": "/work/digits.npz", "steps": steps})
