"""Several pieces of work whose questions to the sites share messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Rendezvous(Generic[Question, Answer]):
    """Brings questions of concurrent work together: they are sent when nobody computes any more.

    So work that goes in step, round by round, costs one message a round and node.
    """

    def __init__(self, send: Callable[[list[Question]], list[Answer]]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._asked: list[tuple[Question, Future[Answer]]] = []
        self._working = 0
        self._failure: BaseException | None = None
        self._inside = threading.local()

    def ask(self, question: Question) -> Answer:
        """Return the answer to a question, with those of others or alone."""
        if not getattr(self._inside, "member", False):
            return self._send([question])[0]
        future: Future[Answer] = Future()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._asked.append((question, future))
            self._changed.notify_all()
        return future.result()

    def together(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Sequence[Result]:
        """Return the function of each item; within one already, one after the other."""
        work = list(items)
        if getattr(self._inside, "member", False) or len(work) < 2:
            return [function(item) for item in work]
        self._working, self._failure = len(work), None

        def run(item: Item) -> Result:
            self._inside.member = True
            try:
                return function(item)
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                with self._changed:
                    self._working -= 1
                    self._changed.notify_all()

        with ThreadPoolExecutor(len(work)) as pool:
            results = [pool.submit(run, item) for item in work]
            try:
                self._deliver()
            except BaseException as error:
                self._fail(error)
                raise
        return [result.result() for result in results]

    def _deliver(self) -> None:
        """Send what is asked whenever all work waits, until all is done."""
        while True:
            with self._changed:
                while self._working and len(self._asked) < self._working:
                    self._changed.wait(1.0)
                if not self._working:
                    return
                asked, self._asked = self._asked, []
            try:
                answers = self._send([question for question, _ in asked])
            except BaseException as error:
                for _, future in asked:
                    future.set_exception(error)
                raise
            for (_, future), answer in zip(asked, answers, strict=True):
                future.set_result(answer)

    def _fail(self, error: BaseException) -> None:
        """Let all work that waits fail, too."""
        with self._changed:
            self._failure = self._failure or error
            asked, self._asked = self._asked, []
            self._changed.notify_all()
        for _, future in asked:
            future.set_exception(error)
