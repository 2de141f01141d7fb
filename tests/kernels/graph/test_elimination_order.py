"""The order in which the unknowns of a linear system are eliminated."""

from jaxdae.kernels.graph.elimination import order


def neighbours(pairs, count):
    pattern = [{i: False} for i in range(count)]
    for i, j in pairs:
        pattern[i][j] = pattern[j][i] = False
    return pattern


def test_unknowns_of_a_chain_are_eliminated_from_both_of_its_ends():
    pairs = [(i, i + 1) for i in range(8)]
    found = order(neighbours(pairs, 9), {})
    assert found[:4] == (0, 8, 1, 7)


def test_an_arrow_is_eliminated_without_fill():
    """Its point, on which all depend, comes last or last but one, though it is the first."""
    assert order(neighbours([(0, i) for i in range(1, 6)], 6), {})[:4] == (1, 2, 3, 4)


def test_pivots_that_are_the_same_in_all_calls_come_first():
    pattern = neighbours([(0, 1), (1, 2)], 3)
    pattern[2][2] = True
    assert order(pattern, {})[0] == 2


def test_a_multiplier_waits_for_the_coordinates_of_its_constraint():
    pairs = [(0, 4), (1, 4), (2, 5), (3, 5), (1, 5)]
    after = {4: {0, 1}, 5: {1, 2, 3}}
    found = order(neighbours(pairs, 6), after)
    for multiplier, coordinates in after.items():
        assert found.index(multiplier) > max(map(found.index, coordinates))
    assert sorted(found) == list(range(6))
