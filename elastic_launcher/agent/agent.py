"""The process of one node: runs torchrun, handles the signals, and reports the end of each rank to the coordinator."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from msgspec import UNSET

from elastic_launcher import variables
from elastic_launcher.agent import torchrun
from elastic_launcher.agent.echo import Echo
from elastic_launcher.agent.lives import Lives
from elastic_launcher.agent.log_sender import LogSender
from elastic_launcher.agent.outbox import Outbox
from elastic_launcher.agent.own_folder import ToldToGo, Unfit, make_own_folder
from elastic_launcher.agent.rank_exec import die_with_parent
from elastic_launcher.checkpoint.storage import is_url
from elastic_launcher.checkpoint.store import open_store
from elastic_launcher.config import ExitCode, JobConfig
from elastic_launcher.control import ControlClient, ControlRefused, requests
from elastic_launcher.control.messages import decode
from elastic_launcher.control.requests import Notice, RankEnded
from elastic_launcher.host import processes
from elastic_launcher.host.modes import share_new
from elastic_launcher.host.output import spare_output
from elastic_launcher.options import ConfigError
from elastic_launcher.workdir import Layout, read_job, write_json

POLL = 0.05
"""Seconds between looks at what has changed."""
NOTICE_PATIENCE = 10.0
"""Most seconds that a notice waits for the coordinator: the shortest grace periods of clouds are 15 s."""
LAST_WORDS = 5.0
"""Seconds for delivering what is left at the end."""


class Agent:
    """Runs one node from its start to its end.

    Args:
        first_member: Member number of its first rank.
        control: Where the control document is.
        elsewhere: Whether the launcher sees nothing of the work directory.
    """

    def __init__(
        self,
        node: int,
        first_member: int,
        config: JobConfig,
        job_id: str,
        layout: Layout,
        control: str,
        elsewhere: bool = False,
    ) -> None:
        self._node = node
        self._members = list(range(first_member, first_member + config.nproc_per_node))
        self._config = config
        self._job_id = job_id
        self._layout = layout
        self._control = control
        self._elsewhere = elsewhere
        self._signals = 0
        self._began = time.time()
        self._exits: dict[int, int | None] = {}
        self._respawn = os.environ.get(variables.RESIZE) == "respawn"
        self._lives = Lives(layout.lives_file(node))

    def run(self) -> int:
        """Returns the node's exit code: 0 when all its ranks ended with 0, 75 when it leaves, or a rank of it did."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # the engine holds it back until here
        started = self._start_torchrun()  # before any thread: it forks
        write_json(
            self._layout.node_file(self._node),
            {"node": self._node, "pid": os.getpid(), "members": self._members, "started": time.time()},
        )
        client = ControlClient(self._control, f"n{self._node}")
        cpu_of = partial(processes.cpu_seconds, str(self._layout.path), self._node)
        outbox = Outbox(client, self._node, os.getpid(), self._members[0], cpu_of)
        outbox.start()
        try:
            return self._watch(started, outbox)
        finally:
            spared = (os.getpid(),)
            processes.kill_until_none(str(self._layout.path), self._node, root=os.getpid(), spare=spared)
            started.wait()
            self._layout.remove_tmp(self._node)

    def _take_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _start_torchrun(self) -> subprocess.Popen[bytes]:
        with open(self._layout.control, encoding="utf-8") as file:
            store = json.load(file)["store"]
        tmp = self._layout.make_tmp(self._node)
        parent = os.getpid()
        return subprocess.Popen(
            torchrun.command(
                self._config, self._job_id, store, self._layout.torchrun_logs(self._node), respawn=self._respawn
            ),
            env=torchrun.environment(os.environ, parent, tmp, self._layout.cache),
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: die_with_parent(parent),
            process_group=0,  # a signal to the agent's group is for the agent
        )

    def _watch(self, started: subprocess.Popen[bytes], outbox: Outbox) -> int:
        told = 0
        asked_to_end = False
        logs = self._log_senders(outbox)
        patience = min(NOTICE_PATIENCE, self._config.orphan_timeout / 2)
        while started.poll() is None:
            time.sleep(POLL)
            if not outbox.holds(requests.Log):
                for log in logs:
                    log.send()
            self._tell_ended_ranks(outbox)
            if self._signals > told:
                told = self._signals
                outbox.put(Notice())
            if outbox.silence() > self._config.orphan_timeout:
                self._say_goodbye()
                return ExitCode.STOPPED
            if not asked_to_end and outbox.oldest(Notice) > patience:
                asked_to_end = True
                self._say("a notice could not be delivered: ending torchrun")
                started.terminate()
            if outbox.must_leave and not asked_to_end:
                asked_to_end = True
                started.terminate()  # torchrun hands it on to its workers, and gives them 30 s
        if started.returncode < 0:
            self._end_with_torchrun(-started.returncode)
        for log in logs:  # before the ends of their ranks, which have them shown
            log.send_rest()
        self._tell_ended_ranks(outbox)
        outbox.close(LAST_WORDS)
        unknown = 0 if started.returncode == 0 else None  # a full disk took no record of it
        codes = [self._exits.get(local_rank, unknown) for local_rank in range(len(self._members))]
        # a rank may be the first to see that the launcher is gone; torchrun ends the others
        if ExitCode.STOPPED in codes:
            return ExitCode.STOPPED
        return ExitCode.DONE if codes == [0] * len(codes) else ExitCode.SCRIPT_FAILED

    def _end_with_torchrun(self, by: int) -> None:
        """Notes how the ranks ended that went with a torchrun which a signal ended: by no fault of the script."""
        self._say(f"torchrun was killed by {processes.signal_name(by)}, and its ranks with it")
        processes.kill_until_none(str(self._layout.path), self._node, root=os.getpid(), spare=(os.getpid(),))
        for local_rank in range(0 if self._respawn else len(self._members)):
            path = self._layout.exit_file(self._node, local_rank)
            if not path.exists():
                with contextlib.suppress(OSError):  # a full disk: only the end of the node will be known
                    write_json(path, {"exit_code": None, "signal": int(signal.SIGKILL)})

    def _log_senders(self, outbox: Outbox) -> list[LogSender]:
        """Returns the senders of the ranks' logs; none where the launcher reads them itself."""

        def sender(local_rank: int) -> LogSender:
            def send(offset: int, data: str) -> None:
                outbox.put(requests.Log(local_rank=local_rank, offset=offset, data=data))

            return LogSender(self._layout.rank_log(self._node, local_rank), send, Echo(local_rank))

        return [sender(local_rank) for local_rank in range(len(self._members))] if self._elsewhere else []

    def _tell_ended_ranks(self, outbox: Outbox) -> None:
        if self._respawn:
            for life in self._lives.read():
                outbox.put(life)
                if life.ended is not UNSET and life.exit_code is not UNSET:
                    self._exits[life.ended] = life.exit_code
            return
        for local_rank in range(len(self._members)):
            if local_rank in self._exits:
                continue
            with contextlib.suppress(OSError):  # not there yet, or not given for now: the next look tries again
                content = json.loads(self._layout.exit_file(self._node, local_rank).read_text())
                ended = decode({**content, "local_rank": local_rank}, RankEnded, "exit file")
                self._exits[local_rank] = ended.exit_code
                if self._elsewhere and (output := self._config.output) and not is_url(output):
                    share_new(Path(output), self._began)  # first: the launcher, which reads it, may be another user
                outbox.put(ended)

    def _say_goodbye(self) -> None:
        """Writes to the ranks' logs, too, why the node leaves a job whose coordinator has ended."""
        silence = f"the coordinator has not answered for {self._config.orphan_timeout:g} s"
        saved = open_store(self._config.checkpoint_dir, self._layout.checkpoints).kept()
        self._say(f"{silence}: leaving; {saved}")
        for local_rank in range(len(self._members)):
            path = self._layout.rank_log(self._node, local_rank)
            with contextlib.suppress(OSError):
                if local_rank not in self._exits and path.exists():
                    with open(path, "a", encoding="utf-8") as log:
                        log.write(f"elastic-launcher: {silence}: this rank leaves; {saved}\n")

    def _say(self, message: str) -> None:
        print(f"agent of node {self._node}: {message}", flush=True)


def main() -> int:
    """Runs the node that the environment describes; returns its exit code."""
    spare_output()
    environment = os.environ
    elsewhere = variables.WORK_DIR not in environment
    own = None
    try:
        if elsewhere:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until the agent takes it
            own = make_own_folder(environment)
        work_dir = Path(environment[variables.WORK_DIR])
        job_id, config = read_job(work_dir)
        agent = Agent(
            node=int(environment[variables.NODE]),
            first_member=int(environment[variables.FIRST_MEMBER]),
            config=config,
            job_id=job_id,
            layout=Layout(work_dir),
            control=environment[variables.CONTROL],
            elsewhere=elsewhere,
        )
        return agent.run()
    except ToldToGo:
        return ExitCode.STOPPED
    except (OSError, ControlRefused, ConfigError, Unfit) as error:  # the third: job.json can't be read
        print(f"agent of node {environment[variables.NODE]}: {error}", file=sys.stderr, flush=True)
        return ExitCode.BAD_USAGE if isinstance(error, Unfit) else ExitCode.LAUNCHER_FAILED
    finally:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
