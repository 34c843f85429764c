"""What a terminal would obey is spelled out; all else stays."""

from hypothesis import given
from hypothesis import strategies as st

from fedsift.visible import all_visible, visible


def test_escapes_and_direction_marks_are_spelled_out() -> None:
    assert visible("\x1b[2Jgone") == r"\x1b[2Jgone"
    assert visible("\u202egnp.exe") == r"\u202egnp.exe"
    assert visible("\U000e0001") == r"\U000e0001"
    assert visible("two\nlines") == r"two\x0alines"
    assert visible("two\nlines", lines=True) == "two\nlines"
    assert visible("ünïcode 基因 ✓") == "ünïcode 基因 ✓"
    assert all_visible({"a\x07": ["\x1b", 1, None]}) == {r"a\x07": [r"\x1b", 1, None]}


@given(st.text())
def test_twice_is_once_and_nothing_obeyed_is_left(text: str) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    assert not any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in shown)
