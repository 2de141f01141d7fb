"""Products and sums that one instruction computes, with a single rounding."""

from collections import Counter
from typing import NamedTuple

from jaxdae.kernels.graph.expressions import Graph


class Term(NamedTuple):
    """A product that is part of one sum or difference, and of nothing else.

    Args:
        product: its node.
        other: what it is added to, or subtracted from, or what is subtracted from it.
        negative: whether the product has the opposite sign.
        last: whether it is the second part.
        within: nodes that nothing else needs.
    """

    product: int
    other: int
    negative: bool
    last: bool
    within: tuple[int, ...]


def fused_terms(graph: Graph, needed: list[int], outputs) -> dict[int, Term]:
    """Of sums and differences the product that is computed together with them.

    Fixed here, and not left to the compiler, which decides by what stands around a sum.

    Args:
        graph: of the nodes.
        needed: nodes that are computed, in order.
        outputs: those among them that are results.

    Returns:
        Terms by the nodes of their sums and differences.
    """
    uses = Counter(int(x) for x in outputs)
    for node in needed:
        uses.update(graph.operands(node))
    terms = {}
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation not in ("add", "sub"):
            continue
        for last, part in enumerate(arguments):
            negative = graph.nodes[part].operation == "neg" and uses[part] == 1
            product = graph.nodes[part].arguments[0] if negative else part
            if graph.nodes[product].operation == "mul" and uses[product] == 1:
                other = arguments[1 - last]
                terms[node] = Term(product, other, negative, bool(last), (part, product))
                break
    return terms
