"""Builds the C code of ``native``, for which pyproject.toml has no settled words.

Without a compiler headgate is installed all the same, and does it in Python (native/kernels.py).
"""

from setuptools import Extension, setup

LOOPS = Extension("headgate.native._loops", ["native/loops.c"], optional=True, py_limited_api=True)

setup(ext_modules=[LOOPS], options={"bdist_wheel": {"py_limited_api": "cp311"}})
