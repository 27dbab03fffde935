"""Plays a history: acts on the jobs and the documents, has the controller decide, and lets the jobs follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from elastic_launcher.hints import parse
from elastic_launcher.quota.projects import Projects
from elastic_launcher.quota.projects_document import parse_projects
from elastic_launcher.quota.rounds.round import Decision
from tests.quota_chaos.history import Act, History
from tests.quota_chaos.judge import Judge, View, at_rest
from tests.quota_chaos.players import Player

BY_HAND = 10
"""The priority of entries written by hand."""
Edit = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


class Stage(Protocol):
    """Where the controller runs.

    Attributes:
        grow_after: Seconds between a growth and a shrink of one job.
        grace: Seconds in which GPUs are given back.
        rest: Rounds without an act after which everything has come to rest.
    """

    grow_after: float
    grace: float
    rest: int

    @property
    def now(self) -> float:
        """Seconds since the epoch."""

    def report(self, player: Player, status: Mapping[str, Any]) -> None:
        """Lets a report arrive."""

    def end(self, player: Player) -> None:
        """Removes a job."""

    def write_projects(self, text: str) -> None:
        """Writes the projects document."""

    def edit_hints(self, edit: Edit) -> None:
        """Edits the entries of the hints by hand."""

    def restart(self) -> None:
        """Replaces the controller by another one."""

    def round(self, pods: Mapping[str, int], stale: bool, judge: Judge, projects: Projects) -> Decision | None:
        """Has the controller decide until nothing changes; returns its decision where that can be seen."""

    def document(self) -> str:
        """Returns the hints."""


class Game:
    """One history under way.

    Args:
        history: What is to happen.
        stage: Where.
        say: Takes a line about each act.
    """

    def __init__(self, history: History, stage: Stage, say: Callable[[str], None]) -> None:
        self.players: dict[str, Player] = {}
        self._history = history
        self._stage = stage
        self._say = say
        self._judge = Judge()
        self._gpus = history.gpus
        self._rows = [dict(row) for row in history.projects]
        self._pods: dict[str, int] = {}
        self._by_hand: set[str] = set()
        self._stale = False
        self._calm = 0
        self._count = 0
        self._projects = self._write_projects()

    def play(self) -> str:
        """Plays everything, and then lets each job have its turn; returns what happened in a few words.

        Raises:
            AssertionError: If something does not hold that must.
        """
        for act in self._history.acts:
            self._say(f"{self._stage.now:.0f} {act}")
            self._act(act)
            self._calm = 0
            for _ in range(1 + act.rest):
                self._round()
        self._serve_all()
        return f"{len(self._history.acts)} acts, {self._count} jobs, generation {self._generation()}"

    # -- what happens

    def _act(self, act: Act) -> None:
        names = sorted(self.players)
        player = self.players[names[act.place % len(names)]] if names else None
        match act.kind:
            case "submit":
                self._submit(act)
            case "machines":
                self._gpus = max(2, self._gpus + (act.gpus if act.place % 2 else -act.gpus))
                self._projects = self._write_projects()
            case "projects":
                self._edit(self._rows[act.place % len(self._rows)], act)
                self._projects = self._write_projects()
            case "broken projects":
                self._stage.write_projects(self._text().replace('"guaranteed": ', '"guaranteed": -1'))
            case "restart":
                self._stage.restart()
            case "stale":
                self._stale = not self._stale
            case "pods":
                self._add_pods(act)
            case "pods gone":
                self._pods.clear()
            case "hand off":
                self._hand_off()
            case _ if player is not None:
                self._hit(player, act)

    def _edit(self, row: dict[str, Any], act: Act) -> None:
        """Changes what a project is guaranteed, or its limit."""
        guaranteed, limit = row.get("guaranteed", 0), row.get("limit", self._gpus)
        if act.place % 2:
            row["guaranteed"] = min(act.gpus, limit)
        else:
            row["limit"] = max(act.gpus + 2, guaranteed)

    def _hit(self, player: Player, act: Act) -> None:
        match act.kind:
            case "end":
                self._end(player)
            case "deaf":
                player.deaf = not player.deaf
            case "lost":
                player.lost = not player.lost
            case "late":
                player.late = not player.late
            case "again" if player.reported:
                self._stage.report(player, player.again(act.place))
            case "absurd" if player.reported:
                self._stage.report(player, player.absurd(act.place))
            case "by hand":
                self._by_hand.add(player.name)
                match = {"id": player.name}
                row = {"match": match, "priority": BY_HAND, "gpus": {"allowed": act.gpus}}
                self._stage.edit_hints(lambda rows: [row, *rows])

    def _submit(self, act: Act) -> None:
        least, more, per_node, priority = act.shape
        self._count += 1
        project = str(self._rows[act.place % len(self._rows)]["name"])
        name = f"job-{self._history.seed}-{self._count:02}"
        least, most = least * per_node, (least + more) * per_node
        player = Player(name, project, least, most, per_node, priority, self._stage.now)
        self.players[name] = player
        self._tell(player)

    def _end(self, player: Player) -> None:
        del self.players[player.name]
        self._by_hand.discard(player.name)
        self._stage.edit_hints(lambda rows: [row for row in rows if not _of(row, player.name)])
        self._stage.end(player)

    def _hand_off(self) -> None:
        self._by_hand.clear()
        self._stage.edit_hints(lambda rows: [row for row in rows if "priority" not in row])

    def _add_pods(self, act: Act) -> None:
        """Starts pods that are not elastic where GPUs are free that nobody was promised."""
        name = str(self._rows[act.place % len(self._rows)]["name"])
        room = self._view().room(name)
        if room > 0:
            self._pods[name] = self._pods.get(name, 0) + min(room, act.gpus)

    def _text(self) -> str:
        return json.dumps(
            {
                "apiVersion": "elastic-quota/v1",
                "unmatched": "refuse",
                "capacity": {"gpus": self._gpus},
                "gracePeriodSeconds": self._stage.grace,
                "growAfterSeconds": self._stage.grow_after,
                "projects": self._rows,
            }
        )

    def _write_projects(self) -> Projects:
        self._stage.write_projects(self._text())
        return parse_projects(self._text())

    # -- rounds

    def _view(self) -> View:
        text, players = self._stage.document(), self.players
        return View(text, self._projects, self._gpus, self._pods, players, frozenset(self._by_hand))

    def _round(self) -> None:
        decision = self._stage.round(self._pods, self._stale, self._judge, self._projects)
        view = self._view()
        self._judge.promises(view)
        if decision is not None and self._calm >= self._stage.rest and not self._stale:
            at_rest(view, decision)
        self._calm += 1
        self._follow(view)
        for player in self.players.values():
            self._tell(player)

    def _follow(self, view: View) -> None:
        """Lets jobs do what their hints say: those that shrink first."""
        accounts, now, hints = view.ledger.accounts, self._stage.now, parse(view.text)
        for name, player in self.players.items():
            if player.deaf:
                continue
            wanted = player.wanted(hints, now)
            account = accounts.get(name)
            promised = 0 if account is None else account.committed
            if wanted <= player.held or wanted <= promised:
                player.hold(wanted, now)
            else:  # its entry was written by hand, and others were promised the GPUs: its pods wait
                assert name in self._by_hand, f"{name} may have {wanted} GPUs, and was promised {promised}"
        held = sum(player.held for player in self.players.values()) + sum(self._pods.values())
        promised = sum(one.committed for one in accounts.values()) + sum(self._pods.values())
        assert held <= max(view.gpus, promised), f"{held} GPUs are held of {view.gpus}, and {promised} were promised"

    def _tell(self, player: Player) -> None:
        status = player.report(self._stage.now)
        if status is not None:
            self._stage.report(player, status)

    def _generation(self) -> int:
        return self._view().ledger.generation

    # -- the end

    def _serve_all(self) -> None:
        """Lets everybody obey, and jobs end one after another: each that can run is served in its turn."""
        self._hand_off()
        self._pods.clear()
        self._stale = False
        self._projects = self._write_projects()
        for player in self.players.values():
            player.deaf = player.lost = player.late = False
        for _ in range(len(self.players) + 1):
            self._calm = 0
            for _ in range(self._stage.rest + 2):
                self._round()
            waiting = [player for player in self.players.values() if not player.held and self._can_run(player)]
            if not waiting:
                return
            running = [player for player in self.players.values() if player.held]
            assert running, f"nobody has a GPU, and {waiting[0].name} could"
            self._end(min(running, key=lambda player: (player.submitted, player.name)))
        raise AssertionError(f"{waiting[0].name} is never served")

    def _can_run(self, player: Player) -> bool:
        limit = self._projects.limit_of(player.project)
        return player.minimum <= min(self._gpus, self._gpus if limit is None else limit)


def _of(row: Mapping[str, Any], name: str) -> bool:
    return bool("priority" in row and row["match"].get("id") == name)
