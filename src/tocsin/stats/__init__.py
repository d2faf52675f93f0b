"""Statistics for detectors: small, pure, and the same on a stream and on history.

The states (`Ewma`, `Cusum`, `Baseline`, `Seasonal`, `Values`) are fields of the state of a `step`::

    from tocsin.stats import Ewma

    @dataclass(frozen=True)
    class Past:
        usual: Ewma = Ewma()

`add` returns the next state and leaves this one as it is; score a value before you add it. The other functions take
plain values; `tocsin.stats.spark` has those that make columns for `detect`.

All take bad input alike. A missing value (None, NaN, infinite) scores 0.0 and changes no state, and so does a score
with too little past: 0.0 says that nothing is known against the value. A number beyond 1e150 counts as 1e150, whose
square is still finite. `least` is the smallest spread that counts, in the unit of the value: it keeps a past that was
constant from making each change a huge score. A parameter out of its range raises a ValueError: in `step` the event is
left out, and the job says so.
"""

from tocsin.stats.functions import MAD_TO_DEVIATION, entropy, hour_of_week, peer_scores, robust_z
from tocsin.stats.states import Baseline, Cusum, Ewma, Seasonal, Values

__all__ = [
    "MAD_TO_DEVIATION", "Baseline", "Cusum", "Ewma", "Seasonal", "Values", "entropy", "hour_of_week", "peer_scores",
    "robust_z",
]  # fmt: skip
