"""A container that never began: is its machine to blame, or the image that lacks its command?"""

from __future__ import annotations

import pytest

from elastic_launcher.engines.kubernetes.nodes.pod_status import Gone, standing, turned_away
from tests.support.pod_documents import JOB, RUNC, ended, pod


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("StartError", f'{RUNC}: error during container init: exec: "python3": executable file not found in $PATH'),
        ("StartError", f'{RUNC}: exec: "/bin/python3": stat /bin/python3: no such file or directory: unknown'),
        ("ContainerCannotRun", 'caused \\"exec: \\\\\\"python3\\\\\\": permission denied\\": unknown'),
        ("ContainerCannotRun", "crun: executable file `python3` not found in $PATH: No such file or directory"),
        ("StartError", 'error finding executable "python3" in PATH [/usr/bin /bin]: no such file or directory'),
    ],
)
def test_a_command_that_the_image_has_not_is_a_failure_of_the_job(reason: str, message: str) -> None:
    command = "/bin/python3" if "/bin/python3" in message else "python3"
    found = pod("Failed", state=ended(128, reason, message))
    found["spec"]["containers"][0]["command"] = [command, "-m", "elastic_launcher.agent"]
    assert standing(JOB, found) == Gone(
        None, f"{reason}: {message}; check the image and the command of the pod template"
    )
    assert not turned_away(found)


@pytest.mark.parametrize(
    "message",
    [
        f"{RUNC}: error running hook #0: exit status 1, stderr: nvidia-container-cli: initialization error: nvml error",
        'fork/exec /usr/bin/nvidia-container-runtime: no such file or directory: exec: "nvidia-container-runtime": no',
        f"{RUNC}: error during container init: error setting cgroup config for procHooks process: no space left",
        f'{RUNC}: error mounting "/run/x" to rootfs at "/usr/lib/python3": input/output error',
        "",
    ],
)
def test_a_machine_that_starts_no_container_is_no_failure_of_the_job(message: str) -> None:
    found = pod("Failed", state=ended(128, "StartError", message))
    assert standing(JOB, found) == Gone(None, f"StartError: {message}".removesuffix(": "), taken=True)
    assert turned_away(found)


@pytest.mark.parametrize(
    ("message", "taken"), [("error setting cgroup config", True), ('exec: "sh": not found', False)]
)
def test_an_init_container_that_its_machine_can_not_start_is_none_either(message: str, taken: bool) -> None:
    found = pod("Failed", init=[{"name": "data", "state": ended(128, "StartError", message)}])
    found["spec"]["initContainers"] = [{"name": "data", "command": ["sh"]}]
    gone = Gone(None, f"its init container data failed with 128: {message}", taken)
    assert (standing(JOB, found), turned_away(found)) == (gone, taken)


def test_what_can_not_be_started_and_has_no_command_in_the_template_is_the_images() -> None:
    found = pod("Failed", state=ended(128, "StartError", "error setting cgroup config"))
    del found["spec"]["containers"][0]["command"]
    assert not turned_away(found)
