"""Functions that ask for evaluations, stopped at each question until it is answered.

SciPy's minimizers call their objective and return at the end. Here each runs in a thread of its own
and only while the caller waits for its next question: never two at a time.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np


class _ClosedError(BaseException):
    """Ends a function that waits for an answer nobody will give."""


class Questions:
    """The questions of a function, one after another.

    Args:
        function: called with `ask`, a function that returns the answer to a question.
    """

    def __init__(self, function: Callable[[Callable[[np.ndarray], Any]], Any]):
        self._asked: SimpleQueue = SimpleQueue()
        self._answers: SimpleQueue = SimpleQueue()
        self.question: np.ndarray | None = None
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()
        self._wait()

    def answer(self, answer: Any) -> None:
        """Answer the question; `question` is the next one then, or `None` at the end.

        Raises:
            Exception: what the function raises.
        """
        self._answers.put(answer)
        self._wait()

    def close(self) -> None:
        """End the function where it is."""
        if self.question is not None:
            self._answers.put(_ClosedError())
            self._thread.join()
            self.question = None

    def _ask(self, question: np.ndarray) -> Any:
        self._asked.put((question, None, None))
        answer = self._answers.get()
        if isinstance(answer, _ClosedError):
            raise answer
        return answer

    def _run(self, function) -> None:
        try:
            self._asked.put((None, function(self._ask), None))
        except _ClosedError:
            pass
        except BaseException as error:
            self._asked.put((None, None, error))

    def _wait(self) -> None:
        self.question, self.result, error = self._asked.get()
        if error is not None:
            raise error
