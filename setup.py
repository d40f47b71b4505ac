"""Everything about this package stands in settings.ini; this file only reads it."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

parser = ConfigParser(delimiters=["="])
parser.read("settings.ini", encoding="utf8")
cfg = parser["DEFAULT"]
extras = {key.removesuffix("_requirements"): value.split() for key, value in cfg.items() if key.endswith("_requirements")}
extras["dev"] += extras["jupyter"] + extras["formats"] + extras["search"] + extras["pretrained"] + extras["photos"] + extras["datasets"]
setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"], keywords=cfg["keywords"], author=cfg["author"], author_email=cfg["author_email"],
    license="Apache-2.0", python_requires=">=" + cfg["min_python"], packages=find_packages(include=["teran_nb", "teran_nb.*"]),
    package_data={
        "teran_nb": ["py.typed", "recipes/*.yaml", "recipes/scales/*.yaml", "models/*/*"], "teran_nb.photos": ["*.txt"], "teran_nb.search": ["*.txt"], "teran_nb.measure": ["tables/*"],
        "teran_nb.look": ["templates/*"], "teran_nb.model": ["templates/*"]},
    install_requires=cfg["requirements"].split(), extras_require=extras,
    long_description=Path("README.md").read_text(encoding="utf8"), long_description_content_type="text/markdown", zip_safe=False, include_package_data=False,
)
