"""Compiles our files for a target: in this interpreter, or in another one that runs this very file as a script.

As a script it reads JSON from stdin, [[file name, source]], and writes what `compiled` returns as one list of texts in
hexadecimal digits.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import marshal
import sys


class _Brief(ast.NodeTransformer):
    """Takes the annotations of functions away, which a target would only make and drop again."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            argument.annotation = None
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                rest.annotation = None
        return node


def compiled(files: list[tuple[str, str]]) -> tuple[bytes, list[bytes]]:
    """The number that this interpreter's bytecode goes by, and each file's code without its docstrings, marshalled.

    Raises SyntaxError and ValueError as `compile` does.
    """
    codes = [
        marshal.dumps(compile(_Brief().visit(ast.parse(source)), name, "exec", dont_inherit=True, optimize=2))
        for name, source in files
    ]
    return importlib.util.MAGIC_NUMBER, codes


if __name__ == "__main__":
    number, made = compiled([(name, source) for name, source in json.load(sys.stdin)])
    json.dump([one.hex() for one in (number, *made)], sys.stdout)
