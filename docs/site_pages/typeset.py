"""Formulas, typeset by KaTeX while the site is built: a formula that KaTeX does not understand stops the build.

KaTeX (0.19.1, MIT) is in ``docs/vendor/katex``, and runs in a small JavaScript engine: pages hold the finished
formulas, need no script and no network, and nothing is left to fail in a reader's browser. Markdown is given a word
in place of each formula, which ``insert_formulas`` replaces when Markdown can no longer change it.

Guides have LaTeX in ``math`` fences, which GitHub draws too. Method cards have formulas in the names of the code;
``translate`` makes LaTeX of those.
"""

from __future__ import annotations

import functools
import html
import json
import re
from collections.abc import Iterator

import quickjs

from site_pages import ROOT

KATEX = ROOT / "docs" / "vendor" / "katex" / "katex.min.js"
GREEK = frozenset(
    [
        "Delta",
        "Omega",
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "kappa",
        "lambda",
        "mu",
        "pi",
        "rho",
        "tau",
        "theta",
    ]
)
FUNCTIONS = {"log", "exp", "min", "max", "softplus", "sigmoid", "cosine", "mean", "sum", "sqrt", "argmax", "floor"}
PROSE = frozenset(
    (
        *(
            "with",
            "where",
            "and",
            "over",
            "of",
            "for",
            "if",
            "else",
            "the",
            "is",
            "are",
            "in",
            "to",
            "at",
            "so",
            "then",
        ),
        *("each", "by", "from", "until", "among", "on", "has", "have", "or", "than", "as"),
    )
)
"""Words that are never names."""
OPERATORS = {
    "!=": r"\neq ",
    "<=": r"\leq ",
    ">=": r"\geq ",
    "<-": r"\leftarrow ",
    "->": r"\to ",
    "*": r"\,",
    "·": r"\,",
    "||": r"\Vert ",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
}
TOKEN = re.compile(
    r"``(?P<code>[^`]+)``|(?P<signed>[xz][+-](?=[\s,|)\]}]|$))|(?P<word>[A-Za-z]{2,}(?:-[A-Za-z]{2,})+|[A-Za-z]\w*'*)|(?P<number>\d[\d,]*(?:\.\d+)?)"
    r"|(?P<operator>!=|<=|>=|<-|->|\|\||.)",
    re.DOTALL,
)
PLACE = re.compile(r"\bformula([0-9a-f]{12})placeholder\b")
FENCE = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_formulas: dict[str, str] = {}
"""What stands for each placeholder."""


class FormulaError(ValueError):
    """A formula that cannot be typeset."""


@functools.cache
def _engine() -> quickjs.Context:
    context = quickjs.Context()
    context.eval(KATEX.read_text(encoding="utf-8"))
    return context


@functools.cache
def typeset(tex: str, is_display: bool = False) -> str:
    """HTML of a formula in LaTeX."""
    options = {"displayMode": is_display, "throwOnError": True, "strict": "error", "output": "html"}
    try:
        return str(_engine().eval(f"katex.renderToString({json.dumps(tex)}, {json.dumps(options)})"))
    except quickjs.JSException as error:
        raise FormulaError(f"cannot be typeset: {tex!r}: {str(error).splitlines()[0]}") from error


def place(markup: str) -> str:
    """A word that Markdown leaves alone, for HTML that it would not."""
    key = f"{abs(hash(markup)) % 16**12:012x}"
    _formulas[key] = markup
    return f"formula{key}placeholder"


def insert_formulas(output: str) -> str:
    """A page with its formulas."""
    return PLACE.sub(lambda match: _formulas[match[1]], output)


def place_fences(markdown: str) -> str:
    """A guide with its ``math`` fences typeset."""
    return FENCE.sub(lambda match: place(f'<div class="formula">{typeset(match[1].strip(), True)}</div>'), markdown)


def place_formula(text: str) -> str:
    """A card's formula: mathematics typeset, words between them as they are."""
    lines = [part.strip() for part in text.strip().splitlines()]
    parts = [typeset(tex) if is_math else html.escape(tex) for tex, is_math in split_words(" ".join(lines))]
    return place(f'<div class="formula">{" ".join(parts)}</div>')


def split_words(text: str) -> Iterator[tuple[str, bool]]:
    """LaTeX, and words between, in turn; the flag says which."""
    tokens = list(TOKEN.finditer(text))
    math: list[re.Match[str]] = []
    depth = 0
    words: list[str] = []
    for index, token in enumerate(tokens):
        depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(token[0], 0)
        is_word = depth == 0 and _is_prose(tokens, index)
        is_gap = token[0].isspace() or (token[0] in ",;:." and depth == 0)
        if is_word:
            if math:
                yield from _finish(math)
                math = []
            words.append(token["code"] or token[0])
        elif words and is_gap and not math:
            words[-1] += token[0].strip()
        else:
            if words:
                yield " ".join(words), False
                words = []
            math.append(token)
    yield from _finish(math)
    if words:
        yield " ".join(words), False


def _finish(tokens: list[re.Match[str]]) -> Iterator[tuple[str, bool]]:
    """LaTeX of some tokens, and the punctuation at their end as words."""
    text = "".join(token[0] for token in tokens)
    stripped = text.rstrip(" ,;:.\n")
    if stripped.strip():
        yield translate(stripped.strip()), True
    rest = text[len(stripped) :].strip()
    if rest:
        yield rest, False


def _is_prose(tokens: list[re.Match[str]], index: int) -> bool:
    """Whether a token is a word of a sentence: of several letters, no name of mathematics, beside another such."""
    if tokens[index]["code"]:
        return True
    if index and tokens[index - 1][0] == "^":
        return False
    if tokens[index][0] in PROSE:
        return True
    if tokens[index][0] in ("sum", "mean", "floor") and _next_word(tokens, index) in PROSE:
        return True
    if not _is_plain_word(tokens[index]):
        return tokens[index][0] == "a" and _neighbors(tokens, index, 1)
    return _neighbors(tokens, index, 1) or _neighbors(tokens, index, -1)


def _next_word(tokens: list[re.Match[str]], index: int) -> str:
    rest = (token for token in tokens[index + 1 :] if not token[0].isspace())
    return next(rest, tokens[index])[0]


def _is_plain_word(token: re.Match[str]) -> bool:
    word = token["word"] or ""
    return len(word.rstrip("'")) > 1 and word not in FUNCTIONS and "_" not in word and word not in GREEK


def _neighbors(tokens: list[re.Match[str]], index: int, step: int) -> bool:
    """Whether the next token but for spaces and commas is a word too."""
    place = index + step
    while 0 <= place < len(tokens) and (tokens[place][0].isspace() or tokens[place][0] in ",:;-"):
        place += step
    return 0 <= place < len(tokens) and (_is_plain_word(tokens[place]) or bool(tokens[place]["code"]))


def translate(text: str) -> str:
    """LaTeX of a formula in the names of the code.

    ``Delta[y, y'] = tau * log(pi[y'] / pi[y])`` becomes ``\\Delta_{y, y'} = \\tau \\, \\log(\\pi_{y'} / \\pi_{y})``.
    """
    tokens = [match for match in TOKEN.finditer(text) if not match[0].isspace() or match[0] == " "]
    result, end = _translate_until(tokens, 0, "")
    if end != len(tokens):
        raise FormulaError(f"has a bracket too many: {text!r}")
    return result.strip()


def _translate_until(tokens: list[re.Match[str]], start: int, closing: str) -> tuple[str, int]:
    """LaTeX up to a closing bracket, and the place behind it."""
    parts: list[str] = []
    index, is_norm_open = start, False
    while index < len(tokens):
        token = tokens[index]
        text = token[0]
        follows_name = index > 0 and bool(tokens[index - 1]["word"]) and index > start
        if closing and text == closing:
            return "".join(parts), index + 1
        index += 1
        if text == "[" and follows_name:
            inside, index = _translate_until(tokens, index, "]")
            parts.append(f"_{{{inside}}}")
        elif text in "([{" and not token["word"]:
            pair = {"(": ")", "[": "]", "{": "}"}[text]
            inside, index = _translate_until(tokens, index, pair)
            parts.append(f"{{{inside}}}" if text == "{" else f"{text}{inside}{pair}")
        elif text == "^":
            exponent, index = _take_exponent(tokens, index)
            parts.append(f"^{{{exponent}}}")
        elif text == "_" and index < len(tokens) and tokens[index][0] in "+{":
            parts.append("_")
        elif text == "||":
            is_norm_open = not is_norm_open
            parts.append(r"\lVert " if is_norm_open else r"\rVert ")
        elif token["signed"]:
            parts.append(f"{text[0]}^{{{text[1]}}}")
        elif text.startswith(("sum_", "max_", "mean_")) or text in ("sum", "max", "mean"):
            sign, _, below = text.partition("_")
            name = {"sum": r"\sum", "max": r"\max", "mean": r"\operatorname{mean}"}[sign]
            if below:
                parts.append(f"{name}_{{{_name(below)}}} ")
            elif index < len(tokens) and tokens[index][0] == "{":
                inside, index = _translate_until(tokens, index + 1, "}")
                parts.append(f"{name}_{{{inside}}} ")
            else:
                parts.append(f"{name} ")
        elif text == "sqrt" and index < len(tokens) and tokens[index][0] == "(":
            inside, index = _translate_until(tokens, index + 1, ")")
            parts.append(rf"\sqrt{{{inside}}}")
        elif token["word"]:
            is_beside_word = bool(parts) and parts[-1].rstrip().endswith("}") and r"\text{" in parts[-1]
            parts.append((r"\ " if is_beside_word else "") + _name(text))
        elif text == "." and index > 1 and tokens[index - 2]["word"]:
            parts.append(r"\cdot ")
        else:
            if not text.isspace():  # LaTeX sets its own
                parts.append(OPERATORS.get(text, text))
    if closing:
        raise FormulaError(f"has no closing {closing!r}: {''.join(token[0] for token in tokens)!r}")
    return "".join(parts), index


def _take_exponent(tokens: list[re.Match[str]], index: int) -> tuple[str, int]:
    sign = ""
    if tokens[index][0] == "-":
        sign, index = "-", index + 1
    if tokens[index][0] == "(":
        inside, index = _translate_until(tokens, index + 1, ")")
        return sign + inside, index
    base = _name(tokens[index][0]) if tokens[index]["word"] else tokens[index][0]
    index += 1
    if index < len(tokens) and tokens[index][0] == "[":
        inside, index = _translate_until(tokens, index + 1, "]")
        base += f"_{{{inside}}}"
    return sign + base, index


def _name(word: str) -> str:
    """A name: Greek, a function, one letter, or several, with what is below it."""
    primes = "'" * (len(word) - len(word.rstrip("'")))
    bare = word.rstrip("'")
    base, _, below = bare.partition("_")
    if below and (len(base) == 1 or base in GREEK):
        above = below if len(below) == 1 else rf"\text{{{below}}}"
        return f"{_name(base)}^{{{above}}}{primes} "
    if bare in GREEK:
        return f"\\{bare}{primes} "
    if bare in ("log", "exp", "min", "max"):
        return f"\\{bare} "
    if bare in FUNCTIONS:
        return rf"\operatorname{{{bare}}} "
    if len(bare) == 1:
        return bare + primes
    if bare in PROSE:
        return rf"\text{{ {bare} }}"
    escaped = bare.replace("_", r"\_")
    return rf"\text{{{escaped}}}{primes} "
