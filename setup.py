"""Everything about this package stands in settings.ini; this file only reads it."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

parser = ConfigParser(delimiters=["="])
parser.read("settings.ini", encoding="utf8")
cfg = parser["DEFAULT"]
extras = {name: cfg[f"{name}_requirements"].split() for name in ("jupyter", "formats", "search", "pretrained", "photos", "datasets", "spice", "eccv", "dev")}
extras["dev"] += extras["jupyter"] + extras["formats"] + extras["search"] + extras["pretrained"] + extras["photos"] + extras["datasets"]
