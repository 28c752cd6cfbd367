"""Load the kernel of Triton's tutorial on layer normalisation from the tutorial's own file.

The file tests and benchmarks itself when it is imported: only its imports, definitions and assignments are executed.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.Try)


def layer_norm_of(path: str) -> Callable[..., Any]:
    """Return `LayerNorm.apply` of the tutorial's file: (x, normalized_shape, weight, bias, eps) to output.

    Raises:
        ImportError: no such file, one that cannot be executed, or one without that class.
    """
    names: dict[str, Any] = {"__name__": "triton_tutorial_05", "__file__": path}
    try:
        tree = ast.parse(Path(path).read_text(), path)
        tree.body = [statement for statement in tree.body if isinstance(statement, DEFINITIONS)]
        exec(compile(tree, path, "exec"), names)
    except Exception as error:
        raise ImportError(f"NORMLAB_TRITON_TUTORIAL={path}: {type(error).__name__}: {error}") from error
    if "LayerNorm" not in names:
        raise ImportError(f"NORMLAB_TRITON_TUTORIAL={path}: this file defines no class LayerNorm")
    return names["LayerNorm"].apply
