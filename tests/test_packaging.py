"""What an installed deltastore consists of: its public names, its type marker, its version."""

import importlib.metadata
import importlib.resources
import tomllib
import types
from pathlib import Path

import deltastore

ROOT = Path(__file__).parents[1]
PACKAGE = Path(deltastore.__file__).parent


def project_table() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_public_names_are_sorted() -> None:
    # As ruff sorts them: constants, classes, functions.
    assert deltastore.__all__ == sorted(
        set(deltastore.__all__), key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )


def test_public_names_are_what_is_there() -> None:
    found = {
        name
        for name in dir(deltastore)
        if not name.startswith("_") and not isinstance(getattr(deltastore, name), types.ModuleType)
    }
    assert found == {name for name in deltastore.__all__ if not name.startswith("_")}


def test_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from deltastore import *", names)
    assert set(deltastore.__all__) <= names.keys()


def test_the_type_marker_ships() -> None:
    assert importlib.resources.files("deltastore").joinpath("py.typed").is_file()


def test_the_installed_version_is_the_projects() -> None:
    assert importlib.metadata.version("deltastore") == project_table()["version"]


def test_no_module_repeats_the_version() -> None:
    version = project_table()["version"]
    assert [path.name for path in PACKAGE.rglob("*.py") if version in path.read_text()] == []


def test_the_licence_ships() -> None:
    distribution = importlib.metadata.distribution("deltastore")
    assert distribution.metadata["License-Expression"] == "MIT"
    assert any(Path(str(file)).name == "LICENSE" for file in distribution.files or ())


def test_every_dependency_has_a_lower_bound_and_no_upper_one() -> None:
    dependencies = project_table()["dependencies"]
    assert all(">=" in dependency and "<" not in dependency for dependency in dependencies)
