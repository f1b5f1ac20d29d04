"""Maps the top-level folders to the sub-packages of ``zellige``; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = ("flows", "tasks", "engine", "kernels", "data", "configs")

packages = []
for room in ROOMS:
    packages.append(f"zellige.{room}")
    packages += [f"zellige.{room}.{name}" for name in find_packages(room)]

setup(packages=packages, package_dir={f"zellige.{room}": room for room in ROOMS})
