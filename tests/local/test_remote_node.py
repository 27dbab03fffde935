"""A node that sees none of the launcher's files: all that it needs and tells goes over the control API."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_launcher.agent.echo import Echo
from elastic_launcher.agent.log_sender import MOST_BEHIND, LogSender
from elastic_launcher.agent.own_folder import ToldToGo, Unfit, make_own_folder
from elastic_launcher.checkpoint.landmark import Landmark, landmark_of, put, remove
from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.control import ControlClient, ControlRefused, ControlUnreachable
from elastic_launcher.control.requests import NodeMessage, RankEnded
from elastic_launcher.coordinator.api.server import ControlServer
from elastic_launcher.coordinator.model.roster import Exit
from elastic_launcher.coordinator.runtime.endpoints import HERE, CoordinatorHost, Endpoint
from elastic_launcher.coordinator.runtime.node_files import NodeFiles
from elastic_launcher.engines.local import node_environment
from elastic_launcher.host import processes
from elastic_launcher.workdir import Layout, claim, read_job
from tests.support.control_recorder import KEY, SUPERSEDED, Desk
from tests.support.launches import PATIENCE

NODE = 1
CODE = {"train.py": "import helper\nprint('trained', helper.WORD)\n", "helper.py": "WORD = 'well'\n"}
STORE = "127.0.0.1:29555"


@asynccontextmanager
async def serving(
    folder: Path,
    config: JobConfig,
    desk: Desk | None = None,
    landmark: Landmark | None = None,
    where: Endpoint = HERE,
) -> AsyncIterator[tuple[str, Layout]]:
    """Serves a job's files; gives the URL, and the work directory that the launcher sees."""
    with claim(config, folder) as work_dir:
        files = NodeFiles(config, work_dir.layout, STORE, CoordinatorHost(code=CODE, landmark=landmark))
        server = ControlServer(KEY, desk or Desk(), 4, where, files=files)
        try:
            yield await server.start(), work_dir.layout
        finally:
            await server.close()


def variables(url: str, key: bytes = KEY, patience: int = 5) -> dict[str, str]:
    """Returns what a pod's environment has."""
    return {
        "ELASTIC_CONTROL": url,
        "ELASTIC_KEY": key.hex(),
        "ELASTIC_NODE": str(NODE),
        "ELASTIC_FIRST_MEMBER": "1",
        "ELASTIC_ORPHAN_TIMEOUT": str(patience),
    }


def config_of(**settings: Any) -> JobConfig:
    return JobConfig(script="/of/the/launcher/train.py", arguments=("--lr", "1"), work_dir="job", **settings)


def test_a_nodes_own_folder_has_the_job_its_code_and_the_way_to_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def play() -> None:
        async with serving(tmp_path, config_of()) as (url, theirs):
            environment = variables(url)
            path = await asyncio.to_thread(make_own_folder, environment)
            job_id, config = read_job(path)
            assert (job_id, config.arguments) == (read_job(theirs.path)[0], ("--lr", "1"))
            assert config.script == str(path / "code" / "train.py")
            assert {one.name: one.read_text() for one in (path / "code").iterdir()} == CODE
            assert environment["ELASTIC_WORK_DIR"] == str(path) != str(theirs.path)
            assert "ELASTIC_KEY" not in environment
            control = json.loads(Path(environment["ELASTIC_CONTROL"]).read_text())
            assert control == {"v": 1, "url": url, "store": STORE, "key": KEY.hex(), "term": 4}
            assert Path(environment["ELASTIC_CONTROL"]).stat().st_mode & 0o777 == 0o600

    asyncio.run(play())


def test_a_nodes_second_pod_is_told_which_members_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def play() -> None:
        async with serving(tmp_path, config_of()) as (url, _):
            environment = {**variables(url), "ELASTIC_POD": "second"}
            await asyncio.to_thread(make_own_folder, environment)
            assert environment["ELASTIC_FIRST_MEMBER"] == "5"

    asyncio.run(play())


def test_an_agent_whose_node_was_taken_back_by_its_queue_is_told_to_go_and_not_listened_to(tmp_path: Path) -> None:
    async def play() -> None:
        desk = Desk()
        async with serving(tmp_path, config_of(), desk) as (url, theirs):
            with ControlClient(url, f"n{NODE}", KEY.hex()) as client:

                async def post(what: str, **payload: Any) -> dict[str, Any]:
                    payload["first_member"] = SUPERSEDED
                    return await asyncio.to_thread(client.post, f"/v1/nodes/{NODE}/{what}", payload)

                assert await post("heartbeat", pid=6, notices=1) == {"leave": True}
                told = {
                    "notice": {"source": "signal"},
                    "rank_ended": {"local_rank": 0, "exit_code": 75, "signal": None},
                    "log": {"local_rank": 0, "offset": 0, "data": ""},
                    "life": {"n": 1, "waits": 1},
                    "unfit": {"message": "no data"},
                }
                for what, payload in told.items():
                    with pytest.raises(ControlRefused, match="this pod of node 1 is not wanted any more"):
                        await post(what, **payload)
            assert not theirs.exit_file(NODE, 0).exists() and not theirs.rank_log(NODE, 0).exists()
        assert desk.told == []

    asyncio.run(play())


def test_how_a_rank_ended_is_kept_once_for_each_member(tmp_path: Path) -> None:
    with claim(config_of(), tmp_path) as work_dir:
        files = NodeFiles(config_of(), work_dir.layout, STORE, CoordinatorHost())
        files.note_exit(NODE, 0, 75, None, first_member=1)
        files.note_exit(NODE, 0, 1, None, first_member=1)
        assert (files.exits(NODE, [1]), files.exits(NODE, [2])) == (((0, Exit(75)),), ())
        files.note_exit(NODE, 0, 0, None, first_member=2)
        assert files.exits(NODE, [2]) == ((0, Exit(0)),)


def test_nothing_is_handed_to_whoever_has_another_key(tmp_path: Path) -> None:
    async def play() -> None:
        async with serving(tmp_path, config_of()) as (url, _):
            with pytest.raises(ControlUnreachable, match="signature"):
                await asyncio.to_thread(make_own_folder, variables(url, bytes(32), patience=1))

    asyncio.run(play())


def test_a_node_that_is_told_to_go_before_it_has_begun_goes() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        with pytest.raises(ToldToGo):
            make_own_folder(variables("http://127.0.0.1:1"))
        assert signal.sigwait([signal.SIGTERM]) == signal.SIGTERM
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize("name", ["../train.py", "/etc/train.py"])
def test_no_file_is_written_outside_of_the_nodes_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(CODE, name, "print('outside')")

    async def play() -> None:
        async with serving(tmp_path, config_of()) as (url, _):
            with pytest.raises(OSError, match=r"outside of the node's folder: .*train\.py"):
                await asyncio.to_thread(make_own_folder, variables(url))

    asyncio.run(play())


def test_what_is_told_twice_is_written_once(tmp_path: Path) -> None:
    async def play() -> None:
        desk = Desk()
        async with serving(tmp_path, config_of(), desk) as (url, theirs):
            with ControlClient(url, f"n{NODE}", KEY.hex()) as client:
                for offset, text in ((0, b"one\ntw"), (0, b"one\ntw"), (4, b"two\n"), (8, "thr\u00e9e\n".encode())):
                    payload = {"local_rank": 0, "offset": offset, "data": base64.b64encode(text).decode()}
                    await asyncio.to_thread(client.post, f"/v1/nodes/{NODE}/log", payload)
                ended = {"local_rank": 0, "exit_code": None, "signal": 9}
                await asyncio.to_thread(client.post, f"/v1/nodes/{NODE}/rank_ended", ended)
                with pytest.raises(ControlRefused, match="no local rank 1"):
                    await asyncio.to_thread(client.post, f"/v1/nodes/{NODE}/log", {**payload, "local_rank": 1})
            assert theirs.rank_log(NODE, 0).read_text() == "one\ntwo\nthr\u00e9e\n"
            assert json.loads(theirs.exit_file(NODE, 0).read_text()) == {"exit_code": None, "signal": 9}
            assert desk.told == [("rank_ended", NODE, 0, None, 9)]

    asyncio.run(play())


def test_a_log_is_told_whole_and_where_it_is_too_much_the_gap_is_named(tmp_path: Path) -> None:
    path, told = tmp_path / "1-0.log", bytearray()

    def tell(offset: int, data: str) -> None:
        assert offset == len(told)
        told.extend(base64.b64decode(data))

    sender = LogSender(path, tell, Echo(0))
    assert not sender.send()
    path.write_bytes(b"first\n")
    sender.send_rest()
    path.write_bytes(b"first\n" + b"x" * (MOST_BEHIND + 50) + b"last\n")
    sender.send_rest()
    assert told.startswith(b"first\n\n[elastic-launcher: 55 bytes of this log are left out here]\nx")
    assert told.endswith(b"xlast\n")
    assert told.count(b"x") == MOST_BEHIND - len(b"last\n")


def test_a_file_that_was_told_is_cut_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_launcher.agent.log_sender.CUT_BYTES", 100)
    path, told = tmp_path / "1-0.log", []
    sender = LogSender(path, lambda offset, data: told.append(base64.b64decode(data)), Echo(0))
    with open(path, "ab", buffering=0) as script:
        for line in (b"a" * 99 + b"\n", b"b\n"):
            script.write(line)
            sender.send()
    assert told == [b"a" * 99 + b"\n", b"b\n"]
    assert path.read_bytes() == b"b\n"


async def run_agent(folder: Path, url: str, theirs: Layout, **more: str) -> tuple[int | None, str]:
    """Runs an agent that sees none of the launcher's files; returns its exit code, and what it said."""
    inherited = node_environment(config_of(), theirs, os.environ)
    kept = {name: value for name, value in inherited.items() if not name.startswith("ELASTIC_")}
    (folder / "elsewhere").mkdir()
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "elastic_launcher.agent"),
        env={**kept, **variables(url), "TMPDIR": str(folder / "elsewhere"), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    said, _ = await asyncio.wait_for(agent.communicate(), PATIENCE)
    assert not list((folder / "elsewhere").iterdir())
    return agent.returncode, said.decode()


def test_an_agent_needs_nothing_but_an_address_and_a_key(tmp_path: Path) -> None:
    async def play() -> None:
        desk = Desk()
        async with serving(tmp_path, config_of(), desk) as (url, theirs):
            code, said = await run_agent(tmp_path, url, theirs)
            assert code == ExitCode.DONE, said
            assert theirs.rank_log(NODE, 0).read_text() == "trained well\n"
            assert ("rank_ended", NODE, 0, 0, None) in desk.told
            assert not processes.find(str(theirs.path), spare=(os.getpid(),))

    asyncio.run(play())


def test_an_agent_whose_coordinator_is_not_there_yet_asks_whoever_answers_until_it_is(tmp_path: Path) -> None:
    """As where a load balancer's default answers 404 before the Service has endpoints."""

    async def play() -> None:
        asked, enough = 0, asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            await reader.readuntil(b"\r\n\r\n")
            page = b'{"error": "no such route"}'
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))
            await writer.drain()
            writer.close()
            asked += 1
            if asked > 5:  # tries of one request
                enough.set()

        stranger = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = stranger.sockets[0].getsockname()[1]
        layout = Layout(tmp_path / "theirs")
        agent = asyncio.ensure_future(run_agent(tmp_path, f"http://127.0.0.1:{port}", layout))
        await asyncio.wait_for(enough.wait(), PATIENCE)
        stranger.close()
        await stranger.wait_closed()
        async with serving(tmp_path, config_of(), where=Endpoint(control_port=port)) as (_, theirs):
            code, said = await agent
            assert code == ExitCode.DONE, said
            assert theirs.rank_log(NODE, 0).read_text() == "trained well\n"
        assert said.count(f"HTTP 404 from 127.0.0.1:{port} is no answer of this job's coordinator") == 1

    asyncio.run(play())


def test_what_a_rank_leaves_for_its_user_alone_can_be_read_before_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.safetensors"
    leave = f"import os; os.close(os.open({str(model)!r}, os.O_WRONLY | os.O_CREAT, 0o600))"
    monkeypatch.setitem(CODE, "train.py", leave)
    tmp_path.chmod(0o755)

    class Looking(Desk):
        def take(self, node: int, message: NodeMessage) -> None:
            modes.extend([model.stat().st_mode & 0o777] if isinstance(message, RankEnded) else [])
            super().take(node, message)

    async def play() -> None:
        async with serving(tmp_path, config_of(output=str(model)), Looking()) as (url, theirs):
            code, said = await run_agent(tmp_path, url, theirs)
            assert code == ExitCode.DONE, said

    modes: list[int] = []
    asyncio.run(play())
    assert modes == [0o644]


@pytest.mark.parametrize("there", ["same", "other", pytest.param("none", marks=pytest.mark.thorough)])
def test_an_agent_looks_for_the_folder_of_checkpoints_before_it_starts_anything(tmp_path: Path, there: str) -> None:
    folder, landmark = tmp_path / "claim", landmark_of("digits-x", KEY)
    put(folder, landmark)
    if there == "other":
        remove(folder, landmark)
        put(folder, landmark_of("digits-y", KEY))
    elif there == "none":
        folder.rename(tmp_path / "unmounted")

    async def play() -> None:
        desk = Desk()
        async with serving(tmp_path, config_of(checkpoint_dir=str(folder)), desk, landmark) as (url, theirs):
            code, said = await run_agent(tmp_path, url, theirs, ELASTIC_POD="digits-x-1-abcde")
            if there == "same":
                assert code == ExitCode.DONE, said
                assert [one.name for one in folder.iterdir()] == [landmark.name], "the node's sample is gone"
                assert not [one for one in desk.told if one[0] == "unfit"]
                return
            ((what, node, why),) = desk.told
            assert (what, node, code) == ("unfit", NODE, ExitCode.BAD_USAGE), said
            wrong = "has no such folder" if there == "none" else "sees another folder there"
            assert why.startswith(f"--checkpoint-dir is {folder}: node 1 (pod digits-x-1-abcde) {wrong}; ")
            assert why in said
            assert not theirs.rank_log(NODE, 0).exists()

    asyncio.run(play())


def test_a_node_without_the_jobs_data_is_unfit(tmp_path: Path) -> None:
    async def play() -> None:
        desk = Desk()
        async with serving(tmp_path, config_of(data="/nowhere/mnist"), desk) as (url, _):
            with pytest.raises(Unfit, match="--data is /nowhere/mnist: node 1 has nothing there; mount it in the pod"):
                await asyncio.to_thread(make_own_folder, variables(url))
            assert [one[0] for one in desk.told] == ["unfit"]

    asyncio.run(play())
