"""A second table of answers that are the same and that are not; `test_answers` has the first, and the properties."""

import pytest

from search.answers import canonical, equivalent

EQUAL = {
    "units": [
        ("12 cm", "12 centimeters"), ("12cm", "12 cm"), ("2.5 hrs", "2.5 hours"), ("2.5 hours", "150 minutes"),
        ("$12.50", "12.50 dollars"), ("75 mph", "75 miles/hour"), ("3 m/s", "3 meters per second"),
        ("120 seconds", "2 minutes"), ("5 lbs", "5 pounds"), ("45 degrees", r"45^{\circ}"), ("1000 g", "1 kg"),
        ("4 gallons", "4 gal"), ("16 sq ft", "16 square feet"), ("20 cm^3", r"20\text{ cm}^3"), ("7 days", "1 week"),
        ("€12,50", "12.50 euros"), ("50¢", "$0.50"), ("50 cents", "0.50 dollars"), ("¥1000", "1000 yen"),
        ("12 students", "12"), ("12 boxes", "12 box"), ("3.0 liters", "3 L"), ("250 mL", "0.25 L"),
        ("0 dollars", "0"), ("8 more apples", "8"), ("3 dozen", "36"), ("a dozen", "12"), ("half a dozen", "6"),
        ("two dozen eggs", "24 eggs"), ("5 degrees below zero", "-5 degrees"), ("5 below zero", "-5"),
        ("5 squared meters", "5 m^2"), ("5 times", "5"), ("5 fifth graders", "5"), ("one second", "1 s"),
    ],
    "intervals": [
        ("(2, 5]", "2 < x <= 5"), ("[3, ∞)", r"[3,\infty)"), (r"x\geq 3", r"[3,\infty)"),
        ("(-∞, 2) ∪ (2, ∞)", r"(-\infty,2)\cup(2,\infty)"), ("x < 1 or x > 4", r"(-\infty,1)\cup(4,\infty)"),
        (r"\left[\frac{1}{2}, 3\right)", "[0.5, 3)"), ("-1 ≤ x ≤ 1", "[-1,1]"), ("5 > x", "x < 5"),
    ],
    "sets": [
        ("{3, 1, 2}", "{1,2,3}"), (r"\{-1, 1\}", r"\pm 1"), ("1 and 2 and 3", "1, 2, 3"), ("x = 1, x = 2", "{1, 2}"),
        ("1, 2, and 3", "3, 2, 1"), (r"\{0.5, 2\}", r"\{\frac12, 2\}"), ("{}", r"\emptyset"),
        (r"\varnothing", r"\emptyset"), ("x=1 and x=-4", "-4, 1"),
    ],
    "tuples": [
        ("(3, -4)", "(3,-4)"), (r"\left(\frac{1}{2}, -1\right)", "(0.5, -1)"), ("(x, y) = (3, 4)", "(3, 4)"),
        ("( 0 , 0 )", "(0,0)"), (r"(2\pi, 0)", "(2π, 0)"), ("x = 3, y = 4", "y = 4, x = 3"),
    ],
    "fractions": [
        ("7/2", "3 1/2"), (r"3\frac12", "3.5"), ("2/4", "1/2"), (r"\frac{22}{7}", "22/7"), ("-1/2", r"-\frac12"),
        ("1/-2", "-1/2"), ("⅓", "1/3"), ("2⅔", "8/3"), (r"\frac{1}{3}", r"0.\overline{3}"), ("0.125", "1/8"),
        ("5/1", "5"), (r"\dfrac{-7}{3}", "-7/3"), (r"\frac 3 4", "0.75"), ("3 / 4", "3/4"), ("¼", "25%"),
        ("five eighths", "5/8"), ("3 fourths", "3/4"), ("one tenth", "0.1"), ("a fifth", "1/5"),
        ("7 hundredths", "0.07"), ("two-fifths", "2/5"), ("minus five eighths", "-5/8"),
        ("one tenth of the class", "1/10"), ("twenty-one hundredths", "0.21"),
    ],
    "percent": [
        ("25%", "0.25"), ("25 %", "25%"), (r"33.\overline{3}\%", "1/3"), ("150%", "1.5"), ("0%", "0"),
        ("twenty percent", "20%"), ("7.5 percent", "0.075"), ("a 20% increase", "20%"), ("%50", "50%"),
    ],
    "thousands marks of several locales": [
        ("1,234,567", "1234567"), ("1.234.567", "1234567"), ("1 234 567", "1234567"), ("1'234'567", "1234567"),
        ("1.234.567,89", "1234567.89"), ("1,234,567.89", "1234567.89"), ("12,34,567", "1234567"),
        ("1\u2009234", "1234"), (r"1\;234", "1234"), ("1.234,5", "1234.5"), ("$12{,}345", "12345"),
        ("10,000,000", "10 million"), ("1’234’567", "1234567"), ("1 234,5", "1234.5"),
    ],
    "scientific notation": [
        ("6.02e23", r"6.02 \times 10^{23}"), ("3e8", "300000000"), ("1.2E-4", "0.00012"), ("5*10^-3", "0.005"),
        (r"1.6\cdot10^{-19}", "1.6e-19"), ("2.5 x 10^6", "2500000"), ("10^6", "1,000,000"), ("1.0e0", "1"),
        ("4 × 10⁻²", "0.04"), ("2.5 million", "2.5e6"),
    ],
    "LaTeX": [
        (r"\boxed{42}", "42"), (r"$\frac{\pi}{4}$", "π/4"), (r"\sqrt{12}", r"2\sqrt{3}"),
        (r"\left(x+1\right)^{2}", "x^2+2x+1"), (r"\text{Yes}", "yes"), (r"\mathrm{B}", "B"),
        (r"\frac{a+b}{2}", "(a+b)/2"), ("2^{3}", "8"), (r"\sqrt[3]{27}", "3"), (r"\log_{10} 100", "2"),
        ("e^{0}", "1"), (r"\cos(\pi)", "-1"), (r"\ln e", "1"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
        (r"\tan 45^\circ", "1"), ("x^{2}-1", "(x-1)(x+1)"), (r"\lfloor 2.7 \rfloor", "2"), ("|{-5}|", "5"),
        (r"\pi(R^2-r^2)", r"\pi(R-r)(R+r)"), ("R+r", "r+R"), ("A = 5", "A=5"), ("Sin(x)", "sin(x)"),
        ("5 squared", "25"), ("5 factorial", "120"), ("x squared", "x^2"), ("2516_8", "2516_{8}"),
        (r"\displaystyle\frac{1}{2}", "0.5"), (r"\(5\)", "5"), (r"\[5\]", "5"), (r"\mathbf{7}", "7"),
        (r"5\,000", "5000"), (r"\sin(30°)", "1/2"), (r"\lceil 2.1 \rceil", "3"),
    ],
    "multiple choice letters": [
        ("(A)", "A"), ("A.", "a"), ("B: 12 cm", "B"), ("(C) 15", "C"), (r"\textbf{(E)}", "E"), ("option B", "(b)"),
        ("c)", "C"), ("[D]", "(D)"), ("No-go", "no-go"), ("3RD", "3rd"), ("CO2", "co2"), ("N/A", "n/a"), ("A+", "a+"),
        ("4X4", "4x4"), ("Area = 5", "area = 5"), ("US", "us"),
    ],
    "trailing words": [
        ("42.", "42"), ("42 in total", "42"), ("18 (eighteen)", "18"), ("15 years old", "15"),
        ("Paris, France.", "paris, france"), ("12 apples remain", "12"), ("x = 4.", "4"), ("about 3.14", "3.14"),
        ("approximately 7", "7"),
    ],
    "non-ASCII digits": [
        ("٤٢", "42"), ("४२", "42"), ("４２", "42"), ("৪২", "42"), ("۴۲", "42"), ("๔๒", "42"), ("１，０００", "1000"),
        ("２．５", "2.5"), ("٪٥٠", "50%"), ("௪௨", "42"), ("-٤٢", "-42"), ("٣/٤", "0.75"), ("\u20135", "-5"),
        ("x = \u20135", "-5"),
    ],
}  # fmt: skip

UNEQUAL = {
    "units": [
        ("12 cm", "12 m"), ("$12", "12 cents"), ("12 kg", "12 g"), ("2 hours", "2 minutes"), ("12 cm", "12 cm^2"),
        ("45 degrees", "45 radians"), ("5 lb", "5 kg"), ("3 m/s", "3 km/h"), ("€12", "£12"),
        ("12 students", "13 students"), ("7 days", "7 weeks"), ("20°C", "20 K"), ("4 gallons", "4 quarts"),
        ("€12,50", "€1250"), ("$1,250", "$1.25"), ("3 dozen", "3"), ("3 dozen eggs", "3 eggs"),
        ("5 degrees below zero", "5 degrees"), ("5 squared", "5"), ("5 cubed", "5"), ("5 factorial", "5"),
        ("5 over six", "5"), ("5 out of six", "5"), ("5 hours and thirty minutes", "5 hours"),
    ],
    "intervals": [
        ("(2, 5]", "[2, 5]"), ("x <= 3", "x < 3"), ("[1,2]", "[1,2)"), ("(-∞, 2)", "(-∞, 2]"),
        ("(0,2)∪(2,3)", "(0,3)"), ("x > 5", "x < 5"), ("[1, 2]", "[1, 3]"), ("x < 1 or x > 4", "x < 1 or x > 5"),
        ("x < 1 or x > 4", "1 < x < 4"), ("x < 1 or y > 4", "x < 1 or x > 4"),
    ],
    "sets": [
        ("{1,2}", "{1,2,3}"), ("1, 2", "1, 3"), (r"\pm 3", "3"), ("{1}", "{2}"), ("x=1 or x=2", "x=1"),
        (r"\emptyset", "0"), ("{0}", r"\emptyset"),
    ],
    "tuples": [
        ("(3,4)", "(4,3)"), ("(1,2)", "(1,2,3)"), ("(1,-2)", "(1,2)"), ("(0.5, 1)", "(0.5, 2)"),
        ("x=3, y=4", "x=4, y=3"),
    ],
    "fractions": [
        ("1/2", "2/1"), ("3 1/2", "31/2"), ("1/3", "0.333"), ("2/3", "0.67"), ("7/2", "7/3"), ("-1/2", "1/2"),
        ("22/7", r"\pi"), ("five eighths", "5"), ("3 fourths", "3"), ("one tenth", "1"), ("2.5 tenths", "2.5"),
        ("twenty fifth", "20"), ("a fifth", "5"),
    ],
    "percent": [
        ("25%", "25"), ("25%", "2.5"), ("0.25%", "0.25"), ("50%", "5"), ("150%", "150"), ("12%", "13%"),
        ("%50", "50"),
    ],
    "thousands marks of several locales": [
        ("1,234", "1.234"), ("1,234", "1234.5"), ("12,345", "12.345"), ("1.234.567", "1.234567"),
        ("10,000", "100,000"), ("1,000", "1,00"), ("1,50", "1.5"), ("€1.234,50", "€123450"), ("12,50", "1250"),
    ],
    "scientific notation": [
        ("3e8", "3e9"), ("1e-3", "1e3"), ("6.02e23", "6.02e22"), ("10^6", "60"), ("2.5 x 10^6", "2.5"),
        ("1e3", "1e3.5"),
    ],
    "LaTeX": [
        (r"\sqrt{12}", r"3\sqrt{2}"), (r"\frac{\pi}{4}", r"\frac{\pi}{2}"), ("x^2+1", "x^2-1"),
        (r"\sin x", r"\cos x"), ("2^3", "3^2"), (r"\log_2 8", "8"), ("x+y", "x-y"), (r"\sqrt[3]{27}", r"\sqrt{27}"),
        (r"\frac{a}{b}", r"\frac{b}{a}"), (r"\tan 45^\circ", r"\tan 45"), (r"\lfloor 2.7 \rfloor", "3"),
        (r"\sin 30^\circ", r"\sin 60^\circ"), (r"\pi(R^2-r^2)", "0"), (r"\frac{R}{r}", "1"),
        (r"\frac{R}{r}", r"\frac{r}{R}"),
        ("R-r", "0"), ("R - r", "r - R"), ("N-n+1", "1"), ("P/p", "p/P"), ("A=5", "a=5"), ("2A", "2a"),
        ("f(X)", "f(x)"), ("X > 3", "x > 3"), ("R*sin(x)", "r*sin(x)"), ("sqrt(R)", "sqrt(r)"), ("x_1", "X_1"),
        ("(R-r, 1)", "(r-R, 1)"), ("2516_8", "2516_7"), ("101_2", "101_{10}"),
    ],
    "multiple choice letters": [
        ("A", "B"), ("(A)", "(C)"), ("B", "8"), ("A and B", "A"), ("D", "(E)"), ("C", "Cat"), ("A: 5 B: 6", "A"),
        ("B: 12 cm", "12 cm"),
    ],
    "trailing words": [
        ("42.5", "42"), ("42 or 43", "42"), ("not 42", "42"), ("Paris", "Paris, Texas"), ("15 years", "15 months"),
        ("x = 4", "x = -4"), ("42!", "42"),
    ],
    "non-ASCII digits": [
        ("٤٢", "24"), ("४२", "43"), ("１２", "21"), ("۴۲", "۲۴"), ("٣/٤", "4/3"), ("3\u20135", "-2"),
        ("3\u20135", "35"),
    ],
}  # fmt: skip


def pairs(table):
    return [pytest.param(a, b, id=f"{kind}-{i}") for kind, rows in table.items() for i, (a, b) in enumerate(rows)]


@pytest.mark.parametrize(("a", "b"), pairs(EQUAL))
def test_equal_pairs(a, b):
    assert equivalent(a, b) and equivalent(b, a)


@pytest.mark.parametrize(("a", "b"), pairs(UNEQUAL))
def test_unequal_pairs(a, b):
    assert not equivalent(a, b) and not equivalent(b, a)
    assert canonical(a) != canonical(b)


def test_the_table_holds_150_pairs_of_twelve_kinds():
    counts = {kind: len(EQUAL[kind]) + len(UNEQUAL[kind]) for kind in EQUAL}
    assert EQUAL.keys() == UNEQUAL.keys() and len(counts) == 12
    assert sum(counts.values()) >= 150 and min(counts.values()) >= 10
