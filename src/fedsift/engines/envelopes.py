"""What an upload says about itself, and what the server checks before it counts one.

Networks lose, delay and repeat messages. An upload counts once, in the exchange that asked for it;
everything else is refused by name, and the site hears with its next request which of its uploads
was the last to count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from fedsift import random

if TYPE_CHECKING:
    from fedsift.algorithms.base import Algorithm
    from fedsift.channels import Channel
    from fedsift.trees import Tree


class Envelope(NamedTuple):
    """The head of a request, which the site's upload repeats.

    Attributes:
        run: the run's key.
        tick: number of the exchange within the run.
        exchange: its name.
        site: the site's name.
        schema: `schema_of` what both ends run.
        last_accepted: the exchange of this site that counted last, -1 for none; the site keeps its
            state from that exchange and drops a newer one.
    """

    run: int
    tick: int
    exchange: str
    site: str
    schema: int
    last_accepted: int = -1


def schema_of(algorithm: Algorithm, channel: Channel, shared: Tree) -> int:
    """Return a number that differs when the method, the messages or the model's shape differ."""
    shapes = ";".join(f"{k} {tuple(v.shape)} {v.dtype}" for k, v in shared.items())
    return int(random.key("schema", repr(algorithm), repr(channel), shapes))


@dataclass
class Inbox:
    """Decides which uploads of one exchange of one run count.

    Attributes:
        run, tick, exchange, schema: what an upload must repeat.
        asked: names of the sites that were asked.
        taken: names of the sites whose upload has counted.
    """

    run: int
    tick: int
    exchange: str
    schema: int
    asked: frozenset[str]
    taken: set[str] = field(default_factory=set)

    def refusal(self, envelope: Envelope) -> str | None:
        """Return why an upload may not count, or None."""
        if envelope.run != self.run:
            return "it belongs to another run"
        if envelope.schema != self.schema:
            return "the site runs another method, message format or model"
        if envelope.tick != self.tick or envelope.exchange != self.exchange:
            asked, sent = f"{self.exchange} {self.tick}", f"{envelope.exchange} {envelope.tick}"
            return f"it answers exchange {sent}, not {asked}"
        if envelope.site not in self.asked:
            return f"site {envelope.site!r} was not asked"
        if envelope.site in self.taken:
            return f"the upload of site {envelope.site!r} has been counted"
        return None

    def take(self, envelope: Envelope) -> bool:
        """Count an upload if it may count, and say whether it did."""
        if self.refusal(envelope) is not None:
            return False
        self.taken.add(envelope.site)
        return True
