"""What pyproject.toml cannot say: the native kernels are compiled."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, "native_build")
from compiler import BUILDS, compile_native


class BuildNative(build_ext):
    """Libraries that ctypes loads, beside the package; none of them is a Python module."""

    editable_mode = False

    def run(self) -> None:
        """Compile into the source tree for an editable installation, else into what becomes the wheel."""
        self.made = compile_native(Path() if self.inplace or self.editable_mode else Path(self.build_lib))

    def get_outputs(self) -> list[str]:
        """What was compiled into the wheel."""
        return [] if self.editable_mode else [str(file) for file in self.made]

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing lies elsewhere in an editable installation."""
        return {}

    def get_source_files(self) -> list[str]:
        """For a source distribution."""
        return [str(file) for file in Path(BUILDS).parent.glob("csrc/*")]


setup(ext_modules=[Extension("twinpool.native", [])], cmdclass={"build_ext": BuildNative})
