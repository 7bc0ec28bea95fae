# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's own `vllm bench serve`, unmodified, without vLLM: what it imports beside its own folder is stood in for.

usage: vllm_bench.py FOLDER FLAGS...      FOLDER: where tools/fetch_load_tools.sh put vllm/benchmarks
The tokenizer must be a folder with a tokenizer.json, or that file; the package `tokenizers` reads it.
"""
import argparse
import pathlib
import sys
import types


class Tokenizer:
    """The part of a transformers tokenizer that the benchmark uses."""

    def __init__(self, path):
        import tokenizers
        path = pathlib.Path(path)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=False)

    def num_special_tokens_to_add(self):
        return self._tokenizer.num_special_tokens_to_add(False)

    def encode(self, text, add_special_tokens=True):
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def __call__(self, text, add_special_tokens=True):
        return types.SimpleNamespace(input_ids=self.encode(text, add_special_tokens))


class Parser(argparse.ArgumentParser):
    """vLLM's parser takes underscores in names for dashes."""

    def parse_args(self, args=None, namespace=None):
        return super().parse_args([a.replace("_", "-") if a.startswith("--") else a for a in args], namespace)


class Placeholder:
    """Of a module that is not there: fails when it is used."""

    def __init__(self, name):
        self.name = name

    def placeholder_attr(self, path):
        return Placeholder(f"{self.name}.{path}")


def module(name, **content):
    made = types.ModuleType(name)
    made.__dict__.update(content)
    made.__path__ = []
    sys.modules[name] = made
    return made


def stand_in(folder):
    module("PIL", Image=types.SimpleNamespace(Image=type("Image", (), {})))
    module("transformers", PreTrainedTokenizerBase=Tokenizer)
    module("vllm").__path__ = [str(folder / "vllm")]  # its benchmarks are the real ones
    for package in ("vllm.lora", "vllm.transformers_utils"):
        module(package)
    module("vllm.lora.request", LoRARequest=type("LoRARequest", (), {}))
    module("vllm.lora.utils", get_adapter_absolute_path=lambda path: path)
    module("vllm.multimodal", MultiModalDataDict=dict)
    module("vllm.multimodal.image", convert_image_mode=None)
    module("vllm.transformers_utils.tokenizer", AnyTokenizer=Tokenizer, get_lora_tokenizer=None,
           get_tokenizer=lambda path, **_: Tokenizer(path))
    module("vllm.utils", FlexibleArgumentParser=Parser, PlaceholderModule=Placeholder)


def main():
    stand_in(pathlib.Path(sys.argv[1]))
    from vllm.benchmarks import serve  # noqa: E402  pylint: disable=import-error,import-outside-toplevel
    parser = Parser(prog="vllm bench serve")
    serve.add_cli_args(parser)
    serve.main(parser.parse_args(sys.argv[2:]))


main()
