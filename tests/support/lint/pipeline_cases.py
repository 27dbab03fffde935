"""Cases of the rules about compiled pipelines, made of the parts that the KFP compiler writes."""

from __future__ import annotations

from textwrap import dedent, indent

from tests.support.lint.case import Case


def pipeline(
    *,
    task: str = "",
    inputs: str = "",
    executor: str = "",
    component: str = "parameters: {task_config: {parameterType: TASK_CONFIG}}",
    passthroughs: str = "",
    function: str = "elastic_train",
    caching: str = "cachingOptions: {}",
) -> str:
    """Returns a pipeline of one elastic task, and one that gives it a number."""
    parts = {
        "components": dedent(
            """
            comp-train:
              executorLabel: exec-train
            {passthroughs}
              inputDefinitions:
            {component}
            comp-plan:
              executorLabel: exec-plan
              outputDefinitions:
                parameters: {{gpus: {{parameterType: NUMBER_INTEGER}}, text: {{parameterType: STRING}}}}
            """
        ).format(passthroughs=indent(passthroughs, "  "), component=indent(component, "    ")),
        "deploymentSpec": dedent(
            """
            executors:
              exec-plan: {{container: {{args: [--function_to_execute, plan]}}}}
              exec-train:
                container:
                  args: [--executor_input, '{{{{$}}}}', --function_to_execute, {function}]
            {executor}
            """
        ).format(function=function, executor=indent(executor, "      ")),
        "root": dedent(
            """
            inputDefinitions:
              parameters: {{count: {{parameterType: NUMBER_INTEGER}}, text: {{parameterType: STRING}}}}
            dag:
              tasks:
                plan: {{componentRef: {{name: comp-plan}}, cachingOptions: {{enableCache: true}}}}
                train:
                  componentRef: {{name: comp-train}}
                  inputs:
                    parameters:
                      name: {{runtimeValue: {{constant: a}}}}
            {inputs}
            {caching}
            {task}
            """
        ).format(inputs=indent(inputs, " " * 10), caching=indent(caching, "      "), task=indent(task, "      ")),
    }
    written = "".join(f"{key}:\n{indent(text.strip(), '  ')}\n" for key, text in parts.items())
    return f"{written}pipelineInfo: {{name: p}}\nschemaVersion: 2.1.0\n---\nplatforms: {{kubernetes: {{}}}}\n"


def gpus(count: str) -> str:
    return f"resources:\n  accelerator:\n    resourceCount: {count}\n    resourceType: nvidia.com/gpu"


def typed(given: str) -> str:
    """Returns a limit that has a type only if it is given one."""
    return f"resources:\n  accelerator:  # here\n    {given}"


def channel(name: str, source: str) -> str:
    return pipeline(
        inputs=f"{name}:  # here\n  {source}",
        executor=gpus(f"\"{{{{$.inputs.parameters['{name}']}}}}\""),
    )


def named(word: str, kind: str) -> str:
    """Returns a pipeline whose GPU limit is a parameter with a name that Kubernetes reads as a boolean."""
    text = channel(f"pipelinechannel--{word}", f"componentInputParameter: {word}")
    return text.replace("parameters: {count:", f"parameters: {{{word}: {{parameterType: {kind}}}, count:")


def ranks(count: str, limit: str) -> str:
    return pipeline(inputs=f"nproc_per_node: {{runtimeValue: {{constant: {count}}}}}", executor=gpus(limit))


def retry(policy: str) -> str:
    return pipeline(task=f"retryPolicy:  # here\n  maxRetryCount: 2\n  {policy}")


def wrapped(passthroughs: str, component: str) -> str:
    """Returns a pipeline as a run's file has it."""
    text = pipeline(passthroughs=passthroughs, component=component).partition("---")[0]
    return f"displayName: a\npipelineSpec:\n{indent(text, '  ')}"


DEFAULT_RANKS = "parameters: {nproc_per_node: {parameterType: NUMBER_INTEGER, defaultValue: 4.0}}"


def nested(policy: str) -> str:
    """Returns a pipeline whose elastic task stands in another pipeline, which is tried again."""
    text = pipeline()
    inner = text.replace("root:\n", "  comp-inner:\n", 1).split("  comp-inner:\n")
    tasks = inner[1].split("pipelineInfo")[0]
    outer = dedent(
        """
        root:
          dag:
            tasks:
              inner:
                componentRef: {{name: comp-inner}}
                {policy}
        pipelineInfo: {{name: p}}
        """
    ).format(policy=policy)
    return f"components:\n  comp-inner:\n{indent(tasks, '  ')}{inner[0].removeprefix('components:')}{outer}"


def loop(items: str, *, of_loop: str, of_use: str, more: str = "") -> str:
    """Returns what kfp 2.17.0 compiles, shortened by hand, of a loop with one task ``use``.

    Args:
        items: What is looped over: ``raw: ...``, or ``inputParameter: ...`` of the loop's own.
        of_loop: The loop's inputs.
        of_use: The inputs of the task in it.
        more: The inputs that the loop's component declares besides its item.
    """
    head = dedent(
        f"""
        root:
          dag:
            tasks:
              rows: {{componentRef: {{name: comp-rows}}}}
              for-loop-1:
                componentRef: {{name: comp-for-loop-1}}
                parameterIterator: {{itemInput: item, items: {{{items}}}}}
                inputs:
                  parameters:
        """
    )
    tail = dedent(
        f"""
        deploymentSpec:
          executors: {{exec-use: {{container: {{}}}}, exec-rows: {{container: {{}}}}}}
        components:
          comp-use: {{executorLabel: exec-use}}
          comp-rows:
            executorLabel: exec-rows
            outputDefinitions: {{parameters: {{Output: {{parameterType: LIST}}}}}}
          comp-for-loop-1:
            inputDefinitions: {{parameters: {{item: {{parameterType: STRUCT}}, {more}}}}}
            dag:
              tasks:
                use:
                  componentRef: {{name: comp-use}}
                  inputs:
                    parameters:
        """
    )
    root = f"{head.strip()}\n{indent(of_loop, ' ' * 12)}"
    return f"{root}{tail}{indent(of_use, ' ' * 14)}\npipelineInfo: {{name: p}}\n"


def condition_in_loop(asked: str) -> str:
    """Returns what kfp 2.17.0 compiles, shortened by hand, of a loop over a parameter with a task in a condition.

    Args:
        asked: What the task asks for; the condition declares the item of the loop and the output of a task before.
    """
    item, kept = "pipelinechannel--items-loop-item", "pipelinechannel--keep-Output"
    return dedent(
        f"""
        components:
          comp-use: {{executorLabel: exec-use}}
          comp-keep: {{executorLabel: exec-keep, outputDefinitions: {{parameters: {{Output: {{}}}}}}}}
          comp-condition-3:
            inputDefinitions: {{parameters: {{{item}: {{}}, {kept}: {{}}}}}}
            dag:
              tasks:
                use:
                  componentRef: {{name: comp-use}}
                  inputs:
                    parameters:
                      one:  # here
                        componentInputParameter: {asked}
          comp-condition-2:
            inputDefinitions: {{parameters: {{{item}: {{}}, {kept}: {{}}}}}}
            dag: {{tasks: {{a: {{componentRef: {{name: comp-condition-3}}}}, b: {{componentRef: {{name: comp-use}}}}}}}}
          comp-for-loop-1:
            inputDefinitions: {{parameters: {{pipelinechannel--items: {{}}, {item}: {{}}, {kept}: {{}}}}}}
            dag: {{tasks: {{condition-2: {{componentRef: {{name: comp-condition-2}}}}}}}}
        deploymentSpec:
          executors: {{exec-use: {{container: {{}}}}, exec-keep: {{container: {{}}}}}}
        root:
          inputDefinitions: {{parameters: {{items: {{parameterType: LIST}}}}}}
          dag:
            tasks:
              keep: {{componentRef: {{name: comp-keep}}}}
              for-loop-1:
                componentRef: {{name: comp-for-loop-1}}
                parameterIterator: {{itemInput: {item}, items: {{inputParameter: pipelinechannel--items}}}}
                inputs:
                  parameters:
                    pipelinechannel--items: {{componentInputParameter: items}}
                    {kept}: {{taskOutputParameter: {{outputParameterKey: Output, producerTask: keep}}}}
        """
    )


LIMIT_OF_ITEM = """
item-subvar-gpus:  # here
  componentInputParameter: item-subvar-gpus
"""
"""Of ``set_accelerator_limit(item.gpus)``."""
TAKEN_OUT = """
one: {componentInputParameter: item, parameterExpressionSelector: 'parseJson(string_value)["rate"]'}
"""
"""Of ``use(one=item.rate)``."""
SOUGHT = "item-subvar-rate: {componentInputParameter: item-subvar-rate}"
ROWS = "rows-Output: {taskOutputParameter: {outputParameterKey: Output, producerTask: rows}}"
RATE_OF_ROWS = """
rows-Output-loop-item-subvar-rate:  # here
  taskOutputParameter: {outputParameterKey: Output-loop-item-subvar-rate, producerTask: rows}
"""
RATE_OF_ITEM = "item-subvar-rate:  # here\n  componentInputParameter: item-subvar-rate"
CONDITION = """
item: {componentInputParameter: item}
item-subvar-rate: {componentInputParameter: item, parameterExpressionSelector: 'parseJson(string_value)["rate"]'}
"""
"""What a ``dsl.If(item.rate == ...)`` gets."""


def script(text: str) -> str:
    """Returns a pipeline whose training is given a script's text, or another constant for it."""
    return pipeline(inputs=f"script:\n  runtimeValue:\n    constant: {text}")


def in_loop(task: str, *, more: str = "", declared: str = "") -> str:
    """Returns what kfp 2.17.0 compiles, shortened by hand, of a loop over values with one task.

    Args:
        task: What the task has, a field a line.
        more: What stands beside the loop's tasks, likewise.
        declared: An input that the loop has besides its item.
    """
    head = dedent(
        f"""
        components:
          comp-use: {{executorLabel: exec-use, outputDefinitions: {{parameters: {{Output: {{}}}}}}}}
          comp-for-loop-1:
            inputDefinitions: {{parameters: {{item: {{}}, {declared}}}}}
            dag:
              tasks:
                before: {{componentRef: {{name: comp-use}}}}
                use:
                  componentRef: {{name: comp-use}}
        """
    )
    tail = dedent(
        """
        deploymentSpec: {executors: {exec-use: {container: {}}}}
        root:
          inputDefinitions: {parameters: {cpu: {}}}
          dag: {tasks: {for-loop-1: {componentRef: {name: comp-for-loop-1}}}}
        """
    )
    return f"{head.strip()}\n{indent(task.strip(), ' ' * 10)}\n{indent(more, ' ' * 6)}{tail}"


def taking(source: str) -> str:
    """Returns a task's one input, in a loop."""
    return in_loop(f"inputs:\n  parameters:\n    x: {source}")


def taken(name: str) -> str:
    """Returns what loop over a parameter, or condition, uses an input ``x`` by a name."""
    return f"inputs: {{parameters: {{x: {{componentInputParameter: item}}}}}}\n{name}"


def nodes(field: str) -> str:
    """Returns a pipeline whose nodes are pods of a template with one field."""
    template = "pod_template:\n  runtimeValue:\n    constant: |\n      spec:\n        containers: []\n        "
    return pipeline(function="elastic_train_distributed", inputs=template + field)


def manifest(text: str) -> str:
    """Returns a pipeline as a manifest of Kubernetes has it (``kfp dsl compile --kubernetes-manifest-format``)."""
    head = "apiVersion: pipelines.kubeflow.org/v2beta1\nkind: PipelineVersion\nmetadata: {name: train}\nspec:\n"
    spec, _, platforms = text.partition("---\n")
    set_there = f"  platformSpec:\n{indent(platforms, '    ')}" if platforms else ""
    return f"{head}  pipelineName: train\n  pipelineSpec:\n{indent(spec, '    ')}{set_there}"


def mounting(claim: str, mark: str = "") -> str:
    """Returns what kfp 2.17.0 compiles, shortened, of a task in a loop to which kfp-kubernetes mounts a claim."""
    there = f"""
---
platforms:
  kubernetes:
    deploymentSpec:
      executors:
        exec-use:
          pvcMount:
          - mountPath: /work
            pvcNameParameter: {{{claim}}}{mark}
"""
    return f"{in_loop(NOTHING).rstrip()}{there}"


CPU = "inputs:\n  parameters:\n    cpu:  # here\n      componentInputParameter: cpu"
"""Of ``set_cpu_limit(cpu)`` in a loop."""
NOTHING = "cachingOptions: {}"
OUTPUT = "outputs:\n  parameters:\n    o:\n      valueFromParameter: {{producerSubtask: use, outputParameterKey: {}}}"
"""Of a group whose output is one of its tasks'."""

CASES = [
    Case("api-version", manifest(pipeline()).replace("v2beta1", "v1  # here"), manifest(pipeline())),
    Case("absent-input", manifest(in_loop(CPU)), manifest(in_loop(NOTHING))),
    *(
        Case("absent-input", form(mounting(taken, "  # here")), form(mounting("componentInputParameter: item")))
        for form in (str, manifest)
        for taken in (
            "componentInputParameter: claim",
            "taskOutputParameter: {producerTask: elsewhere, outputParameterKey: Output}",
        )
    ),
    Case("absent-input", in_loop(CPU), in_loop(CPU.replace("  # here", ""), declared="cpu: {}")),
    *(
        Case(
            "absent-input",
            taking(f"{{taskOutputParameter: {{producerTask: {producer}, outputParameterKey: {key}}}}}  # here"),
            taking("{taskOutputParameter: {producerTask: before, outputParameterKey: Output}}"),
        )
        for producer, key in (("before", "other"), ("elsewhere", "Output"))
    ),
    Case(
        "absent-input",
        in_loop(taken("triggerPolicy:\n  condition: inputs.parameter_values['y'] == ''  # here")),
        in_loop(taken("triggerPolicy:\n  condition: inputs.parameter_values['x'] == ''")),
    ),
    Case(
        "absent-input",
        in_loop(taken("parameterIterator: {itemInput: z, items: {inputParameter: y}}  # here")),
        in_loop(taken("parameterIterator: {itemInput: z, items: {inputParameter: x}}")),
    ),
    Case(
        "absent-input",
        in_loop(NOTHING, more=OUTPUT.format("other") + "  # here"),
        in_loop(NOTHING, more=OUTPUT.format("Output")),
    ),
    *(
        Case(
            "wrong-type",
            manifest(named(word, "STRING").replace("  # here", "").replace(f"ter: {word}\n", f"ter: {word}  # here\n")),
            manifest(named("m", "STRING")),
        )
        for word in ("n", "Y", "off")
    ),
    Case("pod-template", nodes("speck: 1  # here"), nodes("nodeName: a")),
    Case(
        "pod-template",
        nodes("\n      overQuota: {affinity: {}}").replace("constant: |", "constant: |  # here"),
        nodes("\n      overQuota: {nodeSelector: {machines: spot}}"),
    ),
    Case("elastic-argument", script("pa$$word  # here"), script("'data:text/x.elastic-launcher,pa%24%24word'")),
    Case("elastic-argument", script("[a, '$(HOME)']  # here"), script("[a, '$(date) $x']")),
    Case(
        "elastic-argument",
        pipeline(inputs="script: {componentInputParameter: text}").replace(
            "parameters: {count: {parameterType: NUMBER_INTEGER}, text: {parameterType: STRING}}",
            "parameters: {count: {}, text: {defaultValue: $$}}  # here",
        ),
        pipeline(inputs="script: {componentInputParameter: text}"),
    ),
    Case("elastic-argument", script("x" * 2**17 + "  # here"), script("x")),
    Case(  # over a task's output: use(args=[f"--rate={item.rate}"])
        "loop-item-key",
        loop("inputParameter: rows-Output", of_loop=ROWS + RATE_OF_ROWS, of_use=SOUGHT, more="item-subvar-rate: {}"),
        loop("inputParameter: rows-Output", of_loop=ROWS, of_use=TAKEN_OUT),
    ),
    Case(  # over values: use(args=["--rate", item.rate])
        "loop-item-key",
        loop("raw: '[]'", of_loop="{}", of_use=RATE_OF_ITEM),
        loop("raw: '[]'", of_loop="{}", of_use=CONDITION),
    ),
    Case(  # over values: use(one=f"rate {item.rate}")
        "loop-item-key",
        loop("raw: '[]'", of_loop=RATE_OF_ITEM, of_use=SOUGHT, more="item-subvar-rate: {}"),
        loop("raw: '[]'", of_loop="{}", of_use=TAKEN_OUT),
    ),
    Case(  # over values: use().set_accelerator_limit(item.gpus), and over the numbers themselves
        "loop-item-key",
        loop("raw: '[]'", of_loop="{}", of_use=LIMIT_OF_ITEM),
        loop("raw: '[\"1\"]'", of_loop="{}", of_use="item: {componentInputParameter: item}"),
    ),
    *(  # use(one=items) in two conditions within a loop over items
        Case("loop-list", condition_in_loop("pipelinechannel--items"), condition_in_loop(f"pipelinechannel--{good}"))
        for good in ("keep-Output", "items-loop-item")
    ),
    Case(  # use(one=rows) in a loop over rows
        "loop-list",
        loop(
            "inputParameter: rows-Output", of_loop=ROWS, of_use="one:  # here\n  componentInputParameter: rows-Output"
        ),
        loop("inputParameter: rows-Output", of_loop=ROWS, of_use="one: {componentInputParameter: item}"),
    ),
    Case(
        "passthrough-argument",
        pipeline(passthroughs="taskConfigPassthroughs:  # here\n- field: RESOURCES", component="parameters: {}"),
        pipeline(passthroughs="taskConfigPassthroughs:\n- field: RESOURCES"),
    ),
    Case("accelerator-type", pipeline(executor=typed("resourceCount: '2'")), pipeline(executor=gpus("'2'"))),
    Case("accelerator-type", pipeline(executor=typed("count: '2'")), pipeline(executor=typed("count: '0'"))),
    Case(
        "accelerator-type",
        pipeline(
            inputs="pipelinechannel--text:\n  componentInputParameter: text",
            executor=typed("resourceCount: \"{{$.inputs.parameters['pipelinechannel--text']}}\""),
        ),
        pipeline(executor=typed("{count: '1', type: nvidia.com/gpu}").replace("\n    {", " {").replace("  # here", "")),
    ),
    Case(
        "accelerator-channel",
        channel("pipelinechannel--count", "componentInputParameter: count"),
        channel("pipelinechannel--text", "componentInputParameter: text"),
    ),
    Case(  # as the SDK compiles a limit that comes from outside a loop
        "accelerator-channel",
        channel("pipelinechannel--text", "componentInputParameter: pipelinechannel--text"),
        channel("pipelinechannel--text", "componentInputParameter: text"),
    ),
    *(
        Case("accelerator-channel", named(word, "NUMBER_INTEGER"), named(word, "STRING"))
        for word in ("n", "N", "y", "Y", "off")
    ),
    Case(
        "accelerator-channel",
        channel("pipelinechannel--plan-gpus", "taskOutputParameter: {outputParameterKey: gpus, producerTask: plan}"),
        channel("pipelinechannel--plan-text", "taskOutputParameter: {outputParameterKey: text, producerTask: plan}"),
    ),
    Case(
        "accelerator-channel",
        channel("pipelinechannel--item", "runtimeValue: {constant: 2.0}").replace(
            "{task_config", "{pipelinechannel--item: {parameterType: NUMBER_INTEGER}, task_config"
        ),
        channel("pipelinechannel--item", "runtimeValue: {constant: '2'}"),
    ),
    Case(
        "passthrough-argument",
        wrapped("taskConfigPassthroughs:  # here\n- field: ENV", "parameters: {}"),
        wrapped("", "parameters: {}"),
    ),
    Case("gpus-per-node", ranks("4.0", "'2'  # here"), ranks("4.0", "'8'")),
    Case(
        "gpus-per-node",
        pipeline(component=DEFAULT_RANKS, executor=gpus("'1'  # here")),
        pipeline(component=DEFAULT_RANKS, executor=gpus("'1'"), function="other"),
    ),
    *(
        Case(
            "caching",
            pipeline(function=function, caching="cachingOptions:\n  enableCache: true  # here"),
            pipeline(function=function),
        )
        for function in ("elastic_train", "elastic_train_distributed", "elastic_plan", "elastic_cleanup")
    ),
    Case("retry-deadline", retry("backoffMaxDuration: 3600s"), retry("backoffMaxDuration: 604800s")),
    Case("retry-deadline", retry("backoffDuration: 0s"), pipeline(function="other", task="retryPolicy: {}")),
    Case("retry-deadline", nested("retryPolicy: {maxRetryCount: 1}  # here"), nested("cachingOptions: {}")),
]
