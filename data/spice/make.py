"""Parse the captions of the test scenes by the original SPICE and write their tuples: `python data/spice/make.py` (some minutes; needs Java and the jars)."""
from pathlib import Path

from teran_nb.scenes.scenes import scene_collection
from teran_nb.measure.spice import parse_tuples

parse_tuples(scene_collection().split("test").captions).save(Path(__file__).parent/"scenes-test.jsonl.gz")
