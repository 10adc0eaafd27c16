"""The LangGraph adapter: `DeltaSaver`, a checkpoint saver on a deltastore.

Needs the extra `deltastore[langgraph]`. Nothing below imports this package.
"""

try:
    from deltastore.langgraph.saver import DeltaSaver
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith(("langgraph", "langchain_core")):
        raise
    raise ModuleNotFoundError(
        f"{error.name} isn't installed; DeltaSaver needs it: pip install '.[langgraph]' in a clone of deltastore",
        name=error.name,
    ) from error

__all__ = ["DeltaSaver"]
