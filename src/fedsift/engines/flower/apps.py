"""Flower's ServerApp and ClientApp around the server's and a node's part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsift.engines.flower.node import Node
from fedsift.engines.flower.wire import pack, unpack

Config = Mapping[str, Any]


def client_app(node: Callable[[Config, Config], Node]) -> ClientApp:
    """Return the app of a SuperNode; ``node``: (its configuration, the run's) → the node."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        here = node(context.node_config, context.run_config)
        return Message(pack(here.answer(unpack(message.content))), reply_to=message)

    return app


def server_app(main: Callable[[Grid, Config], None]) -> ServerApp:
    """Return the app of a SuperLink; ``main``: (grid, run configuration) → None."""
    app = ServerApp()

    @app.main()
    def run(grid: Grid, context: Context) -> None:
        main(grid, context.run_config)

    return app
