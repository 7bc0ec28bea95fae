# SPDX-License-Identifier: Apache-2.0
"""Runs evalscope's own `evalscope perf`, unmodified, without what only its other commands need.

usage: evalscope_bench.py FLAGS...     with the interpreter that tools/fetch_load_tools.sh installs

evalscope's package is entered without its __init__.py, which loads every evaluator; the packages below are imported by the
modules of `perf`, but what it does here never calls them: whoever does is told so.
"""
import importlib.machinery
import importlib.util
import sys
import types

# Images, evaluation data, tools' schemas, the client library's types, and the server of local models.
NOT_INSTALLED = {"PIL", "datasets", "docstring_parser", "fastapi", "jsonschema", "openai", "sse_starlette", "uvicorn"}


class Absent(type):
    """A name of a package that is not there: good for annotations and isinstance, fails when it is called."""

    def __getattr__(cls, name):
        return absent(f"{cls.__name__}.{name}")

    def __call__(cls, *_, **__):
        raise NotImplementedError(f"tests/e2e/evalscope_bench.py: {cls.__name__} is called, and is not installed")


def absent(name):
    if name.rpartition(".")[2].startswith("__"):  # what Python itself looks for
        raise AttributeError(name)
    return Absent(name, (), {})


class AbsentModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        return absent(f"{self.__name__}.{name}")


class AbsentPackages:
    """The finder and loader of NOT_INSTALLED."""

    @staticmethod
    def find_spec(name, _path=None, _target=None):
        if name.partition(".")[0] in NOT_INSTALLED:
            return importlib.machinery.ModuleSpec(name, AbsentPackages, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        return AbsentModule(spec.name)

    @staticmethod
    def exec_module(_module):
        pass


def main():
    sys.meta_path.insert(0, AbsentPackages)
    package = importlib.util.module_from_spec(importlib.util.find_spec("evalscope"))
    sys.modules["evalscope"] = package  # its __init__.py does not run
    from evalscope.perf import arguments, main as perf  # pylint: disable=import-error,import-outside-toplevel
    perf.run_perf_benchmark(arguments.parse_args())


main()
