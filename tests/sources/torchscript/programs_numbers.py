"""Examples of arithmetic, conversions and comparisons of plain numbers, by TorchScript's rules."""

# ruff: noqa - it is TorchScript, written in all the ways that people write it

import cmath  # noqa: F401
import math

import torch

from tests.sources.torchscript.examples import Table

NUMBERS = Table()

PAIRS = [
    (a, b)
    for a in (0, 1, 2, 3, 7, -1, -2, -7, 2**62, -(2**63), 2**63 - 1)
    for b in (1, 2, 3, -1, -2, -3, 5, 0)
]
FLOATS = [
    (a, b)
    for a in (0.0, -0.0, 1.5, -1.5, 7.25, -7.25, 1e308, math.inf, -math.inf, math.nan)
    for b in (1.0, -1.0, 2.5, -2.5, 0.0, -0.0, math.inf, math.nan)
]


@NUMBERS.function(*PAIRS)
def int_sum(self, a: int, b: int):
    return a + b, a - b, a * b, -a


@NUMBERS.function(*[(a, b) for a, b in PAIRS if (a, b) != (-(2**63), -1)])
def int_floor_division(self, a: int, b: int):
    return a // b, a % b


@NUMBERS.function(*[(a, b) for a, b in PAIRS if abs(a) < 2**63])
def int_true_division(self, a: int, b: int):
    return a / b


@NUMBERS.function(*[(a, b) for a, b in PAIRS if (a, b) != (-(2**63), -1)])
def int_divmod(self, a: int, b: int):
    return divmod(a, b)


@NUMBERS.function(*FLOATS)
def float_arithmetic(self, a: float, b: float):
    return a + b, a - b, a * b, -a


@NUMBERS.function(*FLOATS)
def float_division(self, a: float, b: float):
    return a / b


@NUMBERS.function(*FLOATS)
def float_floor_division(self, a: float, b: float):
    return a // b


@NUMBERS.function(*FLOATS)
def float_remainder(self, a: float, b: float):
    return a % b


@NUMBERS.function(*FLOATS)
def float_divmod(self, a: float, b: float):
    return divmod(a, b)


@NUMBERS.function(*FLOATS)
def float_comparisons(self, a: float, b: float):
    return a < b, a > b, a <= b, a >= b, a == b, a != b


@NUMBERS.function(*PAIRS)
def int_comparisons(self, a: int, b: int):
    return a < b, a > b, a <= b, a >= b, a == b, a != b


@NUMBERS.function(
    *[
        (a, b)
        for a in (0, 1, -3, 2**53 + 1, 2**63 - 1)
        for b in (0.0, 1.0, -3.5, 2.0**53, 2.0**63, math.nan)
    ]
)
def mixed_comparisons(self, a: int, b: float):
    return a < b, a > b, a <= b, a >= b, a == b, a != b, b < a, b == a, b >= a


@NUMBERS.function(*[(a, b) for a in (0, 3, -7, 2**62) for b in (0.0, 1.0, -2.5, 3.5, math.inf)])
def mixed_arithmetic(self, a: int, b: float):
    return a + b, a - b, a * b, b - a, b * a


@NUMBERS.function(*[(a, b) for a in (0, 3, -7, 2**62) for b in (0.0, 1.0, -2.5, 3.5, math.inf)])
def mixed_division(self, a: int, b: float):
    return a / b, a // b, a % b


@NUMBERS.function(
    *[(a, b) for a in (0, 1, 2, 3, -2, -3, 10) for b in (0, 1, 2, 3, 40, 63, 64, -1, -2)]
)
def int_power(self, a: int, b: int):
    return a**b


@NUMBERS.function(
    *[(a, b) for a in (0.0, 1.0, -2.0, 2.5, math.inf) for b in (0.0, 0.5, -1.0, 3.0, math.nan)]
)
def float_power(self, a: float, b: float):
    return a**b, pow(a, b)


@NUMBERS.function((2, 0.5), (-2, 3.0), (0, -1.0), (3, -2.0))
def mixed_power(self, a: int, b: float):
    return a**b, b**a, math.pow(a, b)


@NUMBERS.function(*[(a, b) for a in (0, 1, 5, -5, 2**62, 2**63 - 1) for b in (0, 1, 3, 62, 63)])
def shifts(self, a: int, b: int):
    return a << b, a >> b


@NUMBERS.function((1, 64), (1, 100), (5, -1), (-5, 64))
def shifts_too_far(self, a: int, b: int):
    return a << b, a >> b


@NUMBERS.function(*PAIRS)
def int_bits(self, a: int, b: int):
    return a & b, a | b, a ^ b


@NUMBERS.function((True, True), (True, False), (False, True), (False, False))
def bool_operations(self, a: bool, b: bool):
    return a and b, a or b, not a, a & b, a | b, a ^ b, a == b, a != b, int(a), float(b)


@NUMBERS.function((True, True), (True, False), (False, False))
def bool_minimum(self, a: bool, b: bool):
    return min(a, b), max(a, b), a < b, a >= b


@NUMBERS.function((3, -4), (0, 0), (-(2**63), 1))
def int_minimum_maximum_absolute(self, a: int, b: int):
    return min(a, b), max(a, b), min([a, b]), max([a, b, 1]), sum([a, b])


@NUMBERS.function((3,), (-4,), (0,))
def int_absolute(self, a: int):
    return abs(a), math.fabs(a), math.sqrt(abs(a)), math.floor(a), math.ceil(a), round(a)


@NUMBERS.function(*FLOATS)
def float_minimum_maximum(self, a: float, b: float):
    return min(a, b), max(a, b), abs(a), math.copysign(a, b)


@NUMBERS.function((3, 2.5), (-1, -1.0), (2, math.nan))
def mixed_minimum_maximum(self, a: int, b: float):
    return min(a, b), max(a, b), min(b, a), max(b, a)


@NUMBERS.function((0.5,), (1.5,), (2.5,), (-0.5,), (-1.5,), (2.675,), (1e15,), (-0.2,))
def rounding(self, a: float):
    return round(a), math.floor(a), math.ceil(a), int(a)


@NUMBERS.function((math.nan,), (math.inf,), (-math.inf,), (1e30,))
def rounding_what_is_no_integer(self, a: float):
    return math.floor(a)


@NUMBERS.function((1e30,), (-1e30,), (2.0**63,), (math.inf,))
def int_of_a_float_too_large(self, a: float):
    return int(a)


@NUMBERS.function((2.345, 2), (12345.0, 2), (-1.5, 0))
def rounding_to_digits(self, a: float, digits: int):
    return torch.round(torch.tensor(a), decimals=2), round(a * 100), digits


@NUMBERS.function((0.5,), (0.25,), (1.0,), (-0.5,), (0.0,))
def trigonometry(self, a: float):
    return (
        math.sin(a),
        math.cos(a),
        math.tan(a),
        math.asin(a),
        math.acos(a),
        math.atan(a),
        math.sinh(a),
        math.cosh(a),
        math.tanh(a),
        math.atan2(a, 2.0),
        math.asinh(a),
        math.degrees(a),
        math.radians(a),
        math.exp(a),
        math.expm1(a),
        math.erf(a),
        math.erfc(a),
    )


@NUMBERS.function((0.5,), (3.0,), (100.0,))
def logarithms(self, a: float):
    return (
        math.log(a),
        math.log10(a),
        math.log1p(a),
        math.sqrt(a),
        math.log(a, 3.0),
        math.lgamma(a),
        math.gamma(a),
    )


@NUMBERS.function((0.0,), (-1.0,))
def logarithm_outside_its_domain(self, a: float):
    return math.log(a)


@NUMBERS.function((-1.0,))
def root_outside_its_domain(self, a: float):
    return math.sqrt(a)


@NUMBERS.function((12, 18), (0, 5), (-12, 18), (7, 0))
def whole_number_functions(self, a: int, b: int):
    return math.gcd(a, b), math.isqrt(abs(a)) if False else 0


@NUMBERS.function((0,), (5,), (20,), (21,), (-1,))
def factorial(self, a: int):
    return math.factorial(a)


@NUMBERS.function((math.nan, 1.0), (math.inf, -1.0), (3.5, 2.0), (-7.5, 2.0))
def float_questions(self, a: float, b: float):
    return math.isnan(a), math.isinf(a), math.isfinite(a), math.copysign(b, a)


@NUMBERS.function((3.5, 2.0), (-7.5, 2.0), (7.0, -2.5))
def float_parts(self, a: float, b: float):
    return math.fmod(a, b), math.remainder(a, b), math.modf(a), math.frexp(a), math.ldexp(a, 3)


@NUMBERS.function(())
def math_constants(self):
    return (
        math.pi,
        math.e,
        math.inf,
        math.nan,
        math.tau,
        -math.inf,
        float("inf"),
        float("nan"),
        -0.0,
        1e-320,
    )


@NUMBERS.function((7, -0.0, True), (0, 3.99, False), (-5, -3.99, True))
def casts(self, a: int, b: float, c: bool):
    return float(a), int(b), bool(a), bool(b), int(c), float(c), str(a), str(b), str(c), a + int(c)


@NUMBERS.function(("12",), ("-3",), ("1.5",), ("x",), (" 7 ",))
def int_of_a_string(self, text: str):
    return int(text)


@NUMBERS.function(("12",), ("-3e5",), ("nan",), ("inf",), ("x",))
def float_of_a_string(self, text: str):
    return float(text)


@NUMBERS.function((1 + 2j, 0.5 - 1j), (0j, 1j), (complex(math.inf, 1), 2 + 0j))
def complex_arithmetic(self, a: complex, b: complex):
    return a + b, a - b, a * b, a == b, a != b


@NUMBERS.function((1 + 2j, 0.5 - 1j), (3j, 1j))
def complex_division_and_power(self, a: complex, b: complex):
    return a / b, a**b, abs(a)


@NUMBERS.function((1 + 2j, 3, 0.5), (3j, 0, -1.0))
def complex_with_other_numbers(self, a: complex, b: int, c: float):
    return a + b, a * c, b - a, c + a, complex(b, c), complex(c, b), complex(b)


@NUMBERS.function((1 + 2j,), (-1j,), (0.25 + 0j,))
def complex_functions(self, a: complex):
    return cmath.exp(a), cmath.log(a), cmath.sqrt(a), cmath.sin(a), cmath.phase(a), abs(a)


@NUMBERS.function((5, 2), (-5, 2))
def augmented_assignment(self, a: int, b: int):
    c = a
    c += b
    c *= 3
    c -= 1
    d = float(c)
    d /= 2
    d **= 2
    e = a
    e |= 8
    e &= 12
    e ^= 3
    f = a
    f %= 3
    return c, d, e, f


@NUMBERS.function((2**40,), (3,))
def overflow_on_the_way(self, a: int):
    total = 1
    for i in range(10):
        total = total * a + i
    return total, total // 7, total % 1000


@NUMBERS.function((1, 2, 3), (3, 2, 1), (2, 2, 2))
def chained_comparison(self, a: int, b: int, c: int):
    return a < b < c, a <= b <= c, a < b > c, a == b == c


@NUMBERS.function((1,), (0,))
def conditional_expression(self, a: int):
    return "yes" if a else "no", (a or 5) if False else a, 1.5 if a > 0 else -1.5


@NUMBERS.function((0,), (1,))
def short_circuit(self, a: int):
    return a != 0 and 10 // a > 3, a == 0 or 10 // a > 3


@NUMBERS.function(
    (2.5,), (-0.0,), (1e22,), (1e-7,), (123456789.125,), (math.nan,), (math.inf,), (1.0,), (0.1,)
)
def text_of_a_float(self, a: float):
    return str(a), "{}".format(a), f"{a}"


@NUMBERS.function((3,))
def ranges(self, n: int):
    return (
        [i for i in range(n)],
        [i for i in range(2, 9, n)],
        [i for i in range(9, 2, -n)],
        [i for i in range(-n, n)],
        [i for i in range(5, 5)],
        list(range(n)),
    )


@NUMBERS.function((0,))
def range_of_step_zero(self, n: int):
    total = 0
    for i in range(0, 5, n):
        total += i
    return total


@NUMBERS.function((5.5, 2), (-3.0, 4))
def hypotenuse(self, a: float, b: int):
    return math.hypot(a, 2.0) if False else math.sqrt(a * a + b * b)
