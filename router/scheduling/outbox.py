"""What the scheduler says on one event, in order: commands, and what happens."""

from __future__ import annotations

from router.scheduling.commands import SchedulerSaid, Send
from router.scheduling.fleet import Fleet
from twinpool.session import messages as m


class Outbox:
    """Collects what is said until it is taken. A command to a worker that is gone is dropped."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._said: list[SchedulerSaid] = []

    def put(self, said: SchedulerSaid) -> None:
        """One more command, or happening."""
        self._said.append(said)

    def send(self, worker_id: str, command: m.Command) -> None:
        """A command to a worker; what a decode worker is told to drop is noted until it is gone."""
        worker = self._fleet.worker(worker_id)
        if worker is None:
            return
        if isinstance(command, m.Drop):
            worker.leaving.add(command.holder)
        self.put(Send(worker_id, command))

    def take(self) -> list[SchedulerSaid]:
        """All that was said so far; the outbox is empty again."""
        said, self._said = self._said, []
        return said
