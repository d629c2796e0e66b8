"""The file that shows the public API shows all of it."""

import ast
from pathlib import Path

import samza_azure
from samza_azure import tables


def test_each_public_name_is_in_the_file_that_the_type_checker_sees() -> None:
    tree = ast.parse(Path(__file__).with_name("api.py").read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "samza_azure"
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert imported == {*samza_azure.__all__, "tables"}
    assert imported - used == set()


def test_each_public_name_of_tables_is_used_there() -> None:
    tree = ast.parse(Path(__file__).with_name("api.py").read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tables"
    }
    assert used == set(tables.__all__)
