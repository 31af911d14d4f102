"""Unicode to the ASCII and LaTeX spelling that the readers know."""

import re
import unicodedata

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_FROM_SUPERSCRIPT = str.maketrans(_SUPERSCRIPTS, "0123456789+-")
_SUPERSCRIPT_RUN = re.compile(f"[{_SUPERSCRIPTS}]+")
_VULGAR = re.compile(r"(\d?)([¼-¾⅐-⅞↉])")
_DASH_MINUS = re.compile(r"(?<![^\s=(\[{,:;$])[\u2012\u2013](?=[$€£¥₹]?\.?\d)")  # `3–5` is a range
_FOREIGN_DIGIT = re.compile(r"(?![0-9])\d")

_GLYPHS = str.maketrans(
    {
        "\u2212": "-", "\ufe63": "-", "\uff0d": "-", "\u2010": "-", "\u2011": "-",
        "\u066b": ".", "\u066c": ",", "\u066a": "%", "\u2018": "'", "\u2019": "'",
        "\u201c": '"', "\u201d": '"', "\u00ba": "\u00b0", "×": "\\times ", "÷": "/", "·": "\\cdot ",
        "⋅": "\\cdot ", "≤": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "⩾": "\\ge ", "≠": "\\ne ",
        "≈": "\\approx ",
        "±": "\\pm ", "∞": "\\infty ", "π": "\\pi ", "θ": "\\theta ", "∪": "\\cup ", "∩": "\\cap ",
        "∈": "\\in ", "∅": "\\emptyset ", "∠": "\\angle ", "ℝ": "\\mathbb{R}", "√": "\\sqrt ",
    }
)  # fmt: skip


def fold(text: str) -> str:
    """The text with ASCII digits, marks and minus, LaTeX operators, `^{n}` powers and `a/b` fractions."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run[0].translate(_FROM_SUPERSCRIPT) + "}", text)
    text = _DASH_MINUS.sub("-", text)
    text = _VULGAR.sub(lambda found: f"{found[1]} {found[2]}" if found[1] else found[2], text)
    text = unicodedata.normalize("NFKC", text.translate(_GLYPHS)).replace("\u2044", "/")
    return _FOREIGN_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)
