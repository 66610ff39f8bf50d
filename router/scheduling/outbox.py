"""The commands one event leads to, in order."""

from __future__ import annotations

from router.scheduling.commands import SchedulerCommand, Send
from router.scheduling.fleet import Fleet
from twinpool.session import messages as m


class Outbox:
    """Collects commands until they are taken. A command to a worker that is gone is dropped."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._commands: list[SchedulerCommand] = []

    def put(self, command: SchedulerCommand) -> None:
        """One more command."""
        self._commands.append(command)

    def send(self, worker_id: str, command: m.Command) -> None:
        """A command to a worker; what a decode worker is told to drop is noted until it is gone."""
        worker = self._fleet.worker(worker_id)
        if worker is None:
            return
        if isinstance(command, m.Drop):
            worker.leaving.add(command.attempt)
        self.put(Send(worker_id, command))

    def take(self) -> list[SchedulerCommand]:
        """All commands so far; the outbox is empty again."""
        commands, self._commands = self._commands, []
        return commands
