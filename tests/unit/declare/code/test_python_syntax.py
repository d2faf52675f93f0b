"""Threads that parse at once do not break each other's trees, as CPython 3.11 lets them."""

import ast
import gc
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tocsin.declare.code.python_syntax import compile_module, parse, parse_expression

CODE = "\n".join(f"def f{n}(a, b=({n}, [a, {{'x': a.b[{n}]}}])):\n    return a + b * (f(g(h(a))))" for n in range(40))


class Leftover:
    """Garbage in a ring: it is collected while some tree is built, and then lets another thread run."""

    def __init__(self) -> None:
        self.ring = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads take turns as often as they can, and the collector runs as often."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("eager")
def test_threads_that_parse_at_once_each_get_their_tree() -> None:
    def work(number: int) -> str:
        Leftover()
        tree = parse(CODE)
        compile_module(tree, "some.py")
        return ast.unparse(parse_expression(f"a + {number}")) + str(len(tree.body))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(100))) == [f"a + {number}40" for number in range(100)]
