"""Orders of instructions: nothing is done before what it needs, and few numbers wait."""

import numpy as np
import pytest

from jaxdae.kernels.cuda.schedule import dependencies, few_at_once, most_at_once, ordered
from jaxdae.kernels.llvm.module import Definition


def load(register: str, i: int) -> list[str]:
    return [
        f"  {register}0 = getelementptr double, ptr %a0_, i64 {i}",
        f"  {register} = load double, ptr {register}0",
    ]


def dot_product(n: int) -> list[str]:
    """All factors first, then all products, then their sum: n products wait."""
    lines = [x for i in range(n) for x in load(f"%r1{i:03}", i)]
    lines += [f"  %r2{i:03} = fmul double %r1{i:03}, %r1{i:03}" for i in range(n)]
    lines.append("  %r3000 = fadd double %r2000, %r2000")
    return lines + [f"  %r3{i:03} = fadd double %r3{i - 1:03}, %r2{i:03}" for i in range(1, n)]


def tree(depth: int) -> list[str]:
    """A sum of pairs of pairs, level by level: a half of all numbers waits at once."""
    lines = [x for i in range(2**depth) for x in load(f"%r0{i:03}", i)]
    for level in range(1, depth + 1):
        for i in range(2 ** (depth - level)):
            parts = [f"%r{level - 1}{j:03}" for j in (2 * i, 2 * i + 1)]
            lines.append(f"  %r{level}{i:03} = fadd double {', '.join(parts)}")
    return lines


def random_lines(rng, count: int) -> list[str]:
    """Sums of any two before, the last few of them stored."""
    lines = [x for i in range(8) for x in load(f"%r{i}", i)]
    names = [f"%r{i}" for i in range(8)]
    for i in range(8, count):
        first, second = rng.choice(names[-40:], 2)
        lines.append(f"  %r{i} = fadd double {first}, {second}")
        names.append(f"%r{i}")
    for i, name in enumerate(names[-5:]):
        lines.append(f"  %r9{i}00000 = getelementptr double, ptr %r0_, i64 {i}")
        lines.append(f"  store double {name}, ptr %r9{i}00000")
    return lines


def best(lines: list[str]) -> int:
    d = dependencies(lines)
    return most_at_once(d, few_at_once(d))


def test_of_a_sum_of_products_two_numbers_wait():
    """The sum so far and the next factor, whose product takes its place while it is still there."""
    lines = dot_product(60)
    d = dependencies(lines)
    assert most_at_once(d, list(range(len(lines)))) >= 60
    assert best(lines) <= 3


@pytest.mark.parametrize("depth", [3, 5, 7])
def test_of_a_binary_tree_one_number_for_each_level_waits(depth):
    """A tree of depth d needs d + 1 registers, and one more while the last two become one
    (Sethi and Ullman); in the order of its levels it needs 2^d."""
    lines = tree(depth)
    d = dependencies(lines)
    assert most_at_once(d, list(range(len(lines)))) >= 2**depth
    assert best(lines) <= depth + 2


@pytest.mark.parametrize("seed", range(5))
def test_orders_of_any_line_are_possible_and_never_worse(seed):
    lines = random_lines(np.random.default_rng(seed), 300)
    d = dependencies(lines)
    order = few_at_once(d)
    assert sorted(order) == list(range(len(lines)))
    places = {x: i for i, x in enumerate(order)}
    assert all(places[x] < places[i] for i, parts in enumerate(d.operands) for x in parts)
    assert most_at_once(d, order) <= most_at_once(d, list(range(len(lines))))


def function(lines: list[str]) -> Definition:
    head = "define internal void @f(ptr noalias %a0_, ptr noalias %r0_) {\nentry:\n"
    return Definition("f", head + "\n".join([*lines, "  ret void ", "}"]))


def test_a_function_keeps_its_head_its_end_and_all_its_lines():
    lines = dot_product(60)
    text = ordered(function(lines)).text
    head, end = function([]).text.split("  ret")
    assert text.startswith(head)
    assert text.endswith(f"  ret{end}")
    inside = text[len(head) : -len(f"  ret{end}")].rstrip("\n").split("\n")
    assert inside != lines
    assert sorted(inside) == sorted(lines)


@pytest.mark.parametrize(
    "line",
    ["  br label %then1", "then1:", "  call void @g(ptr %a0_)", "  %r7 = alloca double, i64 2"],
)
def test_functions_with_blocks_or_memory_keep_their_order(line):
    """What calls write is not seen in their results."""
    one = function([*dot_product(60), line])
    assert ordered(one) == one


def test_short_functions_keep_their_order():
    one = function(dot_product(10))
    assert ordered(one) == one


def test_nothing_is_in_order():
    assert few_at_once(dependencies([])) == []
