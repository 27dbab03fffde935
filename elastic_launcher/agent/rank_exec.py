"""Runs one rank's script for torchrun: its log, its member number, its recorded exit, its life tied to torchrun's.

Started as ``python -I -S rank_exec.py PYTHON ARGS...``; standard library only, since each rank has one of these beside
it. It stays as the script's parent, because torchrun writes only to its own log how a rank ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_FOR_US = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals of torchrun's to the rank's process group: the script ends or handles them, this process waits for that."""


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when ``parent`` ends, or ends it now if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _run_script(command: list[str], parent: int) -> None:
    die_with_parent(parent)
    for number in (*NOT_FOR_US, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _say(f"{command[0]} can't be run: {error.strerror}")
        os._exit(127)


def _say(line: str) -> None:
    """Writes a line into the rank's log, if there is room for it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def tell_life(**what: object) -> None:
    """Adds a line to the node's record of what happens to its workers, which its agent follows, if there is room."""
    path = f"{os.environ['ELASTIC_WORK_DIR']}/nodes/{os.environ['ELASTIC_NODE']}.lives"
    try:
        record = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(record).st_size
            torn = size > 0 and os.pread(record, 1, size - 1) != b"\n"  # the disk became full within a line
            os.write(record, b"\n" * torn + f"{json.dumps(what)}\n".encode())
        finally:
            os.close(record)
    except OSError as error:
        _say(f"{path} can't be written: {error.strerror}")


def _record(path: str, exit_code: int | None, signal_number: int | None) -> None:
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "w") as file:
            json.dump({"exit_code": exit_code, "signal": signal_number}, file)
        os.replace(draft, path)
    except OSError as error:  # a full disk: the exit code below still says it to torchrun
        _say(f"{path} can't be written: {error.strerror}")


def main() -> int:
    """Runs the command given as arguments; returns its exit code, or 128 and the number of the signal that ended it."""
    environment = os.environ
    name = f"{environment['ELASTIC_NODE']}-{environment['LOCAL_RANK']}"
    work_dir = environment["ELASTIC_WORK_DIR"]
    torchrun = os.getppid()
    agent = environment.get("ELASTIC_AGENT_PID")
    die_with_parent(torchrun)
    if agent and _parent_of(torchrun) != int(agent):  # torchrun was gone before its death signal was set
        return 128 + signal.SIGKILL
    log = os.open(f"{work_dir}/logs/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    environment["ELASTIC_MEMBER"] = str(int(environment["ELASTIC_FIRST_MEMBER"]) + int(environment["LOCAL_RANK"]))
    for number in NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    parent = os.getpid()
    again = environment.get("ELASTIC_RESIZE") == "respawn"  # workers are started again and again
    local_rank, rank, world_size = (int(environment[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
    round_number = environment.get("ELASTIC_ROUND")
    if again and round_number:  # torchrun counts for each node by itself, and torch 2.5 wants the counts to be equal
        environment["TORCHELASTIC_RESTART_COUNT"] = str(int(round_number) - 1)
    if again:  # whose lines these are, for the launcher
        _say(f"::elastic generation={round_number or 0} rank={rank} world_size={world_size}::")
    script = os.fork()
    if script == 0:
        _run_script(sys.argv[1:], parent)
    if again:
        tell_life(started=local_rank, pid=script, rank=rank, world_size=world_size)
    code = os.waitstatus_to_exitcode(os.waitpid(script, 0)[1])
    if again:
        tell_life(ended=local_rank, exit_code=None if code < 0 else code, signal=-code if code < 0 else None)
    _record(f"{work_dir}/nodes/{name}.exit", None if code < 0 else code, -code if code < 0 else None)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    os._exit(main())
