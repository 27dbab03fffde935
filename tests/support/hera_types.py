"""What mypy says of the Hera front: `make lint` reads this file, nothing runs it."""

from pathlib import Path
from typing import assert_type

from hera.workflows import Container, Env, Parameter, Step, Task

from elastic_launcher.hera import ElasticTrain, PodFields, Trained, elastic_train

step = ElasticTrain(name="train", script="train.py", nodes="1:3", inputs=[Parameter(name="lr", default="0.1")])
assert_type(step, ElasticTrain)
assert_type(step.nodes, str | None)
assert_type(step(arguments={"lr": "0.3"}), Step | Task | None)
assert_type(step.run_local(inputs={"lr": "0.3"}, work_dir="job"), Trained)
assert_type(elastic_train(name="train", module="package.train", pod_template=PodFields(labels={"a": "b"})), Container)
ElasticTrain(name="train", script=Path("train.py"), pod_template=PodFields(env=[Env(name="A", value="1")]))
ElasticTrain(name="train", script="train.py", pod_template={"spec": {}})

ElasticTrain(name="train", script="train.py", nodes=3)  # type: ignore[arg-type]
ElasticTrain(name="train", scripts="train.py")  # type: ignore[call-arg]
elastic_train(name="train", script="train.py", nodes=3)  # type: ignore[arg-type]
elastic_train(name="train", scripts="train.py")  # type: ignore[call-arg]
elastic_train(name="train", labels=["a"])  # type: ignore[arg-type]
ElasticTrain(name="train", pod_template=["labels"])  # type: ignore[arg-type]
