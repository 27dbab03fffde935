"""What a projects document says, and every way in which it can be wrong."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from elastic_launcher.quota.projects import Autoscale, Capacity, Project, Projects, QuotaError
from elastic_launcher.quota.projects_document import parse_projects

DAY = 86_400.0
EXAMPLE = """apiVersion: elastic-quota/v1
capacity: {gpus: 16}
gracePeriodSeconds: 20
growAfterSeconds: 90
ttlSeconds: 60
unmatched: refuse
projects:
- name: org
  guaranteed: 12
- name: research
  parent: org
  guaranteed: 8
  limit: 16
  weight: 0.5
  priority: -1
  minRunSeconds: 600
  gracePeriodSeconds: 45
  match: {namespace: ml, queue: team-a}
- name: students
  match:
  - {namespace: course-*}
  - {project: students, queue: "8"}
"""


def test_the_example() -> None:
    assert parse_projects(EXAMPLE) == Projects(
        (
            Project("org", 12, grace_period=20.0),
            Project("research", 8, 16, 0.5, -1, "org", 600.0, 45.0, ({"namespace": "ml", "queue": "team-a"},)),
            Project(
                "students",
                grace_period=20.0,
                patterns=({"namespace": "course-*"}, {"project": "students", "queue": "8"}),
            ),
        ),
        None,
        Capacity(16),
        90.0,
        60.0,
    )


@pytest.mark.parametrize(("top", "fairness"), [((), 0.0), (("fairness: 0.3",), 0.3), (("fairness: 1",), 1.0)])
def test_how_fairly_jobs_share_what_a_project_has(top: tuple[str, ...], fairness: float) -> None:
    assert parse_projects(document(*top, "projects: [{name: nlp}]")).fairness == fairness


@pytest.mark.parametrize(
    ("top", "own", "waits"),
    [("", "", DAY), ("waitSeconds: 600", "", 600.0), ("waitSeconds: 600", "0", 0.0), ("", "60", 60.0)],
)
def test_the_jobs_of_a_project_wait_as_long_as_it_says_or_else_as_the_document_says(
    top: str, own: str, waits: float
) -> None:
    row = f"- {{name: nlp{', waitSeconds: ' if own else ''}{own}}}"
    found = parse_projects(f"apiVersion: elastic-quota/v1\n{top}\nprojects:\n{row}\n")
    assert found.named("nlp").wait_seconds == waits
    assert found.named("default").wait_seconds == (600.0 if top else DAY)


def test_json_is_read_alike() -> None:
    content = yaml.safe_load(EXAMPLE)
    assert parse_projects(json.dumps(content)) == parse_projects(EXAMPLE)
    assert parse_projects(json.dumps(content, indent="\t").encode()) == parse_projects(EXAMPLE)


def document(*lines: str) -> str:
    """A document of a few lines; the first of them is the second line."""
    return "\n".join(["apiVersion: elastic-quota/v1", *lines])


def one(*fields: str) -> str:
    """A document of one project; the first of the fields is in line 4."""
    return document("projects:", "- name: a", *(f"  {field}" for field in fields))


def test_only_the_version_and_a_name_are_needed() -> None:
    assert parse_projects(one()) == Projects((Project("a"), Project("default", patterns=())), "default")


@pytest.mark.parametrize(
    ("unmatched", "names", "said"),
    [
        ("", ["a", "default"], "default"),
        ("unmatched: default", ["a", "default"], "default"),
        ("unmatched: a", ["a"], "a"),
        ("unmatched: refuse", ["a"], None),
    ],
)
def test_jobs_without_a_project_go_where_the_document_says(unmatched: str, names: list[str], said: str | None) -> None:
    found = parse_projects(document("projects: [{name: a}]", unmatched))
    assert [project.name for project in found.projects] == names
    project = found.project_of({"job": "bert"})
    assert said == (None if project is None else project.name)


def test_a_project_named_default_takes_jobs_without_a_project() -> None:
    found = parse_projects(document("projects: [{name: default, guaranteed: 3}]"))
    assert found.projects == (Project("default", 3),)
    assert found.project_of({"project": "typo"}) == Project("default", 3)


@pytest.mark.parametrize(
    ("text", "capacity"),
    [
        ("{gpus: 0}", Capacity(0)),
        ("{machines: {}}", Capacity()),
        ("{machines: {resource: amd.com/gpu}}", Capacity(None, "amd.com/gpu")),
        ("{autoscale: {max: 64}}", Capacity(autoscale=Autoscale(64, 0.35, 0.65))),
        ("{machines: {}, autoscale: {max: 8, utility: [0.5, 1]}}", Capacity(autoscale=Autoscale(8, 0.5, 1.0))),
        ("{resourceQuotas: {}}", Capacity(resource_quotas=True)),
        ("{gpus: 8, resourceQuotas: {}, kueue: {}}", Capacity(8, resource_quotas=True, kueue=True)),
        ("{machines: {}, kai: {}}", Capacity(kai=True)),
    ],
)
def test_capacity_is_a_number_or_the_machines(text: str, capacity: Capacity) -> None:
    assert parse_projects(document("projects: [{name: a}]", f"capacity: {text}")).capacity == capacity


@pytest.mark.parametrize(
    ("org", "guaranteed"),
    [
        ("{name: org}", 7),
        ("{name: org, limit: 6}", 6),
        ("{name: org, guaranteed: 0}", 0),
        ("{name: org, guaranteed: 9}", 9),
    ],
)
def test_a_department_without_a_guarantee_has_those_of_its_projects(org: str, guaranteed: int) -> None:
    rows = ["- {name: a, parent: nlp, guaranteed: 3}", "- {name: b, parent: nlp, guaranteed: 4}"]
    found = parse_projects(document("projects:", *rows, f"- {org}", "- {name: nlp, parent: org}"))
    assert (found.named("nlp").guaranteed, found.named("org").guaranteed) == (7, guaranteed)


@pytest.mark.parametrize("key", ["kai", "kueue"])
def test_projects_may_be_left_out_or_be_settings_where_queues_are_projects(key: str) -> None:
    capacity = f"capacity: {{{key}: {{}}}}"
    assert parse_projects(document(capacity)).projects == (Project("default", patterns=()),)
    rows = ["projects:", "- {name: a, parent: above, weight: 2}", "- {name: b, minRunSeconds: 60}"]
    found = parse_projects(document(capacity, *rows, "unmatched: elsewhere", "gracePeriodSeconds: 5"))
    assert (found.unmatched, found.grace_period, found.named("a").parent) == ("elsewhere", 5.0, "above")
    assert found.given == {"a": {"parent", "weight"}, "b": {"min_run_seconds"}}


def test_resource_quotas_alone_give_no_projects() -> None:
    assert 'projects" is missing' in str(refused(document("capacity: {resourceQuotas: {}}")))


SHARED = "when not all of them are there, they are shared in proportion"


@pytest.mark.parametrize(
    ("lines", "warnings"),
    [
        (
            ("ttlSeconds: 20", "projects: [{name: nlp}]"),
            ["line 2: hints expire between two rounds after 20 s (ttlSeconds); 60 or more is safe"],
        ),
        (("projects:", "- {name: a, guaranteed: 4}", "- {name: b, guaranteed: 4}", "capacity: {gpus: 8}"), []),
        (
            ("projects:", "- {name: a, guaranteed: 4}", "- {name: b, guaranteed: 4}", "capacity:", "  gpus: 7"),
            [f"line 6: the projects are guaranteed 8 GPUs, and there are 7 (capacity.gpus); {SHARED}"],
        ),
        (
            ("projects: [{name: a, guaranteed: 8}]", "capacity: {autoscale: {max: 7}}"),
            [
                "line 3: the projects are guaranteed 8 GPUs, and there will be 7 at most (capacity.autoscale.max); "
                + SHARED
            ],
        ),
        (
            ("projects:", "- name: org", "  guaranteed: 4", "- {name: a, parent: org, guaranteed: 5}"),
            [
                "line 4: the projects below org are guaranteed 5 GPUs, and org itself 4 (projects[0].guaranteed); "
                + SHARED
            ],
        ),
        (
            ("projects:", "- name: org", "  limit: 4", "- {name: a, parent: org, guaranteed: 5}"),
            [
                "line 3: the projects below org are guaranteed 5 GPUs, and org itself 4 (projects[0].guaranteed); "
                + SHARED
            ],
        ),
        (
            ("projects:", "- name: a", "- name: b", "  weight: 0"),
            ["line 4: project b never gets a GPU (projects[1]): its weight and its guarantee are 0"],
        ),
        (("projects: [{name: a, weight: 0, guaranteed: 1}]",), []),
    ],
)
def test_what_is_odd_is_a_warning(lines: tuple[str, ...], warnings: list[str]) -> None:
    assert list(parse_projects(document(*lines)).warnings) == warnings


GPUS = "it must be a whole number of GPUs, 0 or more"
MOST = "it must be 100000 GPUs at most"
NAME = 'it must be a name of at most 63 lower-case letters, digits and dashes, such as "team-a"'
SECONDS = "it must be a number of seconds, 0 to 1000000000"
CAPACITY = 'it must be {"gpus": 16}, or {"machines": {"resource": "nvidia.com/gpu"}}, or left out'
RESOURCE = 'it must be the name of a resource, such as "nvidia.com/gpu"'
KEYS = "name, parent, guaranteed, limit, weight, priority, minRunSeconds, waitSeconds, gracePeriodSeconds, match"
TOP = (
    "apiVersion, capacity, gracePeriodSeconds, growAfterSeconds, waitSeconds, ttlSeconds, fairness, unmatched, projects"
)
MATCH = "it must be one of namespace, project, queue, pipeline, job, id"
DECIMAL = "which is no plain decimal number; write one such as 8 or 0.5, or a text in quotes"
FAIRNESS = "it must be a number from 0, for an early end on average, to 1, where all jobs weigh the same"
WEIGHT = "it must be a number, 0 to 1000000"


def refused(text: str) -> QuotaError:
    with pytest.raises(QuotaError) as caught:
        parse_projects(text)
    assert str(caught.value).startswith(f"line {caught.value.line}: ")
    return caught.value


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("# nothing", "", 'line 1: the document is null; it must be an object with "apiVersion" and "projects"'),
        ("\n- 1", "", 'line 2: the document is a list; it must be an object with "apiVersion" and "projects"'),
        ("projects: []", "apiVersion", 'line 1: "apiVersion" is missing; it must be "elastic-quota/v1"'),
        ("\napiVersion: v1", "apiVersion", 'line 2: "apiVersion" is "v1"; it must be "elastic-quota/v1"'),
        (
            document("project: []"),
            "project",
            f'line 2: "project" is unknown; it must be one of {TOP}; did you mean "projects"?',
        ),
        (document("x: 1"), "x", f'line 2: "x" is unknown; it must be one of {TOP}'),
        (document("gracePeriodSeconds: -1"), "gracePeriodSeconds", f'line 2: "gracePeriodSeconds" is -1; {SECONDS}'),
        (document("growAfterSeconds: 1m"), "growAfterSeconds", f'line 2: "growAfterSeconds" is "1m"; {SECONDS}'),
        (document("ttlSeconds: true"), "ttlSeconds", f'line 2: "ttlSeconds" is true; {SECONDS}'),
        (
            document("ttlSeconds: 0"),
            "ttlSeconds",
            'line 2: "ttlSeconds" is 0; it must be a number of seconds above 0, or hints never hold',
        ),
        (document("fairness: 1.5", "projects: [{name: nlp}]"), "fairness", f'line 2: "fairness" is 1.5; {FAIRNESS}'),
        (document("fairness: -0.1", "projects: [{name: nlp}]"), "fairness", f'line 2: "fairness" is -0.1; {FAIRNESS}'),
        (
            document("fairness: high", "projects: [{name: nlp}]"),
            "fairness",
            f'line 2: "fairness" is "high"; {FAIRNESS}',
        ),
        (document("fairness: true", "projects: [{name: nlp}]"), "fairness", f'line 2: "fairness" is true; {FAIRNESS}'),
        (document("fairness: null", "projects: [{name: nlp}]"), "fairness", f'line 2: "fairness" is null; {FAIRNESS}'),
        (
            document("projects: [{name: nlp}]", "unmatched: npl"),
            "unmatched",
            'line 3: "unmatched" is "npl"; it must be the name of a project, or "refuse"; did you mean "nlp"?',
        ),
        (
            document("projects: [{name: nlp}]", "unmatched: [nlp]"),
            "unmatched",
            'line 3: "unmatched" is a list; it must be the name of a project, or "refuse"',
        ),
        (document(), "projects", 'line 1: "projects" is missing; it must be a list of projects'),
        (document("projects:"), "projects", 'line 2: "projects" is null; it must be a list of projects'),
        (document("projects: {a: 1}"), "projects", 'line 2: "projects" is an object; it must be a list of projects'),
        (document("projects: []"), "projects", 'line 2: "projects" is empty; it must have at least one project'),
        pytest.param(
            document("projects:", *(f"- name: p{n}" for n in range(1001))),
            "projects",
            'line 2: "projects" has 1001 projects; it must have 1000 at most',
            id="many",
        ),
        (
            document("projects:", "- nlp"),
            "projects[0]",
            'line 3: "projects[0]" is "nlp"; it must be an object with "name"',
        ),
    ],
)
def test_bad_documents_are_refused_with_line_path_and_fix(text: str, path: str, said: str) -> None:
    error = refused(text)
    assert (str(error), error.path) == (said, path)


@pytest.mark.parametrize(
    ("value", "path", "said"),
    [
        ("16", "", f'"capacity" is 16; {CAPACITY}'),
        ("{}", "", f'"capacity" is empty; {CAPACITY}'),
        (
            "{gpu: 1}",
            ".gpu",
            '"gpu" is unknown (capacity.gpu); it must be one of gpus, machines, autoscale, resourceQuotas, kai, kueue; '
            'did you mean "gpus"?',
        ),
        ("{gpus: 1.5}", ".gpus", f'"gpus" is 1.5 (capacity.gpus); {GPUS}'),
        ("{gpus: 100001}", ".gpus", f'"gpus" is 100001 (capacity.gpus); {MOST}'),
        (
            "{gpus: 1, machines: {}}",
            ".machines",
            '"capacity" has "gpus" and "machines" (capacity.machines); it must have one of them: a number of GPUs, or '
            "those of the machines",
        ),
        ("{machines: a}", ".machines", '"machines" is "a" (capacity.machines); it must be an object'),
        (
            "{machines: {resource: 1}}",
            ".machines.resource",
            f'"resource" is 1 (capacity.machines.resource); {RESOURCE}',
        ),
        (
            "{machines: {name: a}}",
            ".machines.name",
            '"name" is unknown (capacity.machines.name); it must be one of resource',
        ),
        ("{autoscale: 64}", ".autoscale", '"autoscale" is 64 (capacity.autoscale); it must be an object with "max"'),
        (
            "{autoscale: {}}",
            ".autoscale.max",
            '"max" is missing (capacity.autoscale.max); it must be the number of GPUs that hints may add up to',
        ),
        ("{autoscale: {max: 0}}", ".autoscale.max", '"max" is 0 (capacity.autoscale.max); it must be 1 GPU or more'),
        ("{autoscale: {max: -1}}", ".autoscale.max", f'"max" is -1 (capacity.autoscale.max); {GPUS}'),
        (
            "{autoscale: {max: 8, utilty: [0, 1]}}",
            ".autoscale.utilty",
            '"utilty" is unknown (capacity.autoscale.utilty); it must be one of max, utility; did you mean "utility"?',
        ),
        (
            "{gpus: 8, autoscale: {max: 8}}",
            ".autoscale",
            '"capacity" has "gpus" and "autoscale" (capacity.autoscale); it must have one of them: a number stays as '
            "it is",
        ),
        *(
            (
                f"{{autoscale: {{max: 8, utility: {band}}}}}",
                ".autoscale.utility",
                f'"utility" is {said} (capacity.autoscale.utility); it must be two numbers above 0, the lower one '
                "first, such as [0.35, 0.65]",
            )
            for band, said in (("0.5", "0.5"), ("[0.5]", "a list"), ("[0.6, 0.5]", "a list"), ("[0, 1]", "a list"))
        ),
        (
            "{kai: {queues: [a]}}",
            ".kai.queues",
            '"queues" is unknown (capacity.kai.queues); it must be left out',
        ),
        (
            "{resourceQuotas: true}",
            ".resourceQuotas",
            '"resourceQuotas" is true (capacity.resourceQuotas); it must be {}, for its defaults',
        ),
    ],
)
def test_a_bad_capacity_is_refused_with_line_path_and_fix(value: str, path: str, said: str) -> None:
    error = refused(document("projects: [{name: a}]", f"capacity: {value}"))
    assert (str(error), error.path) == (f"line 3: {said}", f"capacity{path}")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("guaranteed: -2", f'"guaranteed" is -2 (PATH); {GPUS}'),
        ("guaranteed: 1.5", f'"guaranteed" is 1.5 (PATH); {GPUS}'),
        ("guaranteed: 1e3", f'"guaranteed" is 1000.0 (PATH); {GPUS}'),
        ("limit: 010", f"PATH is 010, {DECIMAL}"),
        ("limit: '8'", f'"limit" is "8" (PATH); {GPUS}'),
        ("limit:", f'"limit" is null (PATH); {GPUS}'),
        ("limit: true", f'"limit" is true (PATH); {GPUS}'),
        ("limit: 100001", f'"limit" is 100001 (PATH); {MOST}'),
        ("weight: -1", f'"weight" is -1 (PATH); {WEIGHT}'),
        ("weight: .nan", f"PATH is .nan, {DECIMAL}"),
        ("weight: high", f'"weight" is "high" (PATH); {WEIGHT}'),
        ("weight: true", f'"weight" is true (PATH); {WEIGHT}'),
        ("weight: 1000001", f'"weight" is 1000001 (PATH); {WEIGHT}'),
        ("priority: 0.5", '"priority" is 0.5 (PATH); it must be a whole number'),
        ("minRunSeconds: -1", f'"minRunSeconds" is -1 (PATH); {SECONDS}'),
        ("waitSeconds: -1", f'"waitSeconds" is -1 (PATH); {SECONDS}'),
        ("waitSeconds: day", f'"waitSeconds" is "day" (PATH); {SECONDS}'),
        ("gracePeriodSeconds: 1e10", f'"gracePeriodSeconds" is 10000000000.0 (PATH); {SECONDS}'),
        ("guarantee: 1", f'"guarantee" is unknown (PATH); it must be one of {KEYS}; did you mean "guaranteed"?'),
        ("nodes: {}", f'"nodes" is unknown (PATH); it must be one of {KEYS}'),
        ("name: b", '"name" is there twice (PATH); each key is there once'),
        ("parent: [b]", '"parent" is a list (PATH); it must be the name of a project'),
        ("parent: default", '"parent" is "default" (PATH); it must be the name of a project'),
        ("parent: a", '"parent" is "a" (PATH); it must be a project that is not below this one: a → a is a circle'),
        ("match: ml", '"match" is "ml" (PATH); it must be an object'),
        (
            "match: []",
            '"match" is empty (PATH); it must have at least one object such as {"queue": "team-a"}; leave it out for '
            "jobs that name the project",
        ),
    ],
)
def test_a_bad_field_is_refused_with_line_path_and_fix(field: str, said: str) -> None:
    error, path = refused(one(field)), f"projects[0].{field.partition(':')[0]}"
    assert (str(error), error.path) == (f"line 4: {said.replace('PATH', path)}", path)


@pytest.mark.parametrize(
    ("lines", "path", "said"),
    [
        (["- {}"], "projects[0].name", f'line 3: "name" is missing (projects[0].name); {NAME}'),
        (["- name: NLP"], "projects[0].name", f'line 3: "name" is "NLP" (projects[0].name); {NAME}'),
        (["- name: 8"], "projects[0].name", f'line 3: "name" is 8 (projects[0].name); {NAME}'),
        (
            ["- name: no"],
            "projects[0].name",
            "line 3: projects[0].name is no, which YAML 1.1 reads as a boolean; put a text in quotes, or write true or "
            "false",
        ),
        (
            ["- name: refuse"],
            "projects[0].name",
            'line 3: "name" is "refuse" (projects[0].name); it must be another name, since "unmatched: refuse" stands '
            "for no project",
        ),
        (
            ["- name: a", "- limit: 1", "  name: a"],
            "projects[1].name",
            'line 5: "name" is "a" (projects[1].name); it must be a name of its own: projects[0] has this one, in line '
            "3",
        ),
        (
            ["- name: a", "  limit: 7", "  guaranteed: 8"],
            "projects[0].guaranteed",
            'line 5: "guaranteed" is 8 (projects[0].guaranteed); it must be at most the limit, 7',
        ),
        (
            ["- name: org", "- name: a", "  parent: ogr"],
            "projects[1].parent",
            'line 5: "parent" is "ogr" (projects[1].parent); it must be the name of a project; did you mean "org"?',
        ),
        (
            ["- {name: x, parent: a}", "- {name: a, parent: b}", "- {name: b, parent: c}", "- {name: c, parent: a}"],
            "projects[1].parent",
            'line 4: "parent" is "b" (projects[1].parent); it must be a project that is not below this one: '
            "a → b → c → a is a circle",
        ),
        (
            ["- name: a", "  match:", "  - {queue: a}", "  - ml"],
            "projects[0].match[1]",
            'line 6: "match[1]" is "ml" (projects[0].match[1]); it must be an object',
        ),
        (
            ["- name: a", "  match: {team: a}"],
            "projects[0].match.team",
            f'line 4: "team" is unknown (projects[0].match.team); {MATCH}',
        ),
        (
            ["- name: a", "  match: {queue: 8}"],
            "projects[0].match.queue",
            'line 4: "queue" is 8 (projects[0].match.queue); it must be a name, or "*" for any',
        ),
        (
            ["- name: a", "  match:", "  - {namespace: m, queue: '*'}", "- {name: b, match: {job: '*', namespace: m}}"],
            "projects[1].match",
            "line 6: project b matches namespace=m (projects[1].match), and so does project a (projects[0].match[0], "
            "line 5); a job has one project: change one of them",
        ),
        (
            ["- name: a", "- {name: b, match: {project: a}}"],
            "projects[1].match",
            "line 4: project b matches project=a (projects[1].match), and so does project a (projects[0].match, line "
            "3); a job has one project: change one of them",
        ),
        (
            ["- {name: a, match: {}}", "- {name: b, match: {job: '*'}}"],
            "projects[1].match",
            "line 4: project b matches every job (projects[1].match), and so does project a (projects[0].match, line "
            "3); a job has one project: change one of them",
        ),
    ],
)
def test_bad_projects_are_refused_with_line_path_and_fix(lines: list[str], path: str, said: str) -> None:
    error = refused(document("projects:", *lines))
    assert (str(error), error.path) == (said, path)


def test_a_document_that_is_too_large_is_refused() -> None:
    text = one() + "\n"
    assert parse_projects(text + "#" * (2**20 - len(text))).named("a")
    with pytest.raises(QuotaError, match="the document has 1048577 bytes; it must have 1048576 at most"):
        parse_projects(text + "#" * (2**20 - len(text) + 1))


def test_a_thousand_projects_in_a_row_are_read() -> None:
    rows = [f"- {{name: p{n}, guaranteed: 1, parent: p{n - 1}}}" for n in range(1, 1000)]
    found = parse_projects(document("projects:", "- name: p0", *rows))
    assert len(found.path("p999")) == 1000
    assert found.named("p0").guaranteed == 1


TEXTS = ("1", "0", "1.5", "-1", "a", "b", "[]", "{}", "null", "true", "refuse", "{queue: a}", "[{queue: '*'}]")
VALUES = st.sampled_from(TEXTS)
FIELDS = st.sampled_from([*KEYS.split(", "), "x"])
ROWS = st.lists(st.dictionaries(FIELDS, VALUES, max_size=5), max_size=4)


@given(ROWS, st.dictionaries(st.sampled_from(TOP.split(", ")[1:6]), VALUES, max_size=3))
def test_any_document_is_read_or_refused(rows: list[dict[str, str]], top: dict[str, str]) -> None:
    listed = ["{" + ", ".join(f"{key}: {value}" for key, value in row.items()) + "}" for row in rows]
    text = document(f"projects: [{', '.join(listed)}]", *(f"{key}: {value}" for key, value in top.items()))
    try:
        found = parse_projects(text)
    except QuotaError as error:
        assert error.line in range(1, 6)
    else:
        assert len({project.name for project in found.projects}) == len(found.projects) >= len(rows) > 0
        assert all(found.path(project.name) for project in found.projects)
