"""Orders of instructions in which few numbers are kept at once.

A thread of a GPU has 255 registers at most, and a processor holds the more threads the fewer they
take. The assembler keeps near to the order in which it is given a long straight line, so that this
order decides what it spills. To find the best one is hard; here lists of what can be done next are
worked off from both ends in turn, each guided by the order before it [GoodmanHsu1988].
"""

import re
from typing import NamedTuple

from jaxdae.kernels.llvm.module import Definition

# Functions with fewer instructions fit into registers in any order.
_SHORT = 100
# Turns without a better order after which the search ends.
_PATIENCE = 4
_REGISTER = re.compile(r"%r\d+\b(?!_)")


class Dependencies(NamedTuple):
    """Instructions by their numbers.

    Args:
        weights: numbers that the result of each takes; addresses take none, they are computed
            where they are used.
        operands: instructions whose results each needs.
        users: instructions that need the result of each.
    """

    weights: list[int]
    operands: list[list[int]]
    users: list[list[int]]


def ordered(one: Definition) -> Definition:
    """A function with its instructions in a better order, if it is one straight line.

    What it loads are its arguments, and what it stores are results that do not overlap them, so
    that results alone say what must be done before what.
    """
    head, separator, rest = one.text.partition("entry:\n")
    lines = rest.split("\n")[:-2]
    end = rest[len("\n".join(lines)) :]
    if len(lines) < _SHORT or not _is_straight(lines):
        return one
    order = few_at_once(dependencies(lines))
    return one._replace(text="".join([head, separator, "\n".join(lines[i] for i in order), end]))


def _is_straight(lines: list[str]) -> bool:
    """Whether there are no blocks, no memory of its own, and no calls that write to memory."""
    return not any(
        x.endswith(":") or x.lstrip().startswith(("br ", "call void", "switch ")) or " alloca " in x
        for x in lines
    )


def dependencies(lines: list[str]) -> Dependencies:
    """Of instructions of LLVM's language, each in a line; what is in none of them is given."""
    made: dict[str, int] = {}
    weights, operands = [], []
    for i, line in enumerate(lines):
        name, is_result, value = line.partition(" = ")
        names = _REGISTER.findall(value if is_result else line)
        operands.append(sorted({made[x] for x in names if x in made}))
        # A pair is split at once; each of its halves takes a register then.
        free = not is_result or "getelementptr" in value or value.lstrip().startswith("call {")
        weights.append(0 if free else 1)
        if is_result:
            made[name.strip()] = i
    users: list[list[int]] = [[] for _ in lines]
    for i, each in enumerate(operands):
        for x in each:
            users[x].append(i)
    return Dependencies(weights, operands, users)


def most_at_once(d: Dependencies, order: list[int]) -> int:
    """Numbers that are kept at once, at most, in an order."""
    left = [len(x) for x in d.users]
    kept = most = 0
    for i in order:
        kept += d.weights[i]
        most = max(most, kept)
        for x in d.operands[i]:
            left[x] -= 1
            if left[x] == 0:
                kept -= d.weights[x]
        if not d.users[i]:
            kept -= d.weights[i]
    return most


def few_at_once(d: Dependencies) -> list[int]:
    """An order in which few numbers are kept at once, never more than as they are numbered."""
    starts = [list(range(len(d.weights))), _forward(d, None)]
    least, best = min((most_at_once(d, x), x) for x in starts)
    for order in starts:
        idle = 0
        while idle < _PATIENCE:
            places = _places(order)
            choices = _backward(d, places), _forward(d, places), _late(d, places)
            count, order = min((most_at_once(d, x), x) for x in choices)
            idle += 1
            if count < least:
                least, best, idle = count, order, 0
    return best


def _places(order: list[int]) -> list[int]:
    places = [0] * len(order)
    for place, i in enumerate(order):
        places[i] = place
    return places


def _late(d: Dependencies, places: list[int]) -> list[int]:
    """What ends no other number only when it is wanted, else in the order before."""
    last = [max((places[x] for x in users), default=0) for users in d.users]
    ends = [
        any(d.weights[x] and last[x] == place for x in d.operands[i])
        for i, place in enumerate(places)
    ]
    wanted = [
        place if ends[i] or not users else min(places[x] for x in users) - 0.5
        for i, (place, users) in enumerate(zip(places, d.users, strict=True))
    ]
    done, order = [False] * len(places), []
    for i in sorted(range(len(places)), key=lambda i: (wanted[i], places[i])):
        waiting = [i]
        while waiting:
            x = waiting[-1]
            before = [y for y in d.operands[x] if not done[y]]
            waiting += before
            if not before:
                waiting.pop()
                if not done[x]:
                    done[x] = True
                    order.append(x)
    return order


def _backward(d: Dependencies, places: list[int]) -> list[int]:
    """From the end: always what makes the fewest numbers more; of these the last one before."""
    count = len(places)
    left, kept = [len(x) for x in d.users], [False] * count
    # Numbers that begin to be kept, less the one that need not be kept any more.
    keys = [sum(d.weights[x] for x in d.operands[i]) * count - places[i] for i in range(count)]
    ready, order = [i for i in range(count) if left[i] == 0], []
    while ready:
        i = min(ready, key=keys.__getitem__)
        ready.remove(i)
        order.append(i)
        for x in d.operands[i]:
            left[x] -= 1
            if not kept[x] and d.weights[x]:
                kept[x] = True
                keys[x] -= count
                for user in d.users[x]:
                    keys[user] -= count
            if left[x] == 0:
                ready.append(x)
    return order[::-1]


def _forward(d: Dependencies, places: list[int] | None) -> list[int]:
    """From the start: always what makes the fewest numbers more.

    Of these the first one before; without places what uses the newest number.
    """
    count = len(d.weights)
    left, uses = [len(x) for x in d.operands], [len(x) for x in d.users]
    newest, done = [0] * count, [False] * count
    keys = [d.weights[i] * count + (places[i] if places else 0) for i in range(count)]
    for x, users in enumerate(d.users):
        if len(users) == 1:  # which ends it
            keys[users[0]] -= count * d.weights[x]
    ready, order = [i for i in range(count) if left[i] == 0], []
    while ready:
        i = min(ready, key=keys.__getitem__)
        ready.remove(i)
        done[i] = True
        order.append(i)
        for x in d.operands[i]:
            uses[x] -= 1
            if uses[x] == 1 and d.weights[x]:
                keys[next(user for user in d.users[x] if not done[user])] -= count
        for user in d.users[i]:
            left[user] -= 1
            if places is None:
                keys[user] -= len(order) - newest[user]
                newest[user] = len(order)
            if left[user] == 0:
                ready.append(user)
    return order
