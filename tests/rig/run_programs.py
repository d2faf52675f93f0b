"""A program for spark-submit, which takes one: runs those that its only argument names, until one fails, in one JVM."""

import json
import runpy
import sys

for words in json.loads(sys.argv[1]):
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
