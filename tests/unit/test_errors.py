"""What aitop says of a failure of its own."""

import traceback

from aitop.diagnosis.series import line_through
from aitop.errors import own_error


def test_a_failure_of_our_own_names_our_innermost_line():
    try:
        line_through(None, [1.0])  # type: ignore[arg-type]
    except TypeError as error:
        said, place = own_error(error), traceback.extract_tb(error.__traceback__)[-1]
    assert said.startswith("TypeError: ") and said.endswith(f", diagnosis/series.py:{place.lineno}")


def test_a_failure_outside_of_our_code_names_no_line():
    assert own_error(ZeroDivisionError("of nothing")) == "ZeroDivisionError: of nothing"
