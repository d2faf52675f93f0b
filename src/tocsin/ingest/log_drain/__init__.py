"""The log drain: lines that are pushed over HTTP become records of raw topics."""
