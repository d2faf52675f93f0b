"""Records on their way in: parsing rules, quarantine, ticks.

Beside the ingest job (`spark`) stand what brings records (`log_drain`, `replay`), what makes one source of another
(`flows`) and what guesses a source from lines (`sampling`).
"""
